package view

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Overview is the state of the whole system.
type Overview struct {
	At    time.Time `json:"at"` // by Postgres's clock
	Queue Queue     `json:"queue"`
	Tools []Depth   `json:"tools"` // the queue by tool, most ready calls first, at most 50
	// Workers counts the living processes; Slots is how many calls they can run at once.
	Workers WorkerCounts `json:"workers"`
	Hour    Totals       `json:"hour"` // the last 60 minutes, without questions to people
	Day     Totals       `json:"day"`  // the last 24 hours
	Busiest []Busy       `json:"busiest,omitempty"`
	// Failures are the failures of the last day, the most frequent first, at most 10, among the last 1,000 calls that
	// failed or were not configured.
	Failures []Failure `json:"failures"`
	// Questions counts the calls that wait for somebody's answer, and UserQuestions the questions of users and their
	// models among them: at most [MostCounted] of users, and as many others. QuestionsSince is when the first was
	// asked; questions of users count only if rules and handlers ask nothing.
	Questions      int       `json:"questions"`
	UserQuestions  int       `json:"user_questions"`
	QuestionsSince time.Time `json:"questions_since,omitzero"`
	// Needs are the things that need attention, the most urgent first.
	Needs []Need `json:"needs"`
}

// Queue counts the calls that have not ended. A call that waits for people counts once: questions of handlers and
// rules are excluded. AtLeast means that there may be more: at most 10,000 calls of each state are counted, and at
// most 5,000 that wait for the same thing.
type Queue struct {
	Ready     int `json:"ready"`
	Scheduled int `json:"scheduled"`
	Waiting   int `json:"waiting"`
	Running   int `json:"running"`
	// OldestReady is when the oldest ready call became due; zero if none is ready. NextScheduled is when the next
	// call is due.
	OldestReady   time.Time      `json:"oldest_ready,omitzero"`
	NextScheduled time.Time      `json:"next_scheduled,omitzero"`
	WaitingFor    map[string]int `json:"waiting_for,omitempty"` // by the reason: key, call, answer, time, code
	AtLeast       bool           `json:"at_least,omitempty"`
}

// Busy is one of at most 6 tools with the most calls that ended in the last hour, without questions to people.
type Busy struct {
	Tool string `json:"tool"`
	Totals
}

// Depth is the queue of one tool.
type Depth struct {
	Tool string `json:"tool"`
	Queue
}

// WorkerCounts summarises the workers.
type WorkerCounts struct {
	Alive    int `json:"alive"`
	Dead     int `json:"dead"`
	Slots    int `json:"slots"`
	Running  int `json:"running"`
	Versions int `json:"registry_versions"` // the number of registries of living workers
}

