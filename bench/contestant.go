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
	// Name is what the table calls it.
	Name() string
	// Migrate makes its tables in an empty database.
	Migrate(ctx context.Context, db *pgxpool.Pool) error
	// Backlog puts n calls into the queue.
	Backlog(ctx context.Context, db *pgxpool.Pool, n int, withRow bool) error
	// Inserter returns a function with which a frontend puts calls into the queue.
	Inserter(db *pgxpool.Pool, withRow bool) (inserter, error)
	// Start works until stop is called, which returns when nothing runs any more.
	Start(ctx context.Context, w work) (stop func(), err error)
	// Ended selects the id of each call that has ended as text, and the time of that commit.
	Ended() string
}

// inserter puts one call into the queue and returns its id. It may be called by several at once.
type inserter func(ctx context.Context) (id string, err error)

// work says how a contestant is to work.
type work struct {
	URL     string // where its connections go, perhaps slowly
	Conns   int    // how many it may open for its calls; it opens others for what else it needs
	Slots   int    // how many calls it may run at once
	Poll    bool   // without notifications
	Handled *atomic.Int64
	Fail    func(error) // gets an error that no contestant should meet, and ends the run
}

// The one thing that a call does, where it writes a row.
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

// queueOne returns the inserter of such a table.
func queueOne(db *pgxpool.Pool, table string, withRow bool) inserter {
	return func(ctx context.Context) (id string, err error) {
		err = db.QueryRow(ctx, `insert into `+table+` (tool_name, input) values ($1, $2) returning id::text`,
			tool(withRow), jsonOf(newPayload(0, withRow))).Scan(&id)
		return id, err
	}
}

// tool is the name of the tool that a call asks for.
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
