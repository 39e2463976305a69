package cli

import (
	"testing"

	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/jackc/pgx/v5"
)

func TestStatementsOfManyUsersStayPreparedWithoutAPooler(t *testing.T) {
	const away = "postgres://u:p@127.0.0.1:1/d"
	url := newDatabase(t)
	for name, c := range map[string]struct {
		url, pooler string
		many        bool
		want        pgx.QueryExecMode
	}{
		"many users":                  {url, "auto", true, pgx.QueryExecModeCacheStatement},
		"one user":                    {url, "auto", false, pgx.QueryExecModeCacheDescribe},
		"no answer when asked":        {away, "auto", true, pgx.QueryExecModeCacheDescribe},
		"no answer, stated as direct": {away, "none", true, pgx.QueryExecModeCacheStatement},
	} {
		t.Setenv("DATABASE_URL", c.url)
		t.Setenv("DATABASE_POOLER", c.pooler)
		mode := pgpool.Unknown
		if c.many {
			mode = mcpMode(t.Context())
		}
		pool, err := mcpPool(t.Context(), 1, mode)
		if err != nil {
			t.Fatal(err)
		}
		if got := pool.Config().ConnConfig.DefaultQueryExecMode; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		pool.Close()
	}
}
