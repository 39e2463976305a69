package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/gemworker/gem/client"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

func receiptCommand() *cobra.Command {
	return aboutCall(&cobra.Command{
		Use:   "receipt",
		Short: "Print the receipt of a call",
		Long: `
The receipt is printed as JSON: how the call ended, its result or its error,
and what it did to the world. A call that has not ended has none yet; the
command then says so and exits with 1. Needs DATABASE_URL.`,
	}, func(ctx context.Context, db *pgxpool.Pool, id string, out io.Writer) error {
		r, err := client.Receipt(ctx, db, id)
		if errors.Is(err, client.ErrNoReceipt) {
			c, err := client.Get(ctx, db, id)
			if err != nil {
				return err
			}
			return fmt.Errorf("the call has no receipt yet: it is %s. Why: gem explain %s", c.Status, id)
		}
		if err != nil {
			return err
		}
		return printJSON(out, r)
	})
}
