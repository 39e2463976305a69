package watch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Overview says how things stand.
type Overview struct {
	At    time.Time `json:"at"` // by Postgres's clock
	Queue Queue     `json:"queue"`
	Tools []Depth   `json:"tools"` // the queue by tool, those with most ready calls first, at most 50
	// Workers counts the processes that are alive; Slots the calls that they run at once, at most.
	Workers WorkerCounts `json:"workers"`
	Hour    Totals       `json:"hour"` // the last 60 minutes
	Day     Totals       `json:"day"`  // the last 24 hours
	// Failures are those of the last day, the most frequent first, at most 10: of the last 1,000 calls that did not succeed.
	Failures []Failure `json:"failures"`
	// Questions counts the calls that wait for somebody's answer, up to [MostCounted]; the first was asked at QuestionsSince.
	Questions      int       `json:"questions"`
	QuestionsSince time.Time `json:"questions_since,omitzero"`
	// Needs is what needs someone, the most urgent first.
	Needs []Need `json:"needs"`
}

// Queue counts the calls that have not ended. AtLeast says that there may be more: of each state up to 10,000 are counted, of those that wait 5,000 for each thing.
type Queue struct {
	Ready     int `json:"ready"`
	Scheduled int `json:"scheduled"`
	Waiting   int `json:"waiting"`
	Running   int `json:"running"`
	// OldestReady is since when the call that is due longest could run; zero if none could. NextScheduled is when the next is due.
	OldestReady   time.Time      `json:"oldest_ready,omitzero"`
	NextScheduled time.Time      `json:"next_scheduled,omitzero"`
	WaitingFor    map[string]int `json:"waiting_for,omitempty"` // by what they wait for: key, call, answer, time, code
	AtLeast       bool           `json:"at_least,omitempty"`
}

// Depth is the queue of one tool.
type Depth struct {
	Tool string `json:"tool"`
	Queue
}

// WorkerCounts sums up the workers.
type WorkerCounts struct {
	Alive    int `json:"alive"`
	Dead     int `json:"dead"`
	Slots    int `json:"slots"`
	Running  int `json:"running"`
	Versions int `json:"registry_versions"` // how many registries the living ones run with
}

// Need is something that needs someone.
type Need struct {
	// Kind is
	//	no_worker        calls are ready, and no worker is alive
	//	rules_required   living workers claim nothing, since they run without rules and the database requires them: Count is how many
	//	overdue          calls run for longer than their tools may; CallID is the first, WorkerID its worker
	//	dead_holds       workers that died or stopped hold calls, and none is alive to take them; WorkerID is the first
	//	slow_queue       calls have been ready for more than a minute
	//	outcome_unknown  calls of the last day ended so: somebody should look whether they took effect; CallID is the last
	//	expiring         questions whose time is over within the hour; CallID is the first, Since when that is
	//	question         calls wait for somebody's answer; CallID is the first
	//	code             calls wait for a program that can go on with them; CallID is the first
	//	failing          more than a tenth, and at least 10, of a tool's calls of the last hour failed
	//	unknown_tools    at least 10 calls of the last day named tools that the worker's registry does not have; CallID is the last
	//	two_registries   the living workers run with different registries
	Kind     string    `json:"kind"`
	Count    int       `json:"count,omitempty"`
	Tool     string    `json:"tool,omitempty"`
	CallID   string    `json:"call_id,omitempty"`
	WorkerID string    `json:"worker_id,omitempty"`
	Since    time.Time `json:"since,omitzero"`
}

// ReadOverview reads how things stand.
func ReadOverview(ctx context.Context, db DB) (*Overview, error) {
	o := &Overview{Tools: []Depth{}, Needs: []Need{}}
	for _, read := range []func(context.Context, DB) error{o.readQueue, o.readWorkers, o.readEnded, o.readFailures} {
		if err := read(ctx, db); err != nil {
			return nil, fmt.Errorf("read how things stand: %w", err)
		}
	}
	o.sortNeeds()
	return o, nil
}

