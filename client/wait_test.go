package client_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// statements counts the statements of a pool.
type statements struct{ atomic.Int64 }

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.Add(1)
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// waiter returns a Waiter with a private pool, whose statements are counted.
func waiter(t *testing.T, url, listenURL string) (*client.Waiter, *pgxpool.Pool, *statements) {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	sent := &statements{}
	config.MaxConns, config.ConnConfig.Tracer = 4, sent
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	w := client.NewWaiter(pool, listenURL, nil)
	t.Cleanup(pool.Close)
	t.Cleanup(w.Close)
	return w, pool, sent
}

// calls makes n calls, awaited or not.
func calls(t *testing.T, db *pgxpool.Pool, n int, awaited bool) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), "insert into core_tool_calls (tool_name, awaited) select 'a.b', $2 from "+
		"generate_series(1, $1) returning id::text", n, awaited)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// begin waits for calls, and returns when the waits have begun. The returned function returns when they have ended, all
// without an error.
func begin(t *testing.T, w *client.Waiter, ids []string) (end func()) {
	t.Helper()
	var all sync.WaitGroup
	before := w.Waits()
	for _, id := range ids {
		all.Go(func() {
			if err := w.Ended(t.Context(), id); err != nil {
				t.Errorf("the wait for %s: %v", id, err)
			}
		})
	}
	testdb.Eventually(t, "all wait", func() bool { return w.Waits() == before+len(ids) })
	return all.Wait
}

// listening returns once notifications arrive at a Waiter, which starts with its first wait.
func listening(t *testing.T, w *client.Waiter) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Ended(ctx, missing); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	testdb.Eventually(t, "it listens", w.Listens)
}

func TestAThousandWaitsShareAConnectionThatListens(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	db := testdb.Pool(t, url)
	w, pool, sent := waiter(t, url, url)
	listening(t, w)
	ids := calls(t, db, 1000, true)
	end := begin(t, w, ids)
	var listeners int
	if err := db.QueryRow(t.Context(), "select count(*) from pg_stat_activity where datname = current_database() and "+
		"application_name = 'gem listen'").Scan(&listeners); err != nil ||
		listeners != 1 || pool.Stat().TotalConns() > 1 {
		t.Errorf("%d connections listen and %d ask, %v", listeners, pool.Stat().TotalConns(), err)
	}
	testdb.Exec(t, db, "select cancel_tool_call(id) from unnest($1::uuid[]) id", ids)
	end()
	if n := sent.Load(); n > 100 {
		t.Errorf("%d statements for 1000 waits", n)
	}
	if w.Waits() != 0 {
		t.Errorf("%d waits are left", w.Waits())
	}
}

// inBothWays runs a test with a waiter that listens, and with one that only polls.
func inBothWays(t *testing.T, url string, test func(t *testing.T, w *client.Waiter)) {
	t.Helper()
	for name, listenURL := range map[string]string{"while it listens": url, "while it only asks": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _, _ := waiter(t, url, listenURL)
			if listenURL != "" {
				listening(t, w)
			}
			test(t, w)
		})
	}
}

// A call that was not Awaited has no notification, like a call whose notification was lost.
func TestAnEndWithoutANotificationIsFound(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	db := testdb.Pool(t, url)
	inBothWays(t, url, func(t *testing.T, w *client.Waiter) {
		ids := calls(t, db, 3, false)
		end := begin(t, w, ids)
		testdb.Exec(t, db, "select cancel_tool_call(id) from unnest($1::uuid[]) id", ids)
		end()
		if err := w.Ended(t.Context(), ids[0]); err != nil { // and one that had ended before
			t.Error(err)
		}
	})
}

func TestANotificationIsHeardByEveryWaiterAndEveryWait(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	db := testdb.Pool(t, url)
	a, _, _ := waiter(t, url, url)
	b, _, _ := waiter(t, url, url)
	listening(t, a)
	listening(t, b)
	ids := calls(t, db, 2, true)
	endA, endB := begin(t, a, ids), begin(t, b, ids)
	again := make(chan error)
	go func() { again <- a.Ended(t.Context(), ids[0]) }()
	testdb.Exec(t, db, "select gem.tell_ended($1)", ids) // which have not ended: nothing else would tell
	endA()
	endB()
	testdb.Exec(t, db, "select cancel_tool_call(id) from unnest($1::uuid[]) id", ids)
	if err := <-again; err != nil {
		t.Error(err)
	}
}

// The answer to an insert may arrive after the notification of the call's end.
func TestANotificationThatComesBeforeTheWaitCounts(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	db := testdb.Pool(t, url)
	w, _, _ := waiter(t, url, url)
	listening(t, w)
	ids := calls(t, db, 2, true)
	end := begin(t, w, ids[1:])
	testdb.Exec(t, db, "select gem.tell_ended($1)", ids)
	end()
	if err := w.Ended(t.Context(), ids[0]); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := w.Ended(ctx, ids[0]); !errors.Is(err, context.DeadlineExceeded) { // it has not ended
		t.Errorf("the second wait: %v", err)
	}
}

func TestAWaiterOutlivesAnOutage(t *testing.T) {
	t.Parallel()
	url, db := mcpURL(t)
	w, pool, sent := waiter(t, url, url)
	listening(t, w)
	ids := calls(t, db, 10, true)
	end := begin(t, w, ids)
	role := pgx.Identifier{pool.Config().ConnConfig.User}.Sanitize()
	testdb.Exec(t, db, "alter role "+role+" nologin")
	testdb.Exec(t, db, "select pg_terminate_backend(pid) from pg_stat_activity where usename = $1",
		pool.Config().ConnConfig.User)
	testdb.Eventually(t, "it stops listening", func() bool { return !w.Listens() })
	testdb.Exec(t, db, "select cancel_tool_call(id) from unnest($1::uuid[]) id", ids)
	asked := sent.Load()
	testdb.Exec(t, db, "alter role "+role+" login")
	end()
	testdb.Eventually(t, "it listens", w.Listens)
	last := calls(t, db, 1, true)
	end = begin(t, w, last)
	testdb.Exec(t, db, "select gem.tell_ended($1)", last)
	end()
	if n := sent.Load() - asked; n > 20 {
		t.Errorf("%d statements since the outage", n)
	}
}

func TestAWaitThatIsGivenUpLeavesNothing(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	db := testdb.Pool(t, url)
	w, _, sent := waiter(t, url, "")
	ids := calls(t, db, 2, true)
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error)
	for range 3 {
		go func() { results <- w.Ended(ctx, ids[0]) }()
	}
	testdb.Eventually(t, "one wait that has asked", func() bool { return w.Waits() == 1 && sent.Load() > 0 })
	cancel()
	for range 3 {
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Errorf("a wait that was given up: %v", err)
		}
	}
	if w.Waits() != 0 {
		t.Errorf("%d waits are left", w.Waits())
	}
	for _, id := range []string{"", "x"} {
		if err := w.Ended(t.Context(), id); err == nil {
			t.Errorf("%q is the id of a call", id)
		}
	}
	go func() { results <- w.Ended(t.Context(), ids[1]) }()
	testdb.Eventually(t, "one wait", func() bool { return w.Waits() == 1 })
	w.Close()
	if err := <-results; !errors.Is(err, client.ErrClosed) {
		t.Errorf("a wait of a closed waiter: %v", err)
	}
	if err := w.Ended(t.Context(), ids[1]); !errors.Is(err, client.ErrClosed) {
		t.Errorf("a wait after that: %v", err)
	}
}
