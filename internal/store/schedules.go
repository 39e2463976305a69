package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Schedule is a row of gem.schedules: see migrations/functions/schedules.sql.
type Schedule struct {
	Name string
	ScheduleCall
	Cron, Zone   string
	Missed       string
	MissedWithin string // an interval of Postgres
	Overlap      string
	Jitter       string    // an interval of Postgres
	StartsAt     time.Time // zero: at once
	EndsAt       time.Time // zero: never
	NextAt       time.Time // zero: ended
	HeldAt       time.Time // waits for the end of the last call; zero: none
	Paused       *ScheduleAct
	Changed      ScheduleAct
}

// ScheduleCall is the call that a schedule makes.
type ScheduleCall struct {
	Tool      string
	Input     json.RawMessage
	SessionID string
	Priority  int
}

// ScheduleAct tells who paused or changed a schedule.
type ScheduleAct struct {
	By     string    `json:"by"`
	Login  string    `json:"login"` // the role of the connection; empty if it is the same as By
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

const scheduleColumns = `s.name, s.tool_name, s.input, s.session_id, s.priority, s.cron, s.zone, s.missed,
	s.missed_within::text, s.overlap, s.jitter::text, s.starts_at, s.ends_at, s.next_at, s.held_at, s.paused, s.changed`

func scanSchedule(row pgx.CollectableRow) (s Schedule, err error) {
	err = row.Scan(&s.Name, &s.Tool, &s.Input, (*zeronull.Text)(&s.SessionID), &s.Priority, &s.Cron, &s.Zone, &s.Missed,
		&s.MissedWithin, &s.Overlap, &s.Jitter, (*zeronull.Timestamptz)(&s.StartsAt), (*zeronull.Timestamptz)(&s.EndsAt),
		(*zeronull.Timestamptz)(&s.NextAt), (*zeronull.Timestamptz)(&s.HeldAt), &s.Paused, &s.Changed)
	return s, err
}

// Schedules returns all schedules, sorted by name.
func Schedules(ctx context.Context, db DB) ([]Schedule, error) {
	rows, err := db.Query(ctx, "select "+scheduleColumns+" from gem.schedules s where s.removed is null order by s.name")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanSchedule)
}

// OneSchedule returns the schedule with a name, or [pgx.ErrNoRows].
func OneSchedule(ctx context.Context, db DB, name string) (Schedule, error) {
	rows, err := db.Query(ctx,
		"select "+scheduleColumns+" from gem.schedules s where s.removed is null and s.name = $1", name)
	if err != nil {
		return Schedule{}, err
	}
	return pgx.CollectExactlyOneRow(rows, scanSchedule)
}

// Occurrence is a row of gem.occurrences: the outcome of one instant, or of all from DueAt to Upto.
type Occurrence struct {
	DueAt, Upto time.Time
	Count       int // 0: more than a thousand, or not counted
	Backfilled  bool
	CallID      string
	Status      string // of the call; empty if it was pruned
	Skipped     string
	Detail      string
}

// Occurrences returns the last occurrences of a schedule, newest first.
func Occurrences(ctx context.Context, db DB, schedule string, limit int) ([]Occurrence, error) {
	rows, err := db.Query(ctx, `
		select o.due_at, o.upto, coalesce(o.count, 0), o.backfilled, o.call_id::text, c.status, o.skipped, o.detail
		from gem.schedules s
		join gem.occurrences o on o.schedule_id = s.id
		left join public.core_tool_calls c on c.id = o.call_id
		where s.name = $1 and s.removed is null
		order by o.due_at desc, o.backfilled limit $2`, schedule, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (o Occurrence, err error) {
		err = row.Scan(&o.DueAt, &o.Upto, &o.Count, &o.Backfilled, (*zeronull.Text)(&o.CallID), (*zeronull.Text)(&o.Status),
			(*zeronull.Text)(&o.Skipped), (*zeronull.Text)(&o.Detail))
		return o, err
	})
}

// SaveSchedule makes a schedule or changes the one with its name, and returns its next instant and whether it is
// paused. Empty fields get their defaults.
func SaveSchedule(ctx context.Context, db DB, s Schedule) (next time.Time, paused bool, err error) {
	options := map[string]any{"priority": s.Priority}
	for name, value := range map[string]string{"session_id": s.SessionID, "missed": s.Missed,
		"missed_within": s.MissedWithin, "overlap": s.Overlap, "jitter": s.Jitter} {
		if value != "" {
			options[name] = value
		}
	}
	for name, at := range map[string]time.Time{"starts_at": s.StartsAt, "ends_at": s.EndsAt} {
		if !at.IsZero() {
			options[name] = at
		}
	}
	encoded, err := json.Marshal(options)
	if err != nil {
		return time.Time{}, false, err
	}
	err = db.QueryRow(ctx, "select next, paused from gem.save_schedule($1, $2, $3, $4, $5, $6)", s.Name, s.Cron,
		s.Tool, string(s.Input), s.Zone, string(encoded)).Scan(&next, &paused)
	return next, paused, err
}

// PauseSchedule pauses a schedule. In this and the next two functions, by is the person who acts; empty means the role
// of the connection.
func PauseSchedule(ctx context.Context, db DB, name, by, reason string) error {
	_, err := db.Exec(ctx, "select gem.pause_schedule($1, nullif($2, ''), $3)", name, by, reason)
	return err
}

// ResumeSchedule resumes a schedule, and returns its next instant, or zero if it has ended.
func ResumeSchedule(ctx context.Context, db DB, name, by, reason string) (next time.Time, err error) {
	err = db.QueryRow(ctx, "select gem.resume_schedule($1, nullif($2, ''), $3)", name, by, reason).
		Scan((*zeronull.Timestamptz)(&next))
	return next, err
}

// RemoveSchedule removes a schedule.
func RemoveSchedule(ctx context.Context, db DB, name, by, reason string) error {
	_, err := db.Exec(ctx, "select gem.remove_schedule($1, nullif($2, ''), $3)", name, by, reason)
	return err
}

// RunScheduleNow makes a call of a schedule, and returns its id.
func RunScheduleNow(ctx context.Context, db DB, name string) (callID string, err error) {
	err = db.QueryRow(ctx, "select gem.run_schedule_now($1)::text", name).Scan(&callID)
	return callID, err
}

// BackfillSchedule makes the calls of past instants that have none, and returns their number.
func BackfillSchedule(ctx context.Context, db DB, name string, from, to time.Time) (calls int, err error) {
	err = db.QueryRow(ctx, "select gem.backfill_schedule($1, $2, $3)", name, from, to).Scan(&calls)
	return calls, err
}

// CronNext returns the next instants of a cron expression in a zone, at most count of them.
func CronNext(ctx context.Context, db DB, cron, zone string, count int) ([]time.Time, error) {
	rows, err := db.Query(ctx, "select gem.cron_times($1, $2, $3)", cron, zone, count)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[time.Time])
}
