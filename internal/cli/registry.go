package cli

import (
	"fmt"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/registry"
	"github.com/spf13/cobra"
)

func registryCommand(p *Program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "registry",
		Short: "Check the tool registry, or list its tools",
		Long: `
Both commands read FILE, else the file that TOOLS_REGISTRY names, else
tools.registry.json in the working directory, else the registry that is built
into this program. Neither needs a database.`,
		Example: "  gem registry list\n  gem registry check tools.registry.json",
	}
	holdCommands(cmd)
	cmd.AddCommand(registryCheckCommand(p), registryListCommand(p))
	return cmd
}

func registryCheckCommand(p *Program) *cobra.Command {
	var against string
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a registry, and print every fault",
		Long: `
The exit code is 0 for a registry that a worker would take, else 1. With
--against its tools are compared with those of an earlier file: what was added,
removed and changed is printed, and other contents under the same version are
refused, as a worker refuses them.`,
		Example: "  gem registry check\n  git show main:tools.registry.json > old.json && gem registry check --against old.json",
		Args:    takes("at most one file", 0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, from, err := p.chosenRegistry(args)
			if err != nil {
				return err
			}
			var changes []registry.Change
			if against != "" {
				old, err := registry.ReadFile(against)
				if err != nil {
					return fmt.Errorf("--against: %w", err)
				}
				if err := registry.CheckUpgrade(old, r); err != nil {
					return err
				}
				changes = registry.Compare(old, r)
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "ok: %s, version %s (%s)\n", count(len(r.Tools()), "tool"), r.Version, from)
			for _, c := range changes {
				fmt.Fprintf(out, "%s\n", c)
			}
			if against != "" && len(changes) == 0 {
				fmt.Fprintf(out, "no tool was changed against %s\n", against)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&against, "against", "", "an earlier registry `file` to compare with")
	return cmd
}

func registryListCommand(p *Program) *cobra.Command {
	return &cobra.Command{
		Use:   "list [FILE]",
		Short: "List the tools, and the function that each dispatches to",
		Long: `
A line a tool: its idempotency (with the key field of a keyed one), its
timeout, its permissions, and the handler's file and function, or "no handler",
which makes its calls end as not_configured.`,
		Example: "  gem registry list",
		Args:    takes("at most one file", 0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, _, err := p.chosenRegistry(args)
			if err != nil {
				return err
			}
			bound, err := handlers.Bind(p.Domains...)
			if err != nil {
				return err
			}
			rows := [][]string{{"TOOL", "IDEMPOTENCY", "TIMEOUT", "PERMISSIONS", "HANDLER"}}
			for _, t := range r.Tools() {
				rows = append(rows, []string{t.Name, idempotency(t), span(t.Timeout), orDash(strings.Join(t.Permissions, " ")), handlerOf(bound, t.Name)})
			}
			return table(cmd.OutOrStdout(), rows)
		},
	}
}

// chosenRegistry loads the file of the arguments, or the one that a worker would load here.
func (p *Program) chosenRegistry(args []string) (*registry.Registry, string, error) {
	cfg, err := loadConfig()
	if err != nil {
		return nil, "", err
	}
	path := cfg.ToolsRegistry
	if len(args) == 1 {
		path = args[0]
	}
	return p.loadRegistry(path)
}

func idempotency(t *registry.Tool) string {
	if t.Idempotency.Mode == registry.Keyed {
		return "keyed by " + t.Idempotency.KeyField
	}
	return string(t.Idempotency.Mode)
}

func handlerOf(bound *handlers.Handlers, tool string) string {
	h, ok := bound.For(tool)
	if !ok {
		return "no handler"
	}
	return h.File + " " + h.Func
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
