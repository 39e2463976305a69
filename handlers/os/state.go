package os

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
)

// GetStateSnapshot requests the state of a domain.
type GetStateSnapshot struct {
	Domain string `json:"domain"`
}

// StateSnapshot is the state of a domain at a moment.
type StateSnapshot struct {
	Domain string          `json:"domain"`
	AsOf   value.Time      `json:"as_of"`
	State  json.RawMessage `json:"state"`
}

// currentState is the state of domain $1, with its activity since $2 (by default in the last 7 days), as one row:
// state, since, and how many rows of countedTables were read. Leads, interactions and messages are business, so a
// personal state omits them. It has only the personal rows that the reader $3 may use. The lists hold the next or
// latest five. [currentStateOf] puts the beginning of its with clause before it.
var currentState = `
	tasks as not materialized (select * from public.tasks where ` + mayUse(3) + `),
	reminders as not materialized (select * from public.reminders where ` + mayUse(3) + `),
	notes as not materialized (select * from public.notes where ` + mayUse(3) + `),
	period as (select coalesce($2::timestamptz, now() - interval '7 days') as since),
	t as (
		select count(*) filter (where status = 'open') as open,
			count(*) filter (where status = 'open' and due_at < now()) as overdue,
			count(*) filter (where status = 'open' and due_at >= now() and due_at < now() + interval '7 days') as due_soon,
			count(*) filter (where created_at >= since) as created,
			count(*) filter (where completed_at >= since) as completed,
			count(*) as seen
		from tasks, period where $1 = 'both' or domain in ($1, 'both')
	), r as (
		select count(*) filter (where remind_at >= now()) as upcoming, count(*) as seen
		from reminders where $1 = 'both' or domain in ($1, 'both')
	), n as (
		select count(*) as total, count(*) filter (where created_at >= since) as created
		from notes, period where $1 = 'both' or domain in ($1, 'both')
	), l as (
		select coalesce(pg_catalog.jsonb_object_agg(stage, leads), '{}') as by_stage, coalesce(sum(leads), 0) as seen,
			coalesce(sum(fresh), 0) as created
		from (select stage, count(*) as leads, count(*) filter (where created_at >= since) as fresh
			from leads, period where $1 <> 'personal' group by stage) s
	)
	select pg_catalog.jsonb_build_object(
		'tasks', pg_catalog.jsonb_build_object('open', t.open, 'overdue', t.overdue, 'due_within_7_days', t.due_soon, 'next',
			coalesce((
			select pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('task_id', id, 'title', title, 'priority', priority,
				'due_at',
				to_char(due_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) order by due_at, created_at, id)
			from (select * from tasks where status = 'open' and ($1 = 'both' or domain in ($1, 'both'))
				order by due_at, created_at, id limit 5) x), '[]')),
		'reminders', pg_catalog.jsonb_build_object('upcoming', r.upcoming, 'next', coalesce((
			select pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('reminder_id', id, 'title', title, 'remind_at',
				to_char(remind_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) order by remind_at, id)
			from (select * from reminders where remind_at >= now() and ($1 = 'both' or domain in ($1, 'both'))
				order by remind_at, id limit 5) x), '[]')),
		'notes', pg_catalog.jsonb_build_object('total', n.total, 'latest', coalesce((
			select pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('note_id', id, 'title', title, 'created_at',
				to_char(created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) order by created_at desc, id)
			from (select * from notes where $1 = 'both' or domain in ($1, 'both') order by created_at desc, id limit 5) x),
				'[]')),
		'activity', pg_catalog.jsonb_build_object('since', to_char(since at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
			'tasks_created', t.created, 'tasks_completed', t.completed, 'notes_created', n.created)
	) || case when $1 = 'personal' then '{}' else pg_catalog.jsonb_build_object(
		'leads', pg_catalog.jsonb_build_object('by_stage', l.by_stage, 'latest', coalesce((
			select pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('lead_id', id, 'name', name, 'suburb', suburb, 'stage',
				stage, 'created_at',
				to_char(created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) order by created_at desc, id)
			from (select * from leads where stage not in ('won', 'lost') order by created_at desc, id limit 5) x), '[]')),
		'business_activity', pg_catalog.jsonb_build_object('leads_created', l.created,
			'interactions', (select count(*) from interactions where created_at >= since),
			'messages_sent', (select count(*) from comms_log where status = 'sent' and created_at >= since))
	) end as state, since, array[t.seen, r.seen, n.total, l.seen]::integer[] as seen
	from period, t, r, n, l`

