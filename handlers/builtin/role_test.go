package builtin_test

import (
	"context"
	"net/url"
	"testing"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5"
)

// A worker that connects as a member of gem_worker, and not as the owner of the tables, runs every built-in domain.
func TestTheBuiltInToolsNeedNoMoreThanTheWorkersRole(t *testing.T) {
	t.Parallel()
	env := handlertest.Start(t, handlertest.Options{Domains: builtin.Domains(), Registry: gem.BuiltInRegistry,
		NoWorker: true})
	if _, err := env.DB.Exec(t.Context(),
		"create role gem_test_handlers login password 'worker' in role gem_worker"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), env.URL)
		if err == nil {
			_, err = conn.Exec(context.Background(), "drop role gem_test_handlers")
			_ = conn.Close(context.Background())
		}
		if err != nil {
			t.Error(err)
		}
	})
	asWorker, err := url.Parse(env.URL)
	if err != nil {
		t.Fatal(err)
	}
	asWorker.User = url.UserPassword("gem_test_handlers", "worker")
	pool, err := pgpool.Open(t.Context(), asWorker.String(), pgpool.Options{MaxConns: 6, Mode: pgpool.Direct})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	env.StartWorker(func(o *worker.Options) { o.Calls, o.Control, o.ListenURL = pool, pool, asWorker.String() })

	useEveryDomain(t, env)
}

// The worker's login may have another search path, with someone else's tables of the same names.
func TestTheBuiltInToolsUseGEMsTablesWhateverTheSearchPath(t *testing.T) {
	t.Parallel()
	database := testdb.New(t, migrations.Sources(builtin.Domains()...)...)
	testdb.AddStranger(t, database)
	env := handlertest.Start(t, handlertest.Options{Domains: builtin.Domains(), Registry: gem.BuiltInRegistry,
		Database: database})
	useEveryDomain(t, env)
}

// useEveryDomain runs tools with each statement of the built-in domains.
func useEveryDomain(t *testing.T, env *handlertest.Env) {
	t.Helper()
	run := func(tool, input string) *receipts.Receipt {
		t.Helper()
		r := env.Run(handlertest.Call{Tool: tool, Input: input})
		if r.Status != receipts.Succeeded {
			t.Errorf("%s: %s", tool, r.Result)
		}
		return r
	}
	run("os.health_check", `{}`)
	run("os.create_note", `{"domain": "business", "title": "t", "content": "c"}`)
	run("os.search_notes", `{"query": "t"}`)
	task := handlertest.Output[struct {
		TaskID string `json:"task_id"`
	}](t, run("os.create_task", `{"domain": "business", "title": "t"}`)).TaskID
	run("os.update_task", `{"task_id": "`+task+`", "patch": {"title": "u"}}`)
	run("os.update_task", `{"task_id": "`+task+`", "patch": {}}`)
	run("os.defer_task", `{"task_id": "`+task+`", "due_at": "2030-01-01T00:00:00Z"}`)
	run("os.complete_task", `{"task_id": "`+task+`"}`)
	run("os.list_tasks", `{}`)
	run("os.create_reminder", `{"title": "t", "remind_at": "2030-01-01T00:00:00Z"}`)
	run("os.audit_log_search", `{"query": "os"}`)
	run("os.get_state_snapshot", `{"domain": "both"}`)
	run("os.refresh_state_snapshot", `{"domain": "business"}`)
	run("os.get_state_snapshot", `{"domain": "business"}`)
	lead := handlertest.Output[struct {
		LeadID string `json:"lead_id"`
	}](t, run("leads.create", `{"name": "Ada", "phone": "1", "suburb": "s"}`)).LeadID
	run("leads.create", `{"name": "Ada", "phone": "1", "suburb": "s"}`)
	run("leads.update_stage", `{"lead_id": "`+lead+`", "stage": "won"}`)
	run("leads.mark_lost", `{"lead_id": "`+lead+`", "reason": "r"}`)
	run("leads.add_source", `{"lead_id": "`+lead+`", "source": "gmb"}`)
	run("leads.add_photos_link", `{"lead_id": "`+lead+`", "links": ["https://example.com/a"]}`)
	run("leads.list_by_stage", `{}`)
	entity := handlertest.Output[struct {
		EntityID string `json:"entity_id"`
	}](t, run("entity.create", `{"entity_type": "client", "name": "n"}`)).EntityID
	run("entity.update", `{"entity_id": "`+entity+`", "patch": {"name": "m"}}`)
	run("entity.update", `{"entity_id": "`+entity+`", "patch": {}}`)
	run("entity.search", `{"query": "m"}`)
	run("entity.get", `{"entity_id": "`+entity+`"}`)
	run("entity.add_interaction", `{"entity_id": "`+entity+`", "interaction_type": "call", "summary": "s"}`)
	document := handlertest.Output[struct {
		DocumentID string `json:"document_id"`
	}](t, run("extract.add_document", `{"title": "t", "text": " "}`)).DocumentID
	run("extract.add_document", `{"document_id": "`+document+`", "seq": 2, "text": "\n"}`)
	// a blank text, for which no model is asked
	run("extract.run", `{"document_id": "`+document+`", "program": {"instructions": "i", "classes": [{"name": "n"}]}}`)
	run("comms.log_call_outcome", `{"entity_id": "`+entity+`", "outcome": "answered"}`)
	run("comms.create_followup_task_from_message", `{"title": "t", "context_ref": {}}`)
}
