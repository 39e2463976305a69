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
		Short: "Replay calls' journals with this program's durable handlers, and write nothing",
		Long: `
For a call or the last calls to a tool, it checks whether this program's code
fits the journal and reaches the result of the receipt. It runs no step and
makes no call: the first operation that a journal lacks ends its replay. An open
call stops where it waits. Use the command before a deploy. The handlers need
the same configuration as for gem worker. The exit code is 1 if a journal does
not fit, or if a finished call would end differently. If the code starts
something new, such as another step, the replay ends there and checks nothing
further.
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
				fmt.Fprintf(cmd.ErrOrStderr(), "No call to %s has a step or a wait.\n", tool)
			}
			if bad > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s of %d would not continue as recorded.\n", count(bad, "call"), len(ids))
				return exitError{code: exitFailed}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&tool, "tool", "", "replay the calls to this tool")
	cmd.Flags().StringVar(&folder, "save", "", "also write each journal, with its inputs and results, into a file of "+
		"this `folder`: see docs/durable.md")
	cmd.Flags().IntVar(&last, "last", 20, "with --tool: how many, the newest first")
	return cmd
}

// replayOf describes how a replay ended, and reports whether the code fits. It saves the journal in folder, unless
// that is empty.
func replayOf(ctx context.Context, db *pgxpool.Pool, w *worker.Worker, id, folder string) (said string, fits bool,
	err error) {
	recorded, err := store.Record(ctx, db, id)
	if err != nil {
		return "", false, err
	}
	encoded, err := json.MarshalIndent(recorded, "", "  ")
	if err == nil && folder != "" {
		err = save(id, encoded, folder)
	}
	if err != nil {
		return "", false, err
	}
	r, err := w.Replay(ctx, encoded)
	if err != nil {
		return "", false, err
	}
	was, ended := "", recorded.Receipt != nil
	if ended {
		was = string(recorded.Receipt.Status)
	}
	switch {
	case r.Lacks != "":
		said = "cannot be replayed here: " + r.Lacks
	case r.Misfit != "":
		said = "does not fit: " + strings.TrimSuffix(r.Misfit, ".") + ". Restore it, use another name, or check the Version"
	case r.Stopped != "" && (ended || len(r.Unread) > 0):
		said, fits = "reaches "+r.Stopped+", which is new; the replay ends there", true
	case r.Stopped != "":
		said, fits = "fits, up to "+r.Stopped, true
	case r.Differs:
		said = fmt.Sprintf("differs: it ended as %s, and would end as %s: %s", was, r.Outcome.Status,
			cut(string(r.Outcome.Result), 300))
	case ended:
		said, fits = "the same: "+was, true
	default:
		said, fits = fmt.Sprintf("fits, and would end as %s", r.Outcome.Status), true
	}
	switch {
	case len(r.Unread) == 0:
	case r.Stopped != "":
		said += fmt.Sprintf(": its journal continues with %s", cut(named(r.Unread), 300))
	case r.Lacks+r.Misfit == "":
		said += fmt.Sprintf("; it no longer reaches %s", cut(named(r.Unread), 300))
	}
	return said, fits, nil
}

// save writes what was recorded of a call into a file that only its owner may read.
func save(id string, encoded []byte, folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(folder, "."+id) // which only its owner may read, whatever was there
	if err != nil {
		return err
	}
	_, err = file.Write(append(encoded, '\n'))
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), filepath.Join(folder, id+".json"))
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return err
}