// Need is something that needs attention.
type Need struct {
	// Kind is
	//	no_worker        calls are ready, and no worker is alive
	//	rules_required   Count living workers claim nothing: they run without rules and the database requires rules
	//	overdue          calls run for longer than their tools may; CallID is the first, WorkerID its worker
	//	dead_holds       workers that died or stopped hold calls, and none is alive to take them; WorkerID is the first
	//	server_changed   within a day, Postgres changed to a server that may lack commits: Server has what was lost
	//	slow_queue       calls have been ready for more than a minute
	//	outcome_unknown  calls of the last day have an unknown outcome, which somebody should check; CallID is the last
	//	expiring         questions of rules and handlers expire within the hour; CallID is the first, Since its deadline
	//	question         rules and handlers wait for somebody's answer; CallID is the first
	//	code             calls wait for a program that can continue them; CallID is the first
	//	failing          of a tool's calls in the last hour, at least 10 and more than 10 % failed, without refused and
	//	                 cancelled ones
	//	rule_error       calls of the last day were refused because a rule could not be judged; CallID is the last
	//	unknown_tools    at least 10 calls of the last day named unknown tools; CallID is the last
	//	user_question    calls of users wait for somebody's answer: any user can insert some; CallID is the first
	//	undelivered      deliveries of notices in the last day failed; CallID is the last
	//	notices_waiting  no worker takes notices: none has a notify.json; Since is the oldest
	//	two_registries   the living workers run with different registries
	Kind     string    `json:"kind"`
	Count    int       `json:"count,omitempty"`
	Tool     string    `json:"tool,omitempty"`
	CallID   string    `json:"call_id,omitempty"`
	WorkerID string    `json:"worker_id,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	// Server is the last change of the server; nil except in a server_changed.
	Server *ServerChange `json:"server,omitempty"`
}

// The state is read in one statement. Its columns are JSON with the names of [Overview].
var overviewQuery = `
	with now as materialized (select gem.now() as at),
	queue as materialized (
		select q.tool_name as tool, q.ready, q.scheduled, q.waiting, q.running, now.at - q.oldest_ready as oldest_ready,
			now.at + q.next_scheduled as next_scheduled,
			coalesce(q.at_least, false) as at_least, q.waiting_for
		from now, gem.queue q),
	workers as materialized (select * from gem.workers),
	alive as materialized (select * from workers where state = 'alive'),
	held as materialized (select * from workers where state <> 'alive' and holds > 0),
	late as materialized (select * from gem.overdue limit $1::int),
	asks as materialized ( -- those of users are not in the way of those of rules and handlers
		(select c.id, c.tool_name, c.created_at, c.wake_at, false as of_user,
			case when c.parent_step is not null then c.parent_call_id end as of_call
		from gem.calls c where c.status = 'waiting' and c.waits_for = 'answer' and c.computed_key is null
			and c.tool_name = any ('{wait.answer,wait.approval,wait.event}')
				and c.asked_for = any ('{rule,handler}') limit $1::int)
		union all
		(select c.id, c.tool_name, c.created_at, c.wake_at, true, case
			when c.parent_step is not null then c.parent_call_id end
		from gem.calls c where c.status = 'waiting' and c.waits_for = 'answer'
			and coalesce(c.asked_for, 'user') = 'user' limit $1::int)),
	code as materialized (select c.id, c.updated_at from gem.calls c where c.status = 'waiting'
		and c.waits_for = 'code' limit $1::int),
	unsuccessful as materialized (` + endedSince(notSucceeded, "(select at - interval '1 day' from now)", "$2::int", "") +
	`),
	failed as materialized (` + endedSince(isFailure, "(select at - interval '1 day' from now)", "$3::int", "") + `),
	needs (kind, count, tool, call_id, worker_id, since) as (
		select 'no_worker', sum(ready), null, null::uuid, null, min(oldest_ready) from queue
			where not exists (select from alive) having sum(ready) > 0
		union all
		select 'rules_required', count(*), null, null, null, null from alive where claims_nothing having count(*) > 0
		union all
		select 'overdue', count(*), (array_agg(tool_name order by claimed_at))[1],
			(array_agg(call_id order by claimed_at))[1], (array_agg(worker_id order by claimed_at))[1],
			min(claimed_at) from late having count(*) > 0
		union all
		select 'dead_holds', sum(holds), null, null, (array_agg(worker_id order by longest desc))[1],
			(select at from now) - max(longest) from held
			where not exists (select from alive) having count(*) > 0
		union all
		select 'slow_queue', sum(ready), null, null, null, min(oldest_ready) from queue where exists (select from alive)
			having min(oldest_ready) < (select at from now) - interval '1 minute'
		union all
		select 'outcome_unknown', count(*), null, (array_agg(call_id order by at desc))[1], null, max(at) from failed
			where code = 'outcome_unknown' having count(*) > 0
		union all
		select 'expiring', count(*), null, (array_agg(id order by wake_at, id))[1], null, min(wake_at) from asks
			where not of_user and wake_at < (select at from now) + interval '1 hour' having count(*) > 0
		union all
		select case when of_user then 'user_question' else 'question' end, count(*), null,
			(array_agg(id order by created_at, id))[1], null, min(created_at) from asks group by of_user
		union all
		select 'code', count(*), null, (array_agg(id order by updated_at, id))[1], null, min(updated_at)
			from code having count(*) > 0
		union all
		select 'rule_error', count(*), null, (array_agg(call_id order by at desc))[1], null, max(at)
			from unsuccessful where code = 'rule_error' having count(*) > 0
		union all
		select 'unknown_tools', count(*), null, (array_agg(call_id order by at desc))[1], null, max(at) from failed
			where code = 'unknown_tool' having count(*) >= 10
		union all
		select kind, count, null, call_id, null, since from gem.notice_problems
		union all
		select 'two_registries', count(distinct registry_version), null, null, null, null
			from alive having count(distinct registry_version) > 1
	)
	select at, coalesce((select json_agg(q order by q.ready desc, q.running desc, q.waiting desc, q.tool) from queue q),
		'[]'),
		(select json_build_object('alive', count(*), 'slots', coalesce(sum(concurrency), 0), 'running',
			coalesce(sum(holds), 0),
			'registry_versions', count(distinct registry_version), 'dead', (select count(*) from workers where state = 'dead'))
				from alive),
		coalesce((select json_agg(n) from needs n), '[]'),
		(select json_agg(f order by f.at desc) from failed f),
		(select json_object_agg(a.tool_name, a.n) from (select tool_name, count(of_call) as n from asks group by 1) a),
		(select count(*) from (select distinct of_call as id from asks) a
			join gem.calls c on c.id = a.id and c.status = 'waiting' and c.waits_for = 'call'),
		(select row_to_json(s) from now, gem.server_changes s where s.may_lack_commits and s.at > now.at - interval '1 day'
			order by s.epoch desc limit 1)
	from now`

// ReadOverview reads the state, and the totals of finished calls.
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

// ReadOpen reads the state in one statement, without the data of [EndCounts].
func ReadOpen(ctx context.Context, db DB) (*Overview, error) {
	o := &Overview{}
	var failed []failure
	var asked map[string]int // by tool: questions that handlers and rules ask
	var asking int           // the calls that wait only for these
	var changed *ServerChange
	err := db.QueryRow(ctx, overviewQuery, MostCounted, mostLooked, mostRecent).Scan(&o.At, &o.Tools, &o.Workers,
		&o.Needs, &failed, &asked, &asking, &changed)
	if err != nil {
		return nil, fmt.Errorf("read the overview: %w", err)
	}
	if changed != nil {
		o.Needs = append(o.Needs, Need{Kind: "server_changed", Count: changed.Unknown + changed.RanTwice + changed.Missing,
			Since: changed.At, Server: changed})
	}
	o.countAsPeopleDo(asked, asking)
	o.Tools = o.Tools[:min(len(o.Tools), mostDepths)]
	for _, n := range o.Needs {
		if n.Kind == "user_question" {
			o.UserQuestions = n.Count
		}
		if n.Kind == "question" || n.Kind == "user_question" {
			o.Questions += n.Count
		}
		if n.Kind == "question" || n.Kind == "user_question" && o.QuestionsSince.IsZero() {
			o.QuestionsSince = n.Since
		}
	}
	o.Failures = sumUp(failed)
	o.Failures = o.Failures[:min(len(o.Failures), 10)]
	return o, nil
}

// countAsPeopleDo counts a call that waits for an answer once, and excludes its question, which is a call too.
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

// CountedWithin is the longest time from a call's end until [EndCounts] and [Minute] count it, while a worker is alive.
// Workers count every 15 s, and leave out the last 15 s.
const CountedWithin = 30 * time.Second

// EndCounts has the workers' counts of finished calls: see [CountedWithin].
type EndCounts struct {
	Hour, Day Totals
	Failing   []Need // as in [Overview.Needs]
	Busiest   []Busy
}

// ReadEnded reads the counts of finished calls, in one statement.
func ReadEnded(ctx context.Context, db DB) (*EndCounts, error) {
	var minutes []struct {
		counts
		Late     bool `json:"late"` // of the last hour
		Question bool `json:"question"`
	}
	var busy []struct {
		counts
		Tool string `json:"tool"`
	}
	e := &EndCounts{}
	err := db.QueryRow(ctx, `
		with now as materialized (select gem.now() as at), minutes as materialized (
			select m.succeeded, m.failed, m.refused, m.cancelled, m.not_configured, m.hits, m.durations, m.waits,
				m.minute > now.at - interval '1 hour' as late,
				m.tool_name <> '' as question
			from now, gem.throughput m where m.minute > now.at - interval '1 day' and m.tool_name = any ($1::text[])
		), busiest as materialized (
			select m.tool_name, sum(m.succeeded + m.failed + m.refused + m.cancelled + m.not_configured) as calls from now,
				gem.throughput m
			where m.minute > now.at - interval '1 hour' and m.tool_name <> all ($1::text[]) and m.tool_name <> '(unknown)'
			group by 1 order by 2 desc, 1 limit 6
		), busy as (
			select m.tool_name as tool, m.succeeded, m.failed, m.refused, m.cancelled, m.not_configured, m.hits, m.durations,
				m.waits, b.calls
			from now cross join busiest b join gem.throughput m on m.tool_name = b.tool_name
				and m.minute > now.at - interval '1 hour'
		), failing as materialized (
			select 'failing' as kind, sum(m.failed) as count, m.tool_name as tool,
				min(m.minute) filter (where m.failed > 0) as since from now, gem.throughput m
			where m.minute > now.at - interval '1 hour' and m.tool_name not in ('', '(unknown)')
			group by m.tool_name having sum(m.failed) >= 10
				and sum(m.failed) * 10 > sum(m.succeeded + m.failed + m.not_configured) order by 2 desc limit 5
		)
		select (select json_agg(m) from minutes m), (select json_agg(f order by f.count desc) from failing f),
			(select json_agg(b order by b.calls desc, b.tool) from busy b)`, namesOf("")).Scan(&minutes, &e.Failing, &busy)
	if err != nil {
		return nil, fmt.Errorf("read the finished calls: %w", err)
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

// Add adds the counts of finished calls.
func (o *Overview) Add(e *EndCounts) {
	o.Hour, o.Day, o.Busiest, o.Needs = e.Hour, e.Day, e.Busiest, append(o.Needs, e.Failing...)
	slices.SortStableFunc(o.Needs, func(a, b Need) int {
		return slices.Index(urgency, a.Kind) - slices.Index(urgency, b.Kind)
	})
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
var urgency = []string{"no_worker", "rules_required", "overdue", "dead_holds", "server_changed", "slow_queue",
	"outcome_unknown", "rule_error", "expiring", "question", "code", "failing", "unknown_tools", "undelivered", "notices_waiting",
	"user_question", "two_registries"}

// MostCounted limits the Count of a [Need]: there may be more.
const MostCounted = 1000

const (
	mostDepths = 50
	mostLooked = 5000 // calls that did not succeed
	mostRecent = 1000 // failures among them
)
