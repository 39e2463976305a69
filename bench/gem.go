package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/wait"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Most uses of GEM's Go packages are in this file, so that the bench can measure a checkout with another API: see "Two
// builds side by side" in the package's documentation.

// startServer starts the private Postgres that all contestants share.
func startServer(ctx context.Context, folder string, settings map[string]string) (postgres, error) {
	return pgserver.Start(ctx, pgserver.Options{DataDir: folder, Durable: true, Settings: settings})
}

// gemWorker is GEM as shipped: it validates input and output, writes the journal and the receipt, and logs at level
// info.
type gemWorker struct {
	differs string // suffix of its name; empty without a difference
	rules   string // as JSON
	awaited bool   // a listener is notified of the end of each call
	watched bool   // the overview of the dashboard is open
	keyed   bool   // each call has a key of its own
	once    bool   // no call may run twice: the tools have the mode none
	kept    int    // how many kept keys of pruned calls the table has
}

func (g gemWorker) Name() string { return strings.TrimSuffix("gem-"+g.differs, "-") }

// The rules of these contestants match each call and stop none.
var (
	gemRule = gemWorker{differs: "rule",
		rules: `{"name": "large", "tools": ["bench.*"], "action": "block", "when": {"input": {"amount": {"minimum": 1000}}}}`}
	// There is one counter per customer, and each call has another customer.
	gemLimit = gemWorker{differs: "limit",
		rules: `{"name": "many", "tools": ["bench.*"], "action": "block", "limit": {"max": 100, "within": "1h", "per": ["input:/customer"]}}`}
	gemOneLimit = gemWorker{differs: "one-limit",
		rules: `{"name": "many", "tools": ["bench.*"], "action": "block", "limit": {"max": 1000000, "within": "1h"}}`}
	gemRunning = gemWorker{differs: "running",
		rules: `{"name": "many", "tools": ["bench.*"], "action": "wait", "running": {"max": 100, "per": ["input:/customer"]}}`}
	gemOneRunning = gemWorker{differs: "one-running",
		rules: `{"name": "many", "tools": ["bench.*"], "action": "wait", "running": {"max": 100}}`}
)

func (g gemWorker) Migrate(ctx context.Context, db *pgxpool.Pool) error {
	if _, err := db.Exec(ctx, rowTable); err != nil {
		return err
	}
	err := migrations.Up(ctx, db.Config().ConnString(), migrations.Sources(builtin.Domains()...)...)
	if err == nil && g.kept > 0 {
		_, err = db.Exec(ctx, fmt.Sprintf(`do $$ begin
			if to_regclass('gem.kept_keys') is not null then -- an older version, benchmarked for comparison, may lack it
				insert into gem.kept_keys (key, receipt_id, call_id, result, ended_at)
				select 'bench.write:customer="pruned-' || i || '"', gen_random_uuid(), gen_random_uuid(), '%s', now()
				from generate_series(1, %d) i;
				analyze gem.kept_keys;
			end if; end $$`, floorResult, g.kept))
	}
	return err
}

var (
	gemAwaited = gemWorker{differs: "awaited", awaited: true}
	gemWatched = gemWorker{differs: "watched", watched: true}
	gemOnce    = gemWorker{once: true}
	gemKeyed   = gemWorker{differs: "keyed", keyed: true}
	gemKept    = gemWorker{differs: "kept", keyed: true, kept: 500_000}
)

func (g gemWorker) Backlog(ctx context.Context, db *pgxpool.Pool, n int, withRow bool) error {
	if g.awaited {
		if _, err := db.Exec(ctx, "alter table core_tool_calls alter awaited set default true"); err != nil {
			return err
		}
	}
	return queueMany(ctx, db, "core_tool_calls", n, withRow)
}

func (gemWorker) Inserter(db *pgxpool.Pool, withRow bool) (inserter, error) {
	return queueOne(db, "core_tool_calls", withRow), nil
}

func (gemWorker) Ended() string {
	return `select call_id::text, pg_xact_commit_timestamp(xmin) from core_tool_receipts where status = 'succeeded'`
}

