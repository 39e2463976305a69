package audit_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// While workers run, frontends insert and others cancel, an audit sees one moment, in which everything is as it should be.
func TestALiveDatabaseHasNoFault(t *testing.T) {
	t.Parallel()
	env := handlertest.Start(t, handlertest.Options{Domains: builtin.Domains(), Registry: gem.BuiltInRegistry})
	env.StartWorker()
	ctx, stop := context.WithCancel(t.Context())
	var frontends sync.WaitGroup
	for _, sql := range []string{
		`insert into core_tool_calls (tool_name, input) select 'leads.create', jsonb_build_object('name', 'Ada', 'suburb', 'Soho', 'phone', (random() * 20)::int::text) from generate_series(1, 5)`,
		`insert into core_tool_calls (tool_name, input) values ('os.create_task', '{"title": "Call", "domain": "both"}'), ('no.such_tool', '{}')`,
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
	for range 15 {
		report, err := audit.Database(t.Context(), env.DB, 0, audit.Options{})
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
	execute(t, db, "create role "+role)
	t.Cleanup(func() { execute(t, db, "drop owned by "+role+"; drop role "+role) })
	execute(t, db, "grant usage on schema gem to "+role+"; grant select on all tables in schema public, gem to "+role)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "set local role "+role); err != nil {
		t.Fatal(err)
	}
	_, err = audit.Database(t.Context(), inside{tx}, 0, audit.Options{})
	if err == nil || !strings.Contains(err.Error(), "connect as the owner of the tables") {
		t.Errorf("got %v", err)
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
		err := db.QueryRow(t.Context(), "select string_agg(name || '=' || setting, ' ' order by name) from pg_settings where name <> 'transaction_isolation'").Scan(&all)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := settings()
	if _, err := audit.Database(t.Context(), db, 0, audit.Options{}); err != nil {
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
	for _, sql := range []string{"set local session_replication_role = replica", `update core_tool_events set data = '{"run_at": "never", "priority": 0}' where seq = 1`} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	report, err := audit.Database(t.Context(), inside{tx}, 0, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range report.Checks {
		if strings.HasPrefix(c.Check, "journal-") != strings.Contains(c.Error, `"never"`) {
			t.Errorf("%s: %q", c.Check, c.Error)
		}
	}
	if report.Faults == 0 {
		t.Error("what can not be decided counts as sound")
	}
}

func TestAStatementThatTakesTooLongIsGivenUp(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t, migrations.Sources(builtin.Domains()...)...))
	lock, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(context.Background()) }()
	if _, err := lock.Exec(t.Context(), "lock table tasks in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	report, err := audit.Database(t.Context(), db, 2*time.Second, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range report.Checks {
		if strings.HasPrefix(c.Check, "effects-m") != strings.Contains(c.Error, "timeout") && !strings.HasPrefix(c.Check, "effects-") {
			t.Errorf("%s: %q", c.Check, c.Error)
		}
	}
}

func TestChecksAreLeftOutOnRequest(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t, migrations.Sources(builtin.Domains()...)...))
	var told []string
	report, err := audit.Database(t.Context(), db, 0, audit.Options{Skip: []string{"effects-missing", "guards"},
		Each: func(r audit.Result) { told = append(told, r.Check) }})
	if err != nil {
		t.Fatal(err)
	}
	if len(told) != len(report.Checks) {
		t.Errorf("%d checks were told of, %d reported", len(told), len(report.Checks))
	}
	for _, c := range report.Checks {
		if c.Check == "effects-missing" || c.Check == "guards" || strings.HasPrefix(c.Check, "archive-") {
			t.Errorf("%s was checked", c.Check)
		}
	}
	if _, err := audit.Database(t.Context(), db, 0, audit.Options{Skip: []string{"effects"}}); err == nil || !strings.Contains(err.Error(), `no check "effects"`) {
		t.Errorf("got %v", err)
	}
}

func TestAResultIsALineAndItsExamples(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	for _, r := range []audit.Result{
		{Check: "journal-gaps", LookedAt: 1000000, Of: "calls"},
		{Check: "receipt-missing", LookedAt: 960000, Of: "finished calls", Found: 7, Examples: []audit.Finding{{ID: "id-1", What: "the call is failed"}}},
		{Check: "recovery-due", LookedAt: 2, Of: "running calls", Found: 1, Remark: true, Examples: []audit.Finding{{ID: "id-2", What: "it runs"}}},
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
