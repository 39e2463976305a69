package migrations_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A change of a function comes with a higher number, by which databases know that they lack it.
func TestTheNumberOfTheFunctionsRisesWithTheirContents(t *testing.T) {
	t.Parallel()
	hash, err := migrations.FunctionsHash()
	if err != nil {
		t.Fatal(err)
	}
	known, err := os.ReadFile("testdata/functions.sha256")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(known)), "\n")
	if want := fmt.Sprintf("%d %s", migrations.FunctionsNumber, hash); lines[len(lines)-1] != want {
		t.Errorf("the functions changed: if a database has the number %d outside of your machine, raise functionsNumber in "+
			"source.go; "+
			"then make this the last line of testdata/functions.sha256:\n%s", migrations.FunctionsNumber, want)
	}
	for i, line := range lines {
		if !strings.HasPrefix(line, fmt.Sprint(i+1, " ")) {
			t.Errorf("line %d is of another number: %s", i+1, line)
		}
	}
}

func TestEachFunctionIsDefinedOnce(t *testing.T) {
	t.Parallel()
	defined := regexp.MustCompile(
		`(?im)^create (?:or replace )?(function|view|trigger|policy|table|type) (?:if not exists )?(\S+?)(\(| |$)(.*)`)
	seen := map[string]string{}
	var listed []string
	for _, dir := range []string{"functions", "tables"} {
		files, err := fs.Glob(os.DirFS("."), dir+"/*.sql")
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, name := range files {
			if dir == "functions" {
				listed = append(listed, strings.TrimPrefix(name, "functions/"))
			}
			sql, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range defined.FindAllStringSubmatchIndex(string(sql), -1) {
				m := defined.FindStringSubmatch(string(sql)[at[0]:])
				what := m[1] + " " + m[2]
				if m[1] == "trigger" || m[1] == "policy" { // of one name on several tables
					on := regexp.MustCompile(`(?s) on ((?:public|gem)\.\w+)`).FindStringSubmatch(string(sql)[at[0]:])
					what += " on " + on[1]
				}
				if where, twice := seen[what]; twice {
					t.Errorf("%s is in %s and in %s", what, where, name)
				}
				seen[what] = name
			}
		}
	}
	if len(seen) < 40 {
		t.Errorf("only %d definitions were found", len(seen))
	}
	applied := slices.Sorted(slices.Values(migrations.FunctionFiles))
	if diff := cmp.Diff(applied, listed); diff != "" {
		t.Errorf("functionFiles in source.go and the folder differ: %s", diff)
	}
}

// schema describes all that the migrations make.
func schema(t *testing.T, db *pgxpool.Pool) []string {
	t.Helper()
	return texts(t, db, `
		select format('column %s.%s %s %s %s', attrelid::regclass, attname, format_type(atttypid, atttypmod), attnotnull,
			pg_get_expr(d.adbin, d.adrelid))
			from pg_attribute a left join pg_attrdef d on d.adrelid = attrelid and d.adnum = attnum
			where attnum > 0 and not attisdropped and attrelid in (select oid from pg_class where relkind in ('r', 'v')
				and relnamespace in ('gem'::regnamespace, 'public'::regnamespace))
		union all select 'index ' || indexdef from pg_indexes where schemaname in ('gem', 'public')
		union all select format('constraint %s %s', conrelid::regclass, pg_get_constraintdef(oid)) from pg_constraint
			where connamespace in ('gem'::regnamespace, 'public'::regnamespace)
		union all select 'trigger ' || pg_get_triggerdef(oid) from pg_trigger where not tgisinternal
		union all select 'function ' || pg_get_functiondef(oid) from pg_proc
			where pronamespace in ('gem'::regnamespace, 'public'::regnamespace)
		union all select format('policy %s %s %s %s %s', tablename, policyname, roles, qual, with_check) from pg_policies
		union all select format('table %s %s %s', oid::regclass, relrowsecurity, relacl) from pg_class
			where relkind in ('r', 'v') and relnamespace in ('gem'::regnamespace, 'public'::regnamespace)
		order by 1`)
}