// countedTables are in the order of currentState's column seen.
var countedTables = []string{"tasks", "reminders", "notes", "leads"}

// currentStateOf returns currentState, preceded by the tables of leads, entity and comms: an empty query replaces each
// table that the program does not have. A table of that name may still exist, but belong to someone else.
func (o *OS) currentStateOf(ctx context.Context, tx handlers.Tx) (string, error) {
	var others string
	err := tx.QueryRow(ctx, `select string_agg(case when 'public.' || name <> all ($1::text[])
		or to_regclass('public.' || name) is null
			then pg_catalog.format('%s as (select %s where false), ', name, columns)
			else pg_catalog.format('%s as not materialized (select * from public.%1$s), ', name) end, '')
		from (values ('leads', $$null::uuid as id, '' as name, '' as suburb, '' as stage, now() as created_at$$),
			('interactions', 'now() as created_at'), ('comms_log', $$'' as status, now() as created_at$$)) as other (name,
				columns)`,
		o.tables).Scan(&others)
	if err != nil {
		return "", fmt.Errorf("look for the tables: %w", err)
	}
	return "with " + others + currentState, nil
}

func readState(call *handlers.Call, seen []int) {
	for i, name := range countedTables {
		call.Read(name, seen[i])
	}
}

// GetStateSnapshot is os.get_state_snapshot: the latest stored snapshot of exactly this domain, among the snapshots
// that count the personal rows of the same reader, or, if none is stored, the current state, which is not stored. as_of
// is its time; os.refresh_state_snapshot makes a new one.
func (o *OS) GetStateSnapshot(ctx context.Context, tx handlers.Tx, call *handlers.Call,
	in GetStateSnapshot) (StateSnapshot, error) {
	out := StateSnapshot{Domain: in.Domain}
	current, err := o.currentStateOf(ctx, tx)
	if err != nil {
		return out, err
	}
	var seen []int // null for a stored snapshot
	err = tx.QueryRow(ctx, `with stored as (
			select as_of, state from public.state_snapshots where domain = $1
				and (domain = 'business' or created_by is not distinct from $3)
			order by as_of desc limit 1)
		select as_of, state, null from stored
		union all
		select now(), state, seen from (`+current+`) current
		where not exists (select from stored)`, in.Domain, nil, reader(call)).Scan(&out.AsOf, &out.State, &seen)
	switch {
	case err != nil:
		return out, fmt.Errorf("read the state: %w", err)
	case seen == nil:
		call.Read("state_snapshots", 1)
	default:
		readState(call, seen)
	}
	return out, nil
}

// RefreshStateSnapshot stores the current state.
type RefreshStateSnapshot struct {
	Domain string      `json:"domain"`
	Since  *value.Time `json:"since"` // the beginning of its activity; 7 days ago by default
}

// SnapshotRef names the new snapshot.
type SnapshotRef struct {
	SnapshotID string     `json:"snapshot_id"`
	AsOf       value.Time `json:"as_of"`
}

// RefreshStateSnapshot is os.refresh_state_snapshot.
func (o *OS) RefreshStateSnapshot(ctx context.Context, tx handlers.Tx, call *handlers.Call, in RefreshStateSnapshot) (
	out SnapshotRef, err error) {
	current, err := o.currentStateOf(ctx, tx)
	if err != nil {
		return out, err
	}
	var seen []int
	err = tx.QueryRow(ctx, `with current as materialized (`+current+`),
		stored as (
			insert into public.state_snapshots (domain, as_of, since, state, created_by, call_id) select $1, now(), since, state,
				$3, $4 from current
			returning id, as_of)
		select stored.id::text, stored.as_of, seen from stored, current`, in.Domain, in.Since, reader(call),
		call.ID).Scan(&out.SnapshotID, &out.AsOf, &seen)
	if err != nil {
		return out, fmt.Errorf("store the state: %w", err)
	}
	readState(call, seen)
	call.Wrote("state_snapshots", handlers.Insert, out.SnapshotID)
	return out, nil
}
