package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/watch"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

const exampleID = "0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55"

// aboutCall completes a command that takes a call's id. do gets the id and the database.
func aboutCall(cmd *cobra.Command, do func(ctx context.Context, db *pgxpool.Pool, id string, out io.Writer) error) *cobra.Command {
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
	if !watch.IsID(arg) {
		return "", usage("%q is not a call id: that is a uuid such as %s, which `gem call` prints and core_tool_calls.id holds",
			arg, exampleID)
	}
	return strings.ToLower(arg), nil
}

func receiptCommand() *cobra.Command {
	return aboutCall(&cobra.Command{
		Use:   "receipt",
		Short: "Print the receipt of a call",
		Long: `
The receipt is printed as JSON: how the call ended, its result or its error,
and what it did to the world. The exit code is 1 if it has not ended.`,
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
A call that is queued or waits for a key ends at once. A running one is ended by
its worker, within a heartbeat at the latest, and its receipt lists what it had
done until then; a call that succeeds before its worker notices has succeeded. A
call whose handler has made steps or calls runs once more, so that the handler
can clean up, for an hour at most; cancelled again while no worker runs it, it
ends at once. A call that had ended stays as it is. The exit code is 0 in all
these cases. A role that is a member of gem_operator ends calls of others too,
and the journal names it.`,
	}, func(ctx context.Context, db *pgxpool.Pool, id string, out io.Writer) error {
		answer, err := cancelCall(ctx, db, id)
		if err != nil {
			return err
		}
		said := "not cancelled: the call had already ended as " + string(answer)
		switch answer {
		case client.Cancelled:
			said = "cancelled: the call has ended, and its receipt shows what is known about it"
		case client.CancelRequested:
			said = "requested: a worker ends the call; if it has steps or calls, its handler may clean up first"
		}
		_, err = fmt.Fprintf(out, "%s: gem receipt %s\n", said, id)
		return err
	})
}

// cancelCall ends a call as a frontend or the owner of the tables does, or, where the role may not, as an operator.
func cancelCall(ctx context.Context, db *pgxpool.Pool, id string) (client.Cancellation, error) {
	answer, err := client.Cancel(ctx, db, id)
	if !store.HasCode(err, "42501") {
		return answer, err
	}
	c, err := client.Get(ctx, db, id)
	var outcomes []client.CancelOutcome
	if err == nil {
		outcomes, err = client.OperatorCancel(ctx, db, []string{id}, client.Operator{}, c.CancelRequested)
	}
	switch {
	case store.HasCode(err, "42501"):
		return "", fmt.Errorf("%w\nThe role of DATABASE_URL may not end calls: members of gem_operator may, and the owner of the tables", refusal(err))
	case err != nil:
		return "", err
	}
	switch answer = outcomes[0].Outcome; answer {
	case client.CancelUnknown:
		return "", &client.NotFoundError{ID: id}
	case client.CancelBusy:
		return "", errors.New("something else changes the call at this moment, and nothing was done: try again")
	}
	return answer, nil
}
