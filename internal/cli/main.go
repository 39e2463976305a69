// Package cli is the program gem: its commands, over the packages that do the work.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"go.uber.org/zap"

	"github.com/gemworker/gem/internal/config"
)

// Main runs the command that the arguments of the process name, and ends the process.
func Main(p Program) {
	config.RouteStandardLog(zap.NewNop()) // until a serving command has a log
	os.Exit(run(untilSignal(), &p, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// The exit codes. A command that a signal ends early has 128 plus the signal's number.
const (
	exitDone          = 0
	exitFailed        = 1 // the command, or the call that it waited for, failed
	exitUsage         = 2 // wrong arguments, configuration or program; in gem call: the call was not made
	exitNotConfigured = 3 // the call that was waited for ended as not_configured
	exitUnknown       = 4 // the outcome of the call is unknown: it has not ended in time, or Postgres cannot be asked
)

// usageError reports invalid arguments or configuration.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitError ends a command with its own exit code. If cause is nil, the command has already printed the error.
type exitError struct {
	code  int
	cause error
}

func (e exitError) Error() string { return fmt.Sprintf("exit code %d: %v", e.code, e.cause) }
func (e exitError) Unwrap() error { return e.cause }

// run runs a command and returns its exit code. Results go to stdout; progress, logs and errors to stderr.
func run(ctx context.Context, p *Program, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if err := p.check(); err != nil {
		fmt.Fprintf(stderr, "gem: this program has an error in its setup: %v\n", err)
		return exitUsage
	}
	root := rootCommand(p)
	root.SetArgs(append([]string{}, args...)) // not nil, which would mean the arguments of the process
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)

	command, err := root.ExecuteContextC(ctx)
	var (
		exit    exitError
		wrong   usageError
		invalid *config.InvalidError
		stopped interrupted
	)
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &exit) && exit.cause == nil:
		return exit.code
	case errors.As(context.Cause(ctx), &stopped):
		return stopped.exitCode()
	}
	if exit.cause != nil {
		err = exit.cause
	}
	fmt.Fprintf(stderr, "%s: %s\n", command.CommandPath(), lines(err.Error()))
	if errors.As(err, &wrong) || errors.As(err, &invalid) {
		fmt.Fprintf(stderr, "See `%s --help`.\n", command.CommandPath())
		return exitUsage
	}
	return cmp.Or(exit.code, exitFailed)
}

// interrupted is the cause of a context that a signal ended: see [untilSignal].
type interrupted struct{ signal syscall.Signal }

func (e interrupted) Error() string { return "stopped by a signal: " + e.signal.String() }

// exitCode returns the exit code that a shell reports for a program that the signal ended: 130 for SIGINT, 143 for
// SIGTERM.
func (e interrupted) exitCode() int { return 128 + int(e.signal) }

// untilSignal returns a context that the first SIGINT or SIGTERM ends, so that a command stops in order. The second
// one ends the process at once; other processes recover its work, as after a crash.
func untilSignal() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		first, _ := (<-signals).(syscall.Signal)
		cancel(interrupted{first})
		second, _ := (<-signals).(syscall.Signal)
		fmt.Fprintln(os.Stderr, "gem: a second signal: ending at once")
		os.Exit(interrupted{second}.exitCode())
	}()
	return ctx
}
