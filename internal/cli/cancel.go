package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/gemworker/gem/client"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

func cancelCommand() *cobra.Command {
	return aboutCall(&cobra.Command{
		Use:   "cancel",
		Short: "End a call that has not run, or ask the worker that runs it to end it",
		Long: `
A call that is queued or waiting ends at once. A running one is ended by its
worker, within a heartbeat at the latest, and its receipt says what it had done
until then; a call that succeeds before its worker notices has succeeded. A
call that had ended stays as it is. The exit code is 0 in all three cases.
Needs DATABASE_URL.`,
	}, func(ctx context.Context, db *pgxpool.Pool, id string, out io.Writer) error {
		answer, err := client.Cancel(ctx, db, id)
		if err != nil {
			return err
		}
		switch answer {
		case client.Cancelled:
			_, err = fmt.Fprintf(out, "cancelled: the call has ended; its receipt says what is known of it: gem receipt %s\n", id)
		case client.CancelRequested:
			_, err = fmt.Fprintf(out, "requested: the call is running, and its worker has been asked to end it. Its receipt: gem receipt %s\n", id)
		default:
			_, err = fmt.Fprintf(out, "not cancelled: the call had already ended as %s: gem receipt %s\n", answer, id)
		}
		return err
	})
}
