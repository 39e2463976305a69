package handlers

import (
	"context"
	"encoding/json"
	"fmt"
)

// GetStateSnapshot asks where things stand in a domain.
type GetStateSnapshot struct {
	Domain string `json:"domain"`
}

// StateSnapshot is where things stood at a moment.
type StateSnapshot struct {
	Domain string          `json:"domain"`
	AsOf   Time            `json:"as_of"`
	State  json.RawMessage `json:"state"`
}

// The state of domain $1, with what happened since $2 (by default in the last 7 days), as one row: state, since, and how
// many tasks, reminders, notes and leads it looked at. Leads, interactions and messages are business, so a personal state
// leaves them out. The lists hold the next or latest five.
const currentState = `
	with period as (select coalesce($2::timestamptz, now() - interval '7 days') as since),
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
		select coalesce(jsonb_object_agg(stage, leads), '{}') as by_stage, coalesce(sum(leads), 0) as seen, coalesce(sum(fresh), 0) as created
		from (select stage, count(*) as leads, count(*) filter (where created_at >= since) as fresh
			from leads, period where $1 <> 'personal' group by stage) s
	)
	select jsonb_build_object(
		'tasks', jsonb_build_object('open', t.open, 'overdue', t.overdue, 'due_within_7_days', t.due_soon, 'next', coalesce((
			select jsonb_agg(jsonb_build_object('task_id', id, 'title', title, 'priority', priority, 'due_at',
				to_char(due_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) order by due_at, created_at, id)
			from (select * from tasks where status = 'open' and ($1 = 'both' or domain in ($1, 'both'))
				order by due_at, created_at, id limit 5) x), '[]')),
		'reminders', jsonb_build_object('upcoming', r.upcoming, 'next', coalesce((
			select jsonb_agg(jsonb_build_object('reminder_id', id, 'title', title, 'remind_at',
				to_char(remind_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) order by remind_at, id)
			from (select * from reminders where remind_at >= now() and ($1 = 'both' or domain in ($1, 'both'))
				order by remind_at, id limit 5) x), '[]')),
		'notes', jsonb_build_object('total', n.total, 'latest', coalesce((
			select jsonb_agg(jsonb_build_object('note_id', id, 'title', title, 'created_at',
				to_char(created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) order by created_at desc, id)
			from (select * from notes where $1 = 'both' or domain in ($1, 'both') order by created_at desc, id limit 5) x), '[]')),
		'activity', jsonb_build_object('since', to_char(since at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
			'tasks_created', t.created, 'tasks_completed', t.completed, 'notes_created', n.created)
	) || case when $1 = 'personal' then '{}' else jsonb_build_object(
		'leads', jsonb_build_object('by_stage', l.by_stage, 'latest', coalesce((
			select jsonb_agg(jsonb_build_object('lead_id', id, 'name', name, 'suburb', suburb, 'stage', stage, 'created_at',
				to_char(created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) order by created_at desc, id)
			from (select * from leads where stage not in ('won', 'lost') order by created_at desc, id limit 5) x), '[]')),
		'business_activity', jsonb_build_object('leads_created', l.created,
			'interactions', (select count(*) from interactions where created_at >= since),
			'messages_sent', (select count(*) from comms_log where status = 'sent' and created_at >= since))
	) end as state, since, t.seen as tasks, r.seen as reminders, n.total as notes, l.seen as leads
	from period, t, r, n, l`

// GetStateSnapshot is os.get_state_snapshot: the latest stored snapshot of exactly this domain, and where none is stored,
// the state of this moment, which is not stored. as_of says how old it is; os.refresh_state_snapshot makes a new one.
func (OS) GetStateSnapshot(ctx context.Context, tx Tx, call *Call, in GetStateSnapshot) (StateSnapshot, error) {
	out := StateSnapshot{Domain: in.Domain}
	var stored bool
	var tasks, reminders, notes, leads int
	err := tx.QueryRow(ctx, `with stored as (
			select as_of, state from state_snapshots where domain = $1 order by as_of desc limit 1)
		select true, as_of, state, 0, 0, 0, 0 from stored
		union all
		select false, now(), state, tasks, reminders, notes, leads from (`+currentState+`) current
		where not exists (select from stored)`, in.Domain, nil).
		Scan(&stored, &out.AsOf, &out.State, &tasks, &reminders, &notes, &leads)
	if err != nil {
		return StateSnapshot{}, fmt.Errorf("read the state: %w", err)
	}
	if stored {
		call.Read("state_snapshots", 1)
	} else {
		readState(call, tasks, reminders, notes, leads)
	}
	return out, nil
}

func readState(call *Call, tasks, reminders, notes, leads int) {
	call.Read("tasks", tasks)
	call.Read("reminders", reminders)
	call.Read("notes", notes)
	call.Read("leads", leads)
}

// RefreshStateSnapshot stores the state of this moment.
type RefreshStateSnapshot struct {
	Domain string `json:"domain"`
	Since  *Time  `json:"since"` // where its count of activity begins; 7 days ago by default
}

// StateSnapshotStored names the new snapshot.
type StateSnapshotStored struct {
	SnapshotID string `json:"snapshot_id"`
	AsOf       Time   `json:"as_of"`
}

// RefreshStateSnapshot is os.refresh_state_snapshot.
func (OS) RefreshStateSnapshot(ctx context.Context, tx Tx, call *Call, in RefreshStateSnapshot) (StateSnapshotStored, error) {
	var out StateSnapshotStored
	var tasks, reminders, notes, leads int
	err := tx.QueryRow(ctx, `with current as materialized (`+currentState+`),
		stored as (
			insert into state_snapshots (domain, as_of, since, state, call_id) select $1, now(), since, state, $3 from current
			returning id, as_of)
		select stored.id::text, stored.as_of, tasks, reminders, notes, leads from stored, current`, in.Domain, in.Since, call.ID).
		Scan(&out.SnapshotID, &out.AsOf, &tasks, &reminders, &notes, &leads)
	if err != nil {
		return StateSnapshotStored{}, fmt.Errorf("store the state: %w", err)
	}
	readState(call, tasks, reminders, notes, leads)
	call.Wrote("state_snapshots", Insert, out.SnapshotID)
	return out, nil
}
