package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

func replayCommand(p *Program) *cobra.Command {
	var (
		tool, folder string
		last         int
	)
	cmd := &cobra.Command{
		Use:   "replay [CALL_ID]",
		Short: "Run durable handlers of this program on the journals of calls, and write nothing",
		Long: `
It checks, for a call or the last calls of a tool, whether the code of this
program fits the journal and ends as the receipt says. No step runs, and no call
is made: the first operation that a journal lacks ends its replay. An open call
stops where it waits. Run it before a deploy. The handlers are
set up as for gem worker, so their configuration is needed.
The exit code is 1 if a journal does not fit, or a call that has ended would
end differently. If the code begins something new, such as another step, the
replay ends there, and the rest is not checked.
` + usesDatabase,
		Example: "  gem replay " + exampleID + "\n  gem replay --tool quotes.send --last 100",
		Args:    takes("one call id, or --tool", 0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == (tool != "") || last < 1 {
				return usage("name one call, or a tool with --tool and how many of its calls with --last")
			}
			cfg, err := configFromEnvOrDev()
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
			} else if _, known := s.registry.Tool(tool); !known {
				return usage("the registry %s has no tool %q%s", s.registry.Version, tool, s.registry.DidYouMean(tool))
			} else if ids, err = client.LastDurable(cmd.Context(), s.pools[0], tool, last); err != nil {
				return refusal(err)
			}
			bad := 0
			for _, id := range ids {
				said, fits, err := replayOf(cmd.Context(), s.pools[0], w, id, folder)
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
				fmt.Fprintf(cmd.ErrOrStderr(), "No call of %s has made a step or has waited.\n", tool)
			}
			if bad > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s of %d would not continue as before.\n", count(bad, "call"), len(ids))
				return exitError{code: exitFailed}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&tool, "tool", "", "replay the calls of this tool")
	cmd.Flags().StringVar(&folder, "save", "", "also write each journal, with its inputs and results, into a file of this `folder`: see docs/durable.md")
	cmd.Flags().IntVar(&last, "last", 20, "with --tool: how many, the newest first")
	return cmd
}

// replayOf returns how a replay ended in words, and whether the code fits. It keeps the journal in folder, unless that is empty.
func replayOf(ctx context.Context, db *pgxpool.Pool, w *worker.Worker, id, folder string) (said string, fits bool, err error) {
	recorded, err := store.Record(ctx, db, id)
	if err == nil && folder != "" {
		err = save(recorded, folder)
	}
	if err != nil {
		return "", false, err
	}
	r := w.Replay(ctx, recorded)
	was, ended := "", recorded.Receipt != nil
	if ended {
		was = string(recorded.Receipt.Status)
	}
	switch {
	case r.Misfit != "":
		said = "does not fit: " + strings.TrimSuffix(r.Misfit, ".") + ". Restore it, use another name, or ask for the Version"
	case r.Stopped != "" && (ended || len(r.Unread) > 0):
		said, fits = "reaches "+r.Stopped+", which is new, and is not replayed beyond that", true
	case r.Stopped != "":
		said, fits = "fits, up to "+r.Stopped, true
	case r.Differs:
		said = fmt.Sprintf("differs: it ended as %s, and would end as %s: %s", was, r.Outcome.Status, cut(string(r.Outcome.Result), 300))
	case ended:
		said, fits = "the same: "+was, true
	default:
		said, fits = fmt.Sprintf("fits, and would end as %s", r.Outcome.Status), true
	}
	switch {
	case len(r.Unread) == 0:
	case r.Stopped != "":
		said += fmt.Sprintf(": its journal continues with %s", cut(named(r.Unread), 300))
	case r.Misfit == "":
		said += fmt.Sprintf("; it no longer reaches %s", cut(named(r.Unread), 300))
	}
	return said, fits, nil
}

// save writes what was recorded of a call into a file that only its owner may read.
func save(r *store.Recorded, folder string) error {
	encoded, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(folder, "."+r.ID) // which only its owner may read, whatever was there
	if err != nil {
		return err
	}
	_, err = file.Write(append(encoded, '\n'))
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), filepath.Join(folder, r.ID+".json"))
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return err
}
