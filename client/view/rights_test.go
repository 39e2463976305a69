package view_test

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/testing/pgbouncer"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

// monitor is the URL of a database for a login of gem_monitor, and the owner's pool.
func monitor(t *testing.T) (string, *pgxpool.Pool) {
	t.Helper()
	address := testdb.New(t)
	owner := testdb.Pool(t, address)
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	role := "watch_" + strings.TrimPrefix(u.Path, "/gem_test_")
	testdb.Exec(t, owner, "create role "+role+" login password 'x' in role gem_monitor")
	t.Cleanup(func() { _, _ = owner.Exec(context.Background(), "drop role "+role) })
	u.User = url.UserPassword(role, "x")
	return u.String(), owner
}

// everything calls each read of the package, on the calls of [scene].
func everything(call string) map[string]func(context.Context, view.DB) (any, error) {
	all := map[string]func(context.Context, view.DB) (any, error){
		"overview": func(ctx context.Context, db view.DB) (any, error) { return view.ReadOverview(ctx, db) },
		"workers":  func(ctx context.Context, db view.DB) (any, error) { return view.Workers(ctx, db) },
		"tools":    func(ctx context.Context, db view.DB) (any, error) { return view.Tools(ctx, db) },
		"tool":     func(ctx context.Context, db view.DB) (any, error) { return view.ReadTool(ctx, db, "a.one") },
		"session":  func(ctx context.Context, db view.DB) (any, error) { return view.Session(ctx, db, "s", "") },
		"failures": func(ctx context.Context, db view.DB) (any, error) {
			return view.ReadFailures(ctx, db, time.Time{}, "")
		},
		"minutes": func(ctx context.Context, db view.DB) (any, error) {
			minutes, _, err := view.Minutes(ctx, db, time.Time{}, time.Time{}, "")
			return minutes, err
		},
		"questions among": func(ctx context.Context, db view.DB) (any, error) {
			return view.QuestionsAmong(ctx, db, []string{call})
		},
		"open questions": func(ctx context.Context, db view.DB) (any, error) { return view.CountQuestions(ctx, db, 10) },
		"call":           func(ctx context.Context, db view.DB) (any, error) { return view.Get(ctx, db, call) },
		"children":       func(ctx context.Context, db view.DB) (any, error) { return view.Children(ctx, db, call, 10) },
		"found":          func(ctx context.Context, db view.DB) (any, error) { return view.Find(ctx, db, call) },
		"journal":        func(ctx context.Context, db view.DB) (any, error) { return view.Journal(ctx, db, call, 0, 100) },
		"requests":       func(ctx context.Context, db view.DB) (any, error) { return view.Requests(ctx, db, call) },
	}
	for name, f := range filters {
		all["calls "+name] = func(ctx context.Context, db view.DB) (any, error) { return view.Calls(ctx, db, f) }
	}
	return all
}

// filters cover each way to find calls.
var filters = map[string]view.Filter{
	"newest": {}, "of a tool": {Tool: "a.one"}, "of a caller": {Caller: "ada"},
	"of a caller and a tool": {Caller: "ada", Tool: "a.one"}, "of a session": {Session: "s"},
	"with a key": {Key: "mine"}, "with a code": {Code: "execution_error"}, "with a text": {Text: "broke"},
	"queued": {State: "queued"}, "scheduled": {State: "scheduled"},
	"queued of a tool": {State: "queued", Tool: "a.one"}, "waiting": {State: "waiting"}, "running": {State: "running"},
	"open":      {State: "open"},
	"succeeded": {State: "succeeded"}, "failed": {State: "failed"}, "not configured": {State: "not_configured"},
	"ended":      {State: "ended"},
	"of an hour": {From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Hour)},
}

// Rows contain nothing that a handler, an agent or a user sent: each such place has a secret here.
const secrets = `
	update core_tool_calls set input = '{"secret": "in the input"}' where status = 'queued';
	insert into core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
		select id, events + 1, now(), 'step', 1, 'w',
			'{"name": "shown", "kind": "step", "result": {"secret": 1}, "effects": {"secret": 1}, "error":
			{"error_code": "shown too", "message": "and this", "details": {"secret": 1}, "context": "secret"},
				"context": "secret", "something_new": "secret"}' from core_tool_calls where tool_name = 'a.one';
	insert into core_tool_events (call_id, seq, at, event, attempt, data)
		select id, events + 2, now(), 'answered', 1, '{"name": "#answer", "value": "secret", "by": "ada"}'
			from core_tool_calls where tool_name = 'a.one'`

func TestAMonitorReadsEverythingAndNoPayload(t *testing.T) {
	t.Parallel()
	address, owner := monitor(t)
	testdb.Exec(t, owner, scene)
	testdb.Exec(t, owner, "set session_replication_role = replica; "+secrets+"; set session_replication_role = origin")
	var call string
	if err := owner.QueryRow(t.Context(), "select id::text from core_tool_calls where tool_name = 'a.one'").
		Scan(&call); err != nil {
		t.Fatal(err)
	}
	pooler := pgbouncer.Start(t, address, pgbouncer.Options{Mode: pgbouncer.Transaction, PoolSize: 2})
	for how, address := range map[string]string{"Postgres": address, "a transaction pooler": pooler.URL(address)} {
		pool, err := pgpool.Open(t.Context(), address, pgpool.Options{MaxConns: 4})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		for what, one := range everything(call) {
			shown, err := json.Marshal(read(t, pool, one))
			if err != nil || strings.Contains(string(shown), "secret") {
				t.Errorf("%s of %s: %v\n%s", what, how, err, shown)
			}
		}
		journal, err := json.Marshal(read(t, pool, everything(call)["journal"]))
		for _, shown := range []string{`"name":"shown"`, `"kind":"step"`, `"error_code":"shown too"`, `"message":"and this"`,
			`"by":"ada"`, `"receipt_id"`, `"run_at"`} {
			if err != nil || !strings.Contains(strings.ReplaceAll(string(journal), `": `, `":`), shown) {
				t.Errorf("the journal lacks %s, %v:\n%s", shown, err, journal)
			}
		}
		for _, sql := range []string{"select input from core_tool_calls", "select result from core_tool_receipts",
			"select data from core_tool_events",
			"select data from core_tool_progress", "delete from gem.calls", "update gem.calls set status = 'failed'",
			"select * from gem.outcome_minutes"} {
			if _, err := pool.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "permission denied") &&
				!strings.Contains(err.Error(), "cannot") {
				t.Errorf("%s: %v", sql, err)
			}
		}
	}
}

func TestNothingIsWrittenAndNothingTakesLong(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	for sql, want := range map[string]string{"insert into public.core_tool_calls (tool_name) values ('a.b')": "read-only",
		"select pg_sleep(3)": view.ErrTooSlow.Error()} {
		err := view.Read(t.Context(), db, func(ctx context.Context, db view.DB) error {
			_, err := db.Exec(ctx, sql)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", sql, err)
		}
	}
}