// Fill creates the journal and the receipt of each ended call. Its ids are in the order of time, like those of the
// database.
func (gemWorker) Fill(ctx context.Context, db *pgxpool.Pool, f filling) error {
	input := "'" + jsonOf(newPayload(0, true)) + "'::jsonb"
	const columns = `insert into core_tool_calls (id, tool_name, input, status, attempt, claimed_by, claimed_at, run_at,
		created_at, updated_at, priority, events) `
	queued := columns + `select ('018f0000-0000-7%[2]s-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 'bench.write', ` +
		input + `, 'queued', 0, null, null, at, now(), now(), 0, 1
		from (select i, %[1]s as at from generate_series(1, $1::int) i) s`
	const ids = ` from (select ('018e0000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid as id
		from generate_series(1, $1::int) i) s`
	return fillWith(ctx, db, []fillStatement{
		{1, `insert into gem.levels select 0 where $1::int = 1 on conflict do nothing`},
		{f.ended, columns + `select id, 'bench.write', ` + input + `, 'succeeded', 1, 'before', now() - interval '1 day',
			now() - interval '1 day', now() - interval '1 day', now() - interval '1 day', 0, 3` + ids},
		{f.ended, `insert into core_tool_receipts (id, call_id, tool_name, status, result, effects, created_at, attempt,
			worker_id, registry_version, duration)
			select id, id, 'bench.write', 'succeeded', '` + floorResult + `', '` + floorEffects +
			`', now() - interval '1 day', 1, 'before', '1.0.0', '2 ms'` + ids},
		{f.ended, `insert into core_tool_events (call_id, seq, at, event, attempt, worker_id)
			select id, seq, now() - interval '1 day', event, least(seq - 1, 1), 'before'` + ids + `,
			(values (1, 'queued'), (2, 'claimed'), (3, 'succeeded')) step (seq, event)`},
		{f.queued, fmt.Sprintf(queued, `now() - interval '1 hour' + i * interval '1 ms'`, "001")},
		{f.later, fmt.Sprintf(queued, `now() + interval '1 hour' + i * interval '1 ms'`, "002")},
		{f.waiting, `insert into core_tool_calls (id, tool_name, status, attempt, events, steps, run_at, created_at,
			updated_at, waits_for, waits, need, wake_at)
			select ('018f0000-0000-7003-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 'bench.parent', 'waiting', 1, 4, 2, now(),
				now(), now(),
				case when i % 2 = 0 then 'call' else 'time' end, '{child}', 1, case when i % 2 = 1 then now() + interval '1 day' end
			from generate_series(1, $1::int) i`},
		{f.queued + f.later, `insert into core_tool_events (call_id, seq, at, event, attempt)
			select id, 1, now(), 'queued', 0 from core_tool_calls where status = 'queued' order by id limit $1::int`},
	})
}

// Claimer claims with a worker's marks: from the second claim on it begins slightly before the end of the previous one.
func (gemWorker) Claimer(ctx context.Context, db *pgxpool.Pool) (func(ctx context.Context, n int) (int, error), error) {
	const name = "bench"
	if _, err := db.Exec(ctx, "select gem.start_worker($1, 10, 'bench', '1.0.0', '1 day')", name); err != nil {
		return nil, err
	}
	marks := "{}"
	return func(ctx context.Context, n int) (int, error) {
		var last time.Time
		rows, err := db.Query(ctx, `
			select id::text, attempt, tool_name, input, idempotency_key, session_id, created_by, level, run_at, seq, retries,
				losses, cancelled_for
			from gem.claim($1, $2, $3, $4)`, name, n, true, marks)
		if err != nil {
			return 0, err
		}
		got := 0
		for rows.Next() {
			var runAt time.Time
			if err := rows.Scan(nil, nil, nil, nil, nil, nil, nil, nil, &runAt, nil, nil, nil, nil); err != nil {
				return 0, err
			}
			got++
			if runAt.After(last) {
				last = runAt
			}
		}
		marks = jsonOf(map[int]time.Time{0: last.Add(-time.Second)})
		return got, rows.Err()
	}, nil
}

