package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func TestTheSecondTimeThereIsNothingToDo(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	first, err := migrations.Apply(t.Context(), url, migrations.Options{})
	if err != nil || !first.Created || len(first.Applied) != len(ownFiles(t)) {
		t.Fatalf("first: %+v %v", first, err)
	}
	second, err := migrations.Apply(t.Context(), url, migrations.Options{})
	if err != nil || second.Created || len(second.Applied) != 0 {
		t.Errorf("second: %+v %v", second, err)
	}
}

// A process that waited for the lock sees what was applied meanwhile, whatever the server's default isolation is.
func TestSeveralProcessesMigrateAtOnce(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			url := testdb.NewEmpty(t)
			testdb.Exec(t, testdb.Pool(t, url), fmt.Sprintf(
				`do $$ begin execute format('alter database %%I set default_transaction_isolation = %%L', current_database(), '%s');
					end $$`, level))
			severalProcesses(t, url)
		})
	}
}

func severalProcesses(t *testing.T, url string) {
	t.Helper()
	var applied sync.Map
	var all sync.WaitGroup
	for i := range 5 {
		all.Go(func() {
			done, err := migrations.Apply(context.WithoutCancel(t.Context()), url, migrations.Options{})
			if err != nil {
				t.Error(err)
			}
			if len(done.Applied) > 0 {
				applied.Store(i, done)
			}
		})
	}
	all.Wait()
	var files []string
	applied.Range(func(_, by any) bool { files = append(files, by.(migrations.Result).Applied...); return true })
	slices.Sort(files)
	want := ownFiles(t)
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("all of them together applied: %s", diff)
	}
}

// ownFiles are the files that a new database gets, sorted.
func ownFiles(t *testing.T) (files []string) {
	t.Helper()
	tables, err := os.ReadDir("tables")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range tables {
		files = append(files, "core/"+file.Name())
	}
	return append(append([]string{"api/api.sql"}, files...), "functions/functions")
}

// Roles belong to the server, not to a database: of two databases that are migrated at once, one may come too late to
// create them, and too early to know them. Postgres's refusal is made up here, once.
func TestARoleThatPostgresDoesNotKnowYetIsNoFailure(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	testdb.Exec(t, testdb.Pool(t, url), `
		create sequence grants;
		create function refuse_once() returns event_trigger language plpgsql as $$
		begin
		  if nextval('public.grants') = 1 then
		    raise exception 'role "gem_worker" does not exist' using errcode = 'undefined_object';
		  end if;
		end $$;
		create event trigger refuse_once on ddl_command_start when tag in ('GRANT') execute function refuse_once()`)
	done, err := migrations.Apply(t.Context(), url, migrations.Options{})
	if err != nil || !done.Created || len(done.Applied) != len(ownFiles(t)) {
		t.Errorf("got %+v, %v", done, err)
	}
}

