package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

func replayCommand(p *Program) *cobra.Command {
	var (
		tool string
		last int
	)
	cmd := &cobra.Command{
		Use:   "replay [CALL_ID]",
		Short: "Run durable handlers of this program on the journals of calls, and write nothing",
		Long: `
For a call, or for the last calls of a tool: does the code of this program fit
what the journal has, and does it come to what the receipt says? No step runs,
and no call is made: the first operation that a journal lacks ends its replay.
An open call stops so where it waits. Do it before a deploy. The handlers are
set up as for gem worker, so DATABASE_URL and their configuration are needed.
The exit code is 1 if a journal does not fit, or a call that has ended would
end otherwise.`,
		Example: "  gem replay " + exampleID + "\n  gem replay --tool quotes.send --last 100",
		Args:    takes("one call id, or --tool", 0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == (tool != "") || last < 1 {
				return usage("name one call, or a tool with --tool and how many of its calls with --last")
			}
			cfg, err := databaseConfig()
			if err != nil {
				return err
			}
			s := &setup{program: p, config: cfg, log: zap.NewNop(), console: cmd.OutOrStdout()}
			if err := s.prepare(cmd.Context()); err != nil {
				return err
			}
			defer s.close()
			w, err := s.connect(cmd.Context())
			if err != nil {
				return err
			}
			var ids []string
			if len(args) == 1 {
				id, err := callID(args[0])
				if err != nil {
					return err
				}
				ids = []string{id}
			} else if ids, err = client.LastDurable(cmd.Context(), s.pools[0], tool, last); err != nil {
				return refusal(err)
			}
			bad := 0
			for _, id := range ids {
				said, fits, err := replayOf(cmd.Context(), s.pools[0], w, id)
				if err != nil {
					return refusal(err)
				}
				if !fits {
					bad++
				}
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s  %s\n", id, printable(said)); err != nil {
					return err
				}
			}
			if len(ids) == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "No call of %s has made progress.\n", tool)
			}
			if bad > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s of %d would not go on as before.\n", count(bad, "call"), len(ids))
				return exitError{code: exitFailed}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&tool, "tool", "", "replay the calls of this tool")
	cmd.Flags().IntVar(&last, "last", 20, "with --tool: how many, the newest first")
	return cmd
}

// replayOf says what came of a replay, and whether the code fits.
func replayOf(ctx context.Context, db *pgxpool.Pool, w *worker.Worker, id string) (said string, fits bool, err error) {
	c, err := client.Get(ctx, db, id)
	if err != nil {
		return "", false, err
	}
	replay := worker.Replay{ID: c.ID, Tool: c.Tool, Input: c.Input, SessionID: c.SessionID, CreatedBy: c.CreatedBy, Attempt: c.Attempt, Cancelled: c.CancelRequested}
	replay.Receipt, err = client.Receipt(ctx, db, id)
	if err != nil && !errors.Is(err, client.ErrNoReceipt) {
		return "", false, err
	}
	r, err := w.Replay(ctx, replay)
	if err != nil {
		return "", false, err
	}
	ended := replay.Receipt != nil
	switch {
	case r.Misfit != "":
		said = "does not fit: " + r.Misfit
	case r.Stopped != "" && ended:
		said = "differs: it ended as " + c.Status + ", and would go on with " + r.Stopped
	case r.Stopped != "":
		said, fits = "fits, up to "+r.Stopped, true
	case r.Differs:
		said = fmt.Sprintf("differs: it ended as %s, and would end as %s: %s", c.Status, r.Outcome.Status, cut(string(r.Outcome.Result), 300))
	case ended:
		said, fits = "the same: "+c.Status, true
	default:
		said, fits = fmt.Sprintf("fits, and would end as %s", r.Outcome.Status), true
	}
	if len(r.Unread) > 0 {
		said += fmt.Sprintf("; it no longer comes to %s", cut(named(r.Unread), 300))
	}
	return said, fits, nil
}
