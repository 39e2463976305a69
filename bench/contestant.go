package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"
)

// contestant is a system that takes calls from a queue in Postgres and runs them.
type contestant interface {
	// Name returns its name in the table.
	Name() string
	// Migrate creates its tables in an empty database.
	Migrate(ctx context.Context, db *pgxpool.Pool) error
	// Backlog puts n calls into the queue.
	Backlog(ctx context.Context, db *pgxpool.Pool, n int, withRow bool) error
	// Inserter returns a function that puts calls into the queue, as a frontend does.
	Inserter(db *pgxpool.Pool, withRow bool) (inserter, error)
	// Start runs a worker until stop is called. stop returns when nothing runs anymore.
	Start(ctx context.Context, w work) (stop func(), err error)
	// Ended returns SQL that selects the id of each ended call as text, and the time of the commit.
	Ended() string
}

// inserter puts one call into the queue and returns its id. It is safe for concurrent use.
type inserter func(ctx context.Context) (id string, err error)

// work has the settings of a contestant's worker.
type work struct {
	URL     string // the server or the slow proxy in front of it
	Conns   int    // maximum for its calls; it opens others for its other needs
	Slots   int    // maximum of concurrent calls
	Poll    bool   // without notifications
	Handled *atomic.Int64
	Rest    <-chan struct{} // its end lets the calls of bench.nap return; nil: they wait until the worker stops
	Fail    func(error)     // reports an unexpected error and ends the run
}

// The only effect of a call that writes a row.
const (
	rowTable = `create table bench_rows (id bigint generated always as identity primary key, call_id text not null,
		note text not null, at timestamptz not null default now())`
	rowSQL = `insert into bench_rows (call_id, note) values ($1, $2) returning id::text`
)

// payload is the input of every call.
type payload struct {
	Customer string   `json:"customer"`
	Note     string   `json:"note"`
	Amount   float64  `json:"amount"`
	Tags     []string `json:"tags"`
	WithRow  bool     `json:"with_row"`
}

func newPayload(i int, withRow bool) payload {
	return payload{Customer: fmt.Sprintf("customer-%d", i), Note: "Called back, wants an offer by Friday.", Amount: 129.5,
		Tags: []string{"offer", "phone"}, WithRow: withRow}
}

// queueMany puts n calls into a table that has the columns tool_name and input.
func queueMany(ctx context.Context, db *pgxpool.Pool, table string, n int, withRow bool) error {
	_, err := db.Exec(ctx, `insert into `+table+` (tool_name, input)
		select $1, jsonb_set($2::jsonb, '{customer}', to_jsonb('customer-' || i)) from generate_series(1, $3::int) i`,
		tool(withRow), jsonOf(newPayload(0, withRow)), n)
	return err
}

// queueOne returns an inserter for such a table.
func queueOne(db *pgxpool.Pool, table string, withRow bool) inserter {
	return func(ctx context.Context) (id string, err error) {
		err = db.QueryRow(ctx, `insert into `+table+` (tool_name, input) values ($1, $2) returning id::text`,
			tool(withRow), jsonOf(newPayload(0, withRow))).Scan(&id)
		return id, err
	}
}

// tool returns the name of the tool that a call uses.
func tool(withRow bool) string {
	if withRow {
		return "bench.write"
	}
	return "bench.answer"
}

func jsonOf(v any) string {
	encoded, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(encoded)
}

// result is the output of every call.
type result struct {
	NoteID string `json:"note_id"`
	Status string `json:"status"`
}
