package cli

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func rootCommand(p *Program) *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:   "gem",
		Short: "Run the tool calls of AI agents, each to exactly one receipt",
		Long: `
A frontend inserts a row into core_tool_calls. A worker claims it, checks it
against the registry, runs the tool's handler, and writes one receipt. The
commands below try this out, run it, and show the history of a call.`,
		Example:       "  gem demo\n  gem call os.health_check --wait",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if version {
			return printVersion(p, cmd)
		}
		return cmd.Help()
	}
	root.Flags().BoolVar(&version, "version", false, "print what gem version prints")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.CompletionOptions.HiddenDefaultCmd = true

	add := func(group, title string, commands ...*cobra.Command) {
		root.AddGroup(&cobra.Group{ID: group, Title: title})
		for _, c := range commands {
			c.GroupID = group
		}
		root.AddCommand(commands...)
	}
	add("try", "Try it without any setup:", demoCommand(p), initCommand(), devCommand(p))
	add("operate", "Run it:", migrateCommand(p), workerCommand(p), statusCommand(), workersCommand(), epochsCommand(),
		healthcheckCommand(),
		auditCommand(), pruneCommand())
	add("calls", "Make a call, and see what happened:",
		callCommand(), schedulesCommand(), listCommand(), againCommand(), cancelCommand(), receiptCommand(), traceCommand(),
		explainCommand(), replayCommand(p))
	add("answers", "Answer calls that ask:", questionsCommand(), answerCommand(), approveCommand(), denyCommand(),
		resumeCommand(), rolesCommand(), notifyCommand(p))
	add("servers", "Let agents and people in:", mcpCommand(p), dashboardCommand())
	add("more", "More:", registryCommand(p), typesCommand(p), rulesCommand(p), llmCommand(), hookCommand(p),
		versionCommand(p))
	root.SetHelpCommandGroupID("more")
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Long = "gem help COMMAND is gem COMMAND --help. gem --help lists the commands."
		help.Args = func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err != nil {
				return usageError{err}
			}
			return subcommand(found, rest)
		}
	}
	complete(root)
	return root
}

// complete gives a command and its subcommands their common parts: no arguments, an example without flags, and a
// --help that begins with the command's short description.
func complete(cmd *cobra.Command) {
	cmd.Long = cmd.Short + ".\n\n" + strings.TrimLeft(cmd.Long, "\n")
	cmd.Example = cmp.Or(cmd.Example, "  "+cmd.CommandPath())
	switch {
	case cmd.HasSubCommands():
		cmd.Args = subcommand
	case cmd.Args == nil:
		cmd.Args = takes("no arguments", 0, 0)
	}
	for _, sub := range cmd.Commands() {
		complete(sub)
	}
}

// subcommand rejects the arguments of a command that only groups others.
func subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	hint := ""
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = fmt.Sprintf("; did you mean %s?", strings.Join(near, " or "))
	}
	return usage("there is no command %q%s", args[0], hint)
}

// takes checks the number of arguments. what completes the sentence "it takes …".
func takes(what string, least, most int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		n, were := len(args), "were"
		if n >= least && n <= most {
			return nil
		}
		if n == 1 {
			were = "was"
		}
		return usage("it takes %s; %d %s given", what, n, were)
	}
}
