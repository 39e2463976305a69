package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// interrupted is the cause of a context that a signal ended.
type interrupted struct{ signal syscall.Signal }

func (e interrupted) Error() string { return "stopped by a signal: " + e.signal.String() }

// exitCode is what a shell reports of a program that the signal ended: 130 for SIGINT, 143 for SIGTERM.
func (e interrupted) exitCode() int { return 128 + int(e.signal) }

// untilSignal returns a context that the first SIGINT or SIGTERM ends, so that a command stops in order. The second one
// ends the process at once: what it leaves behind is for others to recover, as after a crash.
func untilSignal(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	ended := make(chan struct{})
	go func() {
		for first := true; ; first = false {
			select {
			case <-ended:
				return
			case s := <-signals:
				why := interrupted{}
				why.signal, _ = s.(syscall.Signal)
				if !first {
					fmt.Fprintln(os.Stderr, "gem: a second signal came, ending at once")
					os.Exit(why.exitCode())
				}
				cancel(why)
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(ended)
		cancel(nil)
	}
}

// bySignal returns the signal that ended ctx, if one did.
func bySignal(ctx context.Context) (interrupted, bool) {
	var why interrupted
	ok := errors.As(context.Cause(ctx), &why)
	return why, ok
}
