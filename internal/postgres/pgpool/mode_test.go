package pgpool_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/testing/pgbouncer"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestOnlyAPoolWhoseModeKeepsSessionsKeepsStatements(t *testing.T) {
	t.Parallel()
	const url = "postgres://gem@127.0.0.1:1/gem"
	for mode, want := range map[pgpool.PoolMode]bool{
		pgpool.Direct: true, pgpool.SessionPooler: true, pgpool.TransactionPooler: false, pgpool.Unknown: false,
		"a new one": false,
	} {
		pool, err := pgpool.Open(t.Context(), url, pgpool.Options{Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		if got := pgpool.KeepsStatements(pool); got != want {
			t.Errorf("mode %q: got %v, want %v", mode, got, want)
		}
	}
}

// Another program's pool caches statements by default, but its mode was never stated.
func TestAPlainPoolMayLeadThroughATransactionPooler(t *testing.T) {
	t.Parallel()
	if pgpool.KeepsStatements(testdb.Pool(t, testdb.NewEmpty(t))) {
		t.Error("a plain pool keeps statements")
	}
}

// The server's default does not matter where GEM can set its own.
func TestSessionsReadWhatIsCommitted(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	execute(t, url, "do $$ begin execute format('alter database %I set default_transaction_isolation = serializable', "+
		"current_database()); end $$")
	session := pgbouncer.Start(t, url, pgbouncer.Options{Mode: pgbouncer.Session}).URL(url)
	transaction := pgbouncer.Start(t, url, pgbouncer.Options{Mode: pgbouncer.Transaction}).URL(url)
	for _, c := range []struct {
		url  string
		mode pgpool.PoolMode
		want string
	}{
		{url, pgpool.Direct, "read committed"}, {session, pgpool.SessionPooler, "read committed"},
		// other clients use the session too
		{session, pgpool.Unknown, "serializable"}, {transaction, pgpool.TransactionPooler, "serializable"},
	} {
		pool, err := pgpool.Open(t.Context(), c.url, pgpool.Options{Mode: c.mode})
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		var got string
		if err := pool.QueryRow(t.Context(), "select current_setting('transaction_isolation')").Scan(&got); err != nil ||
			got != c.want {
			t.Errorf("mode %q: got %s, %v; want %s", c.mode, got, err, c.want)
		}
	}
}

// A pool for GEM's own statements has its own search path. It must not leave it in a session that other clients may
// use.
func TestOwnStatementsHaveTheirOwnSearchPath(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	execute(t, url, `do $$ begin
		execute format('alter database %I set search_path = app, public', current_database());
	end $$`)
	session := pgbouncer.Start(t, url, pgbouncer.Options{Mode: pgbouncer.Session, PoolSize: 1}).URL(url)
	transaction := pgbouncer.Start(t, url, pgbouncer.Options{Mode: pgbouncer.Transaction, PoolSize: 1}).URL(url)
	const own, theirs = "pg_catalog, pg_temp", "app, public"
	for _, c := range []struct {
		url  string
		mode pgpool.PoolMode
		own  bool
		want string
	}{
		{url, pgpool.Direct, true, own}, {url + "&search_path=app", pgpool.Direct, true, own},
		{url, pgpool.Unknown, true, own}, {session, pgpool.SessionPooler, true, own},
		{session, pgpool.Unknown, true, theirs}, {transaction, pgpool.TransactionPooler, true, theirs},
		{transaction, pgpool.Unknown, true, theirs}, {url, pgpool.Direct, false, theirs},
		{url, pgpool.Unknown, false, theirs},
		{session, pgpool.SessionPooler, false, theirs}, {transaction, pgpool.TransactionPooler, false, theirs},
	} {
		pool, err := pgpool.Open(t.Context(), c.url, pgpool.Options{Mode: c.mode, OwnSQL: c.own, MaxConns: 1})
		if err != nil {
			t.Fatal(err)
		}
		var got string
		if err := pool.QueryRow(t.Context(), "show search_path").Scan(&got); err != nil || got != c.want {
			t.Errorf("mode %q, own %v: got %s, %v; want %s", c.mode, c.own, got, err, c.want)
		}
		pool.Close()
	}
}

// By default a server detects a vanished client after two hours. Until then the client's transaction keeps its locks.
func TestTheServerLooksForClientsThatVanish(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	for url, want := range map[string]string{url: "30 10 3", url + "&tcp_keepalives_idle=77": "77 10 3"} {
		pool, err := pgpool.Open(t.Context(), url, pgpool.Options{Mode: pgpool.Direct})
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		var got string
		err = pool.QueryRow(t.Context(), `select concat_ws(' ', current_setting('tcp_keepalives_idle'),
			current_setting('tcp_keepalives_interval'),
			current_setting('tcp_keepalives_count'))`).Scan(&got)
		if err != nil || got != want {
			t.Errorf("%s: got %s, %v; want %s", url, got, err, want)
		}
	}
}

// The connection string may ask for less than the mode allows.
func TestAPoolThatCachesNoStatementsKeepsNone(t *testing.T) {
	t.Parallel()
	pool, err := pgpool.Open(t.Context(), "postgres://gem@127.0.0.1:1/gem?default_query_exec_mode=exec",
		pgpool.Options{Mode: pgpool.Direct})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if pgpool.KeepsStatements(pool) {
		t.Error("it keeps statements")
	}
}

// There are more clients than server connections, so that each client keeps changing its connection, and this PgBouncer
// does not support prepared statements.
func TestByDefaultAPoolWorksThroughATransactionPooler(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	p := pgbouncer.Start(t, url, pgbouncer.Options{Mode: pgbouncer.Transaction, PoolSize: 2})
	pool, err := pgpool.Open(t.Context(), p.URL(url), pgpool.Options{MaxConns: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for n := range 50 {
				var got int
				if err := pool.QueryRow(t.Context(), "select $1::int", n).Scan(&got); err != nil || got != n {
					t.Errorf("got %d, %v; want %d", got, err, n)
					return
				}
			}
		})
	}
	clients.Wait()
}

