package builtin_test

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/entity"
	"github.com/gemworker/gem/handlers/leads"
	"github.com/gemworker/gem/handlers/os"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// earlier has some tables of an earlier GEM, with rows that say less, or in other words.
const earlier = `
		create table tasks (id uuid primary key default gen_random_uuid(), title text not null,
			status text check (status in ('open', 'done', 'later')));
		insert into tasks (title, status) values ('old', null), ('parked', 'later');
		create table notes (id uuid primary key, title text, body text not null);
		insert into notes values (gen_random_uuid(), null, 'b');
		create table comms_log (id uuid primary key default gen_random_uuid(), status text check (status in ('ok')),
			body text);
		insert into comms_log (body) values ('x');
		create table leads (id uuid primary key default gen_random_uuid(), name text, phone text, stage text not null);
		insert into leads (name, stage) values ('Jo', 'hot');
		create table entities (id uuid primary key default gen_random_uuid(), name text);
		insert into entities (name) values ('Acme');`

// adopt names its tables that have the names of new ones.
var adopt = migrations.Options{Adopt: []string{"tasks", "notes", "comms_log", "leads", "entities"}}

func TestRowsOfAnEarlierGEMAreListedAndChanged(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	db := testdb.Pool(t, url)
	if _, err := db.Exec(t.Context(), earlier); err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Apply(t.Context(), url, adopt, sources()...); err != nil {
		t.Fatal(err)
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	call := &handlers.Call{ID: anID}

	tasks, err := (*os.OS)(nil).ListTasks(t.Context(), tx, call, os.ListTasks{Status: "all"})
	if err != nil || len(tasks.Tasks) != 2 {
		t.Fatalf("tasks: %+v, %v", tasks, err)
	}
	for _, task := range tasks.Tasks {
		if _, err := (*os.OS)(nil).DeferTask(t.Context(), tx, call,
			os.DeferTask{TaskID: task.TaskID, DueAt: task.CreatedAt}); err != nil {
			t.Errorf("defer %s: %v", task.Title, err)
		}
	}
	if notes, err := (*os.OS)(nil).SearchNotes(t.Context(), tx, call, os.SearchNotes{}); err != nil ||
		len(notes.Results) != 1 {
		t.Errorf("notes: %+v, %v", notes, err)
	}
	if _, err := (*os.OS)(nil).CreateNote(t.Context(), tx, call, os.CreateNote{Domain: "both", Title: "new"}); err != nil {
		t.Errorf("a new note: %v", err)
	}
	listed, err := leads.Leads{}.ListByStage(t.Context(), tx, call, leads.ListByStage{})
	if err != nil || len(listed.Leads) != 1 {
		t.Fatalf("leads: %+v, %v", listed, err)
	}
	if _, err := (leads.Leads{}).UpdateStage(t.Context(), tx, call,
		leads.UpdateStage{LeadID: listed.Leads[0].LeadID, Stage: "won"}); err != nil {
		t.Errorf("move the lead: %v", err)
	}
	if found, err := (entity.Entity{}).Search(t.Context(), tx, call, entity.SearchEntities{Query: "acme"}); err != nil ||
		len(found.Results) != 1 {
		t.Errorf("entities: %+v, %v", found, err)
	}
	var status string
	if err := tx.QueryRow(t.Context(), `select status from comms_log`).Scan(&status); err != nil || status != "sent" {
		t.Errorf("comms_log: %q, %v", status, err)
	}
}

// sources are the tables of all built-in domains.
func sources() []migrations.Source { return migrations.Sources(builtin.Domains()...) }

func TestTablesOfAnEarlierGEMBecomeLikeNewOnes(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	db := testdb.Pool(t, url)
	if _, err := db.Exec(t.Context(), earlier); err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Apply(t.Context(), url, adopt, sources()...); err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, line := range schema(t, db) {
		have[line] = true
	}
	for _, line := range schema(t, testdb.Pool(t, testdb.New(t, sources()...))) {
		if !have[line] && !have[line+" NOT VALID"] {
			t.Errorf("lacks %s", line)
		}
	}
	for line := range have {
		if strings.HasPrefix(line, "constraint ") && !strings.HasPrefix(line, "constraint core_") &&
			strings.Contains(line, "_check ") || strings.HasPrefix(line, "schema gem_earlier") {
			t.Errorf("still has %s", line)
		}
	}
}

// schema describes the tables of the domains.
func schema(t *testing.T, db *pgxpool.Pool) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), `
		select format('column %s.%s %s %s %s', attrelid::regclass, attname, format_type(atttypid, atttypmod), attnotnull,
			pg_get_expr(d.adbin, d.adrelid))
			from pg_attribute a left join pg_attrdef d on d.adrelid = attrelid and d.adnum = attnum
				join pg_class c on c.oid = attrelid
			where attnum > 0 and not attisdropped and relkind = 'r' and relnamespace = 'public'::regnamespace
		union all select 'index ' || indexdef from pg_indexes where schemaname = 'public'
		union all select format('constraint %s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
			from pg_constraint
			where connamespace = 'public'::regnamespace and contype <> 'n'
		union all select format('policy %s %s %s', tablename, policyname, roles) from pg_policies
		union all select format('table %s %s', oid::regclass, relrowsecurity) from pg_class where relkind = 'r'
			and relnamespace = 'public'::regnamespace
		union all select 'schema ' || nspname from pg_namespace where nspname like 'gem%'
		order by 1`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// The printed file has the tables of the domains too, and psql may run it twice.
func TestThePrintedFileCanBeRunTwice(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.NewEmpty(t))
	var sql strings.Builder
	if err := migrations.Print(&sql, "", adopt, sources()...); err != nil {
		t.Fatal(err)
	}
	var first []string
	for i := range 2 {
		if _, err := db.Exec(t.Context(), sql.String()); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec(t.Context(), "insert into lead_sources (lead_id) select id from leads; insert into leads "+
			"(name) values ('Jo')"); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = schema(t, db)
		}
	}
	for i, line := range schema(t, db) {
		if first[i] != line && first[i]+" NOT VALID" != line {
			t.Errorf("%s became %s", first[i], line)
		}
	}
	var n int
	if err := db.QueryRow(t.Context(), "select count(*) from leads, lead_sources").Scan(&n); err != nil || n != 2 {
		t.Errorf("%d rows of 2, %v", n, err)
	}
}
