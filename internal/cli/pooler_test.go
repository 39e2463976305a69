//go:build !windows

package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/internal/testing/pgbouncer"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestWorkerSaysWhatItIsConnectedThrough(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	// Each worker has separate poolers, so that one does not delay another.
	const session, transaction = "through a session pooler", "through a transaction pooler"
	route := func(t *testing.T, to string) string {
		t.Helper()
		for pooler, options := range map[string]pgbouncer.Options{session: {Mode: pgbouncer.Session},
			transaction: {Mode: pgbouncer.Transaction, PoolSize: 2}} {
			if strings.Contains(to, pooler) {
				to = strings.ReplaceAll(to, pooler, pgbouncer.Start(t, url, options).URL(url))
			}
		}
		return to
	}
	const (
		cached, described = `"statements":"kept prepared, sent without waiting for those before"`,
			`"statements":"described only, sent one transaction at a time"`
		byDatabase          = `"new_calls":"by notification through DATABASE_URL","migrations":"through DATABASE_URL"`
		byDirect            = `"new_calls":"by notification through DIRECT_URL","migrations":"through DIRECT_URL"`
		poll, pollAndDirect = `"new_calls":"by a poll every 1s","migrations":"through DATABASE_URL"`,
			`"new_calls":"by a poll every 1s","migrations":"through DIRECT_URL"`
		override = `"override":"DATABASE_POOLER=none, session or transaction"`
	)
	for name, c := range map[string]struct {
		database string
		env      []string
		wants    []string
	}{
		"direct":      {url, nil, []string{"leads to Postgres directly", cached, byDatabase, override}},
		"session":     {session, nil, []string{"does not seem to be in transaction mode", described, byDatabase, override}},
		"transaction": {transaction, nil, []string{"leads to a pooler in transaction mode", described, poll, override}},
		"transaction, with a direct way": {transaction, []string{"DIRECT_URL=" + url},
			[]string{"leads to a pooler in transaction mode", described, byDirect}},
		"transaction, with a session pooler beside": {transaction, []string{"DIRECT_URL=" + session},
			[]string{"leads to a pooler in transaction mode", described, byDirect}},
		"transaction, with another beside": {transaction, []string{"DIRECT_URL=" + transaction + "&application_name=x"},
			[]string{"DIRECT_URL leads to a pooler in transaction mode too", described, pollAndDirect}},
		"session, with a transaction pooler beside": {session, []string{"DIRECT_URL=" + transaction},
			[]string{"DIRECT_URL leads to a pooler in transaction mode too", described,
				`"new_calls":"by notification through DATABASE_URL"`}},
		"direct, with a direct way that is away": {url, []string{"DIRECT_URL=postgres://gem@" + closedAddress(t) + "/gem"},
			[]string{"DIRECT_URL cannot be reached", cached, `"new_calls":"by notification through DATABASE_URL"`}},
		"overruled": {url, []string{"DATABASE_POOLER=transaction"},
			[]string{"leads to a pooler in transaction mode", described, poll}},
		"told": {session, []string{"DATABASE_POOLER=session"},
			[]string{"leads to a pooler in session mode", cached, byDatabase}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := []string{"LOG_LEVEL=debug"}
			for _, v := range c.env {
				env = append(env, route(t, v))
			}
			p := startWorker(t, route(t, c.database), env...)
			wants(t, p.stderr.String(), c.wants...)
			if strings.Contains(strings.Join(c.wants, ""), "by notification") {
				p.stderr.waitFor(t, "notifications arrive")
			}
			testdb.Exec(t, testdb.Pool(t, url),
				`insert into core_tool_calls (tool_name, input) values ('os.health_check', '{}')`)
			p.stop(t)
			if strings.Contains(p.stderr.String(), "get notifications") {
				t.Error("it listened where nothing comes through")
			}
		})
	}
}

