package testdb

import (
	"context"
	_ "embed"
	"testing"

	"github.com/jackc/pgx/v5"
)

//go:embed stranger.sql
var strangersSchema string

// AddStranger adds another program's schema to the database at databaseURL. It has a view and a function under each
// name that GEM has in public, and overloads of Postgres's own functions and operators. It comes first in the search
// path of new connections. The test fails if anything in that schema is used.
func AddStranger(t testing.TB, databaseURL string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), strangersSchema)
	if err != nil {
		t.Fatalf("make the stranger's schema: %v", err)
	}
	t.Cleanup(func() {
		var used bool
		if err := conn.QueryRow(context.Background(), "select is_called from stranger.uses").Scan(&used); err != nil || used {
			t.Errorf("something of the stranger was used: %v, %v", used, err)
		}
		_ = conn.Close(context.Background())
	})
}
