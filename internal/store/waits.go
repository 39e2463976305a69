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
	Chosen      bool            `json:"chosen,omitempty"` // by a model or a document: a question then counts as the user's
}

// Wait is what a durable call waits for.
type Wait struct {
	Start    []Start
	What     string   // what waits_for says: call, answer or time
	For      []string // names
	Need     int      // how many of them; 0: the calls are made, and nothing is waited for
	Until    map[string]any
	Effects  json.RawMessage // of steps that were not kept
	CleanUp  bool            // the call waits though someone asked for its end
	Steps    int             // that the attempt knows of: if the database has fewer, the attempt no longer holds the call
	Deadline time.Duration   // after the call was to run, when it is woken in any case
}

// WaitVerdict says what became of a wait.
type WaitVerdict string

// The verdicts of [Wait.Do].
const (
	Here          WaitVerdict = "here"      // enough has come
	WaitParked    WaitVerdict = "parked"    // the call waits, and the attempt no longer holds it
	WaitCancelled WaitVerdict = "cancelled" // someone asked for the call's end
)

// Do makes the calls and waits. It returns how many steps the call has then.
func (w Wait) Do(ctx context.Context, db DB, a Attempt) (verdict WaitVerdict, steps int, err error) {
	start, err := json.Marshal(append([]Start{}, w.Start...))
	if err != nil {
		return "", 0, err
	}
	until, err := json.Marshal(w.Until)
	if err != nil || w.Until == nil {
		until = []byte("{}")
	}
	err = db.QueryRow(ctx, "select verdict, steps from gem.wait($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)", a.CallID, a.Number, a.WorkerID,
		string(start), w.What, append([]string{}, w.For...), w.Need, string(until), zeronull.Text(w.Effects), w.CleanUp,
		w.Deadline.Milliseconds(), w.Steps).Scan(&verdict, &steps)
	return verdict, steps, err
}

// In gives a time from now, by Postgres's clock, in [Wait.Until]. A time.Time, or the text of the journal, gives the time itself.
func In(d time.Duration) any { return d.Milliseconds() }

// RunTimers lets up to limit calls go on whose time has come, and returns how many there were.
func RunTimers(ctx context.Context, db DB, workerID string, limit int) (n int, err error) {
	err = db.QueryRow(ctx, "select gem.run_timers($1, $2)", workerID, limit).Scan(&n)
	return n, err
}

// Misfit is why a program cannot go on with a call.
type Misfit struct {
	Name    string `json:"name,omitempty"` // in the journal
	Seq     int    `json:"seq,omitempty"`  // of the event that has it
	Message string `json:"message"`
}

// WaitForCode puts a call aside for a program that can go on with it. deadline counts from when the call was to run.
func WaitForCode(ctx context.Context, db DB, a Attempt, why Misfit, effects json.RawMessage, deadline time.Duration) error {
	encoded, err := json.Marshal(why)
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, "select gem.wait_for_code($1, $2, $3, $4, $5, $6)", a.CallID, a.Number, a.WorkerID, string(encoded), zeronull.Text(effects),
		deadline.Milliseconds())
	return err
}

// TryCode lets calls that wait for code look again.
func TryCode(ctx context.Context, db DB) error {
	_, err := db.Exec(ctx, "select gem.try_code()")
	return err
}
