// Package watch reads what a person who looks after GEM wants to see: what runs, what waits and for whom, what failed and why. The
// dashboard and the commands gem status, gem list and gem workers show what it returns, which is values and no prose; their JSON is that of
// these types.
//
// Every statement reads a bounded number of rows in the order of an index, whatever the tables hold. It reads views alone, those of
// migrations/functions/watch.sql and watch_calls.sql: a member of the role gem_monitor may read them, and they have no inputs, results and
// details of errors. Run them within [Read].
package watch

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

// ErrTooSlow says that Postgres gave up a statement: it took longer than 2 s, or waited for a lock for longer than 200 ms.
var ErrTooSlow = errors.New("Postgres is too busy to answer in time; try again") //nolint:staticcheck // a name begins it

// The settings hold for one transaction: through a pooler the next may be another client's. By index, in the order that is asked for:
// statistics of another hour must not make Postgres read a table whole.
const begin = `begin read only; set local statement_timeout = '2s'; set local lock_timeout = '200ms'; set local jit = off; set local work_mem = '16MB'; set local timezone = 'UTC';
	set local enable_seqscan = off; set local enable_bitmapscan = off; set local enable_hashjoin = off; set local enable_mergejoin = off`

// Now is Postgres's clock, by which all times are that this package returns.
func Now(ctx context.Context, db DB) (now time.Time, err error) {
	if err = db.QueryRow(ctx, "select gem.now()").Scan(&now); err != nil {
		return now, fmt.Errorf("read the time: %w", err)
	}
	return now, nil
}

// Check returns the error of Postgres where the views are missing, or those of another version, or are not for this role to read. It reads no row.
func Check(ctx context.Context, db DB) error {
	_, err := db.Exec(ctx, "select "+columns+`, c.progress from gem.calls c, gem.receipts, gem.journal, gem.model_requests, gem.registries, gem.tools, gem.queue, gem.outcomes,
		gem.outcome_totals, gem.throughput, gem.workers, gem.overdue, gem.questions where false`)
	return err
}

// Read runs do in a transaction that is read only and in which no statement takes longer than 2 s. It is begun in one round trip.
func Read(ctx context.Context, pool *pgxpool.Pool, do func(ctx context.Context, db DB) error) error {
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{BeginQuery: begin}, func(tx pgx.Tx) error { return do(ctx, counting{tx}) })
	if store.HasCode(err, "57014", "55P03") && ctx.Err() == nil {
		return fmt.Errorf("%w (%w)", ErrTooSlow, err)
	}
	return err
}
