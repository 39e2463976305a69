package cli

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/routes"
	"github.com/spf13/cobra"
)

func llmCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "llm",
		Short: "Check or list the models, by route",
		Long: `
A routes file names the providers of models, their models, the routes by which
calls of llm.* reach them, and their prices. check and list read FILE, or else
the file or JSON in LLM_ROUTES, or else llm.routes.json in the working
directory. They use no database and no provider.`,
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
The exit code is 0 for a file that a worker would accept, otherwise 1. A note
names settings that are allowed but may surprise. The command does not check
whether models exist or prices are correct. With --against it compares the file
with an earlier one: it prints the additions, removals and changes and, like a
worker, rejects other contents under the same version.`,
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
			said := []string{fmt.Sprintf("ok: %s, %s, %s, version %s (%s)", count(len(r.Routes()), "route"),
				count(len(r.Targets()), "target"), count(len(r.Budgets()), "budget"), r.Version, from)}
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
					said = append(said, "no change against "+against)
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
Prints a line for each route and target: the model, its abilities, the price of
a million tokens of input and output, and whether the provider's key variable is
set here. Keys are never printed.`,
		Args: takes("at most one file", 0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, _, err := chosenRoutes(args)
			if err != nil {
				return err
			}
			rows := [][]string{{"ROUTE", "ORDER", "TARGET", "PROVIDER", "MODEL", "CAPABILITIES", "USD/MTOK", "KEY"}}
			for _, route := range r.Routes() {
				for _, target := range route.Targets {
					rows = append(rows, []string{route.Name, string(route.Order), target.Name, target.Provider.Name, target.Model,
						capabilities(target), prices(target.Prices), keyOf(target.Provider)})
				}
			}
			return table(cmd.OutOrStdout(), rows)
		},
	}
}

func capabilities(target *routes.Target) string {
	var can []string
	for _, capability := range []struct {
		name string
		has  bool
	}{{"tools", target.Tools}, {"thinking", target.Thinking}, {"structured", target.Structured}} {
		if capability.has {
			can = append(can, capability.name)
		}
	}
	return cmp.Or(strings.Join(can, " "), "-")
}

// prices returns the prices of input and output, and the size of input above which they change.
func prices(all []provider.Price) string {
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

// chosenRoutes loads the file of the arguments, or the one that a worker would load here. It returns an error if the
// file is missing.
func chosenRoutes(args []string) (*routes.Routes, string, error) {
	r, from, err := routes.Find(cmp.Or(strings.Join(args, ""), os.Getenv("LLM_ROUTES")))
	if err == nil && r == nil {
		err = fmt.Errorf("there are no routes here: name a FILE, set LLM_ROUTES, or write them into %s", routes.File)
	}
	return r, from, err
}