func (g gemWorker) Start(ctx context.Context, w work) (stop func(), err error) {
	text := benchRegistry
	if g.once {
		text = strings.ReplaceAll(text, "safe-retry", "none")
	}
	if g.keyed {
		text = strings.ReplaceAll(text, `"mode": "safe-retry", "key_field": null`, `"mode": "keyed", "key_field": "customer"`)
	}
	tools, err := registry.Parse([]byte(text))
	if err != nil {
		return nil, err
	}
	bound, err := binding.Bind(Bench{w.Handled, w.Rest}, wait.Domain())
	if err != nil {
		return nil, err
	}
	var set *rules.Set
	if g.rules != "" {
		if set, err = rules.Parse([]byte(`{"version": "1.0.0", "rules": [` + g.rules + `]}`)); err != nil {
			return nil, err
		}
	}
	calls, err := pgpool.Open(ctx, w.URL, pgpool.Options{MaxConns: int32(w.Conns), Mode: pgpool.Direct})
	if err != nil {
		return nil, err
	}
	control, err := pgpool.Open(ctx, w.URL, pgpool.Options{MaxConns: 2, Mode: pgpool.Direct, NoPing: true})
	if err != nil {
		return nil, err
	}
	listen := w.URL
	if w.Poll {
		listen = ""
	}
	// The log is written and discarded, because the worker's cost includes logging.
	log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(io.Discard),
		zap.InfoLevel))
	running, err := worker.New(worker.Options{Calls: calls, Control: control, ListenURL: listen, Registry: tools,
		Handlers: bound, Rules: set,
		Concurrency: w.Slots, Log: log})
	if err != nil {
		return nil, err
	}
	working, cancel := context.WithCancel(ctx)
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := running.Run(working); err != nil {
			w.Fail(err)
		}
	})
	waiter := client.NewWaiter(control, w.URL, nil)
	if g.awaited { // only a wait makes the listener listen
		ended.Go(func() { _ = waiter.Ended(working, "00000000-0000-7000-8000-000000000000") })
	}
	if g.watched {
		if err := watchOverview(working, &ended, control); err != nil {
			cancel()
			ended.Wait()
			return nil, err
		}
	}
	return func() {
		cancel()
		ended.Wait()
		waiter.Close()
		calls.Close()
		control.Close()
	}, nil
}

// watchOverview serves the dashboard in this process and keeps its overview open until ctx ends.
func watchOverview(ctx context.Context, until *sync.WaitGroup, db *pgxpool.Pool) error {
	pages, err := dashboard.New(dashboard.Options{Read: db,
		User: func(*http.Request) (dashboard.User, error) { return dashboard.User{Name: "bench"}, nil }})
	if err != nil {
		return err
	}
	server := httptest.NewServer(pages)
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/live?watch=overview", nil)
	if err == nil {
		var answer *http.Response
		if answer, err = server.Client().Do(q); err == nil && answer.StatusCode == http.StatusOK {
			until.Go(func() {
				_, _ = io.Copy(io.Discard, answer.Body) // until ctx ends
				_ = answer.Body.Close()
				server.Close()
			})
			return nil
		}
	}
	server.Close()
	return fmt.Errorf("watch the overview: %w", err)
}

// gemSQL is floor with GEM's two statements instead of its own. It shows the cost of the SQL without that of the
// worker.
var gemSQL = floor{
	name: "gem-sql",
	migrate: func(ctx context.Context, db *pgxpool.Pool) error {
		if err := gem.Migrate(ctx, db); err != nil {
			return err
		}
		_, err := db.Exec(ctx, "select gem.start_worker('bench', 100, 'bench', '1.0.0', '1 day')")
		return err
	},
	calls:  "core_tool_calls",
	ended:  gem.Ended(),
	claim:  "select id::text, tool_name, input, attempt from gem.claim('bench', $1, true, '{}')",
	finish: "select gem.finish($1, $2, $3, $4, $5, $6, $7, $8, p_child => false)::text",
	arguments: func(c floorCall) []any {
		return []any{c.id, c.attempt, "bench", "succeeded", floorResult, floorEffects, "1.0.0", nil}
	},
}

// Bench is the domain of the tools.
type Bench struct {
	handled *atomic.Int64
	rest    <-chan struct{}
}

// Write handles bench.write. It writes one row in the transaction of its receipt.
func (b Bench) Write(ctx context.Context, tx handlers.Tx, call *handlers.Call, in payload) (result, error) {
	out := result{Status: "noted"}
	if err := tx.QueryRow(ctx, rowSQL, call.ID, in.Note).Scan(&out.NoteID); err != nil {
		return result{}, err
	}
	call.Wrote("bench_rows", handlers.Insert, out.NoteID)
	b.handled.Add(1)
	return out, nil
}

