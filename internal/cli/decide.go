package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/prose"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

func approveCommand() *cobra.Command {
	return decideCommand("approve", "Approve the call that a question is about", "approved", true)
}

func denyCommand() *cobra.Command {
	return decideCommand("deny", "Deny the call that a question is about", "denied", false)
}

func decideCommand(use, short, done string, approved bool) *cobra.Command {
	var reason string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   use + " QUESTION_ID",
		Short: short,
		Long: `
QUESTION_ID is the id of the question, which gem questions prints. The question
must name you or one of your roles. On the command line you act as the Postgres
role in DATABASE_URL: gem roles gives it a role such as manager.

It then waits for the call that asked or that a rule stopped, and prints its
receipt as JSON. If no call asked, it waits for the question. --wait 0 does not
wait.

The exit code is 0 if the decision is recorded, now or before, even if the call
then fails. It is 1 if the opposite decision was recorded before.
` + usesDatabase,
		Example: "  gem " + use + " " + exampleID + " --reason 'within the budget'",
		Args:    takes("the id of a question", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if wait < 0 {
				return usage("--wait is %s, and must be 0 (do not wait) or more", wait)
			}
			decision := func(*client.Call) any {
				value := map[string]any{"approved": approved}
				if reason != "" {
					value["reason"] = reason
				}
				return value
			}
			return give(cmd, args[0], "", decision, func(db *pgxpool.Pool, id string) error {
				return decided(cmd, db, id, done, wait)
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, at most 1,000 characters; recorded on the receipt")
	waitFlag(cmd, &wait)
	return cmd
}

func waitFlag(cmd *cobra.Command, wait *time.Duration) {
	cmd.Flags().DurationVar(wait, "wait", 30*time.Second, "how long to wait for the receipt; 0 means not at all")
}

// decided prints the receipt of the call that waited for this decision, or of the question if no call did.
func decided(cmd *cobra.Command, db *pgxpool.Pool, id, done string, wait time.Duration) error {
	ctx, progress := cmd.Context(), cmd.ErrOrStderr()
	q, err := view.OneQuestion(ctx, db, id)
	if err != nil {
		return exitError{exitUnknown, fmt.Errorf("%s; it is unknown what happened next: %w", done, refusal(err))}
	}
	if q != nil && q.OfHandler {
		id = q.ParentID
	}
	if wait == 0 {
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s; the receipt: gem receipt %s\n", done, id)
		return err
	}
	fmt.Fprintf(progress, "%s; waiting for call %s\n", done, id)
	alone := noWorker(ctx, db, progress)
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	r, err := await(waiting, db, id, alone, progress)
	switch {
	case err == nil:
		return printJSON(cmd.OutOrStdout(), r)
	case waiting.Err() == nil:
		return exitError{exitUnknown, fmt.Errorf("%s; the receipt could not be read: %w", done, refusal(err))}
	case ctx.Err() == nil:
		if e, err := client.Explain(ctx, db, id); err == nil {
			fmt.Fprintf(progress, "The call has not ended within %s. %s\n", wait, prose.Explanation(e))
		}
	}
	fmt.Fprintf(progress, "The call continues; read its receipt later: gem receipt %s\n", id)
	return nil
}