// Whatever path a database took to the newest version, it has the same tables, functions, triggers and rights.
func TestAnUpgradedDatabaseIsLikeAFreshOne(t *testing.T) {
	t.Parallel()
	fresh := testdb.Pool(t, testdb.NewEmpty(t))
	createAPIRoles(t, fresh) // another test may create them meanwhile, which would change the rights
	testdb.Exec(t, fresh, printed(t))
	want := schema(t, fresh)
	for name, before := range map[string]string{
		"the tables of an earlier GEM": earlier,
		"functions of a lower number": printed(t) + `;
			update gem.migrations set version = 0 where source = 'functions';
			create or replace function gem.finish(p_call uuid, p_attempt integer, p_worker text, p_status text, p_result jsonb,
				p_effects jsonb,
				p_registry_version text, p_replay_of uuid default null, p_steps integer default 0) returns uuid
					language sql as 'select null::uuid'`,
		"tables, and no functions yet": strings.Split(printed(t), "\n-- functions/functions")[0] + "; commit",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testdb.NewEmpty(t)
			db := testdb.Pool(t, url)
			testdb.Exec(t, db, before)
			if _, err := migrations.Apply(t.Context(), url,
				migrations.Options{Adopt: []string{"core_tool_calls", "core_tool_receipts"}}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, schema(t, db)); diff != "" {
				t.Errorf("a fresh database (-) and this one (+) differ: %s", diff)
			}
		})
	}
}

func TestADatabaseOfANewerProgram(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ recorded, refuses, note string }{
		"functions of a higher number stay": {recorded: "('functions', 99, 'functions', 'other')",
			note: "keeps its functions with the number 99"},
		"a table file that this one does not know": {recorded: "('core', 99, '00099_more.sql', 'x')",
			refuses: "core/00099_more.sql, which this program does not have"},
		"another program's files": {recorded: "('another', 7, '00007_theirs.sql', 'x')"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testdb.New(t)
			db := testdb.Pool(t, url)
			testdb.Exec(t, db, "insert into gem.migrations (source, version, file, sha256) values "+c.recorded)
			before := schema(t, db)
			done, err := migrations.Apply(t.Context(), url, migrations.Options{})
			if c.refuses == "" && err != nil || c.refuses != "" && (err == nil || !strings.Contains(err.Error(), c.refuses)) {
				t.Errorf("got %v, want %q", err, c.refuses)
			}
			if notes := strings.Join(done.Notes, "; "); !strings.Contains(notes, c.note) || c.note == "" && notes != "" {
				t.Errorf("the notes are %q", notes)
			}
			if diff := cmp.Diff(before, schema(t, db)); diff != "" || len(done.Applied) > 0 {
				t.Errorf("it changed something: %v %s", done.Applied, diff)
			}
			if err := migrations.Check(t.Context(), db); err != nil {
				t.Errorf("a worker would not run: %v", err)
			}
		})
	}
}

func TestADatabaseThatLacksSomething(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change, says string
		taken        bool // nothing says any more that the tables are GEM's
	}{
		"functions of a lower number": {"update gem.migrations set version = 0 where source = 'functions'",
			"lacks the migration functions/functions: run `gem migrate`", false},
		"a file": {"update gem.migrations set source = 'another' where source = 'core' and version = 3",
			"lacks the migration core/00003_indexes.sql: run `gem migrate`", false},
		"everything": {"delete from gem.migrations", "none of GEM's tables: run `gem migrate`", true},
		"the ledger": {"drop table gem.migrations", "none of GEM's tables: run `gem migrate`", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testdb.New(t)
			db := testdb.Pool(t, url)
			testdb.Exec(t, db, c.change)
			if err := migrations.Check(t.Context(), db); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
			err := migrations.Up(t.Context(), url)
			if taken := new(migrations.TakenError); c.taken && errors.As(err, &taken) {
				return
			}
			if err != nil || c.taken {
				t.Fatal(err)
			}
			if err := migrations.Check(t.Context(), db); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWhatWasAppliedIsNotChangedBehindItsNumber(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ change, says string }{
		"other functions": {"update gem.migrations set sha256 = 'other' where source = 'functions'",
			"other functions under the same number"},
		"a changed file": {"update gem.migrations set sha256 = 'other' where source = 'core' and version = 1",
			"core/00001_calls.sql was changed after it was applied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testdb.New(t)
			testdb.Exec(t, testdb.Pool(t, url), c.change)
			if _, err := migrations.Apply(t.Context(), url, migrations.Options{}); err == nil ||
				!strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
		})
	}
}

