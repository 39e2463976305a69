package cli

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/gemworker/gem/internal/llm"
	"github.com/gemworker/gem/internal/llm/routes"
	"github.com/spf13/cobra"
)

func llmCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "llm",
		Short: "Check which models may be asked, or list them by route",
		Long: `
A routes file names the providers of models, their models, the routes on which
calls of llm.* ask them, and what they may cost. check and list read FILE;
without it what LLM_ROUTES names or holds, then llm.routes.json in the working
directory. They need no database, and ask no provider.`,
		Example: "  gem llm list\n  gem llm check llm.routes.json",
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(llmCheckCommand(), llmListCommand(), llmCorrectCommand())
	return cmd
}

func llmCheckCommand() *cobra.Command {
	var against string
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a routes file, and print every fault",
		Long: `
The exit code is 0 for a file that a worker would take, otherwise 1. A note
names what is allowed but may surprise. It does not check whether models exist
and cost what the file says. With --against the file is compared with an
earlier one: it prints what was added, removed and changed, and other contents
under the same version are refused, as a worker refuses them.`,
		Example: "  gem llm check\n  git show main:llm.routes.json > old.json && gem llm check --against old.json",
		Args:    takes("at most one file", 0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, from, err := chosenRoutes(args)
			if err != nil {
				return err
			}
			for _, note := range r.Notes() {
				fmt.Fprintln(cmd.ErrOrStderr(), "note:", note)
			}
			said := []string{fmt.Sprintf("ok: %s, %s, %s, version %s (%s)", count(len(r.Routes()), "route"), count(len(r.Arms()), "arm"), count(len(r.Budgets()), "budget"), r.Version, from)}
			if against != "" {
				old, err := routes.ReadFile(against)
				if err != nil {
					return fmt.Errorf("--against: %w", err)
				}
				if err := routes.CheckUpgrade(old, r); err != nil {
					return err
				}
				said = append(said, routes.Compare(old, r)...)
				if len(said) == 1 {
					said = append(said, "nothing was changed against "+against)
				}
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Join(said, "\n"))
			return err
		},
	}
	cmd.Flags().StringVar(&against, "against", "", "an earlier routes `file` to compare with")
	return cmd
}

func llmListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list [FILE]",
		Short: "List the routes, and the models of each",
		Long: `
A line for each route and arm: the model, what it can do, what a million tokens
of input and output cost, and whether the variable of its provider's key is set
here. Keys are never printed.`,
		Args: takes("at most one file", 0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, _, err := chosenRoutes(args)
			if err != nil {
				return err
			}
			rows := [][]string{{"ROUTE", "ORDER", "ARM", "PROVIDER", "MODEL", "CAPABILITIES", "USD/MTOK", "KEY"}}
			for _, route := range r.Routes() {
				for _, arm := range route.Arms {
					rows = append(rows, []string{route.Name, string(route.Order), arm.Name, arm.Provider.Name, arm.Model, capabilities(arm), prices(arm.Prices), keyOf(arm.Provider)})
				}
			}
			return table(cmd.OutOrStdout(), rows)
		},
	}
}

func capabilities(arm *routes.Arm) string {
	var can []string
	for _, capability := range []struct {
		name string
		has  bool
	}{{"tools", arm.Tools}, {"thinking", arm.Thinking}, {"structured", arm.Structured}} {
		if capability.has {
			can = append(can, capability.name)
		}
	}
	return cmp.Or(strings.Join(can, " "), "-")
}

// prices writes those of input and output, and from which size of an input they are others.
func prices(all []llm.Price) string {
	var said []string
	for _, price := range all {
		text := fmt.Sprintf("%s in, %s out", price.Input, price.Output)
		if price.AboveInput > 0 {
			text += fmt.Sprintf(" above %d", price.AboveInput)
		}
		said = append(said, text)
	}
	return cmp.Or(strings.Join(said, "; "), "unknown")
}

func keyOf(p *routes.Provider) string {
	switch {
	case p.KeyEnv == "":
		return "none"
	case strings.TrimSpace(os.Getenv(p.KeyEnv)) == "":
		return p.KeyEnv + " is not set"
	}
	return p.KeyEnv + " is set"
}

// chosenRoutes loads the file of the arguments, or the one that a worker would load here. A missing file is an error.
func chosenRoutes(args []string) (*routes.Routes, string, error) {
	r, from, err := routes.Find(cmp.Or(strings.Join(args, ""), os.Getenv("LLM_ROUTES")))
	if err == nil && r == nil {
		err = fmt.Errorf("there are no routes here: name a FILE, set LLM_ROUTES, or write them into %s", routes.File)
	}
	return r, from, err
}
