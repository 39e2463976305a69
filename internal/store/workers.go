package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Worker describes a worker when it starts.
type Worker struct {
	ID              string
	Concurrency     int
	Version         string
	RegistryVersion string
	DeadAfter       time.Duration // the silence after which others take its calls
	Capabilities    []string      // it gets no call that needs another capability
	RulesVersion    string        // empty: it runs without rules
	// Outside has the tools that the worker runs outside of the receipt's transaction, with their modes. Nil means
	// unknown: a call that is lost with the worker may have had any effect.
	Outside map[string]string
}

// StartWorker registers a worker, and returns the start time of the Postgres server, which identifies that server.
// Calls that the worker claimed earlier count as a dead worker's.
func StartWorker(ctx context.Context, db DB, w Worker) (server time.Time, err error) {
	var outside any
	if w.Outside != nil {
		encoded, err := json.Marshal(w.Outside)
		if err != nil {
			return server, err
		}
		outside = string(encoded)
	}
	err = db.QueryRow(ctx,
		"select gem.server(), gem.start_worker($1, $2, $3, $4, $5, coalesce($6, '{}'::text[]), $7, $8)", w.ID, w.Concurrency, w.Version, w.RegistryVersion, w.DeadAfter, w.Capabilities, zeronull.Text(w.RulesVersion),
		outside).Scan(&server, nil)
	return server, err
}

// NoteOutside adds a tool to the ones that a worker registered in [Worker.Outside].
func NoteOutside(ctx context.Context, db DB, workerID, tool, mode string) error {
	_, err := db.Exec(ctx, "select gem.note_outside($1, $2, $3)", workerID, tool, mode)
	return err
}

// StopWorker records that a worker has stopped. Other workers take over its running calls at once.
func StopWorker(ctx context.Context, db DB, workerID string) error {
	_, err := db.Exec(ctx, "select gem.stop_worker($1)", workerID)
	return err
}

// Notice is a row that a heartbeat returns for an attempt.
type Notice struct {
	Attempt
	Verdict NoticeVerdict
}

// NoticeVerdict is the content of a [Notice].
type NoticeVerdict string

// The verdicts of [Heartbeat].
const (
	NoticeCancel  NoticeVerdict = "cancel"  // the call's cancellation was requested
	NoticeLost    NoticeVerdict = "lost"    // the attempt no longer holds the call
	NoticeUnknown NoticeVerdict = "unknown" // from a full sweep: the worker holds the call, and did not list it
	// not about an attempt: the worker's heartbeats are late, and the full sweep was skipped
	NoticeLate NoticeVerdict = "late"
	// not about an attempt: Postgres is another server than the one that the worker has met
	NoticeMoved NoticeVerdict = "moved"
)

// Heartbeat extends a worker's life by deadAfter, and requeues the calls of dead workers: with full of all dead
// workers, otherwise of workers that died in the last minutes. running are the attempts that the worker runs.
func Heartbeat(ctx context.Context, db DB, workerID string, deadAfter time.Duration, running []Attempt,
	full bool) ([]Notice, error) {
	ids, numbers := split(running)
	rows, err := db.Query(ctx, "select call_id::text, attempt, verdict from gem.heartbeat($1, $2, $3, $4, $5)",
		workerID, deadAfter, ids, numbers, full)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (n Notice, err error) {
		n.WorkerID = workerID
		return n, row.Scan(&n.CallID, &n.Number, &n.Verdict)
	})
}

// Channel is the channel of gem.wake_workers. Its payloads are the constants below, or another text if a call may be
// ready.
const Channel = "gem_calls"

// The payloads of notifications to workers.
const (
	PayloadCancel = "cancel" // the cancellation of a running call was requested
	PayloadAgain  = "again"  // a call returned to its earlier place in the queue
	PayloadTimers = "timers" // a call has ended whose parent a worker must notify: see [RunTimers]
)

// EndsChannel is the channel of gem.tell_ended. A payload has the ids of awaited calls that have ended, separated by
// commas: at most [MostEnds].
const (
	EndsChannel = "gem_receipts"
	MostEnds    = 215
)

