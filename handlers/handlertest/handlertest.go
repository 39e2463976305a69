// Package handlertest runs tool calls through a real worker against a real Postgres, for the tests of handlers:
//
//	func TestANoteIsKept(t *testing.T) {
//		gem := handlertest.Start(t, handlertest.Options{Domains: []any{shop.Domain()}, Registry: registry})
//		receipt := gem.Run(handlertest.Call{Tool: "shop.add_note", Input: `{"text": "hello"}`})
//		…
//	}
//
// Each test gets its own database. Like `gem demo`, it needs an installed Postgres, or npm to fetch one. With
// GEM_TEST_POOLER=session or transaction in the environment the worker reaches it through a PgBouncer in that mode.
package handlertest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/handlers/wait"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// patience is how long a test waits for a receipt before it fails.
const patience = time.Minute

// Options describes the program under test, as gem.Program does.
type Options struct {
	// Domains are the domains of the program: plain values or handlers.Domain. They are configured and opened.
	Domains []any
	// Registry is the contents of the registry file. It is required.
	Registry []byte
	// Backends returns the backends of one worker; db is its pool for looking up tools. Nil means none.
	Backends func(db *pgxpool.Pool, log *zap.Logger) []binding.Backend
	// Migrations are the program's own SQL files, in addition to the files of its domains. Nil means none.
	Migrations fs.FS
	// Environment has the variables of the domains' configurations. The environment of the process is not read.
	Environment map[string]string
	// Meter gets the domains' measurements. Nil drops them.
	Meter metric.Meter
	// Worker changes the worker's options before it starts.
	Worker func(*worker.Options)
	// NoWorker starts no worker: the test starts its own with [Env.StartWorker].
	NoWorker bool
	// Database is the URL of the test's own migrated database. Empty means a new one.
	Database string
}

// Env is a database with a worker on it.
type Env struct {
	t       testing.TB
	options Options
	route   testdb.Route
	log     *zap.Logger
	passed  time.Duration // by the database's clock

	// URL leads to the test's database; DB is a pool on it, with the rights of its owner.
	URL string
	DB  *pgxpool.Pool
	// Logs has the workers' log lines.
	Logs *observer.ObservedLogs
}

// Start makes a database with the tables of the program, opens its domains, and starts a worker, which stops at the end
// of the test.
func Start(t testing.TB, o Options) *Env {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	if o.Database == "" {
		sources := migrations.Sources(o.Domains...)
		if o.Migrations != nil {
			sources = append(sources, migrations.Source{Name: "program", Files: o.Migrations})
		}
		o.Database = testdb.New(t, sources...)
	}
	e := &Env{t: t, options: o, URL: o.Database, Logs: logs, log: zap.New(core)}
	e.DB, e.route = testdb.Pool(t, e.URL), testdb.RouteTo(t, e.URL)
	lookup := func(variable string) string { return o.Environment[variable] }
	if err := binding.Configure(lookup, o.Domains...); err != nil {
		t.Fatal(err)
	}
	if err := binding.Open(handlers.Env{Pool: e.Pool(4, false), Log: e.log, Meter: o.Meter}, o.Domains...); err != nil {
		t.Fatal(err)
	}
	if !o.NoWorker {
		e.StartWorker()
	}
	return e
}

// Running is a worker that was started.
type Running struct {
	*worker.Worker
	// Stop stops it in order and waits for its end.
	Stop func()
	// Kill makes the worker dead for the database: its calls are lost at once, and the database rejects its later
	// statements. To kill it in a step, let the test's code of the step signal that it runs, and wait.
	Kill func()
}

// StartWorker starts one more worker on the database. change may alter its options.
func (e *Env) StartWorker(change ...func(*worker.Options)) *Running {
	e.t.Helper()
	w, own := e.newWorker(change...)
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- w.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-stopped; err != nil {
			e.t.Errorf("the worker: %v", err)
		}
		for _, pool := range own {
			pool.Close() // a process that ended has no connections
		}
	})
	e.t.Cleanup(stop)
	kill := func() {
		e.t.Helper()
		cancel() // it makes no more claims
		err := pgx.BeginFunc(context.Background(), e.DB, func(tx pgx.Tx) error {
			_, err := tx.Exec(context.Background(), "update public.core_workers set alive_until = gem.now() where worker_id = "+
				"$1", w.ID())
			if err == nil {
				_, err = tx.Exec(context.Background(), "select gem.recover($1, null)", "handlertest")
			}
			return err
		})
		if err != nil {
			e.t.Fatal(err)
		}
	}
	return &Running{Worker: w, Stop: stop, Kill: kill}
}

// NewWorker makes a worker on the database without starting it. change may alter its options.
func (e *Env) NewWorker(change ...func(*worker.Options)) *worker.Worker {
	e.t.Helper()
	w, _ := e.newWorker(change...)
	return w
}

