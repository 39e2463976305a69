package watch

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Overview says how things stand.
type Overview struct {
	At    time.Time `json:"at"` // by Postgres's clock
	Queue Queue     `json:"queue"`
	Tools []Depth   `json:"tools"` // the queue by tool, those with most ready calls first, at most 50
	// Workers counts the processes that are alive; Slots the calls that they run at once, at most.
	Workers WorkerCounts `json:"workers"`
	Hour    Totals       `json:"hour"` // the last 60 minutes, without questions to people
	Day     Totals       `json:"day"`  // the last 24 hours
	Busiest []Busy       `json:"busiest,omitempty"`
	// Failures are those of the last day, the most frequent first, at most 10: of the last 1,000 calls that failed or were not configured.
	Failures []Failure `json:"failures"`
	// Questions counts the calls that wait for somebody's answer, up to [MostCounted]; the first was asked at QuestionsSince.
	Questions      int       `json:"questions"`
	QuestionsSince time.Time `json:"questions_since,omitzero"`
	// Needs is what needs someone, the most urgent first.
	Needs []Need `json:"needs"`
}

// Queue counts the calls that have not ended. A call that waits for people counts once: the questions of handlers and rules
// are left out. AtLeast means that there may be more: at most 10,000 calls of each state are counted, and at most 5,000 that wait for the same thing.
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

// Busy is one of the tools with the most calls that ended in the last hour, at most 6, without questions to people.
type Busy struct {
	Tool string `json:"tool"`
	Totals
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
	//	failing          at least 10 calls of a tool failed in the last hour, more than a tenth of those that were neither refused
	//	                 nor cancelled
	//	rule_error       calls of the last day were refused because a rule could not be judged; CallID is the last
	//	unknown_tools    at least 10 calls of the last day named tools that the worker's registry does not have; CallID is the last
	//	two_registries   the living workers run with different registries
	Kind     string    `json:"kind"`
	Count    int       `json:"count,omitempty"`
	Tool     string    `json:"tool,omitempty"`
	CallID   string    `json:"call_id,omitempty"`
	WorkerID string    `json:"worker_id,omitempty"`
	Since    time.Time `json:"since,omitzero"`
}

