package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/prose"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

func explainCommand() *cobra.Command {
	return aboutCall(&cobra.Command{
		Use:   "explain",
		Short: "Explain why a call waits or how it ended, and what to do",
		Long: `
One or two sentences, from the call's row, its journal, its receipt and the
workers that are alive. If a request to a service failed, they name the likely
cause. If a function in SQL failed, its error follows, with line and statement.
gem trace shows every step.`,
	}, func(ctx context.Context, db *pgxpool.Pool, id string, out io.Writer) error {
		e, err := client.Explain(ctx, db, id)
		if err != nil {
			return err
		}
		said := prose.Explanation(e)
		if e.Receipt != nil {
			if note := onlyHere(e.Receipt); note != "" {
				said += "\n" + note
			}
		}
		if _, err = fmt.Fprintln(out, lines(said)); err == nil && e.Context != "" {
			_, err = fmt.Fprintln(out, "\nThe error, for operators:")
			for line := range strings.SplitSeq(e.Context, "\n") {
				fmt.Fprintln(out, "  "+printable(line))
			}
		}
		return err
	})
}