// A domain or a program brings files with numbers of their own.
func TestSourcesHaveNumbersOfTheirOwn(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	db := testdb.Pool(t, url)
	first := fstest.MapFS{"00001_orders.sql": {Data: []byte("create table orders (id uuid)")}}
	shop := migrations.Source{Name: "shop", Files: first, Grants: []string{"select, insert on orders"}}
	cellar := migrations.Source{Name: "cellar", Files: fstest.MapFS{"00001_wines.sql": {Data: []byte(
		"create table wines (id uuid)")}, "notes.txt": {}}}

	done, err := migrations.Apply(t.Context(), url, migrations.Options{}, shop, cellar)
	if want := []string{"shop/00001_orders.sql", "shop/grants", "cellar/00001_wines.sql"}; err != nil ||
		!slices.Equal(done.Applied, want) {
		t.Fatalf("applied %v, %v, want %v", done.Applied, err, want)
	}
	testdb.Exec(t, db, "set role gem_worker; insert into orders values (gen_random_uuid()); reset role")
	if err := tryInsert(t, db, "set role gem_worker; insert into wines values (gen_random_uuid())"); err == nil {
		t.Error("a table without a grant was opened")
	}
	testdb.Exec(t, db, "reset role")

	first["00002_prices.sql"] = &fstest.MapFile{Data: []byte(
		"drop table orders; create table orders (id uuid, price numeric) -- without a semicolon")}
	if err := migrations.Check(t.Context(), db, shop); err == nil ||
		!strings.Contains(err.Error(), "shop/00002_prices.sql") {
		t.Errorf("a worker would run without it: %v", err)
	}
	shop.Grants = append(shop.Grants, "update on orders")
	done, err = migrations.Apply(t.Context(), url, migrations.Options{}, shop)
	if want := []string{"shop/00002_prices.sql", "shop/grants"}; err != nil || !slices.Equal(done.Applied, want) {
		t.Errorf("applied %v, %v, want %v", done.Applied, err, want)
	}
	testdb.Exec(t, db, "set role gem_worker; insert into orders values (gen_random_uuid(), 1); update orders set price "+
		"= 2; "+
		"reset role")
	var sql strings.Builder
	if err := migrations.Print(&sql, "", migrations.Options{}, shop); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, testdb.Pool(t, testdb.NewEmpty(t)), sql.String())
}

// A prune that is under way may remove the receipt that a key would repeat: the call waits for it, and runs.
func TestAKeyWhoseReceiptIsBeingPrunedRuns(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	for _, sql := range []string{
		"insert into core_tool_calls (id, tool_name) values ('00000000-0000-4000-8000-00000000000a', 'a.b'), " +
			"('00000000-0000-4000-8000-00000000000b', 'a.b')",
		"select gem.start_worker('w', 1, '', '', '1 hour')",
		"select gem.claim('w', 2, true)",
		"select gem.hold_key('00000000-0000-4000-8000-00000000000a', 1, 'w', 'k')",
		"select gem.finish('00000000-0000-4000-8000-00000000000a', 1, 'w', 'succeeded', '{}', '{}', '1')",
	} {
		testdb.Exec(t, db, sql)
	}
	prune, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := prune.Exec(t.Context(),
		"select gem.prune(array['00000000-0000-4000-8000-00000000000a']::uuid[])"); err != nil {
		t.Fatal(err)
	}
	verdict := make(chan string, 1)
	go func() {
		var got string
		if err := db.QueryRow(t.Context(), "select verdict from gem.hold_key('00000000-0000-4000-8000-00000000000b', 1, "+
			"'w', 'k')").Scan(&got); err != nil {
			got = err.Error()
		}
		verdict <- got
	}()
	for number(t, db, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = "+
		"'Lock'") == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	if err := prune.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-verdict; got != "run" {
		t.Errorf("the verdict is %s", got)
	}
}

