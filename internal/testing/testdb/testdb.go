// Package testdb gives each test its own Postgres database.
//
// A test binary starts one private server on first use. Its data is a copy of a folder in the temporary directory
// (gem-test-data-UID), which the first test binary creates. Its databases are copies of a migrated template. A test
// thus pays about 15 ms and can run in parallel with all others. Without a server the tests fail and are never skipped.
// The error names the package to install.
//
// The environment variable TEST_DATABASE_URL names a server to use instead. Its user must be allowed to create
// databases. Their names start with gem_test_. GEM_TEST_POOLER puts a pooler between the server and the workers under
// test: see [Route].
package testdb

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/gemworker/gem/migrations"
	"github.com/jackc/pgx/v5/pgxpool"
)

// New returns the URL of a new database with the tables of GEM and of the sources. It is dropped at the end of the
// test.
func New(t testing.TB, sources ...migrations.Source) string {
	t.Helper()
	s := started(t, sources)
	template, err := s.migrated(sources)
	if err != nil {
		t.Fatalf("migrate the template of the test databases: %v", err)
	}
	return newDatabase(t, s, template)
}

// NewLike returns the URL of a new database with what fill made of an empty one. The first call for a name of this test
// binary runs fill, the others copy its database. It costs a tenth of running migrations.
func NewLike(t testing.TB, name string, fill func(url string) error) string {
	t.Helper()
	s := started(t, nil)
	template, err := s.template("like "+name, fill)
	if err != nil {
		t.Fatalf("make the template %q of the test databases: %v", name, err)
	}
	return newDatabase(t, s, template)
}

// NewEmpty returns the URL of a new database without migrations.
func NewEmpty(t testing.TB) string {
	t.Helper()
	return newDatabase(t, started(t, nil), "template0")
}

// started returns the server of this test binary. It starts the server on its first call.
func started(t testing.TB, sources []migrations.Source) *server {
	t.Helper()
	s, err := theServer(sources)
	if err != nil {
		t.Fatalf("no test database: %v", err)
	}
	return s
}

func newDatabase(t testing.TB, s *server, template string) string {
	t.Helper()
	name := randomName()
	if err := s.create(t.Context(), name, template); err != nil {
		t.Fatalf("create a test database: %v", err)
	}
	t.Cleanup(func() {
		// The test's own context has ended.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.drop(ctx, name); err != nil {
			t.Errorf("drop the test database: %v", err)
		}
	})
	return s.url(name)
}

// Pool returns a pool of up to 8 connections to the database at url, and closes it at the end of the test. The test
// fails if it has not returned a connection by then.
func Pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	return poolWithin(t, url, time.Minute)
}

// poolWithin is Pool with a limit for the time until the connections are returned after the test.
func poolWithin(t testing.TB, url string, patience time.Duration) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatalf("the URL of the test database: %v", err)
	}
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("connect to the test database: %v", err)
	}
	t.Cleanup(func() { closePool(t, pool, patience) })
	return pool
}

// closePool closes a pool. Unlike Close, it does not wait forever for a connection that was never returned.
func closePool(t testing.TB, pool *pgxpool.Pool, patience time.Duration) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Errorf("%d connections were not given back to the pool within %v after the test: look for a transaction "+
			"without Rollback, rows without Close, or a goroutine that still runs", pool.Stat().AcquiredConns(), patience)
	}
}

// IsLong reports whether tests run in their long form, with GEM_TEST_LONG.
func IsLong() bool { return os.Getenv("GEM_TEST_LONG") != "" }

// Long skips a test without GEM_TEST_LONG. Use it if a shorter test covers the most important case: say which.
func Long(t testing.TB, short string) {
	t.Helper()
	if !IsLong() {
		t.Skipf("%s is the short form: set GEM_TEST_LONG=1", short)
	}
}

// Exec runs SQL, several statements if it has no arguments. The test fails if Postgres rejects it.
func Exec(t testing.TB, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(context.WithoutCancel(t.Context()), sql, args...); err != nil {
		t.Fatalf("%.1000s: %v", sql, err)
	}
}

// Value returns the only value of a query. The test fails if Postgres rejects the query, or returns no row.
func Value[T any](t testing.TB, db *pgxpool.Pool, sql string, args ...any) (value T) {
	t.Helper()
	if err := db.QueryRow(context.WithoutCancel(t.Context()), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%.1000s: %v", sql, err)
	}
	return value
}

// Eventually returns when holds returns true. The test fails if that takes longer than a minute.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	pause := 5 * time.Millisecond
	for end := time.Now().Add(time.Minute); !holds(); pause = min(pause*5/4, 25*time.Millisecond) {
		time.Sleep(pause)
		if time.Now().After(end) {
			t.Fatalf("waited a minute for this: %s", what)
		}
	}
}
