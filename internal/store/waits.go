package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Start is a call that a durable handler makes.
type Start struct {
	ID          string          `json:"id"`
	Name        string          `json:"name"`
	Tool        string          `json:"tool"`
	Input       json.RawMessage `json:"input"`
	Traceparent string          `json:"traceparent,omitempty"`
	// chosen by a model or a document: a question then counts as the user's
	Chosen bool `json:"chosen,omitempty"`
	// OpenMS is the longest time, in milliseconds, for which a question waits without a claim. 0: a worker claims the
	// call, checks it and judges it.
	OpenMS int64 `json:"open_ms,omitempty"`
}

// Wait is a wait of a durable call.
type Wait struct {
	Start   []Start
	What    string   // the value of waits_for: call, answer or time
	For     []string // names
	Need    int      // how many of them; 0: make the calls and do not wait
	Until   map[string]any
	Effects json.RawMessage // of steps that were not kept
	CleanUp bool            // the call may wait although its cancellation was requested
	// number of steps that the attempt knows: if the database has fewer, the attempt no longer holds the call
	Steps    int
	Key      string        // see [Final]
	Deadline time.Duration // how long after the call was due it is woken at the latest
}

// WaitVerdict is the result of a wait.
type WaitVerdict string

// The verdicts of [Wait.Do].
const (
	Here          WaitVerdict = "here"      // enough has arrived
	WaitParked    WaitVerdict = "parked"    // the call waits, and the attempt no longer holds it
	WaitCancelled WaitVerdict = "cancelled" // the call's cancellation was requested
)

// Do makes the calls and waits. It returns the call's new number of steps.
func (w Wait) Do(ctx context.Context, db DB, a Attempt) (verdict WaitVerdict, steps int, err error) {
	start, err := json.Marshal(append([]Start{}, w.Start...))
	if err != nil {
		return "", 0, err
	}
	until := []byte("{}")
	if w.Until != nil {
		if until, err = json.Marshal(w.Until); err != nil {
			return "", 0, err
		}
	}
	err = db.QueryRow(ctx, "select verdict, steps from gem.wait($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
		a.CallID, a.Number, a.WorkerID,
		string(start), w.What, append([]string{}, w.For...), w.Need, string(until), zeronull.Text(w.Effects), w.CleanUp,
		w.Deadline.Milliseconds(), w.Steps, zeronull.Text(w.Key)).Scan(&verdict, &steps)
	return verdict, steps, err
}

// In returns a duration from now, on Postgres's clock, for [Wait.Until]. A time.Time, or the text of the journal, is
// the time itself.
func In(d time.Duration) any { return d.Milliseconds() }

// RunTimers handles up to limit calls whose wake_at is reached, and returns their number. With schedules, it also runs
// the schedules that are due.
func RunTimers(ctx context.Context, db DB, workerID string, limit int, schedules bool) (n int, err error) {
	err = db.QueryRow(ctx, "select gem.run_timers($1, $2, $3)", workerID, limit, schedules).Scan(&n)
	return n, err
}

// Misfit is why a program cannot continue a call.
type Misfit struct {
	Name    string `json:"name,omitempty"` // in the journal
	Seq     int    `json:"seq,omitempty"`  // of the event with that name
	Message string `json:"message"`
}

// WaitForCode parks a call until a program can continue it. deadline counts from when the call was due.
func WaitForCode(ctx context.Context, db DB, a Attempt, why Misfit, effects json.RawMessage,
	deadline time.Duration) error {
	encoded, err := json.Marshal(why)
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, "select gem.wait_for_code($1, $2, $3, $4, $5, $6)", a.CallID, a.Number, a.WorkerID,
		string(encoded), zeronull.Text(effects),
		deadline.Milliseconds())
	return err
}

// TryCode wakes calls that wait for code.
func TryCode(ctx context.Context, db DB) error {
	_, err := db.Exec(ctx, "select gem.try_code()")
	return err
}
