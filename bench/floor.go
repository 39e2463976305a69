package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// floor makes the fewest statements and round trips of any system that promises one receipt per call, in a transaction
// of its own. It claims in batches. A call takes one round trip without a row and two with one. It checks nothing,
// keeps no journal and does not recover from a crash. With a round trip of 5 ms, several calls must not share a
// connection either.
//
// Its tables and statements can be replaced: see gemSQL.
type floor struct {
	name      string
	migrate   func(ctx context.Context, db *pgxpool.Pool) error
	calls     string                  // the table of calls
	ended     string                  // see contestant.Ended
	claim     string                  // takes the number of calls; returns id, tool, input and attempt
	finish    string                  // ends a call
	arguments func(c floorCall) []any // of finish
}

type floorCall struct {
	id, tool, input string
	attempt         int
}

var bareFloor = floor{
	name:    "floor",
	migrate: floorTables,
	calls:   "floor_calls",
	ended:   `select call_id::text, pg_xact_commit_timestamp(xmin) from floor_receipts`,
	claim: `with picked as materialized (
			select id from floor_calls where status = 'queued' order by seq limit $1 for update skip locked)
		update floor_calls c set status = 'running', attempt = attempt + 1, claimed_by = 'floor', claimed_at = now(),
			updated_at = now()
		from picked where c.id = picked.id returning c.id::text, c.tool_name, c.input::text, c.attempt`,
	finish: `with ended as (update floor_calls set status = 'succeeded', updated_at = now() where id = $1
		and status = 'running' returning id)
		insert into floor_receipts (call_id, tool_name, status, result, effects) select id, $2, 'succeeded', $3, $4 from ended`,
	arguments: func(c floorCall) []any { return []any{c.id, c.tool, floorResult, floorEffects} },
}

const (
	floorResult  = `{"note_id": "none", "status": "answered"}`
	floorEffects = `{"db_writes": [{"table": "bench_rows", "action": "insert", "id": "1"}]}`
)

func floorTables(ctx context.Context, db *pgxpool.Pool) error {
	_, err := db.Exec(ctx, rowTable+`;
		create table floor_calls (id uuid primary key default gen_random_uuid(), seq bigint generated always as identity,
			tool_name text not null, input jsonb not null, status text not null default 'queued', attempt int not null default 0,
			claimed_by text, claimed_at timestamptz, created_at timestamptz not null default now(),
				updated_at timestamptz not null default now());
		create index on floor_calls (seq) where status = 'queued';
		create table floor_receipts (id uuid primary key default gen_random_uuid(), call_id uuid not null unique,
			tool_name text not null,
			status text not null, result jsonb not null, effects jsonb not null, created_at timestamptz not null default now())`)
	return err
}

func (f floor) Name() string { return f.name }

func (f floor) Migrate(ctx context.Context, db *pgxpool.Pool) error { return f.migrate(ctx, db) }

func (f floor) Backlog(ctx context.Context, db *pgxpool.Pool, n int, withRow bool) error {
	return queueMany(ctx, db, f.calls, n, withRow)
}

func (f floor) Inserter(db *pgxpool.Pool, withRow bool) (inserter, error) {
	return queueOne(db, f.calls, withRow), nil
}

func (f floor) Ended() string { return f.ended }

func (f floor) Start(ctx context.Context, w work) (stop func(), err error) {
	config, err := pgxpool.ParseConfig(w.URL)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(w.Conns + 1) // one more for claims
	db, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	working, cancel := context.WithCancel(ctx)
	queue := make(chan floorCall, w.Slots)
	var running sync.WaitGroup
	running.Go(func() {
		defer close(queue)
		for working.Err() == nil {
			rows, _ := db.Query(working, f.claim, w.Slots)
			calls, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c floorCall, err error) {
				return c, row.Scan(&c.id, &c.tool, &c.input, &c.attempt)
			})
			if err != nil && working.Err() == nil {
				w.Fail(fmt.Errorf("claim: %w", err))
			}
			if err != nil || len(calls) == 0 {
				return // measured only with a backlog
			}
			for _, c := range calls {
				queue <- c
			}
		}
	})
	for range w.Conns {
		running.Go(func() {
			for c := range queue {
				if err := f.run(ctx, db, c); err != nil {
					w.Fail(fmt.Errorf("run a call: %w", err))
				}
				w.Handled.Add(1)
			}
		})
	}
	return func() { cancel(); running.Wait(); db.Close() }, nil
}

func (f floor) run(ctx context.Context, db *pgxpool.Pool, c floorCall) error {
	if c.tool == tool(false) {
		_, err := db.Exec(ctx, f.finish, f.arguments(c)...)
		return err
	}
	conn, err := db.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	begin, end := &pgx.Batch{}, &pgx.Batch{}
	var id string
	begin.Queue("begin")
	begin.Queue(rowSQL, c.id, "a note").QueryRow(func(row pgx.Row) error { return row.Scan(&id) })
	err = conn.SendBatch(ctx, begin).Close()
	end.Queue(f.finish, f.arguments(c)...)
	end.Queue("commit")
	return errors.Join(err, conn.SendBatch(ctx, end).Close())
}
