//go:build !windows

package chaos

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gemworker/gem/internal/rulesreplay"
)

// Report is the result of a run.
type Report struct {
	Options
	Calls    map[string]int // by ending: a status, a hit, or an error code
	Events   map[string]int // of the journals
	Troubles map[string]int // failures, and results of cancellations
	Lost     int            // calls that are missing or have no receipt
	Twice    int            // effects that happened more than once
	Outside  int            // requests that reached the server outside
	Asked    map[string]int // results of the questions of rules
	Models   map[string]int // results of the requests to models
	Money    string         // their cost, in USD
	Repeated int            // requests to the server outside with a key that it had seen before
	Rows     int            // rows that the transactional calls wrote
	Left     int            // calls held by a worker that had stopped in order
	Settled  time.Duration  // time of the calls that were open when the failures ended
	Recovery times
	Replayed *rulesreplay.Report // result of judging the calls again; nil without rules
	Faults   []string            // sentences; empty if every promise was kept
}

// report runs the checks and counts.
func (h *harness) report(ctx context.Context) (*Report, error) {
	pool := h.server.pool
	arrivals := h.outside.arrived()
	if err := record(ctx, pool, h.plan, arrivals, h.models.asked()); err != nil {
		return nil, err
	}
	faults, found, err := examine(ctx, pool)
	if err != nil {
		return nil, err
	}
	inTables, err := audited(ctx, pool)
	if err != nil {
		return nil, err
	}
	var replayed *rulesreplay.Report
	if h.Rules {
		var differ []string
		if replayed, differ, err = judgedAgain(ctx, pool); err != nil {
			return nil, err
		}
		inTables = append(inTables, differ...)
	}
	r := &Report{Options: h.Options, Replayed: replayed, Lost: found[lost], Twice: found[twice], Outside: len(arrivals),
		Settled: h.settled}
	if r.Recovery, err = h.recovery.measure(ctx, h.server, h.RecoveryLimit); err != nil {
		return nil, err
	}
	if r.Calls, err = tally(ctx, pool, `
		select coalesce(c.error ->> 'error_code', case when r.replay_of is not null then 'hit' end, c.status), count(*)
		from core_tool_calls c left join core_tool_receipts r on r.call_id = c.id group by 1`); err != nil {
		return nil, err
	}
	if r.Events, err = tally(ctx, pool, "select event, count(*) from core_tool_events group by 1"); err != nil {
		return nil, err
	}
	if r.Asked, err = tally(ctx, pool, `
		select case when result ->> 'approved' = 'true' then 'approved' when result ->> 'reason' = 'expired' then 'expired'
			when status = 'succeeded' then 'denied'
			else coalesce(result #>> '{error,error_code}', status) end, count(*)
		from core_tool_receipts where tool_name = 'wait.approval' group by 1`); err != nil {
		return nil, err
	}
	if r.Models, err = tally(ctx, pool, "select status, count(*) from core_llm_requests group by 1"); err != nil {
		return nil, err
	}
	if err := pool.QueryRow(ctx, "select round(coalesce(sum(coalesce(cost, reserved)), 0) / 1e9, 3)::text from "+
		"core_llm_requests").Scan(&r.Money); err != nil {
		return nil, err
	}
	if err := pool.QueryRow(ctx, `
		select (select count(*) from lab_rows), count(*) from core_tool_events e
		join core_workers w on w.worker_id = e.data ->> 'lost_worker' and e.at > w.stopped_at where e.event = 'lost'`).
		Scan(&r.Rows, &r.Left); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, a := range arrivals {
		if a.Key != "" && seen[a.Key] {
			r.Repeated++
		}
		seen[a.Key] = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r.Troubles = h.counts
	r.Faults = slices.Concat(h.faults, faults, inTables, r.Recovery.late)
	return r, nil
}

func tally(ctx context.Context, db querier, sql string) (map[string]int, error) {
	rows, err := db.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	counts := map[string]int{}
	for rows.Next() {
		var name string
		var n int
		if err := rows.Scan(&name, &n); err != nil {
			return nil, err
		}
		counts[name] = n
	}
	return counts, rows.Err()
}

// String returns the summary table.
func (r *Report) String() string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	all := 0
	for _, n := range r.Calls {
		all += n
	}
	line("run", "seed %d, %d workers, %s of troubles, %s to settle", r.Seed, r.Workers, r.Duration, short(r.Settled))
	line("calls", "%d: %s", all, list(r.Calls, "succeeded", "hit", "not_configured", "execution_error", "panic",
		"unknown_tool", "cancelled", "outcome_unknown", "worker_lost", "timeout",
		"limit_reached", "rule_blocked", "approval_denied", "approval_expired", "budget_exceeded", "provider_refused",
		"request_too_large"))
	line("kills", "%s", list(r.Troubles, kill9, vanish))
	line("stops", "%s; %d calls handed over, %d left behind", list(r.Troubles, terminate), r.Events["released"], r.Left)
	line("pauses", "%s", list(r.Troubles, pause))
	line("restarts", "%s", list(r.Troubles, fastStop, crash))
	line("network", "%s", list(r.Troubles, silence, blackout, slowness, cut, backends))
	line("cancels", "%s", list(r.Troubles, "cancel: cancelled", "cancel: requested", "cancel: succeeded", "cancel: failed",
		"cancel: not_configured"))
	line("attempts", "%s", list(r.Events, "claimed", "lost", "retried", "waiting", "delayed"))
	line("effects", "%d rows, %d requests to the server outside, %d of them with a key it had seen", r.Rows, r.Outside,
		r.Repeated)
	line("models", "%s requests, for %s USD", list(r.Models, "done", "failed", "cut", "cancelled", "lost", "sent"),
		r.Money)
	if r.Replayed != nil {
		line("questions", "%s", list(r.Asked, "approved", "denied", "expired", "cancelled", "outcome_unknown", "worker_lost",
			"timeout"))
		line("rules", "%d decisions, %d of them otherwise when they are computed again, %v not computed",
			r.Replayed.Decisions, len(r.Replayed.Differences), r.Replayed.Unknown)
	}
	line("lost", "%d", r.Lost)
	line("twice", "%d", r.Twice)
	line("unknown", "%d", r.Calls["outcome_unknown"])
	line("recovery", "%s", r.Recovery)
	line("faults", "%d", len(r.Faults))
	_ = t.Flush() // writes to memory
	return b.String()
}

// list joins the counts that exist, in the order of names.
func list(counts map[string]int, names ...string) string {
	var parts []string
	for _, name := range names {
		if n, there := counts[name]; there {
			parts = append(parts, fmt.Sprintf("%d %s", n, strings.TrimPrefix(name, "cancel: ")))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

func short(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
