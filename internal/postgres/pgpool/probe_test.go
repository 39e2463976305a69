package pgpool_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/testing/pgbouncer"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func TestADirectConnectionIsRecognised(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	for range 20 {
		wantMode(t, url, pgpool.Direct)
	}
}

func TestAPoolersModeIsRecognised(t *testing.T) {
	t.Parallel()
	for mode, want := range map[pgbouncer.Mode]pgpool.PoolMode{
		pgbouncer.Session: pgpool.Unknown, pgbouncer.Transaction: pgpool.TransactionPooler,
	} {
		for _, size := range []int{1, 2, 3, 20} {
			if mode == pgbouncer.Session && size == 1 && os.Getenv("GEM_TEST_LONG") == "" {
				continue // each probe waits for its full ten seconds
			}
			for _, longestIdleFirst := range []string{"0", "1"} {
				t.Run(fmt.Sprintf("%s, pool of %d, server_round_robin %s", mode, size, longestIdleFirst), func(t *testing.T) {
					t.Parallel()
					url := testdb.NewEmpty(t)
					settings := map[string]string{"server_round_robin": longestIdleFirst}
					p := pgbouncer.Start(t, url, pgbouncer.Options{Mode: mode, PoolSize: size, Settings: settings})
					wantMode(t, p.URL(url), want)
					wantMode(t, p.URL(url), want) // with server connections that are already open
					for late := time.After(time.Minute); ; {
						clients, err := p.Clients(t.Context(), url)
						if err == nil && len(clients) == 0 {
							break
						}
						select {
						case <-late:
							t.Fatalf("connections are still open: %v, %v", clients, err)
						case <-time.After(10 * time.Millisecond):
						}
					}
				})
			}
		}
	}
}

// Transactions of other clients use most of the server connections, so that the second probe may have to wait for the
// first.
func TestAModeIsRecognisedWhileOthersFillThePool(t *testing.T) {
	t.Parallel()
	for _, idle := range []int{0, 1, 2} {
		t.Run(fmt.Sprint(idle, " idle"), func(t *testing.T) {
			t.Parallel()
			url := testdb.NewEmpty(t)
			p := pgbouncer.Start(t, url, pgbouncer.Options{PoolSize: 3})
			for range 3 - idle {
				other := connect(t, p.URL(url))
				if _, err := other.Exec(t.Context(), "begin"); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if idle == 0 { // it waits for a connection that does not become free
				ctx, cancel = context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
			}
			mode, err := pgpool.Probe(ctx, p.URL(url), pgpool.Unknown)
			switch {
			case idle == 0 && err == nil:
				t.Errorf("no server connection was free, and got %q", mode)
			case idle > 0 && (err != nil || mode != pgpool.TransactionPooler):
				t.Errorf("got %q, %v", mode, err)
			}
		})
	}
}

func TestAPoolerInStatementModeIsRefused(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	p := pgbouncer.Start(t, url, pgbouncer.Options{Mode: pgbouncer.Statement})
	for _, stated := range []pgpool.PoolMode{pgpool.Unknown, pgpool.SessionPooler, pgpool.TransactionPooler} {
		tries := 0
		err := pgpool.Wait(t.Context(), func(ctx context.Context) error {
			tries++
			_, err := pgpool.Probe(ctx, p.URL(url), stated)
			return err
		}, time.Minute, func(string) {})
		if err == nil || !strings.Contains(err.Error(), "use its session or transaction mode") || tries != 1 {
			t.Errorf("stated %q: after %d tries: %v", stated, tries, err)
		}
	}
}

// GEM leaves settings in sessions that it believes to be its own. With this pooler, other clients would get them.
func TestATransactionPoolerThatIsStatedToBeASessionPoolerIsRefused(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 2, 20} {
		url := testdb.NewEmpty(t)
		p := pgbouncer.Start(t, url, pgbouncer.Options{Mode: pgbouncer.Transaction, PoolSize: size})
		tries := 0
		err := pgpool.Wait(t.Context(), func(ctx context.Context) error {
			tries++
			_, err := pgpool.Probe(ctx, p.URL(url), pgpool.SessionPooler)
			return err
		}, time.Minute, func(string) {})
		if err == nil || !strings.Contains(err.Error(), "DATABASE_POOLER=transaction") || tries != 1 {
			t.Errorf("a pool of %d: after %d tries: %v", size, tries, err)
		}
		session := pgbouncer.Start(t, url, pgbouncer.Options{Mode: pgbouncer.Session, PoolSize: size + 1})
		mode, err := pgpool.Probe(t.Context(), session.URL(url), pgpool.SessionPooler)
		if err != nil || mode != pgpool.SessionPooler {
			t.Errorf("a session pooler with a pool of %d: got %q, %v", size+1, mode, err)
		}
	}
}

