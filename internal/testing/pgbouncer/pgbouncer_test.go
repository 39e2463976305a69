package pgbouncer_test

import (
	"testing"

	"github.com/gemworker/gem/internal/testing/pgbouncer"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func TestItLeadsToTheSameDatabaseAndEndsWhenTold(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	p := pgbouncer.Start(t, url, pgbouncer.Options{})
	want := database(t, url)
	for range 2 {
		if got := database(t, p.URL(url)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		p.Stop()
		if conn, err := pgx.Connect(t.Context(), p.URL(url)); err == nil {
			_ = conn.Close(t.Context())
			t.Error("it answers after Stop")
		}
		if err := p.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestItShowsItsClients(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	p := pgbouncer.Start(t, url, pgbouncer.Options{})
	conn, err := pgx.Connect(t.Context(), p.URL(url))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if got, err := p.Clients(t.Context(), url); err != nil || len(got) != 1 {
		t.Errorf("got %v, %v; want one", got, err)
	}
}

func database(t *testing.T, url string) (name string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), "select current_database()").Scan(&name); err != nil {
		t.Fatal(err)
	}
	return name
}
