package cli

import (
	"fmt"
	"strings"

	"github.com/gemworker/gem/internal/store"
	"github.com/spf13/cobra"
)

func rulesRequireCommand() *cobra.Command {
	var off bool
	cmd := &cobra.Command{
		Use:   "require",
		Short: "Stop workers of this database from running without rules",
		Long: `
A worker that finds no rules file runs without rules. This command stops it from
claiming calls, with a message in its log, so that a forgotten file lets no call
through. Calls that it runs continue. --off lets such workers claim again. A
change applies at once. It needs the rights of the database's owner.
` + usesDatabase,
		Example: "  gem rules require\n  gem rules require --off",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			db, err := connect(ctx)
			if err != nil {
				return err
			}
			defer db.Close()
			changed, err := store.RequireRules(ctx, db, !off)
			if err != nil {
				return refusal(err)
			}
			said := "rules are required"
			if off {
				said = "rules are not required"
			}
			if !changed {
				said += ", as before"
			}
			fmt.Fprintln(cmd.OutOrStdout(), said)
			if off {
				return nil
			}
			without, err := store.WorkersWithoutRules(ctx, db)
			if err != nil {
				return refusal(err)
			}
			if len(without) > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "these run without rules, and claim nothing until they start with rules: %s\n",
					printable(strings.Join(without, ", ")))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&off, "off", false, "workers without rules may claim calls")
	return cmd
}
