package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// interrupted is the cause of a context that a signal ended: see [untilSignal].
type interrupted struct{ signal syscall.Signal }

func (e interrupted) Error() string { return "stopped by a signal: " + e.signal.String() }

// exitCode is what a shell reports of a program that the signal ended: 130 for SIGINT, 143 for SIGTERM.
func (e interrupted) exitCode() int { return 128 + int(e.signal) }

// untilSignal returns a context that the first SIGINT or SIGTERM ends, so that a command stops in order. The second one
// ends the process at once: others recover what it leaves behind, as after a crash.
func untilSignal() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		first, _ := (<-signals).(syscall.Signal)
		cancel(interrupted{first})
		second, _ := (<-signals).(syscall.Signal)
		fmt.Fprintln(os.Stderr, "gem: a second signal came, ending at once")
		os.Exit(interrupted{second}.exitCode())
	}()
	return ctx
}
