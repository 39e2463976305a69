package audit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/handlers/leads"
	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// everyKind is a database with calls of every kind, as real workers and the state machine leave them behind.
func everyKind(t *testing.T) *handlertest.Env {
	t.Helper()
	twilio := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"sid": "SM1"}`))
	}))
	t.Cleanup(twilio.Close)
	env := handlertest.Start(t, handlertest.Options{Domains: builtin.Domains(), Registry: gem.BuiltInRegistry,
		NoWorker: true,
		Environment: map[string]string{"TWILIO_ACCOUNT_SID": "AC1", "TWILIO_AUTH_TOKEN": "secret", "TWILIO_FROM": "+15550000",
			"TWILIO_BASE_URL": twilio.URL},
	})
	db := env.DB

	// Calls that other workers had before, in every way in which an attempt can end without an end of the call.
	testdb.Exec(t, db, "select gem.record_registry('x', repeat('0', 64), '{}')")
	testdb.Exec(t, db, "select gem.start_worker(w, 9, '', 'x', '1 hour', p_outside => '{}') from unnest(array['a', "+
		"'b']) w")
	before := map[string]string{}
	for _, how := range []string{"released", "lost", "lost and cancelled", "cancelled while running", "retried",
		"waited"} {
		before[how] = env.Insert(handlertest.Call{Tool: "leads.create",
			Input: `{"name": "Ada", "phone": "` + how + `", "suburb": "Soho"}`, Priority: 5})
		testdb.Exec(t, db, "select gem.claim($1, 1, true)",
			map[bool]string{true: "b", false: "a"}[how == "lost" || how == "lost and cancelled"])
	}
	testdb.Exec(t, db, "select gem.release($1, 1, 'a')", before["released"])
	testdb.Exec(t, db, `select gem.retry($1, 1, 'a', '{"error_code": "execution_error", "message": "later"}', 3, '1 ms')`,
		before["retried"])
	testdb.Exec(t, db, "select cancel_tool_call($1), cancel_tool_call($2)", before["cancelled while running"],
		before["lost and cancelled"])
	testdb.Exec(t, db, `select gem.finish($1, 1, 'a', 'failed',
		'{"error": {"error_code": "cancelled", "message": "stop", "details": null}}', '{}', 'x')`,
		before["cancelled while running"])
	testdb.Exec(t, db, "update core_workers set alive_until = now() - interval '1 second' where worker_id = 'b'")
	testdb.Exec(t, db, "select gem.save_schedule('daily', '@daily', 'os.health_check')")
	testdb.Exec(t, db, "select gem.pause_schedule('daily')")
	testdb.Exec(t, db, "update gem.schedules set since = now() - interval '3 days', next_at = gem.cron_next(cron, zone, "+
		"now() - interval '3 days')")
	testdb.Exec(t, db, "select gem.resume_schedule('daily')")
	holder := env.Insert(handlertest.Call{Tool: "leads.create",
		Input: `{"name": "Ada", "phone": "waited", "suburb": "Soho"}`, Priority: 9})
	testdb.Exec(t, db, "select gem.claim('a', 1, true)")
	testdb.Exec(t, db, `select gem.hold_key($1, 1, 'a', 'leads.create:phone="waited"')`, holder)
	testdb.Exec(t, db, `select gem.hold_key($1, 1, 'a', 'leads.create:phone="waited"')`, before["waited"])
	testdb.Exec(t, db, "select gem.release($1, 1, 'a')", holder)
	testdb.Exec(t, db, "select gem.recover('a', null)")
	durable := env.Insert(handlertest.Call{Tool: "os.health_check", Input: "{}", Priority: 10})
	testdb.Exec(t, db, "select gem.claim('a', 1, true)")
	testdb.Exec(t, db, `select gem.retry($1, 1, 'a', '{"error_code": "execution_error", "message": "later"}', 3, '0')`,
		durable)
	testdb.Exec(t, db, "select gem.claim('a', 1, true)")
	for n, e := range [][2]string{{"began", `{"name": "once"}`},
		{"step", `{"name": "sent", "kind": "step", "result": 1, "effects": {"messages_sent": [{"type": "sms", "recipient": "x", "message_id": "1"}]}}`},
		{"step", `{"name": "once", "kind": "once", "error": {"error_code": "x", "message": "y"}}`}} {
		testdb.Exec(t, db, "select gem.step($1, 2, 'a', $2, $3, $4, false)", durable, e[0], e[1], n)
	}
	testdb.Exec(t, db, `select gem.finish($1, 2, 'a', 'failed',
		'{"error": {"error_code": "x", "message": "y", "details": null}}',
		gem.step_effects($1) || '{"idempotency": {"mode": "none", "hit": false}}', 'x')`, durable)
	families(t, env)
	delayed, asking := judged(t, env)
	asked(t, env)
	extracted(t, env)

	w := env.StartWorker()
	for _, id := range before {
		env.Await(id)
	}
	env.Await(holder)
	env.Await(delayed)
	env.Answer(env.Question(asking).ID, map[string]any{"approved": true})
	env.Await(asking)
	// The worker has no rules, and so says nothing of them on the receipt.
	testdb.Exec(t, db, `set local session_replication_role = replica;
		update core_tool_receipts r set effects = r.effects || jsonb_build_object('rules',
			jsonb_build_object('version', '1', 'verdicts', '[]'::jsonb, 'approvals', jsonb_build_array(jsonb_build_object(
				'rule', 'big', 'id', k.id, 'by', q.result ->> 'by', 'at', q.result ->> 'at', 'digest', substr(k.parent_step, 3)))))
		from core_tool_calls k join core_tool_receipts q on q.call_id = k.id
		where r.call_id = k.parent_call_id and k.parent_step like '##%' and q.status = 'succeeded'`)

	lead := handlertest.Output[leads.Ref](t, env.Run(
		handlertest.Call{Tool: "leads.create", Input: `{"name": "Grace", "phone": "1", "suburb": "Soho"}`}))
	for _, c := range []handlertest.Call{
		{Tool: "leads.create", Input: `{"name": "Grace again", "phone": "1", "suburb": "Soho"}`},
		{Tool: "leads.create", Input: `{"name": "Linus", "phone": "2", "suburb": "Soho"}`},
		{Tool: "leads.create", Input: `{"name": "no phone", "phone": "", "suburb": "Soho"}`},
		{Tool: "leads.update_stage", Input: `{"lead_id": "` + lead.LeadID + `", "stage": "contacted"}`},
		{Tool: "leads.add_source", Input: `{"lead_id": "` + lead.LeadID + `", "source": "meta"}`},
		{Tool: "leads.add_photos_link", Input: `{"lead_id": "` + lead.LeadID +
			`", "links": ["https://a.example", "https://b.example"]}`},
		{Tool: "leads.mark_lost", Input: `{"lead_id": "` + lead.LeadID + `", "reason": "price"}`},
		{Tool: "os.create_task", Input: `{"title": "Call", "domain": "both"}`},
		{Tool: "os.create_note", Input: `{"title": "Roof", "domain": "both", "content": "Two tiles"}`},
		{Tool: "os.create_reminder", Input: `{"title": "Roof", "remind_at": "2030-01-01T00:00:00Z"}`},
		{Tool: "os.refresh_state_snapshot", Input: `{"domain": "both"}`},
		{Tool: "os.list_tasks", Key: "k", CreatedBy: "ada"},
		{Tool: "os.list_tasks", Key: "k", CreatedBy: "ada"},
		{Tool: "os.list_tasks", Key: "k", CreatedBy: `o"brien\`},
		{Tool: "entity.create", Input: `{"entity_type": "client", "name": "Acme"}`},
		{Tool: "comms.send_sms", Input: `{"to": "+15551", "message": "Hello", "context_ref": {"type": "lead", "id": "1"}}`},
		{Tool: "comms.send_email",
			Input: `{"to": "a@b.example", "subject": "Hello", "body": "Hello", "context_ref": {"type": "lead", "id": "1"}}`},
		{Tool: "calendar.create_event",
			Input: `{"title": "x", "start_at": "2030-01-01T00:00:00Z", "end_at": "2030-01-01T01:00:00Z"}`},
		{Tool: "no.such_tool"},
		{Tool: "os.complete_task", Input: `{"task_id": "00000000-0000-4000-8000-000000000000"}`},
	} {
		env.Run(c)
	}
	var me string
	if err := db.QueryRow(t.Context(), "select session_user::text").Scan(&me); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tool, input string
		answer      any
	}{
		{"wait.answer", `{"text": "Which color?"}`, "blue"},
		{"wait.event", `{}`, map[string]int{"paid": 7}},
		{"wait.approval", `{"tool": "a.b", "input": {}, "by": ["user:` + me + `"], "digest": "` + strings.Repeat("0", 64) +
			`"}`, map[string]any{"approved": false, "reason": "no"}},
		{"wait.answer", `{"text": "Open?", "until": "2200-01-01T00:00:00Z"}`, nil},
	} {
		id := env.Insert(handlertest.Call{Tool: c.tool, Input: c.input})
		env.Question(id)
		if c.answer != nil {
			env.Answer(id, c.answer)
			env.Await(id)
		}
	}
	env.Run(handlertest.Call{Tool: "wait.approval",
		Input: `{"tool": "a.b", "input": {}, "by": ["role:x"], "until": "2020-01-01T00:00:00Z", "digest": "` +
			strings.Repeat("0", 64) + `"}`})
	w.Stop()

	// And calls that have not ended.
	testdb.Exec(t, db, "select cancel_tool_call($1)", env.Insert(
		handlertest.Call{Tool: "os.create_task", Input: `{"title": "never", "domain": "both"}`}))
	env.Insert(handlertest.Call{Tool: "os.list_tasks", RunAt: time.Now().Add(time.Hour), Priority: -3})
	parent := env.Insert(handlertest.Call{Tool: "os.list_tasks", Session: "running, with the key"})
	second := env.Insert(handlertest.Call{Tool: "os.list_tasks", Session: "waiting for the key"})
	testdb.Exec(t, db, "select gem.claim('a', 9, true)")
	testdb.Exec(t, db, "select gem.hold_key($1, 1, 'a', 'K')", parent)
	testdb.Exec(t, db, "select gem.hold_key($1, 1, 'a', 'K')", second)
	child := env.Insert(handlertest.Call{Tool: "os.list_tasks", Session: "running, to be cancelled"})
	testdb.Exec(t, db, "update core_tool_calls set parent_call_id = $1 where id = $2", parent, child)
	testdb.Exec(t, db, "select gem.claim('a', 9, true)")
	testdb.Exec(t, db, "select cancel_tool_call($1)", child)
	d := handler{t: t, env: env}
	d.begin(300)
	d.wait("parked", `{"nap": 3600000}`, 1, "nap")
	d.begin(300)
	d.do(`select gem.step($1, 1, 'd', 'step', '{"name": "sent"}', 0, false), gem.hold_key($1, 1, 'd', 'K')`)
	d.begin(300)
	d.do("select gem.hold_key($1, 1, 'd', 'kept while it waits')")
	d.wait("parked", `{"y": 0}`, 2, "x", "y")
	// That may not be long ago, however long a test takes.
	testdb.Exec(t, db, `set local session_replication_role = replica;
		update core_tool_calls set cancel_requested_at = cancel_requested_at + interval '1 day'
			where status = 'running' and cancel_requested_at is not null;
		update core_tool_events e set at = c.cancel_requested_at from core_tool_calls c
			where e.call_id = c.id and c.status = 'running' and e.event = 'cancel_requested'`)
	return env
}