// How things stand is read in one statement. Its columns are JSON, in which each value has the name that it has in [Overview].
var howThingsStand = `
	with now as materialized (select gem.now() as at),
	queue as materialized (
		select q.tool_name as tool, q.ready, q.scheduled, q.waiting, q.running, now.at - q.oldest_ready as oldest_ready, now.at + q.next_scheduled as next_scheduled,
			coalesce(q.at_least, false) as at_least, q.waiting_for
		from now, gem.queue q),
	workers as materialized (select * from gem.workers),
	alive as materialized (select * from workers where state = 'alive'),
	held as materialized (select * from workers where state <> 'alive' and holds > 0),
	late as materialized (select * from gem.overdue limit $1::int),
	asks as materialized ( -- those of users are not in the way of those of rules and handlers
		(select c.id, c.tool_name, c.created_at, c.wake_at, case when c.parent_step is not null then c.parent_call_id end as of_call
		from gem.calls c where c.status = 'waiting' and c.waits_for = 'answer' and c.computed_key is null
			and c.tool_name = any ('{wait.answer,wait.approval,wait.event}') and c.asked_for = any ('{rule,handler}') limit $1::int)
		union all
		(select c.id, c.tool_name, c.created_at, c.wake_at, case when c.parent_step is not null then c.parent_call_id end
		from gem.calls c where c.status = 'waiting' and c.waits_for = 'answer' and coalesce(c.asked_for, 'user') = 'user' limit $1::int)),
	code as materialized (select c.id, c.updated_at from gem.calls c where c.status = 'waiting' and c.waits_for = 'code' limit $1::int),
	unsuccessful as materialized (` + endedSince("(select at - interval '1 day' from now)", "$2::int", "") + `),
	failed as materialized (select * from unsuccessful where outcome in ('failed', 'not_configured') order by at desc limit $3::int),
	needs (kind, count, tool, call_id, worker_id, since) as (
		select 'no_worker', sum(ready), null, null::uuid, null, min(oldest_ready) from queue where not exists (select from alive) having sum(ready) > 0
		union all
		select 'rules_required', count(*), null, null, null, null from alive where claims_nothing having count(*) > 0
		union all
		select 'overdue', count(*), (array_agg(tool_name order by claimed_at))[1], (array_agg(call_id order by claimed_at))[1], (array_agg(worker_id order by claimed_at))[1],
			min(claimed_at) from late having count(*) > 0
		union all
		select 'dead_holds', sum(holds), null, null, (array_agg(worker_id order by longest desc))[1], (select at from now) - max(longest) from held
			where not exists (select from alive) having count(*) > 0
		union all
		select 'slow_queue', sum(ready), null, null, null, min(oldest_ready) from queue where exists (select from alive)
			having min(oldest_ready) < (select at from now) - interval '1 minute'
		union all
		select 'outcome_unknown', count(*), null, (array_agg(call_id order by at desc))[1], null, max(at) from failed where code = 'outcome_unknown' having count(*) > 0
		union all
		select 'expiring', count(*), null, (array_agg(id order by wake_at, id))[1], null, min(wake_at) from asks
			where wake_at < (select at from now) + interval '1 hour' having count(*) > 0
		union all
		select 'question', count(*), null, (array_agg(id order by created_at, id))[1], null, min(created_at) from asks having count(*) > 0
		union all
		select 'code', count(*), null, (array_agg(id order by updated_at, id))[1], null, min(updated_at) from code having count(*) > 0
		union all
		select 'rule_error', count(*), null, (array_agg(call_id order by at desc))[1], null, max(at)
			from unsuccessful where code = 'rule_error' having count(*) > 0
		union all
		select 'unknown_tools', count(*), null, (array_agg(call_id order by at desc))[1], null, max(at) from failed where code = 'unknown_tool' having count(*) >= 10
		union all
		select 'two_registries', count(distinct registry_version), null, null, null, null from alive having count(distinct registry_version) > 1
	)
	select at, coalesce((select json_agg(q order by q.ready desc, q.running desc, q.waiting desc, q.tool) from queue q), '[]'),
		(select json_build_object('alive', count(*), 'slots', coalesce(sum(concurrency), 0), 'running', coalesce(sum(holds), 0),
			'registry_versions', count(distinct registry_version), 'dead', (select count(*) from workers where state = 'dead')) from alive),
		coalesce((select json_agg(n) from needs n), '[]'),
		(select json_agg(f order by f.at desc) from failed f),
		(select json_object_agg(a.tool_name, a.n) from (select tool_name, count(of_call) as n from asks group by 1) a),
		(select count(*) from (select distinct of_call as id from asks) a
			join gem.calls c on c.id = a.id and c.status = 'waiting' and c.waits_for = 'call')
	from now`

// ReadOverview reads how things stand, and what ended.
func ReadOverview(ctx context.Context, db DB) (*Overview, error) {
	o, err := ReadOpen(ctx, db)
	if err != nil {
		return nil, err
	}
	ended, err := ReadEnded(ctx, db)
	if err != nil {
		return nil, err
	}
	o.Add(ended)
	return o, nil
}

// ReadOpen reads how things stand, without what [Ended] has, in one statement.
func ReadOpen(ctx context.Context, db DB) (*Overview, error) {
	o := &Overview{}
	var failed []failure
	var asked map[string]int // by tool: questions that handlers and rules ask
	var asking int           // the calls that wait for them alone
	err := db.QueryRow(ctx, howThingsStand, MostCounted, mostLooked, mostRecent).Scan(&o.At, &o.Tools, &o.Workers, &o.Needs, &failed, &asked, &asking)
	if err != nil {
		return nil, fmt.Errorf("read how things stand: %w", err)
	}
	o.countAsPeopleDo(asked, asking)
	o.Tools = o.Tools[:min(len(o.Tools), mostDepths)]
	for _, n := range o.Needs {
		if n.Kind == "question" {
			o.Questions, o.QuestionsSince = n.Count, n.Since
		}
	}
	o.Failures = sumUp(failed)
	o.Failures = o.Failures[:min(len(o.Failures), 10)]
	return o, nil
}

// countAsPeopleDo counts a call that waits for an answer once: the question is a call too, and is left out.
func (o *Overview) countAsPeopleDo(asked map[string]int, asking int) {
	tools := o.Tools[:0]
	for _, d := range o.Tools {
		if n := min(asked[d.Tool], d.WaitingFor["answer"]); n > 0 {
			d.Waiting -= n
			d.WaitingFor["answer"] -= n
		}
		if o.Queue.add(d.Queue); d.Ready+d.Scheduled+d.Waiting+d.Running > 0 {
			tools = append(tools, d)
		}
	}
	o.Tools = tools
	if waits := o.Queue.WaitingFor; waits["call"] > 0 {
		asking = min(asking, waits["call"])
		waits["call"] -= asking
		waits["answer"] += asking
	}
	maps.DeleteFunc(o.Queue.WaitingFor, func(_ string, n int) bool { return n <= 0 })
}

