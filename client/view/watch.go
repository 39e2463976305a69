// Package view reads the data for a person who operates GEM: what runs, who or what it waits for, what failed and
// why. The dashboard and the commands gem status, gem list and gem workers show the values that it returns; their
// JSON is that of these types.
//
// Every statement reads a bounded number of rows in the order of an index, whatever the tables hold. It reads only
// the views of migrations/functions/watch.sql and watch_calls.sql. A member of the role gem_monitor may read these
// views, which have no inputs, results or details of errors. Run the functions within [Read].
package view

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DB is a pool, a connection or a transaction of pgx.
type DB = client.DB

// ErrTooSlow means that Postgres cancelled a statement: it took longer than 2 s, or waited for a lock for longer than
// 200 ms.
var ErrTooSlow = errors.New( //nolint:staticcheck // a name begins it
	"Postgres is too busy to answer in time; try again")

// The settings apply to one transaction: through a pooler the next may be another client's. They force index scans in
// the requested order: old statistics must not make Postgres read a whole table.
const begin = `begin read only; set local search_path = pg_catalog, pg_temp;
	set local statement_timeout = '2s'; set local lock_timeout = '200ms'; set local jit = off;
	set local work_mem = '16MB'; set local timezone = 'UTC';
	set local enable_seqscan = off; set local enable_bitmapscan = off; set local enable_hashjoin = off;
	set local enable_mergejoin = off`

// Now returns Postgres's clock, the source of all times that this package returns.
func Now(ctx context.Context, db DB) (now time.Time, err error) {
	if err = db.QueryRow(ctx, "select gem.now()").Scan(&now); err != nil {
		return now, fmt.Errorf("read the time: %w", err)
	}
	return now, nil
}

// Check returns an error if the views are missing, of another version, or not readable for this role. It reads no
// row.
func Check(ctx context.Context, db DB) error {
	_, err := db.Exec(ctx,
		"select "+columns+
			`, c.progress from gem.calls c, gem.receipts, gem.journal, gem.model_requests, gem.registries, gem.tools, gem.queue, gem.outcomes,
		gem.outcome_totals, gem.throughput, gem.workers, gem.overdue, gem.questions where false`)
	return err
}

// Read runs do in a read-only transaction in which each statement may take at most 2 s. Starting it takes one round
// trip.
func Read(ctx context.Context, pool *pgxpool.Pool, do func(ctx context.Context, db DB) error) error {
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{BeginQuery: begin},
		func(tx pgx.Tx) error { return do(ctx, countingTx{tx}) })
	if store.HasCode(err, "57014", "55P03") && ctx.Err() == nil {
		return fmt.Errorf("%w (%w)", ErrTooSlow, err)
	}
	return err
}