// handler does what the worker `d` does for a durable handler, in one call.
type handler struct {
	t       *testing.T
	env     *handlertest.Env
	call    string
	effects string // of a step that is not kept, as the call begins to wait
}

// begin inserts a call and claims it. Its children have its priority: whatever is at it is claimed in turn.
func (h *handler) begin(priority int) {
	h.t.Helper()
	h.call = h.env.Insert(handlertest.Call{Tool: "os.health_check", Priority: priority})
	h.claim()
}

func (h *handler) claim() { h.t.Helper(); testdb.Exec(h.t, h.env.DB, "select gem.claim('d', 1, true)") }

// timers runs what is due.
func (h *handler) timers() {
	h.t.Helper()
	testdb.Exec(h.t, h.env.DB, "select pg_sleep(0.01)")
	testdb.Exec(h.t, h.env.DB, "select gem.run_timers('d', 9)")
}

// do runs a statement with the handler's call as $1.
func (h *handler) do(sql string) { h.t.Helper(); testdb.Exec(h.t, h.env.DB, sql, h.call) }

// of runs a statement with a child as $1.
func (h *handler) of(child, sql string) {
	h.t.Helper()
	var id string
	if err := h.env.DB.QueryRow(context.Background(), "select id from core_tool_calls where parent_call_id = $1 and "+
		"parent_step = $2", h.call, child).Scan(&id); err != nil {
		h.t.Fatal(err)
	}
	testdb.Exec(h.t, h.env.DB, sql, id)
}