// A pooler's connections are shared: one that listens would also do so for its next client.
func TestNothingListensBehindATransactionPooler(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	p := pgbouncer.Start(t, url, pgbouncer.Options{})
	w := startWorker(t, p.URL(url), "DIRECT_URL="+p.URL(url))
	got := gemWith(t, []string{"DATABASE_URL=" + p.URL(url)}, "call", "os.health_check", "--wait", "--timeout", "1m")
	got.wantCode(t, 0)
	w.stop(t)
	if n := testdb.Value[int](t, testdb.Pool(t, url), "select count(*)::int from pg_stat_activity where datname = "+
		"current_database() and query ilike 'listen%'"); n != 0 {
		t.Errorf("%d connections listen", n)
	}
}

func TestMigrateThroughATransactionPooler(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 2} {
		t.Run(fmt.Sprint("pool of ", size), func(t *testing.T) {
			t.Parallel()
			url := testdb.NewEmpty(t)
			p := pgbouncer.Start(t, url, pgbouncer.Options{PoolSize: size})
			got := gemWith(t, []string{"DATABASE_URL=" + p.URL(url)}, "migrate")
			got.wantCode(t, 0)
			wants(t, got.stdout, "the schema was created")
		})
	}
}

// In each of these, every call ends with one receipt, `gem audit` finds nothing, and no worker opens more connections
// than it says.
func TestTroubleWithAPoolerLosesNothing(t *testing.T) {
	t.Parallel()
	both := []pgbouncer.Mode{pgbouncer.Session, pgbouncer.Transaction}
	calls := 120
	if os.Getenv("GEM_TEST_LONG") != "" {
		calls = 400
	}
	for _, c := range []struct {
		name     string
		modes    []pgbouncer.Mode
		pool     int // server connections
		workers  int
		settings map[string]string
		crashes  bool // the server, which is one of its own then
		trouble  func(*testing.T, *behind)
	}{
		{name: "the smallest pool of a session pooler", modes: both[:1], pool: 4 + 3, workers: 1},
		{name: "more workers than server connections", modes: both[1:], pool: 2, workers: 3},
		{name: "the pooler is restarted", modes: both, pool: 20, workers: 2, trouble: func(t *testing.T, b *behind) {
			for n := range 3 {
				b.until(t, calls/8+calls/4*n)
				b.pooler.Stop()
				time.Sleep(300 * time.Millisecond) // away for a while
				if err := b.pooler.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}},
		// By default PgBouncer lets statements wait for 15 s after a login failed, which is longer than the tools may take.
		{name: "the server is restarted", modes: both, pool: 20, workers: 2,
			settings: map[string]string{"server_login_retry": "1"}, crashes: true, trouble: func(t *testing.T, b *behind) {
				for n := range 2 {
					b.until(t, 60+100*n)
					b.crash(t)
				}
			}},
		{name: "idle clients are thrown out", modes: both, pool: 20, workers: 2,
			settings: map[string]string{"client_idle_timeout": "1"},
			trouble: func(t *testing.T, b *behind) {
				for n := range 3 {
					b.until(t, calls+calls/4*n)
					time.Sleep(1500 * time.Millisecond) // so that some are
					b.insert(t, calls/4)
				}
			}},
	} {
		for _, mode := range c.modes {
			t.Run(c.name+", "+string(mode), func(t *testing.T) {
				t.Parallel()
				url, calls := newDatabase(t), calls
				if c.crashes {
					url, calls = serverOfItsOwn(t), 400 // so many that some are left whenever the server ends
				}
				b := startBehind(t, url, pgbouncer.Options{Mode: mode, PoolSize: c.pool, Settings: c.settings})
				b.insert(t, calls)
				for range c.workers {
					startWorker(t, b.pooler.URL(b.url), "WORKER_CONCURRENCY=8", "WORKER_CONNECTIONS=4",
						"HTTP_ALLOWED_HOSTS="+b.outside)
				}
				count := b.countClients()
				if c.trouble != nil {
					c.trouble(t, b)
				}
				b.until(t, b.inserted)
				if most, limit := count(), c.workers*(4+3); most == 0 || most > limit {
					t.Errorf("%d workers had %d connections, and may have %d", c.workers, most, limit)
				}
				// A worker that is too slow to send heartbeats loses its calls, and its effects outside must not happen twice.
				if failed := testdb.Value[string](t, b.db, `select coalesce(string_agg(tool_name || ' ' || result, E'\n'), '')
					from core_tool_receipts r where status <> 'succeeded'
					and not (result -> 'error' ->> 'error_code' = 'outcome_unknown'
						and exists (select from core_tool_events e where e.call_id = r.call_id and event = 'lost'))`); failed != "" {
					t.Errorf("some calls did not succeed:\n%s", failed)
				}
				audited := gemWith(t, []string{"DATABASE_URL=" + b.url}, "audit")
				audited.wantCode(t, 0)
			})
		}
	}
}

// behind is a database with a pooler in front.
type behind struct {
	url      string // without the pooler
	pooler   *pgbouncer.Pooler
	db       *pgxpool.Pool // of url
	outside  string        // a host that http.request may reach
	inserted int
}

// serverOfItsOwn returns the URL of a migrated database on a server that the test may crash.
func serverOfItsOwn(t *testing.T) string {
	t.Helper()
	// What was committed must be there after a crash of the server.
	server := testdb.Private(t, pgserver.Options{Settings: map[string]string{"synchronous_commit": "on"}})
	url := server.URL("postgres")
	if err := migrations.Up(t.Context(), url, sources...); err != nil {
		t.Fatal(err)
	}
	return url
}

func startBehind(t *testing.T, url string, o pgbouncer.Options) *behind {
	t.Helper()
	b := &behind{url: url, pooler: pgbouncer.Start(t, url, o), db: testdb.Pool(t, url)}
	service := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(service.Close)
	b.outside = strings.TrimPrefix(service.URL, "http://")
	return b
}

// insert inserts calls of both kinds: with a transaction, and with effects outside.
func (b *behind) insert(t *testing.T, n int) {
	t.Helper()
	testdb.Exec(t, b.db, `insert into core_tool_calls (tool_name, input) select 'os.create_note',
		'{"domain": "both", "title": "a", "content": "b"}' from generate_series(1, $1::int)`, n/2)
	testdb.Exec(t, b.db, `insert into core_tool_calls (tool_name, input) select 'http.request',
		jsonb_build_object('method', 'GET', 'url', 'http://' || $2) from generate_series(1, $1::int)`, n/2, b.outside)
	b.inserted += n
}

// until waits for so many receipts, as long as they become more.
func (b *behind) until(t *testing.T, receipts int) {
	t.Helper()
	for late, most := time.Now().Add(patience), 0; ; time.Sleep(5 * time.Millisecond) {
		var n int
		err := b.db.QueryRow(t.Context(), "select count(*) from core_tool_receipts").Scan(&n)
		switch {
		case err == nil && n >= receipts:
			return
		case n > most:
			late, most = time.Now().Add(patience), n
		case time.Now().After(late):
			t.Fatalf("%d receipts, %v; want %d", n, err, receipts)
		}
	}
}

// crash kills a server process, upon which Postgres ends all others and recovers, at the same address.
func (b *behind) crash(t *testing.T) {
	t.Helper()
	pid := testdb.Value[int](t, b.db, "select pg_backend_pid()")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// countClients counts the workers' connections to the pooler until the function is called that it returns, which gives
// the highest count.
func (b *behind) countClients() (stop func() int) {
	ctx, cancel := context.WithCancel(context.Background())
	most := 0
	var counting sync.WaitGroup
	counting.Go(func() {
		// At least once, however soon the calls have ended.
		for late := time.Now().Add(patience); ctx.Err() == nil || most == 0 &&
			time.Now().Before(late); time.Sleep(20 * time.Millisecond) {
			clients, err := b.pooler.Clients(context.Background(), b.url)
			if err != nil {
				continue // it is away
			}
			n := 0
			for _, client := range clients {
				if strings.HasPrefix(client["application_name"], "gem") {
					n++
				}
			}
			most = max(most, n)
		}
	})
	return func() int { cancel(); counting.Wait(); return most }
}
