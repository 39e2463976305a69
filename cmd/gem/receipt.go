package main

import (
	"errors"
	"fmt"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/spf13/cobra"
)

func receiptCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "receipt CALL_ID",
		Short: "Print the receipt of a call",
		Long: describe("Print the receipt of a call", `
The receipt is printed as JSON: how the call ended, its result or its error,
and what it did to the world. A call that has not ended has none yet, and the
command says so and exits with 1. Needs DATABASE_URL.`),
		Example: "  gem receipt 0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55",
		Args:    takes("one call id", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := callID(args[0])
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			db, err := connect(ctx)
			if err != nil {
				return err
			}
			defer db.Close()
			c, err := readCall(ctx, db, id)
			if err != nil {
				return err
			}
			r, err := store.Receipt(ctx, db, id)
			if errors.Is(err, receipts.ErrNone) {
				return fmt.Errorf("the call has no receipt yet: it is %s. Why: gem explain %s", c.Status, id)
			}
			if err != nil {
				return refusal(err)
			}
			return printJSON(cmd.OutOrStdout(), r)
		},
	}
}
