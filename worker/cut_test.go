package worker_test

import (
	"io"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/pgpool"
	"github.com/gemworker/gem/internal/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5/pgxpool"
)

// wire is a way to Postgres that can be cut: no word of farewell comes from the server.
type wire struct {
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
			for _, ends := range [][2]net.Conn{{client, backend}, {backend, client}} {
				go func() {
					_, _ = io.Copy(ends[0], ends[1])
					_ = ends[0].Close()
					_ = ends[1].Close()
				}()
			}
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

// A handler whose connection is cut in the middle of its transaction gets an error that says little. Its rows are gone with
// the transaction, so its call runs again, whatever the error says.
func TestAHandlerThatLosesItsConnectionRunsAgain(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.write"})
	var w wire
	pool := w.through(t, testdb.RouteTo(t, env.URL))
	env.StartWorker(func(o *worker.Options) { o.Calls, o.Control = pool, pool })
	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x", Gate: "g", Then: "another statement"})})
	lab.awaitBegin(t)
	w.cut()
	lab.tell(t, "g", Order{})
	lab.awaitBegin(t)
	lab.tell(t, "g", Order{})
	if r := env.Await(id); r.Status != receipts.Succeeded || r.Attempt != 2 || rowsWith(t, env, "x") != 1 {
		t.Errorf("attempt %d: %s", r.Attempt, r.Result)
	}
}

// While something blocks the receipts for longer than a statement may take, such as a careless create index, transactional
// calls are put back and run again afterwards.
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
