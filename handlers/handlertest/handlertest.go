// Package handlertest runs a tool call through a real worker against a real Postgres, for the tests of handlers:
//
//	func TestCreateKeepsThePhone(t *testing.T) {
//		gem := handlertest.Start(t, handlertest.Setup{})
//		receipt := gem.Run(handlertest.Call{Tool: "leads.create", Input: `{"name": "Ada", "phone": "1", "suburb": "Soho"}`})
//		…
//	}
//
// Each test gets a database of its own. It needs a Postgres as `gem demo` does: an installed one, or npm to fetch one. With
// GEM_TEST_POOLER=session or transaction in the environment the worker reaches it through a PgBouncer in that mode.
package handlertest

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/pgpool"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// patience is how long a receipt is waited for before the test fails.
const patience = 30 * time.Second

// Setup says what the worker runs with. The zero value is GEM as it comes, with nothing configured.
type Setup struct {
	// Registry is a registry file's contents. Default: the built-in one.
	Registry []byte
	// Deps is what the built-in domains are given; DB is filled in.
	Deps handlers.Deps
	// Domains replaces the built-in domains; db is a pool on the test's database.
	Domains func(db handlers.DB) []any
	// Worker changes the worker's options before it starts.
	Worker func(*worker.Options)
	// NoWorker starts none: the test starts its own with [Env.StartWorker].
	NoWorker bool
	// Database is the URL of a migrated database of the test's own. Default: a new one.
	Database string
}

// Env is a database with a worker on it.
type Env struct {
	t     testing.TB
	setup Setup

	// URL leads to the test's database; DB is a pool on it, with the rights of its owner.
	URL string
	DB  *pgxpool.Pool
	// Route is the way of the workers.
	Route testdb.Route
	// Logs holds what the workers logged.
	Logs *observer.ObservedLogs
	log  *zap.Logger
}

// Start makes a database and starts a worker on it, which stops at the end of the test.
func Start(t testing.TB, setup Setup) *Env {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	if setup.Database == "" {
		setup.Database = testdb.New(t)
	}
	e := &Env{t: t, setup: setup, URL: setup.Database, Logs: logs, log: zap.New(core)}
	e.DB, e.Route = testdb.Pool(t, e.URL), testdb.RouteTo(t, e.URL)
	if !setup.NoWorker {
		e.StartWorker()
	}
	return e
}

// Running is a worker that was started; Stop stops it in order and waits until it has.
type Running struct {
	*worker.Worker
	Stop func()
}

// StartWorker starts one more worker on the database. change may alter its options.
func (e *Env) StartWorker(change ...func(*worker.Options)) *Running {
	e.t.Helper()
	w := e.NewWorker(change...)
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- w.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-stopped; err != nil {
			e.t.Errorf("the worker: %v", err)
		}
	})
	e.t.Cleanup(stop)
	return &Running{Worker: w, Stop: stop}
}

// NewWorker makes a worker on the database without starting it.
func (e *Env) NewWorker(change ...func(*worker.Options)) *worker.Worker {
	e.t.Helper()
	data := e.setup.Registry
	if data == nil {
		data = gem.BuiltInRegistry
	}
	reg, err := registry.Parse(data)
	if err != nil {
		e.t.Fatal(err)
	}
	options := worker.Options{Registry: reg, ListenURL: e.Route.Listen, Name: "test", Concurrency: 4, Log: e.log, ShutdownGrace: 5 * time.Second}
	if e.setup.Worker != nil {
		change = append([]func(*worker.Options){e.setup.Worker}, change...)
	}
	for _, c := range change {
		c(&options)
	}
	if options.Calls == nil {
		options.Calls, options.Control = e.Pool(options.Concurrency, false), e.Pool(2, false)
	}

	var domains []any
	if e.setup.Domains != nil {
		domains = e.setup.Domains(options.Calls)
	} else {
		deps := e.setup.Deps
		deps.DB = options.Calls
		domains = handlers.BuiltIn(deps)
	}
	if options.Handlers, err = handlers.Bind(domains...); err != nil {
		e.t.Fatal(err)
	}
	w, err := worker.New(options)
	if err != nil {
		e.t.Fatal(err)
	}
	return w
}

// Pool makes a pool as a worker has it. pooled says that it is to work through a transaction pooler, whatever there is.
func (e *Env) Pool(size int, pooled bool) *pgxpool.Pool {
	e.t.Helper()
	mode := e.Route.Mode
	if pooled {
		mode = pgpool.TransactionPooler
	}
	pool, err := pgpool.Open(context.Background(), e.Route.URL, pgpool.Options{MaxConns: int32(size), Mode: mode})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(pool.Close)
	return pool
}

// Call is a row that a frontend inserts. Empty fields are left to their defaults.
type Call struct {
	Tool      string
	Input     string // JSON
	Key       string // the client's idempotency key
	Session   string
	CreatedBy string
	Priority  int
	RunAt     time.Time
}

// Insert puts a call into the queue, as a frontend does, and returns its id.
func (e *Env) Insert(c Call) string {
	e.t.Helper()
	if c.Input == "" {
		c.Input = "{}"
	}
	var runAt *time.Time
	if !c.RunAt.IsZero() {
		runAt = &c.RunAt
	}
	var id string
	err := e.DB.QueryRow(context.Background(), `
		insert into core_tool_calls (tool_name, input, idempotency_key, session_id, created_by, priority, run_at)
		values ($1, $2, $3, nullif($4, ''), nullif($5, ''), $6, coalesce($7, now())) returning id::text`,
		c.Tool, c.Input, c.Key, c.Session, c.CreatedBy, c.Priority, runAt).Scan(&id)
	if err != nil {
		e.t.Fatalf("insert a call of %s: %v", c.Tool, err)
	}
	return id
}

// Run inserts a call and returns its receipt.
func (e *Env) Run(c Call) *receipts.Receipt {
	e.t.Helper()
	return e.Await(e.Insert(c))
}

// Await returns the receipt of a call, as soon as it is there.
func (e *Env) Await(callID string) *receipts.Receipt {
	e.t.Helper()
	var found *receipts.Receipt
	e.Until("the receipt of call "+callID, func() bool {
		r, err := store.Receipt(context.Background(), e.DB, callID)
		if err != nil && !errors.Is(err, receipts.ErrNone) {
			e.t.Fatal(err)
		}
		found = r
		return err == nil
	})
	return found
}

// Until waits for a condition, and fails the test when it does not come.
func (e *Env) Until(what string, holds func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.t.Fatalf("waited %s in vain for %s", patience, what)
		}
	}
}

// Journal returns the names of a call's events, in order.
func (e *Env) Journal(callID string) []string {
	e.t.Helper()
	events, err := store.Journal(context.Background(), e.DB, callID)
	if err != nil {
		e.t.Fatal(err)
	}
	names := make([]string, len(events))
	for i, event := range events {
		names[i] = event.Event
	}
	return names
}

// Output decodes the result of a receipt that must have succeeded.
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

// ErrorOf returns the error of a receipt that must have failed.
func ErrorOf(t testing.TB, r *receipts.Receipt) receipts.Error {
	t.Helper()
	e, failed := r.Error()
	if !failed {
		t.Fatalf("%s did not fail: %s: %s", r.ToolName, r.Status, r.Result)
	}
	return e
}
