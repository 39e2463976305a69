package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers"
	modelled "github.com/gemworker/gem/handlers/agent"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// agents is a delta whose agents are calls to agent.run. Their model is a provider in this process: it reads its
// script from the task, and each answer is an effect that a test can count and delay.
type agents struct {
	delta
	routes string
}

func newAgents(t *testing.T) agents {
	t.Helper()
	a := agents{delta: newDelta(t)}
	a.registry = agentRegistry(t)
	server := llmtest.Start(t, llmtest.Options{Answer: a.think})
	a.routes = fmt.Sprintf(
		`{"version": "1", "providers": {"here": {"dialect": "anthropic", "base_url": %q, "local": true}},
		"targets": {"target": {"provider": "here", "model": "model", "context": 200000, "max_output": 4000, "capabilities": ["tools"], "usd_per_mtok": [{"input": "1", "output": "2", "cache_write": "1"}]}},
		"routes": {"default": {"targets": ["target"]}}}`, server.BaseURL(llmtest.Anthropic))
	return a
}

// agentRegistry is that of delta. Users may insert agents, and agents call its tools.
func agentRegistry(t *testing.T, more ...map[string]any) string {
	t.Helper()
	var file map[string]any
	if err := json.Unmarshal([]byte(deltaRegistry(t)), &file); err != nil {
		t.Fatal(err)
	}
	all := file["tools"].([]any)
	for _, entry := range more {
		all = append(all, entry)
	}
	agent, _ := registry.Own().Tool("agent.run")
	change := file["overrides"].(map[string]any)["agent.run"].(map[string]any)
	change["frontends"], change["calls"] = true, append([]string{"delta.*"}, agent.Calls...)
	file["tools"], file["version"] = all, "1.99.0"
	encoded, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

// think is the model. It calls the tools of the script, and ends with what it has seen of them.
func (a agents) think(r *llmtest.Request) (said llmtest.Script) {
	var script []thought
	if err := json.Unmarshal([]byte(r.Asked.Messages[0].Content[0].Text), &script); err != nil {
		a.Errorf("the task is no script: %v", err)
		return said
	}
	turn, seen := 1, []string{}
	for _, m := range r.Asked.Messages {
		if m.Role == provider.Assistant {
			turn++
		}
		for _, p := range m.Content {
			if p.Type == provider.ToolResult {
				seen = append(seen, p.Content)
			}
		}
	}
	now := script[min(turn, len(script))-1]
	for i, act := range now.Actions {
		said.Parts = append(said.Parts, provider.Part{Type: provider.ToolCall, ID: fmt.Sprintf("id_%d_%d", turn, i),
			Name: strings.ReplaceAll(act.Tool, ".", "_"), Arguments: act.Input})
	}
	switch {
	case now.Refuses:
		said = llmtest.Say("I will not.")
		said.Stop = provider.Refusal
	case len(now.Actions) == 0:
		said = llmtest.Say(strings.Join(append([]string{now.Content}, seen...), "\n"))
	}
	said.Before = func(ctx context.Context, delta int) {
		if delta < 0 {
			_ = (&Delta{a.db}).do(ctx, exampleID, fmt.Sprintf("think %d", turn)) // which ends with the request
		}
	}
	return said
}

func (a agents) worker(env ...string) *process {
	a.Helper()
	return a.delta.worker(append(env, "LLM_ROUTES="+a.routes)...)
}

// insert makes a call to agent.run with this script for the model, for the user ada.
func (a agents) insert(script string, maxTurns int) (id string) {
	a.Helper()
	err := pgx.BeginFunc(a.Context(), a.db, func(tx pgx.Tx) error {
		const claims = `{"role": "authenticated", "sub": "ada"}`
		if _, err := tx.Exec(a.Context(), "select set_config('request.jwt.claims', $1, true)", claims); err != nil {
			return err
		}
		return tx.QueryRow(a.Context(), `insert into core_tool_calls (tool_name, input, session_id)
			values ('agent.run', jsonb_build_object('task', $1::text,
			'max_turns', $2::int, 'tools', array['delta.*', 'wait.answer', 'comms.send_sms']), 's-1') returning id::text`,
			script, maxTurns).Scan(&id)
	})
	if err != nil {
		a.Fatal(err)
	}
	return id
}

// ran returns an agent's answer, and the observations in it.
func (a agents) ran(id string) (out agentRan) {
	a.Helper()
	out = a.delta.ran(id)
	lines := strings.Split(out.Answer, "\n")
	out.Answer, out.Seen = lines[0], lines[1:]
	return out
}

// proves fails unless all agents reach their receipts again from their journals, their receipts state the cost of
// their models, and no audit finds a fault.
func (a agents) proves() {
	a.Helper()
	report, err := audit.Database(a.Context(), a.db, audit.Options{})
	if err != nil || report.Faults > 0 {
		a.Errorf("the audit: %+v, %v", report, err)
	}
	got := gemWith(a.T, []string{"DATABASE_URL=" + a.url, "TOOLS_REGISTRY=" + a.registry, "LLM_ROUTES=" + a.routes},
		"replay", "--tool", "agent.run", "--last", "100")
	if same, all := strings.Count(got.stdout, "the same"), testdb.Value[int](a.T, a.db, "select count(*)::int from "+
		"core_tool_receipts where tool_name = 'agent.run'"); got.code != exitDone || same != all {
		a.Errorf("%d of %d agents come to the same again:\n%s%s", same, all, got.stdout, got.stderr)
	}
	if wrong := testdb.Value[string](a.T, a.db, wrongCosts); wrong != "" {
		a.Errorf("other costs than the ledger has: %s", wrong)
	}
}

// wrongCosts lists the receipts of agents that differ from the ledger of their requests.
const wrongCosts = `
	select coalesce(string_agg(r.call_id || ': ' || (r.result)::text, e'\n'), '') from core_tool_receipts r
	cross join lateral (select coalesce(r.result -> 'usage', r.result #> '{error,details,usage}') as said) u
	cross join lateral (select count(*) as requests, count(*) filter (where cost is null) as unknown, case
		when count(*) = 0 then 0 else sum(cost) end as cost from core_llm_requests l where l.call_id = r.call_id) l
	where r.tool_name = 'agent.run' and r.replay_of is null and (
		((said ->> 'requests')::bigint, (said ->> 'unknown_requests')::bigint) is distinct from (l.requests, l.unknown)
		or (said ->> 'cost_usd')::numeric * 1e9 is distinct from l.cost)`

// A1: killed while the model answers, which is charged and not kept.
func TestAThoughtThatWasKilledIsThoughtOnceMore(t *testing.T) {
	testdb.Long(t, "TestAStepThatWasKilledRunsOnceMore")
	a := newAgents(t)
	a.hold("think 2")
	first := a.worker()
	id := a.insert(twoTurns, 5)
	a.kill(first, "think 2", 1)
	a.free("think 2")
	a.worker()
	if ran := a.ran(id); ran.Answer != "done" || ran.Turns != 2 || a.did("think 1") != 1 || a.did("think 2") != 2 ||
		a.did("one") != 1 {
		t.Errorf("%+v; it thought %d and %d times, and acted %d times", ran, a.did("think 1"), a.did("think 2"), a.did("one"))
	}
	a.proves()
}

// A2: stopped in the middle of a thought.
func TestAnAgentOfAModelGoesOnElsewhere(t *testing.T) {
	a := newAgents(t)
	a.hold("think 2")
	first := a.worker()
	id := a.insert(twoTurns, 5)
	a.until("select count(*) > 0 from delta_log where what = 'think 2'")
	second := a.worker()
	first.stop(t)
	a.free("think 2")
	if ran := a.ran(id); ran.Answer != "done" || a.did("think 1") != 1 || a.did("think 2") != 2 || a.did("one") != 1 {
		t.Errorf("%+v", ran)
	}
	testdb.Eventually(t, "the log line of the other worker", func() bool {
		return strings.Contains(second.stderr.String(), id)
	})
	a.proves()
}

// A3 to A6: it asks, all workers stop, somebody answers, and it continues.
func TestAModelAsksAPersonAndWaitsInNoProcess(t *testing.T) {
	testdb.Long(t, "TestAnAgentAsksAndWaitsInNoProcess")
	a := newAgents(t)
	first := a.worker()
	id := a.insert(
		`[{"actions": [{"tool": "wait.answer", "input": {"text": "Which color?", "schema": {"type": "string", "enum": ["blue", "red"]}, "until": "2200-01-01T00:00:00Z"}}]},
		{"content": "done"}]`, 5)
	q := a.question(id)
	a.until("select status = 'waiting' and waits_for = 'call' and claimed_by is null from core_tool_calls where id = $1",
		id)
	first.stop(t)
	if shown := testdb.Value[string](t, a.db,
		"select concat_ws(' ', tool, text, schema ->> 'enum', by, until at time zone "+
			"'utc', root) from open_questions where since < gem.now()"); shown !=
		`wait.answer Which color? ["blue", "red"] {owner} 2200-01-01 00:00:00 `+id {
		t.Errorf("the question is shown as %s", shown)
	}
	refused := func(code, call, answer, sub string) {
		t.Helper()
		err := pgx.BeginFunc(t.Context(), a.db, func(tx pgx.Tx) error {
			if sub != "" {
				if _, err := tx.Exec(t.Context(), "select set_config('request.jwt.claims', $1, true)",
					`{"role": "authenticated", "sub": "`+sub+`"}`); err != nil {
					return err
				}
			}
			_, err := tx.Exec(t.Context(), "select answer_tool_call($1, to_jsonb($2::text))", call, answer)
			return err
		})
		if pgErr := (*pgconn.PgError)(nil); !errors.As(err, &pgErr) || pgErr.Code != code {
			t.Errorf("%s as the answer to %s by %q: %v", answer, call, sub, err)
		}
	}
	refused("PT422", q, "green", "")
	refused("PT404", q, "blue", "bob")
	refused("PT404", exampleID, "blue", "")
	for _, call := range []string{id, q} { // nothing has come
		if _, err := client.Resume(t.Context(), a.db, call); err != nil {
			t.Error(err)
		}
	}
	a.worker()
	a.until("select bool_and(status = 'waiting') from core_tool_calls")
	if n := testdb.Value[int](t, a.db,
		"select count(*)::int from core_tool_calls where tool_name = 'wait.answer'"); n != 1 {
		t.Errorf("%d questions", n)
	}
	for range 2 {
		gemWith(t, []string{"DATABASE_URL=" + a.url}, "answer", q, "blue").wantCode(t, exitDone)
	}
	refused("PT409", q, "red", "")
	ran := a.ran(id)
	if len(ran.Seen) != 1 || !strings.Contains(ran.Seen[0], `"answer":"blue"`) || a.did("think 1") != 1 ||
		a.did("think 2") != 1 {
		t.Errorf("%+v", ran)
	}
	if n := testdb.Value[int](t, a.db, "select count(*)::int from core_tool_events where event = 'answered'"); n != 1 {
		t.Errorf("%d answers", n)
	}
	if n := testdb.Value[int](t, a.db, "select count(*)::int from open_questions"); n != 0 {
		t.Errorf("%d open questions", n)
	}
	a.proves()
}

// A7: its turns are counted over all restarts.
func TestTheTurnsOfAnAgentCountOverRestarts(t *testing.T) {
	testdb.Long(t, "TestTheTurnLimitOfAnAgentCountsAcrossRestarts of package sdks")
	a := newAgents(t)
	id := a.insert(`[{"actions": [{"tool": "delta.act", "input": {"text": "more"}}]}]`, 3)
	for turn := 1; turn <= 3; turn++ {
		what := fmt.Sprintf("think %d", turn)
		a.hold(what)
		a.kill(a.worker(), what, 1)
		a.free(what)
	}
	a.worker()
	r := a.await(id)
	var did struct{ Turns int }
	e, _ := r.Error()
	if err := json.Unmarshal(e.Details, &did); err != nil || e.Code != "turn_limit" || did.Turns != 3 ||
		a.did("more") != 3 || a.did("think 4") != 0 {
		t.Errorf("%s; it acted %d times", r.Result, a.did("more"))
	}
	a.proves()
}

// A8 and A9: the result of a tool is an observation, in the order of the model's tool calls, and the agent continues
// once it has all of them.
func TestWhatTheToolsOfAnAgentComeToIsObserved(t *testing.T) {
	testdb.Long(t, "TestWhatAToolComesToIsObserved")
	a := newAgents(t)
	testdb.Exec(t, a.db, "insert into gem.roles (subject, role) values (session_user, 'approver')")
	a.worker(`TOOLS_RULES={"version": "1.0.0", "rules": [
		{"name": "forbidden", "tools": ["delta.act"], "when": {"input": {"text": {"const": "forbidden"}}}, "action": "block", "say": "Not today."},
		{"name": "big", "tools": ["delta.act"], "when": {"input": {"text": {"const": "big"}}}, "action": "ask", "ask": {"of": ["approver"]}}]}`)
	id := a.insert(
		`[{"actions": [{"tool": "delta.act", "input": {"text": "x", "fail": true}}, {"tool": "wait.answer", "input": {"text": "?"}}, {"tool": "delta.gone", "input": {}},
		{"tool": "delta.unset", "input": {}}, {"tool": "comms.send_sms", "input": {}}, {"tool": "delta.act", "input": {"text": "forbidden"}},
		{"tool": "delta.act", "input": {"text": "big"}}, {"tool": "delta.act", "input": {"text": "y"}}]}, {"content": "done"}]`, 5)
	a.until("select count(*) = 2 from open_questions where root = $1", id)
	a.until("select count(*) = 4 from core_tool_events where call_id = $1 and event = 'returned'", id)
	a.until("select status = 'waiting' from core_tool_calls where id = $1", id)
	question := func(tool string) string {
		return testdb.Value[string](t, a.db, "select id::text from open_questions where tool = $1", tool)
	}
	env := []string{"DATABASE_URL=" + a.url}
	gemWith(t, env, "deny", question("wait.approval"), "--reason", "too big").wantCode(t, exitDone)
	gemWith(t, env, "answer", question("wait.answer"), "yes").wantCode(t, exitDone)
	ran := a.ran(id)
	want := []string{"no_luck", `"yes"`, "unknown_tool", "not_configured", "not_allowed", "rule_blocked",
		"approval_denied", `"y"`}
	if len(ran.Seen) != len(want) || a.did("think 2") != 1 || a.did("y") != 1 || a.did("forbidden")+a.did("big") != 0 {
		t.Fatalf("%+v", ran)
	}
	for i := range want {
		if !strings.Contains(ran.Seen[i], want[i]) {
			t.Errorf("it saw %s, want %s", ran.Seen[i], want[i])
		}
	}
	if n := testdb.Value[int](t, a.db, "select count(*)::int from core_tool_events where call_id = $1 and event = 'woken'",
		id); n != 1 {
		t.Errorf("it was woken %d times", n)
	}
	wants(t, gemWith(t, env, "trace", id).stdout, "Its handler made these calls:", "  turn 1 call 1  failed  delta.act",
		"  turn 1 call 2  succeeded  wait.answer")
	refused := a.await(a.insert(`[{"refuses": true}]`, 5))
	if e, _ := refused.Error(); e.Code != "refused" {
		t.Errorf("%s", refused.Result)
	}
	a.proves()
}

// A10 and A11: each answer reaches its own agent, of many resumes one attempt runs, and an agent that has ended takes
// nothing more.
func TestAgentsOfOneUserWaitEndAndTakeNothingMore(t *testing.T) {
	a := newAgents(t)
	a.worker()
	one, two := a.insert(asks, 5), a.insert(asks, 5)
	answers := map[string]string{one: "first", two: "second"}
	for id := range answers {
		q := a.question(id)
		attempts := testdb.Value[int](t, a.db, "select attempt from core_tool_calls where id = $1", q)
		done := make(chan error, 8)
		for range cap(done) {
			go func() {
				_, err := client.Resume(context.Background(), a.db, q)
				done <- err
			}()
		}
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		a.until("select status = 'waiting' from core_tool_calls where id = $1", q)
		if woken := testdb.Value[int](t, a.db,
			"select count(*)::int from core_tool_events where call_id = $1 and event = 'woken'",
			q); testdb.Value[int](t, a.db, "select attempt from core_tool_calls where id = $1", q) != attempts+woken {
			t.Errorf("it was woken %d times", woken)
		}
	}
	for id, answer := range answers {
		testdb.Exec(t, a.db, "select answer_tool_call($1, to_jsonb($2::text))", a.question(id), answer)
	}
	for id, answer := range answers {
		if ran := a.ran(id); !strings.Contains(ran.Seen[0], `"answer":"`+answer+`"`) {
			t.Errorf("%+v, want %s", ran, answer)
		}
		_, err := a.db.Exec(t.Context(), `select enqueue_tool_call('agent.run', '{"task": "another"}', id => $1)`, id)
		if err == nil || !strings.Contains(err.Error(), "another call") {
			t.Errorf("its id was taken again: %v", err)
		}
		if err := client.Answer(t.Context(), a.db, id, "x", ""); err == nil {
			t.Error("it took an answer")
		}
	}
	a.proves()
}

// Agent is another program's agent.run. Its turns are steps of another kind.
type Agent struct{}

// Run is agent.run.
func (Agent) Run(ctx context.Context, call *handlers.Durable, _ struct{}) (json.RawMessage, error) {
	return handlers.StepOnce(ctx, call, "turn 1", func(context.Context) (json.RawMessage, error) {
		return nil, errors.New("another turn")
	})
}

// otherAgents are the domains of that program.
func otherAgents() []any {
	domains := builtin.Domains()
	for i, d := range domains {
		if d, ok := d.(handlers.Domain); ok {
			if _, ok := d.Tools.(modelled.Agent); ok {
				domains[i] = Agent{}
			}
		}
	}
	return domains
}

// A12: a program that cannot read an agent's journal leaves it alone.
func TestAProgramThatCannotReadAnAgentsJournalLeavesItAlone(t *testing.T) {
	testdb.Long(t, "TestAProgramThatCannotReadAJournalLeavesItAlone")
	a := newAgents(t)
	first := a.worker()
	id := a.insert(asks, 5)
	q := a.question(id)
	a.until("select status = 'waiting' from core_tool_calls where id = $1", id)
	first.stop(t)
	other := a.worker("AGENT_VERSION=2")
	testdb.Exec(t, a.db, "select answer_tool_call($1, '\"blue\"')", q)
	a.until("select coalesce(waits_for = 'code', false) from core_tool_calls where id = $1", id)
	wants(t, gemWith(t, []string{"DATABASE_URL=" + a.url}, "explain", id).stdout, `the name "turn 1" in its journal`,
		"gem resume "+id)
	if n := testdb.Value[int](t, a.db, "select count(*)::int from core_tool_receipts where call_id = $1", id); n != 0 {
		t.Errorf("%d receipts", n)
	}
	other.stop(t)
	a.worker()
	if ran := a.ran(id); ran.Answer != "done" || a.did("think 1") != 1 {
		t.Errorf("%+v", ran)
	}
	if r := a.await(id); r.Status != receipts.Succeeded {
		t.Errorf("%s", r.Result)
	}
	a.proves()
}
