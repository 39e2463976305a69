package migrations_test

import (
	"fmt"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// oneAtOnce is the check of a running rule with one place in that counter.
func oneAtOnce(counter string) string {
	return fmt.Sprintf(`{"rule": "r", "action": "wait", "kind": "running", "counter": "%s", "max": 1, "at_most_ms": 3600000}`,
		counter)
}

// placed inserts a call, claims it and passes the gate with these checks, and returns its id.
func placed(t *testing.T, db *pgxpool.Pool, checks string) (id string) {
	t.Helper()
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('a.b')")
	id = testdb.Value[string](t, db, "select id::text from gem.claim('w', 1, false)")
	if got := testdb.Value[string](t, db, "select outcome from gem.gate($1, 1, 'w', null, $2, '1', false, null)", id,
		"["+checks+"]"); got != "run" {
		t.Fatal(got)
	}
	return id
}

// A worker that is lost may have had calls in many counters, and a heartbeat has seconds for them.
func TestEachCounterOfLostCallsIsLookedAtOnce(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.start_worker('w', 99, '', '1', '1 hour')")
	for i := range 20 {
		placed(t, db, oneAtOnce(fmt.Sprint("r/running per caller ", i)))
	}
	testdb.Exec(t, db, "update core_workers set alive_until = now() - interval '1 second'")
	testdb.Exec(t, db, "select gem.start_worker('x', 9, '', '1', '1 hour')")
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	for _, sql := range []string{"set local track_functions = 'pl'", "select gem.recover('x', null)"} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var left, looks int
	if err := tx.QueryRow(t.Context(), `select (select count(*) from gem.rule_places where action = 'left'),
		(select sum(calls) from pg_stat_xact_user_functions where schemaname = 'gem' and funcname in ('last_place',
			'is_in_line', 'add_place'))`).Scan(&left, &looks); err != nil || left != 20 || looks > 3*20+20 {
		t.Errorf("%d places are free, after %d looks, %v", left, looks, err)
	}
}

// A worker's claims begin near the calls that it claimed last, and a call that has waited for a place is older.
func TestACallThatGetsAPlaceIsFoundByAnyClaim(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.start_worker('w', 99, '', '1', '1 hour')")
	first := placed(t, db, oneAtOnce("r/running"))
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('a.b')")
	second := testdb.Value[string](t, db, "select id::text from gem.claim('w', 1, false)")
	if got := testdb.Value[string](t, db, "select outcome from gem.gate($1, 1, 'w', null, $2, '1', false, null)", second,
		"["+oneAtOnce("r/running")+"]"); got != "parked" {
		t.Fatal(got)
	}
	testdb.Exec(t, db, "select gem.finish($1, 1, 'w', 'succeeded', '{}', '{}', '1')", first)
	if got := testdb.Value[string](t, db,
		`select id::text from gem.claim('w', 1, false, '{"0": "2999-01-01", "-500": "2999-01-01"}')`); got != second {
		t.Errorf("claimed %s", got)
	}
}

// With another order in two functions, two transactions would wait for each other.
func TestCountersAreLockedInOneOrderWhateverTheCollation(t *testing.T) {
	t.Parallel()
	admin := testdb.Pool(t, testdb.NewEmpty(t))
	name := testdb.Value[string](t, admin, "select current_database() || '_icu'")
	testdb.Exec(t, admin, "create database "+name+" template template0 locale_provider icu icu_locale 'en-US'")
	t.Cleanup(func() { testdb.Exec(t, admin, "drop database "+name+" with (force)") })
	config := admin.Config().ConnConfig.Copy()
	url := fmt.Sprintf("postgres://%s:%s@%s:%d/%s?sslmode=disable", config.User, config.Password, config.Host, config.Port,
		name)
	if err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	db := testdb.Pool(t, url)
	const first, second = "requests/running per all []", "requests_too/running per all []"
	if testdb.Value[bool](t, db, "select $1::text < $2", first, second) {
		t.Fatal("the collation of the database has the order of C, and would show nothing")
	}
	testdb.Exec(t, db, "select gem.start_worker('w', 99, '', '1', '1 hour')")
	call := placed(t, db, oneAtOnce(first)+","+oneAtOnce(second))
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('a.b')")
	other := testdb.Value[string](t, db, "select id::text from gem.claim('w', 1, false)")
	checks := "[" + oneAtOnce(first) + "," + oneAtOnce(second) + "]"
	for what, sql := range map[string]string{
		"the gate":  "select gem.gate('" + other + "', 1, 'w', null, '" + checks + "', '1', false, null)",
		"admission": `select gem.admit('w', '[{"call": "` + other + `", "checks": ` + checks + `}]', '1')`,
		"an end":    "select gem.finish('" + call + "', 1, 'w', 'succeeded', '{}', '{}', '1')",
	} {
		holder, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := holder.Exec(t.Context(), "select pg_advisory_xact_lock(hashtextextended('gem.rule ' || $1, 0))",
			first); err != nil {
			t.Fatal(err)
		}
		waits := connect(t, url)
		pid := waits.PgConn().PID()
		done := make(chan error, 1)
		go func() {
			_, err := waits.Exec(t.Context(), "begin; "+sql+"; rollback")
			done <- err
		}()
		for testdb.Value[int](t, db, "select count(*) from pg_locks where pid = $1 and not granted", pid) == 0 {
			select {
			case err := <-done:
				t.Fatalf("%s took no lock: %v", what, err)
			default:
			}
		}
		if n := testdb.Value[int](t, db, "select count(*) from pg_locks where pid = $1 and locktype = 'advisory' and "+
			"granted", pid); n != 0 {
			t.Errorf("%s locks %s before %s", what, second, first)
		}
		if err := holder.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(what, err)
		}
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

func TestPruneKeepsThePlacesThatOpenCallsNeed(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.record_rules('1', repeat('a', 64), '{}', '1 hour')")
	testdb.Exec(t, db, "select gem.start_worker('w', 99, '', '1', '1 hour')")
	const finish = "select gem.finish($1, 1, 'w', 'succeeded', '{}', '{}', '1')"
	for _, counter := range []string{"r/running a", "r/running b"} {
		testdb.Exec(t, db, finish, placed(t, db, oneAtOnce(counter)))
	}
	open := placed(t, db, oneAtOnce("r/running a"))
	testdb.Exec(t, db, "update gem.rule_places set at = at - interval '2 days'")
	prune := func() string {
		testdb.Exec(t, db, "select gem.prune_rule_places(100)")
		return testdb.Value[string](t, db, "select coalesce(string_agg(concat(right(counter, 1), n), ' ' order by counter, "+
			"n), '') from gem.rule_places")
	}
	if got := prune(); got != "a3 b2" { // the call of b2 has not been pruned
		t.Error(got)
	}
	testdb.Exec(t, db, finish, open)
	if got := prune(); got != "a4 b2" { // a4 is new
		t.Error(got)
	}
	testdb.Exec(t, db, "select gem.prune(array(select id from core_tool_calls), false, false)")
	testdb.Exec(t, db, "update gem.rule_places set at = at - interval '2 days'")
	if got := prune(); got != "" {
		t.Error(got)
	}
}
