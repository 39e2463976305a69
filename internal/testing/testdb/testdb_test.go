//go:build !windows

package testdb_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// childMode is the environment variable that makes the test binary run only TestChild, like the test binary of another
// package.
const childMode = "GEM_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childMode) == "no main" {
		os.Exit(m.Run())
	}
	testdb.Main(m)
}

func TestNewIsMigrated(t *testing.T) {
	t.Parallel()
	if !hasCalls(t, testdb.New(t)) {
		t.Error("there is no table core_tool_calls")
	}
}

func TestNewEmptyIsEmpty(t *testing.T) {
	t.Parallel()
	if hasCalls(t, testdb.NewEmpty(t)) {
		t.Error("there is a table core_tool_calls")
	}
}

// A data folder works only with the Postgres version that created it.
func TestDataThatIsKeptBelongsToAVersionOfPostgres(t *testing.T) {
	t.Parallel()
	server := testdb.Private(t, pgserver.Options{})
	var major string
	err := testdb.Pool(t, server.URL("postgres")).QueryRow(t.Context(),
		"select current_setting('server_version_num')::integer / 10000 || ''").Scan(&major)
	if err != nil {
		t.Fatal(err)
	}
	made := filepath.Join(os.TempDir(), fmt.Sprintf("gem-test-data-%d", os.Getuid()), "postgres"+major+"-*.ready")
	if found, err := filepath.Glob(made); err != nil || len(found) == 0 {
		t.Errorf("there is no %s", made)
	}
}

func TestEachTestHasItsOwn(t *testing.T) {
	t.Parallel()
	for _, create := range []func(testing.TB) string{func(t testing.TB) string { return testdb.New(t) }, testdb.NewEmpty} {
		for range 3 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				run(t, create(t), "create table mine ()")
			})
		}
	}
}

func TestDatabaseIsDropped(t *testing.T) {
	t.Parallel()
	var url string
	var forgotten *pgx.Conn
	t.Run("user", func(t *testing.T) {
		url = testdb.NewEmpty(t)
		var err error
		if forgotten, err = pgx.Connect(context.Background(), url); err != nil {
			t.Fatal(err)
		}
	})
	defer forgotten.Close(t.Context())
	conn, err := pgx.Connect(t.Context(), url)
	if err == nil {
		conn.Close(t.Context())
	}
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != "3D000" {
		t.Errorf("got %v, want that the database does not exist", err)
	}
}

func TestPoolIsClosed(t *testing.T) {
	t.Parallel()
	var ping func(context.Context) error
	t.Run("user", func(t *testing.T) {
		ping = testdb.Pool(t, testdb.NewEmpty(t)).Ping
		if err := ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	if ping(t.Context()) == nil {
		t.Error("the pool is open after its test")
	}
}

func TestConnectionThatIsNotGivenBackIsAnError(t *testing.T) {
	t.Parallel()
	user := &recorder{TB: t}
	conn, err := testdb.PoolWithin(user, testdb.NewEmpty(t), time.Second).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	user.cleanup()
	conn.Release()
	if !strings.HasPrefix(user.said, "1 connections were not given back") {
		t.Errorf("got %q", user.said)
	}
}

// recorder is a test whose end is controlled, and whose errors are read, by another test.
type recorder struct {
	testing.TB
	cleanup func()
	said    string
}

func (r *recorder) Cleanup(f func())               { r.cleanup = f }
func (r *recorder) Errorf(format string, a ...any) { r.said = fmt.Sprintf(format, a...) }

// TestChild is the part of the other test binary. It prints the URL of its database.
func TestChild(t *testing.T) {
	switch os.Getenv(childMode) {
	case "":
		return
	case "leak":
		testdb.NewEmpty(t)
		go func() { select {} }()
	default:
		fmt.Println("url=" + testdb.New(t) + "=url")
	}
}

// child runs TestChild in another test binary and returns its output.
func child(t *testing.T, mode string, env ...string) (out string, err error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := osexec.CommandContext(t.Context(), self, "-test.run=^TestChild$", "-test.v")
	cmd.Env = append(append(os.Environ(), childMode+"="+mode), env...)
	text, err := cmd.CombinedOutput()
	return string(text), err
}

func urlIn(t *testing.T, out string) string {
	t.Helper()
	_, rest, _ := strings.Cut(out, "url=")
	url, _, ok := strings.Cut(rest, "=url")
	if !ok {
		t.Fatalf("no URL in %s", out)
	}
	return url
}

func TestServerGoesWithTheTestBinary(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"main", "no main"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			out, err := child(t, mode, "TEST_DATABASE_URL=")
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			url := urlIn(t, out)
			deadline := time.Now().Add(time.Minute)
			for {
				conn, err := pgx.Connect(t.Context(), url)
				if err == nil {
					conn.Close(t.Context())
				}
				var answered *pgconn.PgError
				if err != nil && !errors.As(err, &answered) {
					return // no server answers
				}
				if time.Now().After(deadline) {
					t.Fatalf("a minute has passed, and the server still answers: %v", err)
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
}

func TestOtherServerIsLeftAsItWas(t *testing.T) {
	t.Parallel()
	other, err := pgserver.Start(t.Context(), pgserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Stop()
	out, err := child(t, "main", "TEST_DATABASE_URL="+other.URL("postgres"))
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if prefix, _, _ := strings.Cut(other.URL("gem_test_"), "?"); !strings.HasPrefix(urlIn(t, out), prefix) {
		t.Errorf("the database was created at %s, want %s…", urlIn(t, out), prefix)
	}
	conn, err := pgx.Connect(t.Context(), other.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var left int
	if err := conn.QueryRow(t.Context(), "select count(*) from pg_database where datname like 'gem%'").
		Scan(&left); err != nil {
		t.Fatal(err)
	}
	if left != 0 {
		t.Errorf("%d databases are left", left)
	}
}

func TestWithoutAServerTestsFail(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ env, want string }{
		"no binaries": {"GEM_POSTGRES_BIN=/nowhere", "set GEM_POSTGRES_BIN to the bin folder of a Postgres"},
		"no URL":      {"TEST_DATABASE_URL=localhost", "TEST_DATABASE_URL must have the form postgres://"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := child(t, "main", "TEST_DATABASE_URL=", tc.env)
			if err == nil || !strings.Contains(out, "--- FAIL: TestChild") || !strings.Contains(out, tc.want) {
				t.Errorf("got %v and %s, want a failed test that says %q", err, out, tc.want)
			}
		})
	}
}

func TestMainFindsLeakedGoroutines(t *testing.T) {
	t.Parallel()
	out, err := child(t, "leak")
	if err == nil || !strings.Contains(out, "a test left a goroutine behind") {
		t.Errorf("got %v and %s", err, out)
	}
}

func hasCalls(t *testing.T, url string) (yes bool) {
	t.Helper()
	err := testdb.Pool(t, url).QueryRow(t.Context(), "select to_regclass('public.core_tool_calls') is not null").Scan(&yes)
	if err != nil {
		t.Fatal(err)
	}
	return yes
}

func run(t *testing.T, url, sql string) {
	t.Helper()
	if _, err := testdb.Pool(t, url).Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}
