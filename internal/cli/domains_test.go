package cli

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/registry"
	"github.com/jackc/pgx/v5/pgxpool"
)

// registryWithout is the built-in registry without the tools of one domain.
func registryWithout(t *testing.T, domain string) string {
	t.Helper()
	r, err := registry.Parse(builtIn.Registry)
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	if err := json.Unmarshal(r.JSON(), &file); err != nil {
		t.Fatal(err)
	}
	var kept []any
	for _, tool := range file["tools"].([]any) {
		if name := tool.(map[string]any)["name"].(string); !strings.HasPrefix(name, domain+".") {
			kept = append(kept, tool)
		}
	}
	file["tools"], file["version"] = kept, "without "+domain
	text, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// relations are the tables and views of everyone but Postgres, except the core's.
func relations(t *testing.T, db *pgxpool.Pool) string {
	t.Helper()
	return testdb.Value[string](t, db, `select coalesce(string_agg(c.relname, ' ' order by c.relname), '') from pg_class c
		join pg_namespace n on n.oid = c.relnamespace
		where c.relkind in ('r', 'v', 'm', 'p') and n.nspname not in ('gem', 'pg_catalog', 'pg_toast', 'information_schema')
			and c.relname not like 'core\_%' and c.relname not in ('open_questions', 'tool_schedules')`)
}

// Everything that works on all calls works in a database without the tables of a domain: each is left out in turn.
func TestAnyDomainCanBeLeftOut(t *testing.T) {
	t.Parallel()
	calls := map[string][2]string{ // a tool of each domain, and its input
		"os":      {"os.create_note", `{"domain": "business", "title": "Roof", "content": "Two tiles"}`},
		"leads":   {"leads.create", `{"name": "Ada", "phone": "+61 400 000 001", "suburb": "Carlton"}`},
		"entity":  {"entity.create", `{"entity_type": "supplier", "name": "Grün"}`},
		"comms":   {"comms.log_call_outcome", `{"entity_id": "x", "outcome": "busy"}`},
		"extract": {"extract.add_document", `{"text": "A roof."}`},
	}
	tables := map[string]string{
		"os": "notes reminders state_snapshots tasks", "leads": "lead_photo_links lead_sources lead_stage_changes leads",
		"entity": "entities interactions",
		"comms":  "comms_log", "extract": "extract_document_parts extract_documents",
	}
	for without := range calls {
		t.Run(without, func(t *testing.T) {
			t.Parallel()
			url := testdb.NewEmpty(t)
			db := testdb.Pool(t, url)
			env := []string{"DATABASE_URL=" + url, "TOOLS_REGISTRY=" + registryWithout(t, without)}
			gemWith(t, env, "migrate").wantCode(t, exitDone)
			all := relations(t, db)
			for domain, names := range tables {
				for name := range strings.FieldsSeq(names) {
					if has := strings.Contains(" "+all+" ", " "+name+" "); has != (domain != without) {
						t.Errorf("table %s of %s: %t, in %s", name, domain, has, all)
					}
				}
			}

			asWorker := url + "&options=-c%20role%3Dgem_worker"
			w := startWorker(t, asWorker, env[1])
			var id string
			for domain, call := range calls {
				if domain == without {
					continue
				}
				got := gemWith(t, env, "call", call[0], call[1], "--wait", "--timeout", "1m")
				if domain == "comms" && without == "entity" {
					wants(t, got.stdout, `"not_configured"`, "Add a tool of the domain entity to the registry")
					continue
				}
				got.wantCode(t, exitDone)
				id = testdb.Value[string](t, db, "select id::text from core_tool_calls order by created_at desc limit 1")
			}
			if without != "os" {
				for _, tool := range []string{"os.refresh_state_snapshot", "os.health_check"} {
					got := gemWith(t, env, "call", tool, map[bool]string{true: `{"domain": "both"}`,
						false: "{}"}[tool != "os.health_check"], "--wait", "--timeout", "1m")
					got.wantCode(t, exitDone)
					if strings.Contains(got.stdout, "missing") {
						t.Errorf("%s: %s", tool, got.stdout)
					}
				}
			}
			full := gemWith(t, []string{"DATABASE_URL=" + asWorker}, "worker")
			full.wantCode(t, exitFailed)
			wants(t, full.stderr, "lacks the migration "+without+"/00001_"+without+".sql", "run `gem migrate`")

			p := startGem(t, env, "dashboard", "--listen", "127.0.0.1:0")
			link, browser := dashboardLink(t, p), newBrowser(t)
			base, _, _ := strings.Cut(link, "/login")
			visit(t, browser, link)
			for _, page := range []string{"/", "/calls", "/failures", "/tools", "/workers", "/questions", "/sessions",
				"/calls/" + id} {
				if status, body := visit(t, browser, base+page); status != http.StatusOK && status != http.StatusNotFound ||
					strings.Contains(body, "extract_document_parts") {
					t.Errorf("%s: %d %s", page, status, body)
				}
			}
			w.stop(t)
			gemWith(t, env, "status").wantCode(t, exitDone)
			gemWith(t, env, "audit").wantCode(t, exitDone)
			archive := filepath.Join(t.TempDir(), "calls.jsonl")
			testdb.Exec(t, db, "select pg_sleep(1.1)")
			pruned := gemWith(t, env, "prune", "--older-than", "1s", "--archive", archive)
			pruned.wantCode(t, exitDone)
			if n := testdb.Value[int](t, db, "select count(*)::int from core_tool_calls"); n != 0 {
				t.Errorf("%d calls are left: %s", n, pruned.stdout)
			}
			gemWith(t, env, "audit", "--archive", archive).wantCode(t, exitDone)

			// With its tools in the registry the domain gets its tables, and without them it keeps these.
			gemWith(t, env[:1], "migrate").wantCode(t, exitDone)
			whole := relations(t, db)
			wants(t, whole, strings.Fields(tables[without])...)
			gemWith(t, env, "migrate").wantCode(t, exitDone)
			if now := relations(t, db); now != whole {
				t.Errorf("got %s, want %s", now, whole)
			}
			gemWith(t, env, "audit").wantCode(t, exitDone)
		})
	}
}

// A built-in domain's name alone makes no tables: its tools may be someone's own, in SQL.
func TestAProgramOfToolsInSQLGetsTheCoresTablesOnly(t *testing.T) {
	testdb.Long(t, "TestTheGuideToToolsInSQLIsFollowed")
	t.Parallel()
	url := testdb.NewEmpty(t)
	const entry = `"input_schema": {"type": "object"}, "output_schema": {"type": "object"}, "idempotency": {"mode": "none"}, "timeout_ms": 60000}`
	env := []string{"DATABASE_URL=" + url, `TOOLS_REGISTRY={"version": "1", "tools": [{"name": "shop.order", ` + entry +
		`, {"name": "shop.refund", ` + entry + `,
		{"name": "leads.score", ` + entry + `]}`}
	db := testdb.Pool(t, url)
	// a stranger's
	testdb.Exec(t, db, "create table leads (id serial primary key, name text); insert into leads (name) values ('Ada')")
	before := relations(t, db)
	gemWith(t, env, "migrate").wantCode(t, exitDone)
	if got := relations(t, db); got != before {
		t.Errorf("there are %s, want %s", got, before)
	}
	testdb.Exec(t, db, `create function tools.leads_score(jsonb) returns jsonb
		language sql as 'select jsonb_build_object(''leads'', count(*)) from leads'`)
	startWorker(t, url, env[1])
	got := gemWith(t, env, "call", "leads.score", "--wait", "--timeout", "1m")
	got.wantCode(t, exitDone)
	wants(t, got.stdout, `"leads": 1`)
	gemWith(t, env, "audit").wantCode(t, exitDone)
}

func TestAnIncludedToolGetsTheTablesOfItsDomain(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	env := []string{"DATABASE_URL=" + url,
		`TOOLS_REGISTRY={"version": "1", "include": ["llm", "extract.run"], "tools": []}`}
	gemWith(t, env, "migrate").wantCode(t, exitDone)
	if got := relations(t, testdb.Pool(t, url)); got != "extract_document_parts extract_documents" {
		t.Errorf("there are %s", got)
	}
}