// end ends the running call $1.
const end = `select gem.finish(id, attempt, 'd', 'succeeded', '{}',
	gem.step_effects(id) || '{"messages_sent": [{"type": "sms"}], "idempotency": {"mode": "none", "hit": false}}', 'x')
		from core_tool_calls where id = $1`

// wait makes the children of these names that are not there, except `nap`, and waits for so many.
func (h *handler) wait(want, until string, need int, names ...string) {
	h.t.Helper()
	var verdict string
	if err := h.env.DB.QueryRow(context.Background(), `
		select verdict from core_tool_calls c, gem.wait(c.id, c.attempt, 'd', (
			select coalesce(jsonb_agg(jsonb_build_object('id', gem.new_id(clock_timestamp()), 'name', n, 'tool',
				'os.health_check', 'input', '{}'::jsonb) order by place), '[]')
			from unnest($2::text[]) with ordinality one (n, place) where n <> 'nap'),
			case when 'nap' = any ($2) then 'time' else 'call' end, $2, $3, $4, nullif($5, '')::jsonb)
		where c.id = $1`, h.call, names, need, until, h.effects).Scan(&verdict); err != nil || verdict != want {
		h.t.Fatalf("got %s, %v, want %s", verdict, err, want)
	}
}

// families are durable calls that have ended, with children in every way.
func families(t *testing.T, env *handlertest.Env) {
	t.Helper()
	testdb.Exec(t, env.DB, "select gem.start_worker('d', 9, '', 'x', '1 hour', '{steps}')")
	p := handler{t: t, env: env}
	p.begin(500)
	p.wait("here", "{}", 0, "one", "two", "three")
	p.wait("parked", "{}", 1, "one")
	p.claim()
	p.of("one", end) // wakes it
	p.claim()
	p.claim()
	p.of("two", `select gem.finish($1, 1, 'd', 'failed', '{"error": {"error_code": "x", "message": "y", "details": null}}',
		'{}', 'x')`)
	p.wait("here", `{"three": 0}`, 1, "three") // its time comes while the call runs
	p.of("three", "select cancel_tool_call($1)")
	p.wait("parked", `{"four": 1}`, 1, "four")
	p.timers()
	p.claim()
	p.claim()
	p.do("select gem.release($1, 3, 'd')")
	p.of("four", end) // while the call is queued
	p.claim()
	p.do(`select gem.retry($1, 4, 'd', '{"error_code": "execution_error", "message": "later"}', 3, '0')`)
	p.claim()
	p.effects = `{"messages_sent": [{"type": "sms"}]}`
	p.wait("parked", "{}", 2, "five", "six", "seven")
	p.effects = ""
	p.claim()
	p.of("five", end)
	p.of("six", "select cancel_tool_call($1)")
	p.timers() // wakes it
	p.claim()
	p.wait("here", "{}", 0, "eight")
	p.claim() // seven
	p.do(end)
	p.timers()
	p.of("seven", `select gem.finish($1, 1, 'd', 'failed',
		'{"error": {"error_code": "cancelled", "message": "stop", "details": null}}', '{}', 'x')`)

	p.begin(500)
	p.effects = `{"messages_sent": [{"type": "sms"}]}`
	p.wait("parked", `{"nap": 3600000}`, 2, "left", "nap")
	p.do("select cancel_tool_call($1)")
	p.do("select cancel_tool_call($1)") // and its handler does not clean up
	p.timers()
}

// reported are the checks that found something, and what they found.
func reported(r *audit.Report) map[string][]audit.Finding {
	found := map[string][]audit.Finding{}
	for _, c := range r.Checks {
		if c.Found > 0 || c.Error != "" {
			found[c.Check] = c.Examples
			if c.Error != "" {
				found[c.Check] = []audit.Finding{{What: c.Error}}
			}
		}
	}
	return found
}
