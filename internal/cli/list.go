package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/prose"
	"github.com/gemworker/gem/internal/watch"
	"github.com/spf13/cobra"
)

func listCommand() *cobra.Command {
	var f watch.Filter
	var from, to string
	var failed bool
	v := view[*watch.Page]{text: printCalls}
	v.read = func(ctx context.Context, db watch.DB) (*watch.Page, error) { return watch.Calls(ctx, db, f) }
	v.hint = listed
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List calls, by their state, tool, caller, session, key or error",
		Long: `
The newest come first: by when they ended with --state succeeded, failed,
refused, cancelled, not_configured or ended, or --code; otherwise by when they
were made. Queued and scheduled ones come in the order in which they are to run.
--from and --to bound the same time.

A list reads the order of an index. Where none has what the flags want, such as
the calls of a tool, it looks at 20,000 calls, and says how to look further.
` + usesDatabaseAsMonitor,
		Example: "  gem list --failed --tool leads.create --from 2h\n  gem list --session 'chat 17' --json\n  gem list --state waiting --watch",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			now := time.Now()
			switch {
			case failed && f.State != "" && f.State != "failed":
				return usage("--failed is --state failed, and --state is %s", f.State)
			case failed:
				f.State = "failed"
			}
			if f.From, err = since(from, now); err != nil {
				return usage("--from: %w", err)
			}
			if f.To, err = since(to, now); err != nil {
				return usage("--to: %w", err)
			}
			if _, err := watch.ParseFilter(f.Values()); err != nil {
				return notSeen(err)
			}
			return v.run(cmd)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.State, "state", "", strings.Join(watch.States, ", "))
	flags.BoolVar(&failed, "failed", false, "those that failed, without refused and cancelled ones: --state failed")
	flags.StringVar(&f.Tool, "tool", "", "those of a tool")
	flags.StringVar(&f.Session, "session", "", "those of a session, its session_id")
	flags.StringVar(&f.Caller, "caller", "", "those of a caller, their created_by")
	flags.StringVar(&f.Key, "key", "", "those with a key: the computed one, or the client's")
	flags.StringVar(&f.Code, "code", "", "those with an error code, such as timeout or rule_blocked")
	flags.StringVar(&f.Text, "text", "", "those with a text in the tool's name, the message, the caller, the session or the key")
	flags.StringVar(&from, "from", "", "from a time on, such as 2026-01-31T09:30:00Z or 2026-01-31, or a span before now, such as 2h")
	flags.StringVar(&to, "to", "", "before a time, as --from")
	flags.IntVar(&f.Limit, "limit", 0, "how many, at most 500; 0 means 50")
	flags.StringVar(&f.Before, "before", "", "continue where a list ended: its next, or its look_further")
	v.flags(cmd)
	return cmd
}

// since reads a time, or a span before now.
func since(text string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return now.Add(-d).UTC(), nil
	}
	return watch.ParseTime(text)
}

func printCalls(w io.Writer, p *watch.Page) error {
	rows := [][]string{{"CALL", strings.ToUpper(p.By), "STATE", "TOOL", "CALLER", "TOOK", ""}}
	for _, c := range p.Calls {
		at := map[string]time.Time{"ended": c.EndedAt, "due": c.RunAt}[p.By]
		if at.IsZero() {
			at = c.CreatedAt
		}
		rows = append(rows, []string{c.ID, moment(at), state(&c), name(c.Tool), cut(printable(c.CreatedBy), 40), took(c.DurationMS), cut(printable(remark(&c)), 100)})
	}
	if len(p.Calls) == 0 {
		return nil
	}
	return table(w, rows)
}

func state(c *watch.Call) string {
	switch {
	case c.Scheduled:
		return "scheduled"
	case c.Status == "waiting":
		return prose.Waiting(c.Tool, c.WaitsFor, c.Approval)
	case c.Outcome != "":
		return c.Outcome
	}
	return c.Status
}

// remark is the most important fact about a call apart from its state.
func remark(c *watch.Call) string {
	switch {
	case c.ErrorCode != "":
		return c.ErrorCode + ": " + c.Message
	case c.Message != "":
		return c.Message
	case c.Hit:
		return "repeats receipt " + c.ReplayOf
	case c.CancelRequested && c.EndedAt.IsZero():
		return "someone asked to cancel it"
	case c.Status == "running":
		return "on " + c.WorkerID
	case c.Attempt > 1:
		return fmt.Sprintf("attempt %d", c.Attempt)
	}
	return ""
}

// listed says whether there are more calls than the list shows.
func listed(p *watch.Page) (said string) {
	if len(p.Calls) == 0 && !p.AtLeast {
		said = "No call matches."
	}
	switch {
	case p.Next != "":
		said = "More: --before " + p.Next
	case p.LookFurther != "":
		said = fmt.Sprintf("%s of the %d calls that were looked at. To look further: --before %s", count(len(p.Calls), "call"), p.Looked, p.LookFurther)
	case p.AtLeast:
		said = "There may be more: only the newest calls were looked at for those that no index has."
	}
	return said
}
