package worker_test

import (
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5/pgxpool"
)

// wire is a way to Postgres that can be cut: no word of farewell comes from the server.
type wire struct {
	// loses says of a request whether its answer is lost, and the connection with it; nil: none is.
	loses func(request []byte) bool
	delay time.Duration // of each packet, each way

	mu    sync.Mutex
	conns []net.Conn
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

// through is a pool whose connections go over the wire.
func (w *wire) through(t *testing.T, route testdb.Route) *pgxpool.Pool {
	t.Helper()
	u, err := url.Parse(route.URL)
	if err != nil {
		t.Fatal(err)
	}
	server := u.Host
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			backend, err := net.Dial("tcp4", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, client, backend)
			w.mu.Unlock()
			var cut atomic.Bool
			asks := func(request []byte) bool {
				cut.Store(cut.Load() || w.loses != nil && w.loses(request))
				return true
			}
			late := func(pass func([]byte) bool) func([]byte) bool {
				return func(packet []byte) bool {
					time.Sleep(w.delay)
					return pass(packet)
				}
			}
			go carry(client, backend, late(asks))
			go carry(backend, client, late(func([]byte) bool { return !cut.Load() }))
		}
	}()
	u.Host = l.Addr().String()
	pool, err := pgpool.Open(t.Context(), u.String(), pgpool.Options{MaxConns: 8, Mode: route.Mode})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pool.Close(); w.cut() })
	return pool
}

// carry takes what comes from one end to the other, and closes both when one is closed, or when something is not to
// pass.
func carry(from, to net.Conn, pass func([]byte) bool) {
	defer func() { _, _ = from.Close(), to.Close() }()
	for buffer := make([]byte, 1<<16); ; {
		n, err := from.Read(buffer)
		if n > 0 && !pass(buffer[:n]) {
			return
		}
		if _, failed := to.Write(buffer[:n]); err != nil || failed != nil {
			return
		}
	}
}

// A handler whose connection is cut in the middle of its transaction gets an error that says little. Its rows are gone
// with the transaction, so its call runs again, whatever the error says.
func TestAHandlerThatLosesItsConnectionRunsAgain(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.write"})
	var w wire
	pool := w.through(t, testdb.RouteTo(t, env.URL))
	env.StartWorker(func(o *worker.Options) { o.Calls, o.Control = pool, pool })
	id := env.Insert(handlertest.Call{Tool: "lab.write",
		Input: task(Task{Text: "x", Gate: "g", Then: "another statement"})})
	lab.awaitBegin(t)
	w.cut()
	lab.tell(t, "g", Order{})
	lab.awaitBegin(t)
	lab.tell(t, "g", Order{})
	if r := env.Await(id); r.Status != receipts.Succeeded || r.Attempt != 2 || rowsWith(t, env, "x") != 1 {
		t.Errorf("attempt %d: %s", r.Attempt, r.Result)
	}
}

// While something blocks the receipts for longer than a statement may take, such as a careless create index,
// transactional calls are put back and run again afterwards.
func TestABlockedDatabaseFailsNoCall(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write"})
	env.StartWorker()
	tx, err := env.DB.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "lock table core_tool_receipts in share mode"); err != nil {
		t.Fatal(err)
	}
	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})})
	env.Until("the call to be put back", func() bool { return slices.Contains(env.Journal(id), "retried") })
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := env.Await(id); r.Status != receipts.Succeeded || rowsWith(t, env, "x") != 1 {
		t.Errorf("%s", r.Result)
	}
}