// newWorker also returns the pools that it made for the worker.
func (e *Env) newWorker(change ...func(*worker.Options)) (_ *worker.Worker, own []*pgxpool.Pool) {
	e.t.Helper()
	reg, err := parse(e.options.Registry)
	if err != nil {
		e.t.Fatal(err)
	}
	bound, err := binding.Bind(append(slices.Clone(e.options.Domains), wait.Domain())...)
	if err != nil {
		e.t.Fatal(err)
	}
	options := worker.Options{Registry: reg, Handlers: bound, ListenURL: e.route.Listen, Name: "test", Concurrency: 4,
		Log:           e.log,
		ShutdownGrace: 5 * time.Second, DeadAfter: time.Minute} // slow is not dead
	if e.options.Worker != nil {
		change = append([]func(*worker.Options){e.options.Worker}, change...)
	}
	for _, c := range change {
		c(&options)
	}
	if options.Calls == nil {
		// Of a worker's two connections for its own statements, the second costs a fifth of a short test's CPU.
		control := 1
		if testdb.IsLong() {
			control = 2
		}
		options.Calls, options.Control = e.Pool(options.Concurrency, false), e.Pool(control, false)
		own = append(own, options.Calls, options.Control)
	}
	if e.options.Backends != nil {
		for _, p := range e.options.Backends(options.Control, e.log) {
			bound.Add(p)
		}
	}
	w, err := worker.New(options)
	if err != nil {
		e.t.Fatal(err)
	}
	return w, own
}

// parsed holds what parse returned, by the text: compiling the schemas of all tools for each test would take longer
// than most tests.
var parsed sync.Map // of *registry.Registry

func parse(text []byte) (*registry.Registry, error) {
	if r, ok := parsed.Load(string(text)); ok {
		return r.(*registry.Registry), nil
	}
	r, err := registry.Parse(text)
	if err == nil {
		parsed.Store(string(text), r)
	}
	return r, err
}

// Pool makes a pool like a worker's. pooled makes it work as through a transaction pooler, even without one.
func (e *Env) Pool(size int, pooled bool) *pgxpool.Pool {
	e.t.Helper()
	mode := e.route.Mode
	if pooled {
		mode = pgpool.TransactionPooler
	}
	pool, err := pgpool.Open(context.Background(), e.route.URL, pgpool.Options{MaxConns: int32(size), Mode: mode})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(pool.Close)
	return pool
}

// Call is a row that a frontend inserts. Empty fields have their defaults.
type Call struct {
	Tool      string
	Input     string // JSON
	Key       string // the client's idempotency key
	Session   string
	CreatedBy string
	SignedIn  bool // as the user CreatedBy, with a token
	Priority  int
	RunAt     time.Time
}

