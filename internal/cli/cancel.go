package cli

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
)

func cancelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel CALL_ID",
		Short: "End a call that waits, or tell the worker that runs it to end it",
		Long: describe("End a call that waits, or tell the worker that runs it to end it", `
A call that is queued or waiting ends at once. One that is running is ended by
its worker, within a heartbeat at the latest, and its receipt says what it had
done until then; a call that succeeds before it notices has succeeded. A call
that had ended stays as it is. All three exit with 0. Needs DATABASE_URL.`),
		Example: "  gem cancel 0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55",
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
			var came string
			err = db.QueryRow(ctx, "select public.cancel_tool_call($1)", id).Scan(&came)
			var pgErr *pgconn.PgError
			if errors.As(err, &pgErr) && pgErr.Code == "PT404" {
				return noCall(ctx, db, id)
			}
			if err != nil {
				return refusal(err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), cameTo(came, id))
			return err
		},
	}
}

// cameTo says in words what cancel_tool_call returned.
func cameTo(came, id string) string {
	switch came {
	case "cancelled":
		return "cancelled: the call has ended, and its receipt says what is known of it: gem receipt " + id
	case "requested":
		return "requested: the call is running, and its worker is told. What it came to: gem receipt " + id
	}
	return fmt.Sprintf("not cancelled: the call had ended already, as %s: gem receipt %s", came, id)
}