func (o *Overview) readQueue(ctx context.Context, db DB) error {
	rows, err := db.Query(ctx, `select gem.now(), q.tool_name, q.ready, q.scheduled, q.waiting, q.running, n.at - q.oldest_ready, n.at + q.next_scheduled, coalesce(q.at_least, false),
			q.waiting_for
		from (select gem.now() as at) n left join gem.queue q on true order by q.ready desc, q.running desc, q.waiting desc, q.tool_name`)
	if err != nil {
		return err
	}
	var name *string
	var ready, scheduled, waiting, running *int
	var oldest, next zeronull.Timestamptz
	var d Depth
	_, err = pgx.ForEachRow(rows, []any{&o.At, &name, &ready, &scheduled, &waiting, &running, &oldest, &next, &d.AtLeast, &d.WaitingFor}, func() error {
		if name == nil {
			return nil // the queue is empty
		}
		d.Tool, d.Ready, d.Scheduled, d.Waiting, d.Running = *name, *ready, *scheduled, *waiting, *running
		d.OldestReady, d.NextScheduled = time.Time(oldest), time.Time(next)
		o.Queue.add(d.Queue)
		if len(o.Tools) < mostDepths {
			o.Tools = append(o.Tools, d)
		}
		d.WaitingFor = nil
		return nil
	})
	return err
}