// Insert inserts a call into the queue, like a frontend, and returns its id.
func (e *Env) Insert(c Call) string {
	e.t.Helper()
	call := client.NewCall{Tool: c.Tool, Input: json.RawMessage(cmp.Or(c.Input, "{}")),
		IdempotencyKey: c.Key, SessionID: c.Session, CreatedBy: c.CreatedBy, Priority: c.Priority, RunAt: c.RunAt}
	var id string
	err := pgx.BeginFunc(context.Background(), e.DB, func(tx pgx.Tx) (err error) {
		if c.SignedIn {
			if _, err := tx.Exec(context.Background(), `select set_config('request.jwt.claims',
				jsonb_strip_nulls(jsonb_build_object('role', 'authenticated', 'sub', nullif($1, '')))::text, true)`,
				c.CreatedBy); err != nil {
				return err
			}
		}
		id, err = client.Enqueue(context.Background(), tx, call)
		return err
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return id
}

// Run inserts a call and returns its receipt.
func (e *Env) Run(c Call) *receipts.Receipt {
	e.t.Helper()
	return e.Await(e.Insert(c))
}

// Await waits for the receipt of a call and returns it.
func (e *Env) Await(callID string) *receipts.Receipt {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := client.Await(ctx, e.DB, callID)
	if err != nil {
		e.t.Fatalf("the receipt of call %s: %v", callID, err)
	}
	return r
}

// Question waits until a call, or a call that it made, asks a question, and returns the question. There must be exactly
// one.
func (e *Env) Question(callID string) (q client.Question) {
	e.t.Helper()
	e.Until("a question of call "+callID, func() bool {
		all, err := client.OpenQuestions(context.Background(), e.DB, 1000)
		if err != nil {
			e.t.Fatal(err)
		}
		for _, one := range all {
			if one.Root == callID {
				q = one
				return true
			}
		}
		return false
	})
	return q
}

// Answer answers a call as the owner of the database, who may answer everything except approvals, which need a row of
// gem.roles. name is the name of a handlers.Receive; it is empty for a question.
func (e *Env) Answer(callID string, answer any, name ...string) {
	e.t.Helper()
	if err := client.Answer(context.Background(), e.DB, callID, answer, strings.Join(name, "")); err != nil {
		e.t.Fatal(err)
	}
}

// Replay runs the durable handler of a call on its journal, as a new program would continue it, and writes nothing.
// change may alter the options of its worker.
func (e *Env) Replay(callID string, change ...func(*worker.Options)) *worker.ReplayResult {
	e.t.Helper()
	recorded, err := store.Record(context.Background(), e.DB, callID)
	if err != nil {
		e.t.Fatal(err)
	}
	encoded, err := json.Marshal(recorded)
	if err != nil {
		e.t.Fatal(err)
	}
	return e.replay(encoded, change)
}

// ReplayFile replays a journal that gem replay --save has written, for example with the last release, like
// [Env.Replay].
func (e *Env) ReplayFile(path string, change ...func(*worker.Options)) *worker.ReplayResult {
	e.t.Helper()
	recording, err := os.ReadFile(path)
	if err != nil {
		e.t.Fatal(err)
	}
	return e.replay(recording, change)
}

func (e *Env) replay(recording []byte, change []func(*worker.Options)) *worker.ReplayResult {
	// declares direct connections; the replay uses none
	direct := func(o *worker.Options) { o.Calls, o.Control = e.DB, e.DB }
	r, err := e.NewWorker(append(slices.Clone(change), direct)...).Replay(context.Background(), recording)
	if err != nil {
		e.t.Fatal(err)
	}
	return r
}

// Pass lets time pass in the database without waiting: calls that wait for a time until then continue.
func (e *Env) Pass(d time.Duration) {
	e.t.Helper()
	e.passed += d
	_, err := e.DB.Exec(context.Background(), fmt.Sprintf(`
		create or replace function gem.now() returns timestamptz
			language sql volatile as 'select pg_catalog.clock_timestamp() + interval ''%d microseconds''';
		update public.core_workers set heartbeat_at = heartbeat_at + interval '%d microseconds',
			alive_until = alive_until + interval '%[2]d microseconds'`,
		e.passed.Microseconds(), d.Microseconds()))
	if err != nil {
		e.t.Fatal(err)
	}
}

// Until waits until a condition holds, and fails the test after a minute.
func (e *Env) Until(what string, holds func() bool) {
	e.t.Helper()
	pause := 2 * time.Millisecond // then longer, since each look may cost as much CPU as the work that it waits for
	for deadline := time.Now().Add(patience); !holds(); pause = min(pause*5/4, 25*time.Millisecond) {
		time.Sleep(pause)
		if time.Now().After(deadline) {
			e.t.Fatalf("after %s, still waiting for %s", patience, what)
		}
	}
}

// UntilItWaits waits until a call is parked for the given reason: key, call, answer, time or code.
func (e *Env) UntilItWaits(callID, something string) {
	e.t.Helper()
	e.Until("call "+callID+" to wait for "+something, func() bool {
		c, err := client.Get(context.Background(), e.DB, callID)
		return err == nil && c.Status == "waiting" && c.WaitsFor == something
	})
}

// Journal returns the names of a call's events, in order.
func (e *Env) Journal(callID string) []string {
	e.t.Helper()
	events, err := client.Journal(context.Background(), e.DB, callID)
	if err != nil {
		e.t.Fatal(err)
	}
	names := make([]string, len(events))
	for i, event := range events {
		names[i] = event.Event
	}
	return names
}

// Output decodes the result of a receipt. The call must have succeeded.
func Output[T any](t testing.TB, r *receipts.Receipt) T {
	t.Helper()
	var out T
	if r.Status != receipts.Succeeded {
		t.Fatalf("%s: %s: %s", r.ToolName, r.Status, r.Result)
	}
	if err := json.Unmarshal(r.Result, &out); err != nil {
		t.Fatalf("decode the result %s: %v", r.Result, err)
	}
	return out
}

// Do makes a call and returns its output and its receipt. The call must succeed.
func Do[T any](e *Env, tool, input string) (T, *receipts.Receipt) {
	e.t.Helper()
	r := e.Run(Call{Tool: tool, Input: input})
	return Output[T](e.t, r), r
}

// Effects returns a receipt's effects in Postgres in words, such as "insert leads, read 2 notes".
func Effects(t testing.TB, r *receipts.Receipt) string {
	t.Helper()
	var effects receipts.HandlerEffects
	if err := json.Unmarshal(r.Effects, &effects); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, w := range effects.DBWrites {
		all = append(all, fmt.Sprintf("%s %s", w.Action, w.Table))
	}
	for _, r := range effects.DBReads {
		all = append(all, fmt.Sprintf("read %d %s", r.Count, r.Table))
	}
	return strings.Join(all, ", ")
}

// ErrorOf returns the error of a receipt. The call must have failed.
func ErrorOf(t testing.TB, r *receipts.Receipt) receipts.Error {
	t.Helper()
	e, failed := r.Error()
	if !failed {
		t.Fatalf("%s did not fail: %s: %s", r.ToolName, r.Status, r.Result)
	}
	return e
}