// A migration that waits for a long transaction keeps nobody waiting for long behind it, and comes when that has ended.
func TestAMigrationWaitsForALongTransactionInTurns(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	db := testdb.Pool(t, url)
	// its objects are still GEM's
	testdb.Exec(t, db, "update gem.migrations set source = 'another' where source = 'core' and version = 3")
	reader, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Exec(t.Context(), "select count(*) from core_tool_calls"); err != nil {
		t.Fatal(err)
	}
	migrated := make(chan error, 1)
	go func() { migrated <- migrations.Up(t.Context(), url) }()
	waits := func() bool {
		return number(t, db, "select count(*) from pg_locks where not granted and relation = 'core_tool_calls'::regclass "+
			"and database = (select oid from pg_database where datname = current_database())") > 0
	}
	late := time.After(time.Minute)
	for _, want := range []bool{true, false, true} {
		for waits() != want {
			select {
			case <-late:
				t.Fatalf("it never came to this: waiting is %v", want)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-migrated; err != nil {
		t.Error(err)
	}
}

// One plain file for psql, or for Supabase's own migrations folder. It may be run again, and leaves nothing to do.
func TestThePrintedFileIsPlainSQLAndCanBeRunTwice(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	db := testdb.Pool(t, url)
	for range 2 {
		testdb.Exec(t, db, printed(t))
		testdb.Exec(t, db, "insert into core_tool_calls (tool_name, input) values ('a.b', '{}')")
	}
	done, err := migrations.Apply(t.Context(), url, migrations.Options{})
	if err != nil || len(done.Applied) != 0 {
		t.Errorf("after the printed file: %+v, %v", done, err)
	}
	if err := migrations.Check(t.Context(), db); err != nil {
		t.Error(err)
	}
}

// printed is all SQL of GEM as one file.
func printed(t *testing.T) string {
	t.Helper()
	var sql strings.Builder
	if err := migrations.Print(&sql, "", migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	return sql.String()
}

func TestAMalformedURLIsNotRepeated(t *testing.T) {
	t.Parallel()
	_, err := migrations.Apply(t.Context(), "postgres://u:hunter2@[", migrations.Options{})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
}

func TestTheLeastAFrontendMayInsert(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	for _, sql := range []string{
		`insert into core_tool_calls (tool_name, input) values ('a.b', '{"x": 1}')`,
		`insert into core_tool_calls (tool_name, input, status) values ('a.b', '{}', 'queued')`,
		`insert into core_tool_calls (tool_name) values ('a.b')`,
		`insert into core_tool_calls (id, tool_name, input) values ('0b0f1c7e-0000-4000-8000-000000000001', 'a.b', '{}')`,
		// PostgREST sends null for what a row of a bulk insert leaves out.
		`insert into core_tool_calls (id, tool_name, input, status, priority, run_at, created_at, attempt)
			values (null, 'a.b', null, null, null, null, null, null)`,
	} {
		testdb.Exec(t, db, sql)
	}
	var n int
	err := db.QueryRow(t.Context(), `select count(*) from core_tool_calls where status = 'queued' and attempt = 0
		and priority = 0
		and run_at <= clock_timestamp() and jsonb_typeof(input) = 'object' and events = 1`).Scan(&n)
	if err != nil || n != 5 {
		t.Errorf("%d calls as they should be, %v", n, err)
	}
}

func TestWhatAFrontendDoesNotDecideIsNotItsToSay(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `insert into core_tool_calls (tool_name, attempt, claimed_by, claimed_at, error, computed_key, retries,
		losses, events, created_at, run_at)
		values ('a.b', 7, 'me', now(), '{}', 'k', 1, 1, 9, '2001-01-01', '-infinity')`)
	var ok bool
	err := db.QueryRow(t.Context(), `select attempt = 0 and claimed_by is null and claimed_at is null and error is null
		and computed_key is null
		and retries = 0 and losses = 0 and events = 1 and created_at > now() - interval '1 hour' and run_at = created_at
			from core_tool_calls`).Scan(&ok)
	if err != nil || !ok {
		t.Errorf("%v %v", ok, err)
	}

	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	var creator string
	if _, err := tx.Exec(t.Context(), `select set_config('request.jwt.claims', '{"sub": "ada"}', true)`); err != nil {
		t.Fatal(err)
	}
	err = tx.QueryRow(t.Context(), `insert into core_tool_calls (tool_name, created_by) values ('a.b', 'grace')
		returning created_by`).Scan(&creator)
	if err != nil || creator != "ada" {
		t.Errorf("created_by is %q, %v", creator, err)
	}
}

func TestBadCallsAreRefusedWithWhatToDo(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	for _, c := range []struct{ name, sql, says string }{
		{"an unknown status", `insert into core_tool_calls (tool_name, status) values ('a.b', 'paused')`,
			"status is paused on insert, and can only be queued"},
		{"a final status", `insert into core_tool_calls (tool_name, status) values ('a.b', 'succeeded')`,
			"can only be queued"},
		{"no tool", `insert into core_tool_calls (input) values ('{}')`, "tool_name must be"},
		{"an endless tool name", `insert into core_tool_calls (tool_name) values (repeat('a', 201))`, "tool_name must be"},
		{"a list", `insert into core_tool_calls (tool_name, input) values ('a.b', '[]')`,
			"input must be a JSON object but is an array"},
		{"a string", `insert into core_tool_calls (tool_name, input) values ('a.b', '"{}"')`, "but is a string"},
		{"a null", `insert into core_tool_calls (tool_name, input) values ('a.b', 'null')`, "but is null"},
		{"2 MB", `insert into core_tool_calls (tool_name, input)
			values ('a.b', jsonb_build_object('x', repeat('a', 2000000)))`, "may take 1048576"},
		{"a number beyond all", `insert into core_tool_calls (tool_name, input) values ('a.b', '{"x": 1e10000000}')`,
			"numeric"},
		{"NUL", `insert into core_tool_calls (tool_name, input) values ('a.b', '{"x": "\u0000"}')`,
			"unsupported Unicode escape sequence"},
		{"a far future", `insert into core_tool_calls (tool_name, run_at) values ('a.b', '9999-01-01')`,
			"at most 366 days ahead"},
		{"the end of time", `insert into core_tool_calls (tool_name, run_at) values ('a.b', 'infinity')`,
			"at most 366 days ahead"},
		{"a priority beyond all", `insert into core_tool_calls (tool_name, priority) values ('a.b', 1001)`,
			"from -1000 to 1000"},
		{"an endless key", `insert into core_tool_calls (tool_name, idempotency_key) values ('a.b', repeat('k', 256))`,
			"at most 255 characters"},
		{"an endless caller", `insert into core_tool_calls (tool_name, created_by) values ('a.b', repeat('k', 256))`,
			"created_by may have at most 255 characters"},
		{"a parent that is not there", `insert into core_tool_calls (tool_name, parent_call_id)
			values ('a.b', gen_random_uuid())`, "parent_call_id names no call"},
	} {
		_, err := db.Exec(t.Context(), c.sql)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || !strings.Contains(pgErr.Message, c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	var n int
	if err := db.QueryRow(t.Context(), "select (select count(*) from core_tool_calls) + (select count(*) from "+
		"core_tool_events)").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d rows, %v", n, err)
	}
}

// finished makes a call with its receipt, and returns the call's id.
func finished(t *testing.T, db *pgxpool.Pool) string {
	t.Helper()
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('a.b')")
	var id string
	testdb.Exec(t, db, "select gem.start_worker('w', 1, '', '', '1 hour')")
	err := db.QueryRow(t.Context(), `select c.id::text from gem.claim('w', 1, true) c,
		gem.finish(c.id, c.attempt, 'w', 'succeeded', '{}', '{}', '1')`).Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestReceiptsAndJournalCanNotBeChangedNotEvenByTheOwner(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	id := finished(t, db)
	for _, sql := range []string{
		"update core_tool_receipts set result = '{}'",
		"delete from core_tool_receipts",
		"truncate core_tool_receipts",
		"update core_tool_events set event = 'queued'",
		"delete from core_tool_events",
		"truncate core_tool_events",
		"update core_tool_calls set status = 'queued'",
		"update core_tool_calls set input = '{\"a\": 1}'",
		"delete from core_tool_calls",
		"insert into core_tool_receipts (id, created_at, call_id, tool_name, status, result, attempt) select " +
			"gen_random_uuid(), now(), id, 'a.b', 'succeeded', '{}', 2 from core_tool_calls",
		"insert into core_tool_receipts (id, created_at, call_id, tool_name, status, result, attempt, idempotency_key, " +
			"replay_of) select gen_random_uuid(), now(), gen_random_uuid(), 'a.b', 'succeeded', '{}', 2, 'k', gen_random_uuid()",
		"insert into core_tool_events (call_id, seq, at, event, attempt) select id, 3, now(), 'claimed', 1 from " +
			"core_tool_calls",
	} {
		if _, err := db.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s: was not refused", sql)
		}
	}
	var ok bool
	err := db.QueryRow(t.Context(), "select c.status = 'succeeded' and r.status = 'succeeded' from core_tool_calls c "+
		"join core_tool_receipts r on r.call_id = c.id where c.id = $1", id).Scan(&ok)
	if err != nil || !ok {
		t.Errorf("%v %v", ok, err)
	}
}

func TestOnlyTheAttemptThatHoldsACallMovesIt(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('a.b')")
	if _, err := db.Exec(t.Context(), "select gem.claim('w', 1, true)"); err == nil {
		t.Error("a worker that never showed that it lives could claim")
	}
	testdb.Exec(t, db, "select gem.start_worker('w', 1, '', '', '1 hour')")
	testdb.Exec(t, db, "select gem.claim('w', 1, true)")
	for _, forged := range []string{"id, 2, 'w'", "id, 0, 'w'", "id, 1, 'other'", "gen_random_uuid(), 1, 'w'"} {
		for _, call := range []string{"gem.finish(%s, 'succeeded', '{}', '{}', '1')", "gem.retry(%s, '{}', 3, '1 s')",
			"gem.release(%s)", "gem.hold_key(%s, 'k')"} {
			sql := fmt.Sprintf("select "+call+" from core_tool_calls", forged)
			_, err := db.Exec(t.Context(), sql)
			var pgErr *pgconn.PgError
			if !errors.As(err, &pgErr) || pgErr.Code != "GM001" {
				t.Errorf("%s: %v", sql, err)
			}
		}
	}
	testdb.Exec(t, db, "select gem.finish(id, 1, 'w', 'succeeded', '{}', '{}', '1') from core_tool_calls")
	for _, call := range []string{"gem.finish(id, 1, 'w', 'failed', '{}', '{}', '1')",
		"gem.retry(id, 1, 'w', '{}', 3, '1 s')", "gem.release(id, 1, 'w')"} {
		if _, err := db.Exec(t.Context(), "select "+call+" from core_tool_calls"); err == nil {
			t.Errorf("%s moved a call that has ended", call)
		}
	}
}

// earlier is the database of the earlier GEM: its two tables, with a row of every kind that it could leave behind.
const earlier = `
	create table core_tool_calls (
		id uuid primary key default gen_random_uuid(), tool_name text not null, input jsonb not null default '{}',
		status text not null default 'queued' check (status in ('queued', 'claimed', 'succeeded', 'failed',
			'not_configured')),
		idempotency_key text, error jsonb, claimed_at timestamptz, claimed_by text,
		created_at timestamptz default now(), updated_at timestamptz default now());
	create table core_tool_receipts (
		id uuid primary key default gen_random_uuid(), call_id uuid references core_tool_calls (id) on delete cascade,
		tool_name text not null, status text not null, result jsonb, effects jsonb, created_at timestamptz default now());
	insert into core_tool_calls (id, tool_name, input, status, error, claimed_by, claimed_at) values
		('00000000-0000-4000-8000-000000000001', 'leads.create', '{"phone": "1"}', 'succeeded', null, 'old', now()),
		('00000000-0000-4000-8000-000000000002', 'leads.create', '{}', 'failed',
			'{"error_code": "validation_error", "message": "no phone"}', 'old', now()),
		('00000000-0000-4000-8000-000000000003', 'os.create_task', '{"title": "x"}', 'queued', null, null, null),
		('00000000-0000-4000-8000-000000000004', 'os.create_task', '{"title": "y"}', 'claimed', null, 'old', now()),
		('00000000-0000-4000-8000-000000000005', 'os.create_task', '[1]', 'queued', null, null, null),
		('00000000-0000-4000-8000-000000000006', 'os.create_task', '{}', 'succeeded', null, 'old', now()),
		('00000000-0000-4000-8000-000000000007', 'os.create_task', '{}', 'claimed', null, 'old', now()),
		('00000000-0000-4000-8000-000000000008', 'os.create_task', '{}', 'failed', null, null, null);
	insert into core_tool_receipts (call_id, tool_name, status, result, effects, created_at) values
		('00000000-0000-4000-8000-000000000001', 'leads.create', 'succeeded', '{"lead_id": "L1"}',
			'{"idempotency": {"mode": "keyed", "hit": false, "key_field": "phone", "key_value": " 1v\n"}}', now()),
		('00000000-0000-4000-8000-000000000001', 'leads.create', 'failed',
			'{"error": {"error_code": "x", "message": "twice"}}', '{}', now() + interval '1 s'),
		('00000000-0000-4000-8000-000000000002', 'leads.create', 'failed',
			'{"error": {"error_code": "validation_error", "message": "no phone"}}', '{}', now()),
		('00000000-0000-4000-8000-000000000007', 'os.create_task', 'succeeded', '{"task_id": "T7"}', '{}', now());`

func TestAnEarlierGEMIsTakenOverWithNothingLost(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	db := testdb.Pool(t, url)
	if _, err := db.Exec(t.Context(), earlier); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := migrations.Apply(t.Context(), url,
			migrations.Options{Adopt: []string{"core_tool_calls", "public.core_tool_receipts"}}); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := db.Query(t.Context(), `
		select right(c.id::text, 1) || ' ' || c.status || ' attempt ' || c.attempt || ', ' ||
			coalesce(r.status || ' ' || coalesce(r.result::text, ''), 'no receipt')
			|| ', ' || (select string_agg(event, ' ') from core_tool_events e where e.call_id = c.id)
		from core_tool_calls c left join core_tool_receipts r on r.call_id = c.id order by c.id`)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		got = append(got, line)
	}
	const mayHaveRun = "An earlier GEM may have run the call, so it does not run again."
	want := []string{
		`1 succeeded attempt 1, succeeded {"lead_id": "L1"}, imported`,
		`2 failed attempt 1, failed {"error": {"message": "no phone", "error_code": "validation_error"}}, imported`,
		`3 queued attempt 0, no receipt, imported`,
		`4 failed attempt 1, failed {"error": {"details": null, "message": "` + mayHaveRun +
			`", "error_code": "outcome_unknown"}}, imported`,
		`5 queued attempt 0, no receipt, imported`,
		`6 succeeded attempt 1, succeeded , imported`,
		`7 succeeded attempt 1, succeeded {"task_id": "T7"}, imported`,
		`8 failed attempt 1, failed {"error": {"details": null, "message": "The call failed before GEM kept receipts.", ` +
			`"error_code": "execution_error"}}, imported`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var second, key string
	if err := db.QueryRow(t.Context(), "select result -> 'error' ->> 'message' from gem.imported_second_receipts").
		Scan(&second); err != nil || second != "twice" {
		t.Errorf("the second receipt of a call is lost: %q %v", second, err)
	}
	err = db.QueryRow(t.Context(), "select idempotency_key from core_tool_receipts where idempotency_key is not null").
		Scan(&key)
	if err != nil || key != `leads.create:phone="1v"` {
		t.Errorf("the key of an earlier success is %q, %v", key, err)
	}
	// All that can run are claimed, even with an input that no new call may have.
	testdb.Exec(t, db, "select gem.start_worker('w', 1, '', '', '1 hour')")
	testdb.Exec(t, db, "select gem.recover('w', null)")
	var claimed int
	if err := db.QueryRow(t.Context(), "select count(*) from gem.claim('w', 10, true)").Scan(&claimed); err != nil ||
		claimed != 2 {
		t.Errorf("%d claimed, %v", claimed, err)
	}
}
