package cli

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/prose"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func listCommand() *cobra.Command {
	var f view.Filter
	var from, to string
	var failed bool
	v := report[*view.Page]{text: printCalls}
	v.read = func(ctx context.Context, db view.DB) (*view.Page, error) { return view.Calls(ctx, db, f) }
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List calls, by their state, tool, caller, session, key or error",
		Long: `
The newest calls come first: by the time of their end with --code or --state
succeeded, failed, refused, cancelled, not_configured or ended, and otherwise by
the time of their creation. Queued and scheduled calls are in the order in which
they will run. --from and --to limit the same time.

A list follows the order of an index. If no index matches the flags, for example
with --tool, it reads 20,000 calls and prints how to continue.

TOOK is the time that a call ran. A call that makes steps or calls runs again
after each wait; its TOOK is the time from its creation to its end.
` + usesDatabaseAsMonitor + usesReplica,
		Example: "  gem list --failed --tool leads.create --from 2h\n  gem list --session 'chat 17' --json\n  gem list " +
			"--state waiting --watch",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			v.hint = func(p *view.Page) string { return listed(p, goOn(cmd)) }
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
			if _, err := view.ParseFilter(f.Values()); err != nil {
				return notSeen(err)
			}
			return v.run(cmd)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.State, "state", "", strings.Join(view.States, ", "))
	flags.BoolVar(&failed, "failed", false, "failed calls, without refused and cancelled ones: --state failed")
	flags.StringVar(&f.Tool, "tool", "", "calls to a tool")
	flags.StringVar(&f.Session, "session", "", "calls of a session, its session_id")
	flags.StringVar(&f.Caller, "caller", "", "calls of a caller, their created_by")
	flags.StringVar(&f.Key, "key", "", "calls with a key: the computed one, or the client's")
	flags.StringVar(&f.Code, "code", "", "calls with an error code, such as timeout or rule_blocked")
	flags.StringVar(&f.Text, "text", "", "calls with a text in the tool's name, the message, the caller, the session or "+
		"the key")
	flags.StringVar(&from, "from", "", "at or after a time, such as 2026-01-31T09:30:00Z or 2026-01-31, or a span before "+
		"now, such as 2h")
	flags.StringVar(&to, "to", "", "before a time, in the form of --from")
	flags.IntVar(&f.Limit, "limit", 0, "how many, at most 500; 0 means 50")
	flags.StringVar(&f.Before, "before", "", "continue a list: its next, or its look_further")
	v.flags(cmd)
	v.primary = flags.Bool("primary", false, "read from DATABASE_URL even if READ_DATABASE_URL is set")
	return cmd
}

// since reads a time, or a duration before now.
func since(text string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return now.Add(-d).UTC(), nil
	}
	return view.ParseTime(text)
}

func printCalls(w io.Writer, p *view.Page) error {
	rows := [][]string{{"CALL", strings.ToUpper(p.By), "STATE", "TOOL", "CALLER", "TOOK", "NOTE"}}
	for _, c := range p.Calls {
		at := map[string]time.Time{"ended": c.EndedAt, "due": c.RunAt}[p.By]
		if at.IsZero() {
			at = c.CreatedAt
		}
		rows = append(rows, []string{c.ID, moment(at), state(&c), name(c.Tool), cut(printable(c.CreatedBy), 40),
			lasted(&c), cut(printable(remark(&c)), 100)})
	}
	if len(p.Calls) == 0 {
		return nil
	}
	return table(w, rows)
}

func state(c *view.Call) string {
	switch {
	case c.Scheduled:
		return "scheduled"
	case c.Asks != "":
		return prose.Waiting(c.Asks, "answer", false)
	case c.Status == "waiting":
		return prose.Waiting(c.Tool, c.WaitsFor, c.Approval)
	case c.Outcome != "":
		return prose.Ended(c.Tool, c.Outcome, c.Decision)
	}
	return c.Status
}

// lasted returns how long a finished call ran; for a call with steps, the time since its creation, since it may have
// waited.
func lasted(c *view.Call) string {
	if c.Steps > 0 && !c.EndedAt.IsZero() {
		return span(c.EndedAt.Sub(c.CreatedAt))
	}
	return took(c.DurationMS)
}

// remark returns the most important fact about a call apart from its state.
func remark(c *view.Call) string {
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
	case c.Steps > 0 && c.Attempt > 1 && c.DurationMS != nil:
		return fmt.Sprintf("run %d, which took %s", c.Attempt, took(c.DurationMS))
	case c.Steps > 0 && c.Attempt > 1:
		return fmt.Sprintf("run %d", c.Attempt)
	case c.Retries+c.Losses > 0: // it may have waited too, for example for an approval
		return fmt.Sprintf("attempt %d", c.Attempt)
	}
	return ""
}

var plainWord = regexp.MustCompile(`^[\w@%+:,./-]+$`)

// goOn returns the command, with its flags, that continues a page. The caller appends the place where it begins.
func goOn(cmd *cobra.Command) string {
	line := cmd.CommandPath()
	cmd.Flags().Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		switch {
		case f.Name == "before":
			return
		case f.Value.Type() == "bool" && value == "true":
			line += " --" + f.Name
			return
		case !plainWord.MatchString(value):
			value = "'" + strings.ReplaceAll(value, "'", `'\''`) + "'"
		}
		line += " --" + f.Name + "=" + value
	})
	return line + " --before "
}

// listed reports whether there are more calls than the list shows. It appends the place to continue to the command
// goOn.
func listed(p *view.Page, goOn string) (said string) {
	if len(p.Calls) == 0 && !p.AtLeast {
		said = "No call matches."
	}
	switch {
	case p.Next != "":
		said = "More: " + goOn + p.Next
	case p.LookFurther != "":
		said = fmt.Sprintf("%s of the %d calls that were read. To continue: %s%s", count(len(p.Calls), "call"),
			p.Looked,
			goOn, p.LookFurther)
	case p.AtLeast:
		said = "There may be more: without a matching index, only the newest calls are read."
	}
	return said
}
