package pgpool_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/pgbouncer"
	"github.com/gemworker/gem/internal/pgpool"
	"github.com/gemworker/gem/internal/testdb"
	"github.com/jackc/pgx/v5"
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
			for _, longestIdleFirst := range []string{"0", "1"} {
				t.Run(fmt.Sprintf("%s, pool of %d, server_round_robin %s", mode, size, longestIdleFirst), func(t *testing.T) {
					t.Parallel()
					url := testdb.NewEmpty(t)
					settings := map[string]string{"server_round_robin": longestIdleFirst}
					p := pgbouncer.Start(t, url, pgbouncer.Options{Mode: mode, PoolSize: size, Settings: settings})
					wantMode(t, p.URL(url), want)
					wantMode(t, p.URL(url), want) // with server connections already open
					for late := time.After(5 * time.Second); ; {
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

// Transactions of other clients take most of the server connections, so that the second probe may have to wait for the first.
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
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
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
		if mode, err := pgpool.Probe(t.Context(), url, pgpool.Unknown); err == nil || strings.Contains(err.Error(), "hunter2") {
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

// A statement whose context ends is cancelled on the server, also behind a pooler, and the connection stays open.
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
			pool, err := pgpool.Open(t.Context(), target, pgpool.Options{MaxConns: 1})
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

func wantMode(t *testing.T, url string, want pgpool.PoolMode) {
	t.Helper()
	if got, err := pgpool.Probe(t.Context(), url, pgpool.Unknown); err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
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
