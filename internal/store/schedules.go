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
	ScheduleName
	SignedIn bool // its calls have only the rights of the user
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

// ScheduleName identifies a schedule that is not removed.
type ScheduleName struct {
	Name      string
	CreatedBy string // the user it belongs to; empty: nobody
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

const scheduleColumns = `s.name, s.created_by, s.signed_in, s.tool_name, s.input, s.session_id, s.priority,
	s.cron, s.zone, s.missed, s.missed_within::text, s.overlap, s.jitter::text, s.starts_at, s.ends_at,
	s.next_at, s.held_at, s.paused, s.changed`

func scanSchedule(row pgx.CollectableRow) (s Schedule, err error) {
	err = row.Scan(&s.Name, (*zeronull.Text)(&s.CreatedBy), &s.SignedIn, &s.Tool, &s.Input,
		(*zeronull.Text)(&s.SessionID), &s.Priority, &s.Cron, &s.Zone, &s.Missed, &s.MissedWithin, &s.Overlap, &s.Jitter,
		(*zeronull.Timestamptz)(&s.StartsAt), (*zeronull.Timestamptz)(&s.EndsAt),
		(*zeronull.Timestamptz)(&s.NextAt), (*zeronull.Timestamptz)(&s.HeldAt), &s.Paused, &s.Changed)
	return s, err
}

// Schedules returns all schedules, sorted by user and name. Those of nobody come first.
func Schedules(ctx context.Context, db DB) ([]Schedule, error) {
	rows, err := db.Query(ctx, "select "+scheduleColumns+
		" from gem.schedules s where s.removed is null order by s.created_by nulls first, s.name")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanSchedule)
}

// ofName is the condition for a schedule with the name $1 and the user $2.
const ofName = "s.removed is null and s.name = $1 and coalesce(s.created_by, '') = $2"

// OneSchedule returns the schedule with a name, or [pgx.ErrNoRows].
func OneSchedule(ctx context.Context, db DB, n ScheduleName) (Schedule, error) {
	rows, err := db.Query(ctx, "select "+scheduleColumns+" from gem.schedules s where "+ofName, n.Name, n.CreatedBy)
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
func Occurrences(ctx context.Context, db DB, n ScheduleName, limit int) ([]Occurrence, error) {
	rows, err := db.Query(ctx, `
		select o.due_at, o.upto, coalesce(o.count, 0), o.backfilled, o.call_id::text, c.status, o.skipped, o.detail
		from gem.schedules s
		join gem.occurrences o on o.schedule_id = s.id
		left join public.core_tool_calls c on c.id = o.call_id
		where `+ofName+`
		order by o.due_at desc, o.backfilled limit $3`, n.Name, n.CreatedBy, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (o Occurrence, err error) {
		err = row.Scan(&o.DueAt, &o.Upto, &o.Count, &o.Backfilled, (*zeronull.Text)(&o.CallID), (*zeronull.Text)(&o.Status),
			(*zeronull.Text)(&o.Skipped), (*zeronull.Text)(&o.Detail))
		return o, err
	})
}

// SaveSchedule makes a schedule of operators or changes the one with its name, and returns its next instant and whether
// it is paused. Empty fields get their defaults.
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
	err = db.QueryRow(ctx, "select next, paused from gem.save_schedule($1, $2, $3, $4, $5, $6, nullif($7, ''))", s.Name,
		s.Cron, s.Tool, string(s.Input), s.Zone, string(encoded), s.CreatedBy).Scan(&next, &paused)
	return next, paused, err
}

// PauseSchedule pauses a schedule. In this and the next three functions, by is the person who acts; empty means the
// role of the connection.
func PauseSchedule(ctx context.Context, db DB, n ScheduleName, by, reason string) error {
	_, err := db.Exec(ctx, "select gem.pause_schedule($1, nullif($2, ''), nullif($3, ''), $4)", n.Name, n.CreatedBy, by,
		reason)
	return err
}

// PauseSchedulesOf pauses all schedules of a user, and returns their number.
func PauseSchedulesOf(ctx context.Context, db DB, user, by, reason string) (n int, err error) {
	err = db.QueryRow(ctx, "select gem.pause_schedules_of($1, nullif($2, ''), $3)", user, by, reason).Scan(&n)
	return n, err
}

// ResumeSchedule resumes a schedule, and returns its next instant, or zero if it has ended.
func ResumeSchedule(ctx context.Context, db DB, n ScheduleName, by, reason string) (next time.Time, err error) {
	err = db.QueryRow(ctx, "select gem.resume_schedule($1, nullif($2, ''), nullif($3, ''), $4)", n.Name, n.CreatedBy, by,
		reason).
		Scan((*zeronull.Timestamptz)(&next))
	return next, err
}

// RemoveSchedule removes a schedule.
func RemoveSchedule(ctx context.Context, db DB, n ScheduleName, by, reason string) error {
	_, err := db.Exec(ctx, "select gem.remove_schedule($1, nullif($2, ''), nullif($3, ''), $4)", n.Name, n.CreatedBy, by,
		reason)
	return err
}

// RunScheduleNow makes a call of a schedule, and returns its id.
func RunScheduleNow(ctx context.Context, db DB, n ScheduleName, by, reason string) (callID string, err error) {
	err = db.QueryRow(ctx, "select gem.run_schedule_now($1, nullif($2, ''), nullif($3, ''), $4)::text", n.Name,
		n.CreatedBy, by, reason).Scan(&callID)
	return callID, err
}

// BackfillSchedule makes the calls of past instants that have none, and returns their number.
func BackfillSchedule(ctx context.Context, db DB, n ScheduleName, from, to time.Time) (calls int, err error) {
	err = db.QueryRow(ctx, "select gem.backfill_schedule($1, $2, $3, nullif($4, ''))", n.Name, from, to,
		n.CreatedBy).Scan(&calls)
	return calls, err
}

// DueSchedules returns the ids of the schedules that are due.
func DueSchedules(ctx context.Context, db DB) ([]string, error) {
	rows, err := db.Query(ctx, "select gem.due_schedules()::text")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// RunSchedule runs a schedule that is due.
func RunSchedule(ctx context.Context, db DB, id string) error {
	_, err := db.Exec(ctx, "select gem.run_schedules(1, $1::uuid)", id)
	return err
}

// PostponeSchedule puts off a schedule that failed by a minute.
func PostponeSchedule(ctx context.Context, db DB, id string) error {
	_, err := db.Exec(ctx, "select gem.postpone_schedule($1::uuid)", id)
	return err
}

// CronNext returns the next instants of a cron expression in a zone, at most count of them.
func CronNext(ctx context.Context, db DB, cron, zone string, count int) ([]time.Time, error) {
	rows, err := db.Query(ctx, "select gem.cron_times($1, $2, $3)", cron, zone, count)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[time.Time])
}