// Some poolers reuse a server connection while answers to its last client are still to come. PgBouncer 1.18 does this
// when a client that sent several statements at once disconnects early. The next client would read those answers as its
// own, and from then on be one answer behind.
func TestNoConnectionStartsWithTheAnswersOfAnother(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	p := pgbouncer.Start(t, url, pgbouncer.Options{Mode: pgbouncer.Session, PoolSize: 1})
	pool, err := pgpool.Open(t.Context(), p.URL(url), pgpool.Options{MaxConns: 1, Mode: pgpool.SessionPooler})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for range 5 {
		leaveAnswersBehind(t, p.URL(url))
		var conn *pgxpool.Conn
		for conn == nil { // the connection is closed, and the pooler's server connection with it
			if conn, err = pool.Acquire(t.Context()); err != nil && !strings.Contains(err.Error(), "another client") {
				t.Fatal(err)
			}
		}
		for n := range 3 {
			var got int
			if err := conn.QueryRow(t.Context(), "select $1::int + 0", n).Scan(&got); err != nil || got != n {
				t.Fatalf("got %d, %v; want %d", got, err, n)
			}
		}
		conn.Release()
		pool.Reset()
	}
}

// leaveAnswersBehind disconnects after the first of three answers.
func leaveAnswersBehind(t *testing.T, url string) {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	pipeline := conn.StartPipeline(t.Context())
	for _, sql := range []string{"select 1", "select pg_sleep(0.1)", "select 3"} {
		pipeline.SendQueryParams(sql, nil, nil, nil, nil)
		pipeline.SendPipelineSync()
	}
	if err := pipeline.Flush(); err != nil {
		t.Fatal(err)
	}
	if results, err := pipeline.GetResults(); err != nil {
		t.Fatal(err)
	} else if _, err := results.(*pgconn.ResultReader).Close(); err != nil {
		t.Fatal(err)
	}
	if err := conn.Conn().Close(); err != nil {
		t.Fatal(err)
	}
}
