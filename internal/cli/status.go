package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gemworker/gem/client/view"
	"github.com/spf13/cobra"
)

const mostListed = 20 // tools whose queue gem status prints

func statusCommand() *cobra.Command {
	v := report[*view.Overview]{read: view.ReadOverview, text: printStatus}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show problems, the queue, workers, and finished and failed calls",
		Long: `
Problems and open questions come first, with the command that shows more. In a
long queue it counts only the first thousands of calls, and marks the number.
Workers count finished calls up to half a minute later. Refused calls (by rules,
people or the tool's terms) and cancelled calls do not count as failed. HITS are
calls that returned the result of an earlier call. P50 and P95 are the median
and the 95th percentile of the calls' run times. QUEUE P50 and P95 are the same
for the time between ready and claimed. The last table groups the calls that
failed or were not configured.
` + usesDatabaseAsMonitor,
		Example: "  gem status\n  gem status --watch\n  gem status --json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return v.run(cmd) },
	}
	v.flags(cmd)
	return cmd
}

func printStatus(w io.Writer, o *view.Overview) error {
	fmt.Fprintln(w, moment(o.At))
	for i, n := range o.Needs {
		if i == 0 {
			fmt.Fprintln(w)
		}
		least := ""
		if n.Count == view.MostCounted {
			least = "at least "
		}
		fmt.Fprintln(w, "! "+least+needed(n, o.At))
	}
	fmt.Fprintf(w, "\nQueue    %s\nWorkers  %s\n\n", queued(o.Queue, o.At), working(o.Workers))
	ended := [][]string{{"ENDED", "SUCCEEDED", "HITS", "FAILED", "REFUSED", "CANCELLED", "NOT CONFIGURED",
		"P50", "P95", "QUEUE P50", "QUEUE P95"}}
	for _, t := range []struct {
		name string
		view.Totals
	}{{"last hour", o.Hour}, {"last day", o.Day}} {
		ended = append(ended, []string{t.name, fmt.Sprint(t.Succeeded), fmt.Sprint(t.Hits), fmt.Sprint(t.Failed),
			fmt.Sprint(t.Refused), fmt.Sprint(t.Cancelled), fmt.Sprint(t.NotConfigured),
			took(t.P50MS), took(t.P95MS), took(t.QueueP50MS), took(t.QueueP95MS)})
	}
	if err := table(w, ended); err != nil {
		return err
	}
	fmt.Fprintln(w, counted(o.Workers))
	if len(o.Tools) > 0 {
		rows := [][]string{{"QUEUE OF", "QUEUED", "SCHEDULED", "WAITING", "RUNNING", "OLDEST QUEUED"}}
		for _, d := range o.Tools[:min(len(o.Tools), mostListed)] {
			rows = append(rows, []string{name(d.Tool), fmt.Sprint(d.Ready), fmt.Sprint(d.Scheduled), fmt.Sprint(d.Waiting),
				fmt.Sprint(d.Running), ago(d.OldestReady, o.At)})
		}
		fmt.Fprintln(w)
		if err := table(w, rows); err != nil {
			return err
		}
		if more := len(o.Tools) - mostListed; more > 0 {
			fmt.Fprintf(w, "and %s more: gem status --json\n", count(more, "tool"))
		}
	}
	if len(o.Failures) == 0 {
		return nil
	}
	rows := [][]string{{"CALLS", "TOOL", "CODE", "LAST", "MESSAGE"}}
	for _, f := range o.Failures {
		rows = append(rows, []string{fmt.Sprint(f.Count), name(f.Tool), cut(printable(f.Code), 60),
			ago(f.Last, o.At) + " ago", cut(printable(f.Message), 100)})
	}
	fmt.Fprintln(w)
	return table(w, rows)
}

// counted explains which finished calls may be missing from the counts.
func counted(w view.WorkerCounts) string {
	if w.Alive == 0 {
		return "Workers count finished calls, and no worker is alive: the last calls are not counted."
	}
	return fmt.Sprintf("Workers count finished calls: the calls of the last %s may be missing.",
		span(view.CountedWithin))
}

