package cli

import (
	"fmt"
	"strings"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/ledger"
	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
)

func llmCorrectCommand() *cobra.Command {
	var (
		c      ledger.Correction
		usd    string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "correct BUDGET",
		Short: "Correct the spending of a budget in its current period",
		Long: `
The ledger records the costs that providers report. If an invoice differs, this
command adds the difference to the budget's spending; a negative amount is
subtracted. It changes only the current hour, day or month, from the next
request on. gem.llm_corrections keeps the correction with its reason and the
role of DATABASE_URL, which must own the tables or be a member of gem_operator.`,
		Example: "  gem llm correct month --usd 12.50 --reason 'invoice of May'\n  gem llm correct user --for ada --usd=-3 " +
			"--reason 'the provider refunded it'",
		Args: takes("the name of one budget", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			digits, refund := strings.CutPrefix(usd, "-")
			amount, err := provider.ParseMoney(digits)
			switch {
			case err != nil:
				return usage("--usd: %v", err)
			case strings.TrimSpace(c.Reason) == "":
				return usage("--reason is missing: the correction records it")
			}
			if c.Budget, c.Amount = args[0], amount; refund {
				c.Amount = -amount
			}
			db, err := connect(cmd.Context())
			if err != nil {
				return exitError{exitUsage, err}
			}
			defer db.Close()
			is, err := c.Make(cmd.Context(), db)
			switch {
			case store.IsForbidden(err):
				return exitError{exitUsage, fmt.Errorf("%w\nThe role of DATABASE_URL may not correct budgets: only members of "+
					"gem_operator and the owner of the tables may", refusal(err))}
			case err != nil && !store.HasCode(err, "") && !pgconn.SafeToRetry(err):
				return exitError{exitUnknown, fmt.Errorf("it is unknown whether the budget was corrected: %w", err)}
			case err != nil:
				return exitError{exitUsage, refusal(err)}
			case asJSON:
				return printJSON(cmd.OutOrStdout(), is)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "corrected by %s USD: in the %s from %s the budget has spent %s USD, and "+
				"%s are reserved\n",
				c.Amount, is.Period, is.Starts.Format("2006-01-02 15:04Z"), is.Spent, is.Reserved)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&usd, "usd", "", "the `amount` to add, in decimal digits; below 0 it is a refund: --usd=-3")
	f.StringVar(&c.Subject, "for", "", "the `subject` of a budget that is counted separately, such as a user")
	f.StringVar(&c.Reason, "reason", "", "why, at most 1,000 characters: it is kept with the correction")
	f.BoolVar(&asJSON, "json", false, "print the corrected budget as JSON")
	return cmd
}
