package store_test

import (
	"testing"

	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestDurabilityFollowsTheSettings(t *testing.T) {
	t.Parallel()
	s := testdb.Private(t, pgserver.Options{Durable: true})
	for _, c := range []struct{ commit, standbys, want string }{
		{"on", "", "local"}, {"local", "one", "local"}, {"off", "one", "off"}, {"on", "one", "replicated"},
		{"remote_apply", "one", "replicated"},
	} {
		db := testdb.Pool(t, s.URL("postgres"))
		testdb.Exec(t, db, "set synchronous_commit = off") // the standby of these settings does not exist
		testdb.Exec(t, db, "alter system set synchronous_standby_names = '"+c.standbys+"'")
		testdb.Exec(t, db, "select pg_reload_conf()")
		conn, err := db.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "set synchronous_commit = "+c.commit); err != nil {
			t.Fatal(err)
		}
		testdb.Eventually(t, "it is "+c.want, func() bool {
			got, err := store.Durability(t.Context(), conn)
			return err == nil && got == c.want
		})
		conn.Release()
	}
}