func (q *Queue) add(o Queue) {
	q.Ready += o.Ready
	q.Scheduled += o.Scheduled
	q.Waiting += o.Waiting
	q.Running += o.Running
	q.AtLeast = q.AtLeast || o.AtLeast
	q.OldestReady, q.NextScheduled = earlier(q.OldestReady, o.OldestReady), earlier(q.NextScheduled, o.NextScheduled)
	for what, n := range o.WaitingFor {
		if q.WaitingFor == nil {
			q.WaitingFor = map[string]int{}
		}
		q.WaitingFor[what] += n
	}
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// readWorkers also finds the calls that wait for someone, and those that nobody ends.
func (o *Overview) readWorkers(ctx context.Context, db DB) error {
	w := &o.Workers
	var overdue, dead, code, expiring, ruleless Need
	var question string
	err := db.QueryRow(ctx, `
		with workers as materialized (select * from gem.workers), late as materialized (select * from gem.overdue limit $1::int),
		asks as materialized (select c.id, c.created_at, c.wake_at from gem.calls c where c.status = 'waiting' and c.waits_for = 'answer' limit $1::int),
		soon as materialized (select id, wake_at from asks where wake_at < gem.now() + interval '1 hour'),
		code as materialized (select c.id, c.updated_at from gem.calls c where c.status = 'waiting' and c.waits_for = 'code' limit $1::int)
		select (select count(*) from workers where state = 'alive'), (select count(*) from workers where state = 'dead'),
			(select coalesce(sum(concurrency), 0) from workers where state = 'alive'), (select coalesce(sum(holds), 0)::bigint from workers where state = 'alive'),
			(select count(distinct registry_version) from workers where state = 'alive'),
			(select coalesce(sum(holds), 0)::bigint from workers where state <> 'alive'), (select worker_id from workers where state <> 'alive' and holds > 0 order by longest desc limit 1),
			(select gem.now() - max(longest) from workers where state <> 'alive' and holds > 0),
			(select count(*) from late), l.call_id::text, l.tool_name, l.worker_id, l.claimed_at,
			(select count(*) from asks), a.id::text, a.created_at, (select count(*) from code), p.id::text, p.updated_at,
			(select count(*) from soon), e.id::text, e.wake_at, (select count(*) from workers where state = 'alive' and claims_nothing)
		from (select 1) one left join (select * from late order by claimed_at limit 1) l on true
			left join (select * from asks order by created_at, id limit 1) a on true left join (select * from code order by updated_at, id limit 1) p on true
			left join (select * from soon order by wake_at, id limit 1) e on true`, MostCounted).
		Scan(&w.Alive, &w.Dead, &w.Slots, &w.Running, &w.Versions,
			&dead.Count, (*zeronull.Text)(&dead.WorkerID), (*zeronull.Timestamptz)(&dead.Since),
			&overdue.Count, (*zeronull.Text)(&overdue.CallID), (*zeronull.Text)(&overdue.Tool), (*zeronull.Text)(&overdue.WorkerID), (*zeronull.Timestamptz)(&overdue.Since),
			&o.Questions, (*zeronull.Text)(&question), (*zeronull.Timestamptz)(&o.QuestionsSince), &code.Count, (*zeronull.Text)(&code.CallID), (*zeronull.Timestamptz)(&code.Since),
			&expiring.Count, (*zeronull.Text)(&expiring.CallID), (*zeronull.Timestamptz)(&expiring.Since), &ruleless.Count)
	if err != nil {
		return err
	}
	if w.Alive == 0 && o.Queue.Ready > 0 {
		o.need("no_worker", Need{Count: o.Queue.Ready, Since: o.Queue.OldestReady})
	}
	if w.Alive == 0 && dead.Count > 0 {
		o.need("dead_holds", dead)
	}
	if ruleless.Count > 0 {
		o.need("rules_required", ruleless)
	}
	if overdue.Count > 0 {
		o.need("overdue", overdue)
	}
	if w.Alive > 0 && !o.Queue.OldestReady.IsZero() && o.At.Sub(o.Queue.OldestReady) > time.Minute {
		o.need("slow_queue", Need{Count: o.Queue.Ready, Since: o.Queue.OldestReady})
	}
	if expiring.Count > 0 {
		o.need("expiring", expiring)
	}
	if o.Questions > 0 {
		o.need("question", Need{Count: o.Questions, CallID: question, Since: o.QuestionsSince})
	}
	if code.Count > 0 {
		o.need("code", code)
	}
	if w.Versions > 1 {
		o.need("two_registries", Need{Count: w.Versions})
	}
	return nil
}

// readEnded also finds the tools of which many calls fail.
func (o *Overview) readEnded(ctx context.Context, db DB) (err error) {
	if o.Hour, o.Day, err = lastTotals(ctx, db, o.At); err != nil {
		return err
	}
	rows, err := db.Query(ctx, `select tool_name, sum(failed), min(minute) filter (where failed > 0) from gem.throughput
		where minute > $1::timestamptz - interval '1 hour' and tool_name not in ('', '(unknown)') -- which has what was cancelled before it ran, too
		group by 1 having sum(failed) >= 10 and sum(failed) * 10 > sum(succeeded + failed + not_configured) order by 2 desc limit 5`, o.At)
	if err != nil {
		return err
	}
	var n Need
	_, err = pgx.ForEachRow(rows, []any{&n.Tool, &n.Count, &n.Since}, func() error {
		o.need("failing", n)
		return nil
	})
	return err
}

func (o *Overview) readFailures(ctx context.Context, db DB) error {
	failures, err := readFailures(ctx, db, o.At.Add(-24*time.Hour), "", mostRecent)
	if err != nil {
		return err
	}
	sums := map[string]*Need{string(receipts.OutcomeUnknown): {}, string(receipts.UnknownTool): {}}
	for _, f := range failures.Failures {
		if sum := sums[f.Code]; sum != nil {
			if sum.Count += f.Count; sum.Since.Before(f.Last) {
				sum.CallID, sum.Since = f.CallID, f.Last
			}
		}
	}
	if unknown := sums[string(receipts.OutcomeUnknown)]; unknown.Count > 0 {
		o.need("outcome_unknown", *unknown)
	}
	if unknown := sums[string(receipts.UnknownTool)]; unknown.Count >= 10 {
		o.need("unknown_tools", *unknown)
	}
	o.Failures = failures.Failures[:min(len(failures.Failures), 10)]
	return nil
}

func (o *Overview) need(kind string, n Need) {
	n.Kind = kind
	o.Needs = append(o.Needs, n)
}

func (o *Overview) sortNeeds() {
	slices.SortStableFunc(o.Needs, func(a, b Need) int { return slices.Index(urgency, a.Kind) - slices.Index(urgency, b.Kind) })
}

// urgency is the order of [Overview.Needs].
var urgency = []string{"no_worker", "rules_required", "overdue", "dead_holds", "slow_queue", "outcome_unknown", "expiring", "question", "code", "failing", "unknown_tools", "two_registries"}

// MostCounted bounds [Overview.Questions] and the Count of a [Need]: there may be more.
const MostCounted = 1000

const (
	mostDepths = 50
	mostRecent = 1000 // failures
)