func TestAWrongSourceIsRefused(t *testing.T) {
	t.Parallel()
	file := func(name string) fs.FS { return fstest.MapFS{name: {Data: []byte("select 1")}} }
	for says, source := range map[string]migrations.Source{
		`the name "core" of a set of migrations is taken`: {Name: "core", Files: file("00001_a.sql")},
		`the name "My Shop"`:                              {Name: "My Shop", Files: file("00001_a.sql")},
		"shop/1_a.sql: a name has the form":               {Name: "shop", Files: file("1_a.sql")},
		"shop/00000_a.sql: numbers begin":                 {Name: "shop", Files: file("00000_a.sql")},
		"shop/00001_a.sql has COPY": {Name: "shop",
			Files: fstest.MapFS{"00001_a.sql": {Data: []byte("COPY a (b)\nfrom stdin;\n1\n\\.")}}},
		"shop/00001_a.sql and shop/00001_b.sql have the same number": {Name: "shop",
			Files: fstest.MapFS{"00001_a.sql": {}, "00001_b.sql": {}}},
		`the grant "all on orders; drop table x" of shop`: {Name: "shop", Files: file("00001_a.sql"),
			Grants: []string{"all on orders; drop table x"}},
		"the migrations shop have no files":                      {Name: "shop"},
		"the migrations cellar have no files: add the SQL files": {Name: "cellar", Grants: []string{"select on orders"}},
		"the migrations attic have no files: add the SQL files": {Name: "attic", Files: fstest.MapFS{"notes.txt": {}},
			Grants: []string{"select on orders"}},
	} {
		if err := migrations.Print(&strings.Builder{}, "", migrations.Options{}, source); err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}

type larder struct{}

// They would be missing only when a tool needs them.
func TestGrantsOfADomainWithoutTablesAreRefused(t *testing.T) {
	t.Parallel()
	sources := migrations.Sources(larder{}, handlers.Domain{Tools: &larder{}, Grants: []string{"select on orders"}})
	if err := migrations.Print(&strings.Builder{}, "", migrations.Options{}, sources...); err == nil ||
		!strings.Contains(err.Error(), "the migrations larder have no files: add") {
		t.Errorf("got %v", err)
	}
}

// Two versions of the program side by side: a worker states what it can do, and is given nothing else.
func TestAWorkerIsGivenOnlyCallsThatItsProgramCanRun(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `
		select gem.start_worker('before', 1, '', '', '1 hour');
		select gem.start_worker('after', 1, '', '', '1 hour', '{steps}');
		insert into core_tool_calls (tool_name) values ('a.b')`)
	testdb.Exec(t, db, `select gem.step(c.id, 1, 'after', 'step', '{"name": "x"}', 0, false), gem.release(c.id, 1, 'after')
		from gem.claim('after', 1, true) c`)
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('a.c')")
	if got := texts(t, db, "select tool_name from gem.claim('before', 9, true)"); !slices.Equal(got, []string{"a.c"}) {
		t.Errorf("a worker that states no capability got %v", got)
	}
	if got := texts(t, db, "select tool_name from gem.claim('after', 9, true)"); !slices.Equal(got, []string{"a.b"}) {
		t.Errorf("a worker that states it got %v", got)
	}
}

// All SQL reads the time from gem.now(), so that a test can let time pass.
func TestTimeIsReadInOnePlace(t *testing.T) {
	t.Parallel()
	files, err := fs.Glob(os.DirFS("."), "functions/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := regexp.MustCompile(
		`(?:^|[^.\w])(?:pg_catalog\.)?(?:now|clock_timestamp|statement_timestamp|transaction_timestamp)\(\)|current_timestamp`)
	for _, name := range files {
		sql, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(sql), "\n") {
			if elsewhere.MatchString(line) && !strings.Contains(line, "function gem.now()") {
				t.Errorf("%s:%d: %s", name, i+1, line)
			}
		}
	}

	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `
		create table clock (at timestamptz); insert into clock values ('2040-01-01');
		create or replace function gem.now() returns timestamptz language sql volatile as 'select at from public.clock';
		insert into core_tool_calls (tool_name, run_at) values ('a.b', '2040-01-02');
		select gem.start_worker('w', 1, '', '', '2 days')`)
	if got := number(t, db, "select count(*) from gem.claim('w', 1, true)"); got != 0 {
		t.Errorf("%v calls were claimed before their time", got)
	}
	testdb.Exec(t, db, "update clock set at = '2040-01-02'")
	if got := number(t, db, "select count(*) from gem.claim('w', 1, true) where claim.run_at = '2040-01-02'"); got != 1 {
		t.Errorf("%v calls were claimed at their time", got)
	}
}
