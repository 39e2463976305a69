package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

const exampleID = "0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55"

// aboutCall completes a command that takes a call's id. It calls do with the id and the database.
func aboutCall(cmd *cobra.Command, do func(ctx context.Context, db *pgxpool.Pool, id string,
	out io.Writer) error) *cobra.Command {
	cmd.Example = "  gem " + cmd.Use + " " + exampleID + cmd.Example
	cmd.Use += " CALL_ID"
	cmd.Long += "\n" + usesDatabase
	cmd.Args = takes("one call id", 1, 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := callID(args[0])
		if err != nil {
			return err
		}
		db, err := connect(cmd.Context())
		if err != nil {
			return err
		}
		defer db.Close()
		return refusal(do(cmd.Context(), db, id, cmd.OutOrStdout()))
	}
	return cmd
}

func callID(arg string) (string, error) {
	if !view.IsID(arg) {
		return "", usage("%q is not a call id: `gem call` prints a uuid such as %s, which is core_tool_calls.id",
			arg, exampleID)
	}
	return strings.ToLower(arg), nil
}

func receiptCommand() *cobra.Command {
	return aboutCall(&cobra.Command{
		Use:   "receipt",
		Short: "Print the receipt of a call",
		Long: `
It prints the receipt as JSON: the outcome, the result or the error, and the
effects. The exit code is 1 if the call has not ended.`,
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

func cancelCommand() *cobra.Command {
	return aboutCall(&cobra.Command{
		Use:   "cancel",
		Short: "End a call that has not run, or ask the worker that runs it to end it",
		Long: `
A call that is queued or waits for a key ends at once. The worker of a running
call ends it within a heartbeat, and the receipt lists the call's effects so
far; if the call succeeds before its worker notices, it has succeeded. A call
whose handler has made steps or calls runs again, so that the handler can clean
up for at most an hour; a second cancellation ends it at once, unless a worker
runs it. A call that has already ended does not change. The exit code is 0 in
all these cases. A member of gem_operator can also end the calls of others, and
the journal records the role.`,
	}, func(ctx context.Context, db *pgxpool.Pool, id string, out io.Writer) error {
		answer, err := cancelCall(ctx, db, id)
		if err != nil {
			return err
		}
		said := "not cancelled: the call had already ended as " + string(answer)
		switch answer {
		case client.Cancellation(receipts.Failed):
			r, err := client.Receipt(ctx, db, id)
			if err != nil {
				return err
			}
			if e, _ := r.Error(); e.Code == receipts.Cancelled {
				said = "the call was already cancelled"
			}
		case client.Cancelled:
			said = "cancelled: the call has ended, and its receipt has all that is known about it"
		case client.CancelRequested:
			said = "requested: a worker ends the call; its handler may clean up first if it has steps or calls"
		}
		_, err = fmt.Fprintf(out, "%s: gem receipt %s\n", said, id)
		return err
	})
}

// cancelCall ends a call with the rights of a frontend or the owner of the tables, otherwise with those of an
// operator.
func cancelCall(ctx context.Context, db *pgxpool.Pool, id string) (client.Cancellation, error) {
	answer, err := client.Cancel(ctx, db, id)
	if !store.IsForbidden(err) {
		return answer, err
	}
	c, err := client.Get(ctx, db, id)
	var outcomes []client.CancelOutcome
	if err == nil {
		outcomes, err = client.OperatorCancel(ctx, db, []string{id}, client.Operator{}, c.CancelRequested)
	}
	switch {
	case store.IsForbidden(err):
		return "", fmt.Errorf("%w\nThe role of DATABASE_URL may not end calls: only members of gem_operator and the owner "+
			"of the tables may", refusal(err))
	case err != nil:
		return "", err
	}
	switch answer = outcomes[0].Outcome; answer {
	case client.CancelUnknown:
		return "", &client.NotFoundError{ID: id}
	case client.CancelBusy:
		return "", errors.New("another transaction is changing the call, so nothing was done: try again")
	}
	return answer, nil
}