// Notify sends a notification on a channel.
func Notify(ctx context.Context, db DB, channel, payload string) error {
	_, err := db.Exec(ctx, "select pg_catalog.pg_notify($1, $2)", channel, payload)
	return err
}

// TellEnded notifies the waiters of at most [MostEnds] calls, whose receipts are committed.
func TellEnded(ctx context.Context, db DB, calls []string) error {
	_, err := db.Exec(ctx, "select gem.tell_ended($1::uuid[])", calls)
	return err
}

// Ended returns the ids among calls that have ended, and the ids among others that wait for an answer or for their
// children. Each list may have at most a thousand ids.
func Ended(ctx context.Context, db DB, calls, others []string) (ended, parked []string, err error) {
	rows, err := db.Query(ctx, "select e::text, true from gem.ended($1::uuid[]) e union all select p::text, false from "+
		"gem.parked($2::uuid[]) p", calls, others)
	if err != nil {
		return nil, nil, err
	}
	var id string
	var has bool
	_, err = pgx.ForEachRow(rows, []any{&id, &has}, func() error {
		if has {
			ended = append(ended, id)
		} else {
			parked = append(parked, id)
		}
		return nil
	})
	return ended, parked, err
}

// WantWake sets whether inserts notify this worker.
func WantWake(ctx context.Context, db DB, workerID string, wanted bool) error {
	_, err := db.Exec(ctx, "select gem.want_wake($1, $2)", workerID, wanted)
	return err
}

// RecordRegistry records the contents of a registry version, and returns the contents recorded under that version,
// which differ if others were recorded first.
func RecordRegistry(ctx context.Context, db DB, version, sha256 string, contents []byte) (sum string, recorded []byte,
	err error) {
	err = db.QueryRow(ctx, "select sha256, registry::text from gem.record_registry($1, $2, $3)", version, sha256,
		string(contents)).
		Scan(&sum, &recorded)
	return sum, recorded, err
}

// RecordRules records the contents of a version of the rules, whose longest period is longest. It returns the contents
// recorded under that version, which differ if others were recorded first.
func RecordRules(ctx context.Context, db DB, version, sha256 string, contents []byte,
	longest time.Duration) (sum string, recorded []byte, err error) {
	err = db.QueryRow(ctx, "select sha256, rules::text from gem.record_rules($1, $2, $3, $4)", version, sha256,
		string(contents), longest).
		Scan(&sum, &recorded)
	return sum, recorded, err
}

// RecordDomains records a domains.json as [RecordRegistry] records a registry.
func RecordDomains(ctx context.Context, db DB, version, sha256 string, contents []byte) (sum string, recorded []byte,
	err error) {
	err = db.QueryRow(ctx, "select sha256, domains::text from gem.record_domains($1, $2, $3)", version, sha256,
		string(contents)).Scan(&sum, &recorded)
	return sum, recorded, err
}

// RequireRules sets whether workers need rules to claim calls, and reports whether that changed.
func RequireRules(ctx context.Context, db DB, required bool) (changed bool, err error) {
	tag, err := db.Exec(ctx, "update gem.limits set rules_required = $1 where rules_required <> $1", required)
	return tag.RowsAffected() > 0, err
}

// WorkersWithoutRules returns the live workers that run without rules.
func WorkersWithoutRules(ctx context.Context, db DB) ([]string, error) {
	rows, err := db.Query(ctx, `select worker_id from public.core_workers
		where rules_version is null and stopped_at is null and alive_until > clock_timestamp() order by worker_id`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// CountOutcomes adds up to limit receipts to the totals behind gem.outcomes, and returns their number: 0 while another
// worker counts.
func CountOutcomes(ctx context.Context, db DB, limit int) (counted int, err error) {
	var n zeronull.Int4
	err = db.QueryRow(ctx, "select gem.count_outcomes($1)", limit).Scan(&n)
	return int(n), err
}
