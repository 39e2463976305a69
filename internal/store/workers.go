package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Worker is what a worker says of itself when it starts.
type Worker struct {
	ID              string
	Concurrency     int
	Version         string
	RegistryVersion string
	DeadAfter       time.Duration // the silence after which others take its calls
	Capabilities    []string      // it is given no call that needs another one
	RulesVersion    string        // empty: it runs without rules
}

// StartWorker registers a worker. Calls that it claims before count as a dead worker's.
func StartWorker(ctx context.Context, db DB, w Worker) error {
	_, err := db.Exec(ctx, "select gem.start_worker($1, $2, $3, $4, $5, coalesce($6, '{}'::text[]), $7)",
		w.ID, w.Concurrency, w.Version, w.RegistryVersion, w.DeadAfter, w.Capabilities, zeronull.Text(w.RulesVersion))
	return err
}

// StopWorker records that a worker has stopped. What it still runs is taken over at once.
func StopWorker(ctx context.Context, db DB, workerID string) error {
	_, err := db.Exec(ctx, "select gem.stop_worker($1)", workerID)
	return err
}

// Notice is something that a heartbeat tells the worker about an attempt.
type Notice struct {
	Attempt
	Verdict NoticeVerdict
}

// NoticeVerdict is what a [Notice] says.
type NoticeVerdict string

// The verdicts of [Heartbeat].
const (
	NoticeCancel  NoticeVerdict = "cancel"  // someone asked to cancel the call
	NoticeLost    NoticeVerdict = "lost"    // the attempt no longer has the call
	NoticeUnknown NoticeVerdict = "unknown" // by a full sweep: the worker has the call, and did not name it
	NoticeLate    NoticeVerdict = "late"    // of no attempt: the worker's own heartbeats are late, and the full sweep was left out
)

// Heartbeat records that a worker is alive, and will be for deadAfter, and puts the calls of dead workers back into the queue:
// with full of all of them, otherwise of those that died in the last minutes. running are the attempts that the worker runs.
func Heartbeat(ctx context.Context, db DB, workerID string, deadAfter time.Duration, running []Attempt, full bool) ([]Notice, error) {
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

// Channel is where gem.wake_workers notifies, with one of the payloads below or another text, which means that a call may be ready.
const Channel = "gem_calls"

// The payloads of notifications to workers.
const (
	PayloadCancel = "cancel" // someone asked to cancel a running call
	PayloadAgain  = "again"  // a call came back to its earlier place in the queue
)

// EndsChannel is where gem.tell_ended notifies, with the ids of awaited calls that have ended, between commas: [MostEnds] at most.
const (
	EndsChannel = "gem_receipts"
	MostEnds    = 215
)

// Notify sends a notification to all who listen on a channel.
func Notify(ctx context.Context, db DB, channel, payload string) error {
	_, err := db.Exec(ctx, "select pg_notify($1, $2)", channel, payload)
	return err
}

// TellEnded notifies those who wait for the ends of calls: of [MostEnds] at most, whose receipts are committed.
func TellEnded(ctx context.Context, db DB, calls []string) error {
	_, err := db.Exec(ctx, "select gem.tell_ended($1::uuid[])", calls)
	return err
}

// Ended returns those of calls that have ended, and those of others that wait for an answer or for calls made on their behalf. Each list may
// have at most a thousand ids.
func Ended(ctx context.Context, db DB, calls, others []string) (ended, parked []string, err error) {
	rows, err := db.Query(ctx, "select e::text, true from gem.ended($1::uuid[]) e union all select p::text, false from gem.parked($2::uuid[]) p", calls, others)
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

// WantWake says whether inserts are to notify this worker.
func WantWake(ctx context.Context, db DB, workerID string, wanted bool) error {
	_, err := db.Exec(ctx, "select gem.want_wake($1, $2)", workerID, wanted)
	return err
}

// RecordRegistry records the contents of a registry version, and returns what is recorded under that version: something
// else if that was recorded first.
func RecordRegistry(ctx context.Context, db DB, version, sha256 string, contents []byte) (sum string, recorded []byte, err error) {
	err = db.QueryRow(ctx, "select sha256, registry::text from gem.record_registry($1, $2, $3)", version, sha256, string(contents)).
		Scan(&sum, &recorded)
	return sum, recorded, err
}

// RecordRules records the contents of a version of the rules, of which the longest look back is longest, and returns what is recorded
// under that version: something else if that was recorded first.
func RecordRules(ctx context.Context, db DB, version, sha256 string, contents []byte, longest time.Duration) (sum string, recorded []byte, err error) {
	err = db.QueryRow(ctx, "select sha256, rules::text from gem.record_rules($1, $2, $3, $4)", version, sha256, string(contents), longest).
		Scan(&sum, &recorded)
	return sum, recorded, err
}

// RecordDomains does for a domains.json what [RecordRegistry] does for a registry.
func RecordDomains(ctx context.Context, db DB, version, sha256 string, contents []byte) (sum string, recorded []byte, err error) {
	err = db.QueryRow(ctx, "select sha256, domains::text from gem.record_domains($1, $2, $3)", version, sha256, string(contents)).Scan(&sum, &recorded)
	return sum, recorded, err
}

// RequireRules says whether a worker must have rules to claim calls, and reports whether that changed.
func RequireRules(ctx context.Context, db DB, required bool) (changed bool, err error) {
	tag, err := db.Exec(ctx, "update gem.limits set rules_required = $1 where rules_required <> $1", required)
	return tag.RowsAffected() > 0, err
}

// WorkersWithoutRules returns the living workers that run without rules.
func WorkersWithoutRules(ctx context.Context, db DB) ([]string, error) {
	rows, err := db.Query(ctx, `select worker_id from public.core_workers
		where rules_version is null and stopped_at is null and alive_until > clock_timestamp() order by worker_id`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// CountOutcomes adds up to limit receipts to the totals behind gem.outcomes, and returns how many: 0 while another worker counts.
func CountOutcomes(ctx context.Context, db DB, limit int) (counted int, err error) {
	var n zeronull.Int4
	err = db.QueryRow(ctx, "select gem.count_outcomes($1)", limit).Scan(&n)
	return int(n), err
}
