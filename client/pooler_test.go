package client_test

import (
	"os"
	"testing"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/testing/pgbouncer"
	"github.com/gemworker/gem/internal/testing/testdb"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// Two users share one connection of the server, and neither leaves anything to the other.
func TestSubjectsMayComeThroughAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	owner := testdb.Pool(t, url)
	pooler := pgbouncer.Start(t, url, pgbouncer.Options{Mode: pgbouncer.Transaction, PoolSize: 1})
	through := pooler.URL(url)
	db, err := pgpool.Open(t.Context(), through, pgpool.Options{MaxConns: 4, Mode: pgpool.TransactionPooler})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, sub := range []string{"ada", "grace", "ada"} {
		err := client.As(t.Context(), db, client.Subject{ID: sub, Role: "gem_frontend"}, func(db client.DB) error {
			_, err := client.Enqueue(t.Context(), db, client.NewCall{Tool: "shop.order", Input: map[string]any{"by": sub}})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		var clean bool
		if err := db.QueryRow(t.Context(), "select current_user = session_user and "+
			"coalesce(current_setting('request.jwt.claims', true), '') = ''").Scan(&clean); err != nil || !clean {
			t.Errorf("something of %s is left, %v", sub, err)
		}
	}
	var wrong, right int
	if err := owner.QueryRow(t.Context(), "select count(*) filter (where created_by <> input ->> 'by'), count(*) from "+
		"core_tool_calls").Scan(&wrong, &right); err != nil ||
		wrong != 0 || right != 3 {
		t.Errorf("%d of %d calls are another's, %v", wrong, right, err)
	}

	if os.Getenv("GEM_TEST_LONG") == "" {
		return // a Waiter takes ten seconds to see that no notification comes through
	}
	core, log := observer.New(zap.InfoLevel)
	w := client.NewWaiter(db, through, zap.New(core))
	defer w.Close()
	ids := calls(t, owner, 2, true)
	end := begin(t, w, ids)
	testdb.Eventually(t, "the log has a line", func() bool { return log.Len() > 0 })
	testdb.Exec(t, owner, "select cancel_tool_call(id) from unnest($1::uuid[]) id", ids)
	end()
	if w.Listens() || log.Len() != 1 {
		t.Errorf("it listens: %v, and says %v", w.Listens(), log.All())
	}
}
