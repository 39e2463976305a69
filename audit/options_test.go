package audit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// While workers run, frontends insert and others cancel, an audit sees one moment, in which everything is as it should
// be.
func TestALiveDatabaseHasNoFault(t *testing.T) {
	t.Parallel()
	env := handlertest.Start(t, handlertest.Options{Domains: builtin.Domains(), Registry: gem.BuiltInRegistry})
	env.StartWorker()
	ctx, stop := context.WithCancel(t.Context())
	var frontends sync.WaitGroup
	for _, sql := range []string{
		`insert into core_tool_calls (tool_name, input) select 'leads.create',
			jsonb_build_object('name', 'Ada', 'suburb', 'Soho', 'phone', (random() * 20)::int::text) from generate_series(1, 5)`,
		`insert into core_tool_calls (tool_name, input) values ('os.create_task', '{"title": "Call", "domain": "both"}'),
			('no.such_tool', '{}')`,
		`select cancel_tool_call(id) from core_tool_calls where status in ('queued', 'running', 'waiting') limit 1`,
	} {
		frontends.Go(func() {
			for ctx.Err() == nil {
				if _, err := env.DB.Exec(ctx, sql); err != nil && ctx.Err() == nil {
					var pgErr *pgconn.PgError
					if !errors.As(err, &pgErr) || pgErr.Code != "40P01" {
						t.Error(err)
					}
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	for range 6 {
		report, err := audit.Database(t.Context(), env.DB, audit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if found := reported(report); len(found) > 0 {
			t.Errorf("%v", found)
		}
	}
	stop()
	frontends.Wait()
}

func TestAnAuditSeesEveryRowOrFails(t *testing.T) {
	t.Parallel()
	url := testdb.New(t, migrations.Sources(builtin.Domains()...)...)
	db := testdb.Pool(t, url)
	role := "reader_" + strings.ToLower(url[strings.LastIndex(url, "_")+1:][:20])
	testdb.Exec(t, db, "create role "+role)
	t.Cleanup(func() { testdb.Exec(t, db, "drop owned by "+role+"; drop role "+role) })
	testdb.Exec(t, db, "grant usage on schema gem to "+role+"; grant select on all tables in schema public, gem to "+role)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "set local role "+role); err != nil {
		t.Fatal(err)
	}
	_, err = audit.Database(t.Context(), inside{tx}, audit.Options{})
	if err == nil || !strings.Contains(err.Error(), "connect as the owner of the tables") {
		t.Errorf("got %v", err)
	}
}

// A receipt may name any table, of a domain that this package does not know, and anything else as well.
func TestEveryTableThatAReceiptNamesIsLookedAt(t *testing.T) {
	t.Parallel()
	const call, other = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
	writes := func(writes ...string) string { return `{"db_writes": [` + strings.Join(writes, ", ") + `]}` }
	wrote := func(table, action, id string) string {
		return fmt.Sprintf(`{"table": %q, "action": %q, "id": %q}`, table, action, id)
	}
	for name, c := range map[string]struct {
		status, effects string
		sql             []string
		want            []string // the findings about effects
	}{
		"a name that needs quotes": {"succeeded", writes(wrote(`Odd "name"; --`, "insert", "1"),
			wrote(`Odd "name"; --`, "insert", "2")),
			[]string{`create table "Odd ""name""; --" (id integer, call_id uuid)`,
				`insert into "Odd ""name""; --" values (1, '` + call + `')`},
			[]string{`effects-missing: its receipt lists insert of Odd "name"; -- 2, and there is no such row`}},
		"another schema": {"succeeded", writes(wrote("shop.orders", "insert", "x"), wrote("orders", "insert", "y")),
			[]string{"create schema shop", "create table shop.orders (id text, call_id uuid)"},
			[]string{"effects-missing: its receipt lists insert of shop.orders x, and there is no such row"}},
		"a partitioned table": {"succeeded", writes(wrote("parts", "insert", "1"), wrote("parts", "insert", "2")),
			[]string{"create table parts (id int, call_id uuid) partition by list (id)",
				"create table part partition of parts default", "insert into parts values (2, '" + call + "')"},
			[]string{"effects-missing: its receipt lists insert of parts 1, and there is no such row"}},
		"no column call_id": {"succeeded", writes(wrote("plain", "insert", "1"), wrote("plain", "update", "2")),
			[]string{"create table plain (id bigint)", "insert into plain values (1)"},
			[]string{"effects-missing: its receipt lists update of plain 2, and there is no such row"}},
		"a column call_id that is something else": {"succeeded", writes(wrote("phone", "insert", "1")),
			[]string{"create table phone (id bigint, call_id text)", "insert into phone values (1, 'x')"}, nil},
		"no column id": {"succeeded", writes(wrote("keyed", "insert", "1")),
			[]string{"create table keyed (key text, call_id uuid)"}, nil},
		"a column id that was dropped": {"succeeded", writes(wrote("keyed", "insert", "1")),
			[]string{"create table keyed (id text, call_id uuid)", "alter table keyed drop column id"}, nil},
		"no such table": {"succeeded", writes(wrote("gone", "insert", "1"), wrote("", "insert", "1"),
			wrote(strings.Repeat("x", 100), "delete", "1"), `{}`, `1`, `null`), nil, nil},
		"a view": {"succeeded", writes(wrote("seen", "insert", "1")),
			[]string{"create view seen as select 1 / 0 as id"}, nil},
		"GEM's own": {"succeeded", writes(wrote("core_tool_calls", "insert", other)), nil, nil},
		"another call's row": {"succeeded", writes(wrote("things", "insert", "1"), wrote("things", "insert", "2")),
			[]string{"create table things (id int, call_id uuid)",
				"insert into things values (1, '" + call + "'), (2, '" + other + "')"},
			[]string{"effects-foreign: its receipt lists insert of things 2, and that row is of call " + other}},
		"a row that the receipt does not list": {"succeeded", writes(wrote("things", "insert", "1")),
			[]string{"create table things (id int, call_id uuid)",
				"insert into things values (1, '" + call + "'), (2, '" + call + "')"},
			[]string{"effects-unlisted: things 2 names the call, and the call has a receipt without it"}},
		// Such a tool writes before it acts outside, and its row may be there without a receipt.
		"a row of a tool that sends": {"succeeded", strings.Replace(writes(wrote("things", "insert", "1")), "}]}",
			`}], "messages_sent": [{"type": "sms"}]}`, 1),
			[]string{"create table things (id int, call_id uuid)",
				"insert into things values (1, '" + call + "'), (2, '" + call + "')"}, nil},
		"a row of a tool that left rows when it failed": {"failed", writes(wrote("things", "insert", "1")),
			[]string{"create table things (id int, call_id uuid)",
				"insert into things values (1, '" + call + "'), (2, '" + call + "')"}, nil},
		"a table that no receipt names": {"succeeded", writes(),
			[]string{"create table things (id int, call_id uuid)", "insert into things values (1, '" + call + "')"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Pool(t, testdb.New(t))
			for _, sql := range c.sql {
				testdb.Exec(t, db, sql)
			}
			testdb.Exec(t, db, "insert into core_tool_calls (id, tool_name) values ('"+call+"', 'shop.buy')")
			testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 hour')")
			testdb.Exec(t, db, "select gem.claim('w', 9, true)")
			result := map[string]string{"succeeded": "{}", "failed": `{"error": {"error_code": "x", "message": "y"}}`}[c.status]
			testdb.Exec(t, db, "select gem.finish('"+call+"', 1, 'w', $1, $2, $3, null)", c.status, result, c.effects)
			report, err := audit.Database(t.Context(), db, audit.Options{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for check, findings := range reported(report) {
				for _, f := range findings {
					got = append(got, check+": "+f.What)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAnAuditLeavesNoSettingBehind(t *testing.T) {
	t.Parallel()
	db, err := pgx.Connect(t.Context(), testdb.New(t, migrations.Sources(builtin.Domains()...)...))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.Background())
	settings := func() (all string) {
		t.Helper()
		err := db.QueryRow(t.Context(), "select string_agg(name || '=' || setting, ' ' order by name) from pg_settings "+
			"where name <> 'transaction_isolation'").Scan(&all)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := settings()
	if _, err := audit.Database(t.Context(), db, audit.Options{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, settings()); diff != "" {
		t.Error(diff)
	}
}

func TestAValueThatIsNotWhatItShouldBeLeavesItsChecksUndecided(t *testing.T) {
	t.Parallel()
	env := handlertest.Start(t, handlertest.Options{Domains: builtin.Domains(), Registry: gem.BuiltInRegistry})
	env.Run(handlertest.Call{Tool: "no.such_tool"})
	tx, err := env.DB.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, sql := range []string{"set local session_replication_role = replica",
		`update core_tool_events set data = '{"run_at": "never", "priority": 0}' where seq = 1`} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	report, err := audit.Database(t.Context(), inside{tx}, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range report.Checks {
		if strings.HasPrefix(c.Check, "journal-") != strings.Contains(c.Error, `"never"`) {
			t.Errorf("%s: %q", c.Check, c.Error)
		}
	}
	if report.Faults == 0 {
		t.Error("a check that cannot be decided counts as sound")
	}
}

func TestAStatementThatTakesTooLongIsGivenUp(t *testing.T) {
	t.Parallel()
	env := handlertest.Start(t, handlertest.Options{Domains: builtin.Domains(), Registry: gem.BuiltInRegistry})
	env.Run(handlertest.Call{Tool: "os.create_task", Input: `{"title": "Call", "domain": "both"}`})
	lock, err := env.DB.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(context.Background()) }()
	if _, err := lock.Exec(t.Context(), "lock table tasks in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	report, err := audit.Database(t.Context(), env.DB, audit.Options{Timeout: 8 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range report.Checks {
		if strings.HasPrefix(c.Check, "effects-") && c.Check != "effects-form" != strings.Contains(c.Error, "timeout") {
			t.Errorf("%s: %q", c.Check, c.Error)
		}
	}
}

func TestChecksAreLeftOutOnRequest(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	var seen []string
	report, err := audit.Database(t.Context(), db, audit.Options{Skip: []string{"effects-missing", "guards"},
		Each: func(r audit.Result) { seen = append(seen, r.Check) }})
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) != len(report.Checks) {
		t.Errorf("%d checks were passed to Each, %d are in the report", len(seen), len(report.Checks))
	}
	for _, c := range report.Checks {
		if c.Check == "effects-missing" || c.Check == "guards" || strings.HasPrefix(c.Check, "archive-") {
			t.Errorf("%s was checked", c.Check)
		}
	}
	if _, err := audit.Database(t.Context(), db, audit.Options{Skip: []string{"effects"}}); err == nil ||
		!strings.Contains(err.Error(), `unknown check "effects"`) {
		t.Errorf("got %v", err)
	}
}

func TestAResultIsALineAndItsExamples(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	for _, r := range []audit.Result{
		{Check: "journal-gaps", LookedAt: 1000000, Of: "calls"},
		{Check: "receipt-missing", LookedAt: 960000, Of: "finished calls", Found: 7,
			Examples: []audit.Finding{{ID: "id-1", What: "the call is failed"}}},
		{Check: "recovery-due", LookedAt: 2, Of: "running calls", Found: 1, Remark: true,
			Examples: []audit.Finding{{ID: "id-2", What: "it runs"}}},
		{Check: "hit-source", LookedAt: 3, Of: "hits", Error: "division by zero"},
	} {
		if err := r.Print(&out); err != nil {
			t.Fatal(err)
		}
	}
	want := `
journal-gaps          1000000 calls           ok
receipt-missing        960000 finished calls  7 faults
    id-1: the call is failed
    and 6 more
recovery-due                2 running calls   1 remark
    id-2: it runs
hit-source                  3 hits            not decided: division by zero
`
	if "\n"+out.String() != want {
		t.Errorf("got:\n%s", out.String())
	}
}