// Answer handles bench.answer. It writes no row.
//
//nolint:unparam // a handler's form
func (b Bench) Answer(_ context.Context, _ *handlers.Call, _ payload) (result, error) {
	b.handled.Add(1)
	return result{NoteID: "none", Status: "answered"}, nil
}

// Wait handles bench.wait. It holds a slot until its worker stops.
//
//nolint:unparam // a handler's form
func (b Bench) Wait(ctx context.Context, _ *handlers.Call, _ payload) (result, error) {
	b.handled.Add(1)
	<-ctx.Done()
	return result{}, ctx.Err()
}

// Nap handles bench.nap. It holds a slot until the rest ends.
func (b Bench) Nap(ctx context.Context, _ *handlers.Call, _ payload) (result, error) {
	select {
	case <-b.rest:
	case <-ctx.Done():
	}
	b.handled.Add(1)
	return result{NoteID: "none", Status: "answered"}, ctx.Err()
}

// Steps handles bench.steps. It runs in.Note steps, one after another.
func (b Bench) Steps(ctx context.Context, d *handlers.Durable, in payload) (result, error) {
	n, err := strconv.Atoi(in.Note)
	for i := 0; i < n && err == nil; i++ {
		_, err = handlers.Step(ctx, d, "step", func(context.Context) (int, error) { return i, nil })
	}
	return result{NoteID: "none", Status: "answered"}, err
}

// Replay handles bench.replay. It runs in.Note steps and replays them after a short sleep.
func (b Bench) Replay(ctx context.Context, d *handlers.Durable, in payload) (result, error) {
	out, err := b.Steps(ctx, d, in)
	if err == nil {
		err = handlers.Sleep(ctx, d, "nap", time.Millisecond)
	}
	return out, err
}

// Family handles bench.family. It makes in.Note calls at once.
func (b Bench) Family(ctx context.Context, d *handlers.Durable, in payload) (result, error) {
	n, err := strconv.Atoi(in.Note)
	if err != nil {
		return result{}, err
	}
	children := make([]*handlers.Child[result], n)
	for i := range children {
		children[i] = handlers.Start[result](d, "child", "bench.answer", newPayload(i, false))
	}
	return result{NoteID: "none", Status: "answered"}, handlers.All(ctx, children...)
}

// Parent handles bench.parent. It makes one call.
func (b Bench) Parent(ctx context.Context, d *handlers.Durable, in payload) (result, error) {
	return b.Family(ctx, d, in)
}

// Ask handles bench.ask. It asks a question and waits for the answer.
func (b Bench) Ask(ctx context.Context, d *handlers.Durable, _ payload) (result, error) {
	_, err := handlers.Ask[string](d, "question", handlers.Question{Text: "Well?"}).Wait(ctx)
	return result{NoteID: "none", Status: "answered"}, err
}

// benchRegistry describes the tools with realistic schemas.
var benchRegistry = fmt.Sprintf(`{"version": "1.0.0", "tools": [%s, %s, %s, %s, %s, %s, %s, %s, %s]}`,
	benchTool("bench.nap"), benchTool("bench.write"), benchTool("bench.answer"), benchTool("bench.wait"),
	benchTool("bench.steps"), benchTool("bench.replay"),
	benchTool("bench.family"), benchTool("bench.parent"), benchTool("bench.ask"))

func benchTool(name string) string {
	return `{"name": "` + name +
		`", "description": "For measuring.", "permissions": ["write:db"], "calls": ["bench.answer"],
		"input_schema": {"type": "object", "required": ["customer", "note"], "additionalProperties": false, "properties": {
			"customer": {"type": "string", "minLength": 1, "maxLength": 200},
			"note": {"type": "string", "maxLength": 10000},
			"amount": {"type": "number", "minimum": 0},
			"tags": {"type": "array", "maxItems": 20, "items": {"type": "string", "maxLength": 50}},
			"with_row": {"type": "boolean"}}},
		"output_schema": {"type": "object", "required": ["note_id", "status"], "additionalProperties": false, "properties": {
			"note_id": {"type": "string", "minLength": 1}, "status": {"type": "string", "enum": ["noted", "answered"]}}},
		"idempotency": {"mode": "safe-retry", "key_field": null}, "timeout_ms": 600000, "receipt_fields": ["result.note_id"]}`
}
