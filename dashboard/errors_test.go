package dashboard_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestPagesSayThatTheDatabaseIsNotMigrated(t *testing.T) {
	t.Parallel()
	empty := testdb.Pool(t, testdb.NewEmpty(t))
	server, _ := pages(t, dashboard.User{Name: "ada", Operator: true},
		func(o *dashboard.Options) { o.Read, o.Act = empty, empty })
	for _, path := range []string{"/", "/calls", "/calls.json", "/failures", "/sessions", "/tools", "/workers", "/epochs",
		"/questions", "/calls/00000000-0000-0000-0000-000000000001"} {
		if status, body := get(t, server, path); status != 503 || !strings.Contains(body, "gem migrate") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

func TestHealthIsThatOfTheDatabaseTheServerNeeds(t *testing.T) {
	t.Parallel()
	empty := testdb.Pool(t, testdb.NewEmpty(t))
	server, _ := pages(t, dashboard.User{Name: "ada"}, func(o *dashboard.Options) { o.Read = empty })
	if status, body := get(t, server, "/healthz"); status != 503 ||
		body != "GEM's tables are missing or of another version. Run gem migrate.\n" {
		t.Errorf("not migrated: %d %s", status, body)
	}
	url := testdb.New(t)
	owner := testdb.Pool(t, url)
	server, _ = pages(t, dashboard.User{Name: "ada"}, func(o *dashboard.Options) { o.Read = as(t, url, "pg_monitor") })
	if status, body := get(t, server, "/healthz"); status != 503 ||
		!strings.Contains(body, "may not read what the pages show") {
		t.Errorf("without rights: %d %s", status, body)
	}
	tx, err := owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "lock table core_tool_calls"); err != nil {
		t.Fatal(err)
	}
	server, _ = pages(t, dashboard.User{Name: "ada"}, func(o *dashboard.Options) { o.Read = as(t, url, "gem_monitor") })
	if status, body := get(t, server, "/healthz"); status != 200 || body != "ok\n" {
		t.Errorf("busy: %d %s", status, body)
	}
	if _, err := tx.Exec(t.Context(), "alter view gem.calls rename column progress to progressed"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	server, _ = pages(t, dashboard.User{Name: "ada"}, func(o *dashboard.Options) { o.Read = as(t, url, "gem_monitor") })
	if status, _ := get(t, server, "/healthz"); status != 503 {
		t.Errorf("pages that are watched read a column that is not there: %d", status)
	}
}

func TestAPageDoesNotWaitLongForALock(t *testing.T) {
	t.Parallel()
	server, db := pages(t, dashboard.User{Name: "ada", Operator: true})
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "lock table core_tool_calls"); err != nil {
		t.Fatal(err)
	}
	if status, body := get(t, server, "/calls"); status != 503 || !strings.Contains(body, "did not answer in time") {
		t.Errorf("%d %s", status, body)
	}
}

func TestAnActOnADatabaseThatTakesNoChangesSaysSo(t *testing.T) {
	t.Parallel()
	server, db := pages(t, dashboard.User{Name: "ada", Operator: true}, func(o *dashboard.Options) {
		standby := o.Act.Config()
		standby.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
		var err error
		if o.Act, err = pgxpool.NewWithConfig(t.Context(), standby); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(o.Act.Close)
	})
	var id string
	if err := db.QueryRow(t.Context(), "insert into core_tool_calls (tool_name) values ('a.tool') returning id::text").
		Scan(&id); err != nil {
		t.Fatal(err)
	}
	answer, err := http.PostForm(server.URL+"/calls/"+id+"/cancel", url.Values{"form": {"00000000000000000000000001"}})
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusServiceUnavailable ||
		!strings.Contains(string(body), "is read-only now") {
		t.Errorf("%d %s %v", answer.StatusCode, body, err)
	}
}

// breaking is a connection to Postgres that is reset in the middle of a page: after some bytes of answers.
type breaking struct {
	net.Conn
	left *atomic.Int64
}

func (b breaking) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if b.left.Add(-int64(n)) < 0 {
		_ = b.Close()
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	}
	return n, err
}

// Wherever the connection ends during the read of a page, the answer is a complete page that asks to retry.
func TestAConnectionThatBreaksInTheMiddleOfAPageIsNoFaultOfThePage(t *testing.T) {
	t.Parallel()
	at := testdb.New(t)
	db := testdb.Pool(t, at)
	if _, err := db.Exec(t.Context(), "insert into core_tool_calls (id, tool_name, input) select "+
		"('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 'a.b', jsonb_build_object('n', repeat('x', 200)) "+
		"from generate_series(1, 60) n"); err != nil {
		t.Fatal(err)
	}
	for name, cut := range map[string]func(*pgxpool.Config, *atomic.Int64){
		"reset": func(c *pgxpool.Config, left *atomic.Int64) {
			dial := c.ConnConfig.DialFunc
			c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dial(ctx, network, addr)
				return breaking{conn, left}, err
			}
		},
		"ended": func(c *pgxpool.Config, left *atomic.Int64) {
			dial := c.ConnConfig.DialFunc
			c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dial(ctx, network, addr)
				return endingConn{breaking{conn, left}}, err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, path := range []string{"/", "/calls", "/calls.json", "/failures", "/sessions", "/tools", "/workers",
				"/epochs", "/questions", "/calls/00000000-0000-7000-8000-000000000001"} {
				whole := false
				for after := int64(0); !whole && after < 1<<20; after = after*2 + 300 {
					config, err := pgxpool.ParseConfig(at)
					if err != nil {
						t.Fatal(err)
					}
					left := &atomic.Int64{}
					left.Store(1 << 40)
					cut(config, left)
					read, err := pgxpool.NewWithConfig(t.Context(), config)
					if err != nil {
						t.Fatal(err)
					}
					if err := read.Ping(t.Context()); err != nil {
						t.Fatal(err)
					}
					handler, err := dashboard.New(dashboard.Options{Read: read, Act: read,
						User: func(*http.Request) (dashboard.User, error) {
							return dashboard.User{Name: "ada", Operator: true}, nil
						}})
					if err != nil {
						t.Fatal(err)
					}
					server := httptest.NewServer(handler)
					left.Store(after)
					status, body := get(t, server, path)
					switch {
					case status == 200:
						whole = left.Load() >= 0
						if !strings.HasSuffix(path, ".json") && !strings.Contains(body, "</html>") {
							t.Errorf("%s after %d bytes: half a page: %s", path, after, body)
						}
					case status != 503 || !strings.Contains(body, "retries automatically") && !strings.HasSuffix(path, ".json"):
						t.Errorf("%s after %d bytes: %d %s", path, after, status, body)
					}
					server.Close()
					read.Close()
				}
			}
		})
	}
}

// endingConn is a connection that simply ends, as when Postgres's machine restarts.
type endingConn struct{ breaking }

func (e endingConn) Read(p []byte) (int, error) {
	n, err := e.breaking.Read(p)
	if n == 0 && err != nil {
		err = io.EOF
	}
	return n, err
}
