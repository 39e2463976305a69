package cli

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestStatementsOfManyUsersStayPreparedWithoutAPooler(t *testing.T) {
	url := newDatabase(t)
	for name, c := range map[string]struct {
		url  string
		many bool
		want pgx.QueryExecMode
	}{
		"many users":           {url, true, pgx.QueryExecModeCacheStatement},
		"one user":             {url, false, pgx.QueryExecModeCacheDescribe},
		"no answer when asked": {"postgres://u:p@127.0.0.1:1/d", true, pgx.QueryExecModeCacheDescribe},
	} {
		t.Setenv("DATABASE_URL", c.url)
		pool, err := mcpPool(t.Context(), 1, c.many)
		if err != nil {
			t.Fatal(err)
		}
		if got := pool.Config().ConnConfig.DefaultQueryExecMode; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		pool.Close()
	}
}
