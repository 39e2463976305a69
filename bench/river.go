package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverQueue is River. With receipt it has the promise of GEM: a job's completion, its receipt and its row are in one
// transaction. Otherwise it has River's defaults: batched completions, no receipt and no row.
type riverQueue struct{ receipt bool }

func (r riverQueue) Name() string {
	if r.receipt {
		return "river-receipt"
	}
	return "river"
}

func (r riverQueue) Migrate(ctx context.Context, db *pgxpool.Pool) error {
	if _, err := db.Exec(ctx, rowTable+`;
		create table river_receipts (id uuid primary key default gen_random_uuid(), job_id bigint not null unique,
			tool_name text not null,
			status text not null, result jsonb not null, effects jsonb not null, created_at timestamptz not null default now())`); err != nil {
		return err
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(db), nil)
	if err != nil {
		return err
	}
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

// riverArgs is a job's input. Then is the number of jobs that follow it, one after another, like steps.
type riverArgs struct {
	payload
	Then int `json:"then,omitempty"`
}

func (riverArgs) Kind() string { return "bench" }

func (r riverQueue) Backlog(ctx context.Context, db *pgxpool.Pool, n int, withRow bool) error {
	client, err := river.NewClient(riverpgxv5.New(db), &river.Config{})
	if err != nil {
		return err
	}
	const step = 5000
	for from := 0; from < n; from += step {
		jobs := make([]river.InsertManyParams, min(step, n-from))
		for i := range jobs {
			jobs[i].Args = riverArgs{payload: newPayload(from+i, withRow)}
		}
		if _, err := client.InsertManyFast(ctx, jobs); err != nil {
			return err
		}
	}
	return nil
}

func (r riverQueue) Inserter(db *pgxpool.Pool, withRow bool) (inserter, error) {
	// The cooldown also limits the rate of its notifications.
	client, err := river.NewClient(riverpgxv5.New(db), &river.Config{FetchCooldown: fetchCooldown})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (string, error) {
		job, err := client.Insert(ctx, riverArgs{payload: newPayload(0, withRow)}, nil)
		if err != nil {
			return "", err
		}
		return strconv.FormatInt(job.Job.ID, 10), nil
	}, nil
}

func (r riverQueue) Fill(ctx context.Context, db *pgxpool.Pool, f filling) error {
	args := "'" + jsonOf(newPayload(0, true)) + "'::jsonb"
	const columns = `insert into river_job (id, state, attempt, max_attempts, attempted_at, attempted_by, created_at,
		finalized_at, scheduled_at, args, kind) `
	waiting := columns + `select nextval('river_job_id_seq'), '%s', 0, 25, null, null, now(), null, %s, ` + args +
		`, 'bench' from generate_series(1, $1::int) i`
	return fillWith(ctx, db, []fillStatement{
		{f.ended, columns + `select nextval('river_job_id_seq'), 'completed', 1, 25, now() - interval '1 hour', '{before}',
			now() - interval '1 hour',
			now() - interval '1 hour', now() - interval '1 hour', ` + args + `, 'bench' from generate_series(1, $1::int)`},
		{f.ended, `insert into river_receipts (job_id, tool_name, status, result, effects)
			select id, 'bench.write', 'succeeded', '` + floorResult + `', '` + floorEffects +
			`' from river_job where state = 'completed' limit $1::int`},
		{f.queued, fmt.Sprintf(waiting, "available", `now() - interval '1 hour' + i * interval '1 ms'`)},
		{f.later, fmt.Sprintf(waiting, "scheduled", `now() + interval '1 hour' + i * interval '1 ms'`)},
	})
}

func (r riverQueue) Claimer(_ context.Context, db *pgxpool.Pool) (claim func(ctx context.Context, n int) (int, error),
	err error) { //nolint:unparam // see claimer
	executor := riverpgxv5.New(db).GetExecutor()
	return func(ctx context.Context, n int) (int, error) {
		got, err := executor.JobGetAvailable(ctx, &riverdriver.JobGetAvailableParams{
			ClientID: "bench", MaxAttemptedBy: 100, MaxToLock: n, Queue: river.QueueDefault})
		if err != nil {
			return 0, err
		}
		return len(got.Jobs), nil
	}, nil
}

func (r riverQueue) Ended() string {
	if r.receipt {
		return `select job_id::text, pg_xact_commit_timestamp(xmin) from river_receipts`
	}
	return `select id::text, pg_xact_commit_timestamp(xmin) from river_job where state = 'completed'`
}

// fetchCooldown lets River fetch as often as it can. Its default of 100 ms adds latency without a benefit here.
const fetchCooldown = time.Millisecond

func (r riverQueue) Start(ctx context.Context, w work) (stop func(), err error) {
	config, err := pgxpool.ParseConfig(w.URL)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(w.Conns + 3) // for GEM's other connections: claims, heartbeat, notifications
	db, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{db: db, receipt: r.receipt, handled: w.Handled})
	client, err := river.NewClient(riverpgxv5.New(db), &river.Config{
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: w.Slots}},
		FetchCooldown: fetchCooldown,
		PollOnly:      w.Poll,
		Workers:       workers,
		Logger:        slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return nil, err
	}
	if err := client.Start(ctx); err != nil {
		return nil, err
	}
	return func() {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		_ = client.StopAndCancel(stopping)
		db.Close()
	}, nil
}

type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	db      *pgxpool.Pool
	receipt bool
	handled *atomic.Int64
}

func (w *riverWorker) Work(ctx context.Context, job *river.Job[riverArgs]) error {
	defer w.handled.Add(1)
	if !w.receipt {
		return nil
	}
	tx, err := w.db.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	out := result{NoteID: "none", Status: "answered"}
	if job.Args.WithRow {
		if err := tx.QueryRow(ctx, rowSQL, strconv.FormatInt(job.ID, 10), job.Args.Note).Scan(&out.NoteID); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, `insert into river_receipts (job_id, tool_name, status, result, effects)
		values ($1, $2, 'succeeded', $3, $4)`,
		job.ID, tool(job.Args.WithRow), jsonOf(out), floorEffects); err != nil {
		return err
	}
	if job.Args.Then > 0 {
		client, err := river.ClientFromContextSafely[pgx.Tx](ctx)
		if err != nil {
			return err
		}
		if _, err := client.InsertTx(ctx, tx, riverArgs{job.Args.payload, job.Args.Then - 1}, nil); err != nil {
			return err
		}
	}
	if _, err := river.JobCompleteTx[*riverpgxv5.Driver, pgx.Tx](ctx, tx, job); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