func TestAWrongPasswordForAPoolerIsNotRetried(t *testing.T) {
	t.Parallel()
	db := testdb.NewEmpty(t)
	u, err := url.Parse(pgbouncer.Start(t, db, pgbouncer.Options{Mode: pgbouncer.Transaction}).URL(db))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(u.User.Username(), "wrong")
	tries := 0
	err = pgpool.Wait(t.Context(), func(ctx context.Context) error {
		tries++
		_, err := pgpool.Probe(ctx, u.String(), pgpool.Unknown)
		return err
	}, time.Minute, func(string) {})
	if err == nil || tries != 1 || strings.Contains(err.Error(), "wrong") {
		t.Errorf("after %d tries: %v", tries, err)
	}
}

func TestAStatedModeIsTaken(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	for _, stated := range []pgpool.PoolMode{pgpool.Direct, pgpool.SessionPooler, pgpool.TransactionPooler} {
		if got, err := pgpool.Probe(t.Context(), url, stated); err != nil || got != stated {
			t.Errorf("got %q, %v; want %q", got, err, stated)
		}
	}
}

func TestAnUnreachableDatabaseIsAnError(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"postgres://gem:hunter2@127.0.0.1:1/gem", "postgres://gem:hunter2@127.0.0.1:port/gem"} {
		if mode, err := pgpool.Probe(t.Context(), url, pgpool.Unknown); err == nil ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %q, %v", mode, err)
		}
	}
}

func TestARepeatedReasonIsGivenOnce(t *testing.T) {
	t.Parallel()
	same := errors.Join(errors.New("no such host"), errors.New("no such host"))
	if got := pgpool.Reason(fmt.Errorf("connect: %w", same)); got != "no such host" {
		t.Errorf("got %q", got)
	}
}

// pgx first tries TLS, which the server does not support. The reason is the error without TLS.
func TestTheReasonIsWhatPostgresSaysAndNotThatItHasNoTLS(t *testing.T) {
	t.Parallel()
	db := testdb.NewEmpty(t)
	full := must(url.Parse(db))
	role := "gem_test_full_" + strings.ToLower(rand.Text())
	execute(t, db, "create role "+role+" login password 'x' connection limit 0")
	t.Cleanup(func() { execute(t, db, "drop role "+role) })
	full.User = url.UserPassword(role, "x")
	query := full.Query()
	query.Set("sslmode", "prefer")
	full.RawQuery = query.Encode()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var reasons []string
	err := pgpool.Wait(ctx, func(ctx context.Context) error {
		_, err := pgpool.Probe(ctx, full.String(), pgpool.Unknown)
		if !pgpool.IsAway(err) || strings.Contains(pgpool.Reason(err), "TLS") {
			t.Errorf("waiting would not help: %v", err)
		}
		return err
	}, time.Minute, func(reason string) { reasons = append(reasons, reason); cancel() })
	if len(reasons) != 1 || !strings.HasPrefix(reasons[0], "too many connections for role") ||
		!errors.Is(err, context.Canceled) {
		t.Errorf("retried for %q, then %v", reasons, err)
	}
}

func TestWhatCanNeverWorkIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	db := testdb.NewEmpty(t)
	with := func(change func(*url.URL, url.Values)) string {
		u := must(url.Parse(db))
		query := u.Query()
		change(u, query)
		u.RawQuery = query.Encode()
		return u.String()
	}
	for what, c := range map[string]struct{ url, says string }{
		"TLS where there is none": {with(func(_ *url.URL, q url.Values) { q.Set("sslmode", "require") }),
			"the server has no TLS"},
		"an unknown database": {with(func(u *url.URL, _ url.Values) { u.Path = "/nowhere" }),
			`database "nowhere" does not exist`},
		"an unknown role": {with(func(u *url.URL, _ url.Values) { u.User = url.UserPassword("nobody_here", "x") }),
			"nobody_here"},
	} {
		tries := 0
		err := pgpool.Wait(t.Context(), func(ctx context.Context) error {
			tries++
			_, err := pgpool.Probe(ctx, c.url, pgpool.Unknown)
			return err
		}, time.Minute, func(string) {})
		if err == nil || tries != 1 || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: after %d tries: %v", what, tries, err)
		}
	}
}

// Each address and transport fails for its own reason. The error contains the most specific one.
func TestOneReasonIsGiven(t *testing.T) {
	t.Parallel()
	noTLS, closed := errors.New("server refused TLS connection"), errors.New("connection refused")
	full, starting := &pgconn.PgError{Code: "53300", Message: "sorry, too many clients already"},
		&pgconn.PgError{Code: "57P03", Message: "starting"}
	notAllowed := &pgconn.PgError{Code: "28000", Message: "no encryption"}
	for want, errs := range map[string][]error{
		"sorry, too many clients already (SQLSTATE 53300)": {noTLS, full},
		"starting (SQLSTATE 57P03)":                        {notAllowed, fmt.Errorf("dial: %w", starting)},
		"no encryption (SQLSTATE 28000)":                   {closed, noTLS, notAllowed},
		"connection refused":                               {noTLS, closed},
	} {
		if got := pgpool.Reason(fmt.Errorf("connect: %w", errors.Join(errs...))); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A statement whose context ends is cancelled on the server, including behind a pooler, and the connection stays open.
func TestAStatementIsCancelledWhereverItRuns(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	for _, mode := range []pgbouncer.Mode{"", pgbouncer.Session, pgbouncer.Transaction} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			target := url
			if mode != "" {
				target = pgbouncer.Start(t, url, pgbouncer.Options{Mode: mode, PoolSize: 2}).URL(url)
			}
			o := pgpool.Options{MaxConns: 1}
			pgpool.CancelWithin(&o, time.Minute)
			pool, err := pgpool.Open(t.Context(), target, o)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			var before, after uint32
			for range 10 {
				conn, err := pool.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				before = conn.Conn().PgConn().PID()
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				if _, err := conn.Exec(ctx, "select pg_sleep(60)"); err == nil {
					t.Error("it was not cancelled")
				}
				cancel()
				if _, err := conn.Exec(t.Context(), "select 1"); err != nil {
					t.Errorf("the next statement: %v", err)
				}
				after = conn.Conn().PgConn().PID()
				conn.Release()
				if before != after {
					t.Error("the connection was lost")
				}
			}
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func wantMode(t *testing.T, url string, want pgpool.PoolMode) {
	t.Helper()
	if got, err := pgpool.Probe(t.Context(), url, pgpool.Unknown); err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

func execute(t *testing.T, url, sql string) {
	t.Helper()
	conn := must(pgx.Connect(context.Background(), url))
	defer conn.Close(context.Background())
	if _, err := conn.Exec(context.Background(), sql); err != nil {
		t.Fatal(err)
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}