// CountedWithin is how long after its end a call is counted in [Ended] and [Minute], at most, while a worker is alive. Workers
// count every 15 s, and leave out the last 15 s.
const CountedWithin = 30 * time.Second

// Ended is what workers have counted of the calls that ended: see [CountedWithin].
type Ended struct {
	Hour, Day Totals
	Failing   []Need // as in [Overview.Needs]
	Busiest   []Busy
}

// ReadEnded reads what ended, in one statement.
func ReadEnded(ctx context.Context, db DB) (*Ended, error) {
	var minutes []struct {
		counts
		Late     bool `json:"late"` // of the last hour
		Question bool `json:"question"`
	}
	var busy []struct {
		counts
		Tool string `json:"tool"`
	}
	e := &Ended{}
	err := db.QueryRow(ctx, `
		with now as materialized (select gem.now() as at), minutes as materialized (
			select m.succeeded, m.failed, m.refused, m.cancelled, m.not_configured, m.hits, m.durations, m.waits, m.minute > now.at - interval '1 hour' as late,
				m.tool_name <> '' as question
			from now, gem.throughput m where m.minute > now.at - interval '1 day' and m.tool_name = any ($1::text[])
		), busiest as materialized (
			select m.tool_name, sum(m.succeeded + m.failed + m.refused + m.cancelled + m.not_configured) as calls from now, gem.throughput m
			where m.minute > now.at - interval '1 hour' and m.tool_name <> all ($1::text[]) and m.tool_name <> '(unknown)'
			group by 1 order by 2 desc, 1 limit 6
		), busy as (
			select m.tool_name as tool, m.succeeded, m.failed, m.refused, m.cancelled, m.not_configured, m.hits, m.durations, m.waits, b.calls
			from now cross join busiest b join gem.throughput m on m.tool_name = b.tool_name and m.minute > now.at - interval '1 hour'
		), failing as materialized (
			select 'failing' as kind, sum(m.failed) as count, m.tool_name as tool, min(m.minute) filter (where m.failed > 0) as since from now, gem.throughput m
			where m.minute > now.at - interval '1 hour' and m.tool_name not in ('', '(unknown)')
			group by m.tool_name having sum(m.failed) >= 10 and sum(m.failed) * 10 > sum(m.succeeded + m.failed + m.not_configured) order by 2 desc limit 5
		)
		select (select json_agg(m) from minutes m), (select json_agg(f order by f.count desc) from failing f),
			(select json_agg(b order by b.calls desc, b.tool) from busy b)`, namesOf("")).Scan(&minutes, &e.Failing, &busy)
	if err != nil {
		return nil, fmt.Errorf("read what ended: %w", err)
	}
	var hour, day counts
	for _, m := range minutes {
		if day.addOrTake(m.counts, m.Question); m.Late {
			hour.addOrTake(m.counts, m.Question)
		}
	}
	for i := 0; i < len(busy); {
		one, tool := counts{}, busy[i].Tool
		for ; i < len(busy) && busy[i].Tool == tool; i++ {
			one.add(busy[i].counts)
		}
		e.Busiest = append(e.Busiest, Busy{tool, one.totals()})
	}
	e.Hour, e.Day = hour.totals(), day.totals()
	return e, nil
}

// Add adds what ended.
func (o *Overview) Add(e *Ended) {
	o.Hour, o.Day, o.Busiest, o.Needs = e.Hour, e.Day, e.Busiest, append(o.Needs, e.Failing...)
	slices.SortStableFunc(o.Needs, func(a, b Need) int { return slices.Index(urgency, a.Kind) - slices.Index(urgency, b.Kind) })
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

// urgency is the order of [Overview.Needs].
var urgency = []string{"no_worker", "rules_required", "overdue", "dead_holds", "slow_queue", "outcome_unknown", "rule_error", "expiring", "question", "code", "failing", "unknown_tools", "two_registries"}

// MostCounted bounds [Overview.Questions] and the Count of a [Need]: there may be more.
const MostCounted = 1000

const (
	mostDepths = 50
	mostLooked = 5000 // calls that did not succeed, among which are
	mostRecent = 1000 // failures, at most
)