// needed describes a problem, and names the command that shows more about it.
func needed(n view.Need, at time.Time) string {
	calls := count(n.Count, "call")
	switch n.Kind {
	case "no_worker":
		return fmt.Sprintf("%s could run, the first for %s, and no worker is alive: gem worker", calls, ago(n.Since, at))
	case "overdue":
		return fmt.Sprintf("%s longer than the timeout allows, the first of %s on %s for %s: gem explain %s",
			does(n.Count, "run"), name(n.Tool), n.WorkerID,
			ago(n.Since, at), n.CallID)
	case "dead_holds":
		return fmt.Sprintf("%s on workers that ended, such as %s, and no worker is alive to take over: gem worker",
			does(n.Count, "run"), n.WorkerID)
	case "server_changed":
		return fmt.Sprintf("%s: gem epochs %d", serverChanged(n.Server), n.Server.Epoch)
	case "slow_queue":
		return fmt.Sprintf("calls could run for up to %s now, and no worker has taken them: gem workers", ago(n.Since, at))
	case "outcome_unknown":
		return fmt.Sprintf("%s ended in the last day with an unknown outcome: gem list --code outcome_unknown", calls)
	case "rule_error":
		return fmt.Sprintf("%s refused in the last day, because a rule could not be judged: gem explain %s", calls, n.CallID)
	case "rules_required":
		return fmt.Sprintf("workers that claim nothing, because this database requires rules and they have none: %d; set "+
			"TOOLS_RULES for them", n.Count)
	case "expiring":
		return fmt.Sprintf("questions that expire within the hour: %d, the first in %s: gem questions", n.Count,
			ago(at, n.Since))
	case "question":
		return fmt.Sprintf("%s for someone's answer, the first for %s: gem questions", does(n.Count, "wait"),
			ago(n.Since, at))
	case "user_question":
		return fmt.Sprintf("questions of users that wait for an answer: %d, the first for %s: gem questions", n.Count,
			ago(n.Since, at))
	case "code":
		return fmt.Sprintf("%s for a program that can continue: gem explain %s", does(n.Count, "wait"), n.CallID)
	case "failing":
		return fmt.Sprintf("%s of %s failed in the last hour, more than 10%%: gem list --failed --tool %[2]s", calls,
			name(n.Tool))
	case "unknown_tools":
		return fmt.Sprintf("%s of the last day named tools that the registry does not have: gem list --code unknown_tool",
			calls)
	case "undelivered":
		return fmt.Sprintf("%s in the last day could not be delivered: gem explain %s", count(n.Count, "notice"), n.CallID)
	case "notices_waiting":
		return fmt.Sprintf("%s for a worker with a notify.json, the first for %s: gem notify --help",
			strings.Replace(does(n.Count, "wait"), "call", "notice", 1), ago(n.Since, at))
	case "two_registries":
		return fmt.Sprintf("the workers run with %d different registries: gem workers", n.Count)
	}
	return n.Kind
}

// does returns the beginning of a sentence: 1 call runs, 2 calls run.
func does(calls int, verb string) string {
	if calls == 1 {
		return "1 call " + verb + "s"
	}
	return count(calls, "call") + " " + verb
}

func queued(q view.Queue, at time.Time) string {
	said := fmt.Sprintf("%d queued", q.Ready)
	if q.Ready > 0 {
		said += ", the first for " + ago(q.OldestReady, at)
	}
	said += fmt.Sprintf(" · %d scheduled", q.Scheduled)
	if q.Scheduled > 0 {
		said += ", the next in " + ago(at, q.NextScheduled)
	}
	said += fmt.Sprintf(" · %d waiting", q.Waiting)
	var waits []string
	for _, what := range []string{"key", "call", "answer", "time", "code"} {
		if n := q.WaitingFor[what]; n > 0 {
			waits = append(waits, fmt.Sprintf("%d for %s", n,
				map[string]string{"key": "a key", "call": "calls", "answer": "an answer", "time": "a time",
					"code": "a program"}[what]))
		}
	}
	if len(waits) > 0 {
		said += " (" + strings.Join(waits, ", ") + ")"
	}
	said += fmt.Sprintf(" · %d running", q.Running)
	if q.AtLeast {
		said += ", at least: more were not counted"
	}
	return said
}

func working(w view.WorkerCounts) string {
	said := fmt.Sprintf("%d alive, %d of %s busy", w.Alive, w.Running, count(w.Slots, "slot"))
	if w.Dead > 0 {
		said += fmt.Sprintf(" · %d died within the hour", w.Dead)
	}
	return said
}

// name returns the name of a tool, which a frontend chose.
func name(tool string) string {
	if tool == "" {
		return "(no name)"
	}
	return cut(printable(tool), 60)
}

// ago returns how long before a time another one was, or an empty text for the zero time.
func ago(t, at time.Time) string {
	if t.IsZero() {
		return ""
	}
	return span(max(at.Sub(t), 0))
}

func took(ms *float64) string {
	if ms == nil {
		return ""
	}
	return span(milliseconds(*ms))
}
