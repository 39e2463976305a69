package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// The exit codes. 128 and the signal's number stand for a command that a signal ended before it was done.
const (
	exitDone          = 0
	exitFailed        = 1 // the command, or the call that it waited for, failed
	exitUsage         = 2 // wrong arguments, or wrong configuration
	exitNotConfigured = 3 // the call that was waited for ended as not_configured
	exitTimeout       = 4 // the call that was waited for has not ended in time
)

// usageError is the error of arguments or of a configuration that can not be right.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitError ends a command that has said all there is to say.
type exitError struct{ code int }

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// run is the whole program: it runs the command that args name and returns its exit code. Results go to stdout, and what
// is only worth knowing while it runs to stderr.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := rootCommand()
	root.SetArgs(append([]string{}, args...)) // not nil, which would mean the arguments of the process
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)

	command, err := root.ExecuteContextC(ctx)
	var (
		exit  exitError
		wrong usageError
	)
	signal, stopped := bySignal(ctx)
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &exit):
		return exit.code
	case stopped:
		return signal.exitCode()
	case errors.As(err, &wrong):
		fmt.Fprintf(stderr, "%s: %v\n", command.CommandPath(), err)
		fmt.Fprintf(stderr, "See `%s --help`.\n", command.CommandPath())
		return exitUsage
	}
	fmt.Fprintf(stderr, "%s: %v\n", command.CommandPath(), err)
	return exitFailed
}

func rootCommand() *cobra.Command {
	const try, operate, calls, more = "try", "operate", "calls", "more"
	root := &cobra.Command{
		Use:   "gem",
		Short: "Run the tool calls of AI agents, each to exactly one receipt",
		Long: describe("Run the tool calls of AI agents, each to exactly one receipt", `
A frontend inserts a row into core_tool_calls. A worker claims it, checks it
against the registry, runs the tool's handler, and writes one receipt. The
commands below try that out, run it, and say what became of a call.`),
		Example:       "  gem demo\n  gem call os.health_check --wait",
		Args:          subcommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:       versionLine(),
		SilenceErrors: true,
		SilenceUsage:  true,

		SuggestionsMinimumDistance: 2,
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddGroup(
		&cobra.Group{ID: try, Title: "Try it, with nothing set up:"},
		&cobra.Group{ID: operate, Title: "Run it:"},
		&cobra.Group{ID: calls, Title: "Make a call, and see what became of it:"},
		&cobra.Group{ID: more, Title: "And:"},
	)
	root.SetHelpCommandGroupID(more)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(try, demoCommand(), devCommand())
	add(operate, migrateCommand(), workerCommand(), healthcheckCommand(), auditCommand(), pruneCommand())
	add(calls, callCommand(), cancelCommand(), receiptCommand(), traceCommand(), explainCommand())
	add(more, registryCommand(), versionCommand())
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Long = "Print the help of a command, as its --help does. gem --help lists the commands."
		help.Args = func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err != nil {
				return usageError{err}
			}
			return subcommand(found, rest)
		}
	}
	return root
}

// describe is the text of a command's --help: its one line, and what one needs to know before using it.
func describe(line, text string) string { return line + ".\n\n" + strings.TrimLeft(text, "\n") }

// subcommand is the argument of a command that only holds others.
func subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = fmt.Sprintf("; did you mean %s?", strings.Join(near, " or "))
	}
	return usage("there is no command %q%s", args[0], hint)
}

// takes checks the number of arguments. what says what they are, as the end of "takes …".
func takes(what string, least, most int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return usage("it takes %s; %s given", what, wereGiven(len(args)))
		}
		return nil
	}
}

func wereGiven(n int) string {
	switch n {
	case 0:
		return "none was"
	case 1:
		return "1 was"
	}
	return fmt.Sprintf("%d were", n)
}
