package supabase_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/supabase"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// A server selects the warnings with the columns of a receipt, and a signed-in user from its effects.
func TestWarningsOfRulesAreSelectedWithAReceipt(t *testing.T) {
	testdb.Long(t, "TestTheLifeOfACallAsItsFrontendSeesIt")
	t.Parallel()
	d := newDesk(t, supabase.Options{})
	d.Exec(ids.Replace(`
		select gem.start_worker('w', 9, '', '1', '1 hour');
		select gem.finish(c.id, 1, 'w', 'succeeded', '{}', case
			when c.id = 'ADAS_CALL' then '{"rules": {"version": "1", "verdicts": [
			{"rule": "pace", "action": "warn", "message": "not so fast"}, {"rule": "big", "action": "ask",
				"message": "asked"}]}}'::jsonb else '{}' end, '1')
		from gem.claim('w', 9, true) c`))
	for _, c := range []struct{ who, query, want string }{
		{"server", `from('core_tool_receipts').select('status, warnings').eq('call_id', 'ADAS_CALL')`,
			`[{"status":"succeeded","warnings":["not so fast"]}]`},
		{"server", `from('core_tool_receipts').select('status, warnings').eq('call_id', 'GRACES_CALL')`,
			`[{"status":"succeeded","warnings":[]}]`},
		{"server", `from('core_tool_receipts').select('call_id').neq('warnings', '[]')`, `[{"call_id":"ADAS_CALL"}]`},
		{"ada", `from('core_tool_receipts').select('status, rules:effects->rules->verdicts->0->>message').eq('call_id',
			'ADAS_CALL')`,
			`[{"status":"succeeded","rules":"not so fast"}]`},
		{"ada", `rpc('get_receipt', {call_id: 'ADAS_CALL'}).then(r => ({...r, data: r.data.effects.rules.verdicts.filter(v => v.action === 'warn').map(v => v.message)}))`,
			`["not so fast"]`},
	} {
		if got := string(d.must(c.who, c.query, "200").Data); got != ids.Replace(c.want) {
			t.Errorf("%s: %s: got %s, want %s", c.who, c.query, got, c.want)
		}
	}
}

// A rule's question about a user's call must be decided by another user. The decider is the user in the token.
func TestNobodyApprovesTheirOwnCallThatARuleAsksAbout(t *testing.T) {
	testdb.Long(t, "TestFrontendsAnswerQuestions")
	t.Parallel()
	p := supabase.Start(t, supabase.Options{})
	d := desk{p, t}
	env := handlertest.Start(t, handlertest.Options{Database: p.DatabaseURL, Domains: builtin.Domains(),
		Registry: gem.BuiltInRegistry, NoWorker: true})
	p.Exec("insert into gem.roles values ('ada', 'boss'), ('grace', 'boss')")
	p.Exec("select gem.start_worker('w', 9, '', '1', '1 hour', '{steps}', '1')")
	var call string
	if err := json.Unmarshal(d.must("ada", `rpc('enqueue_tool_call', {tool_name: 'os.list_tasks', session_id: 's'})`,
		"200").Data, &call); err != nil {
		t.Fatal(err)
	}
	p.Exec(fmt.Sprintf(`select gem.gate(c.id, 1, 'w', null,
		'[{"rule": "big", "action": "ask", "kind": "call", "digest": "%[1]s", "ask_ms": 3600000,
		"question": {"tool": "os.list_tasks", "input": {}, "text": "May it?", "by": ["role:boss"], "others": true,
			"digest": "%[1]s", "call_id": "%[2]s",
			"rules": [{"name": "big", "message": "ask somebody"}]}}]', '1', false, null) from gem.claim('w', 1, true) c`,
		strings.Repeat("a", 64), call))
	p.Exec("select gem.stop_worker('w')")
	w := env.StartWorker()
	question := p.Value("select id::text from core_tool_calls where parent_call_id = '" + call + "'")
	env.Until("the question to wait", func() bool {
		return p.Value("select coalesce(waits_for, status) from core_tool_calls where id = '"+question+"'") == "answer"
	})
	w.Stop() // a heartbeat changes its row

	// Ada neither sees the question in the list of open questions nor has a way to answer it.
	if got := string(d.must("ada", `from('open_questions').select('text')`, "200").Data); got != "[]" {
		t.Errorf("ada sees %s", got)
	}
	if got := string(d.must("grace", `from('open_questions').select('text, by')`,
		"200").Data); got != `[{"text":"May it?","by":["role:boss"]}]` {
		t.Errorf("grace sees %s", got)
	}
	const columns = `from('open_questions').select('about, arguments, asked_by, call_id, asked_for')`
	want := fmt.Sprintf(`[{"about":"os.list_tasks","arguments":{},"asked_by":"%s","call_id":"%s","asked_for":"rule"}]`,
		p.Value("select created_by from core_tool_calls where id = '"+call+"'"), call)
	for who, want := range map[string]string{"grace": want, "ada": "[]", "eve": "[]", "server": "[]"} {
		if got := string(d.must(who, columns, "200").Data); got != want {
			t.Errorf("%s sees %s, want %s", who, got, want)
		}
	}
	approve := `rpc('answer_tool_call', {call_id: '` + question + `', answer: {approved: true}})`
	d.unchanged("others", func() {
		d.must("visitor", approve, "401 42501")
		d.must("ada", approve, "404 PT404")
		d.must("eve", approve, "404 PT404")
		d.must("server", approve, "404 PT404") // a secret key names no decider
		for what, token := range map[string]string{
			"a token that says what roles eve has": p.Sign(
				supabase.Claims{"role": "authenticated", "sub": "eve", "roles": []string{"boss"}, "user_role": "boss",
					"app_metadata": map[string]any{"roles": []string{"role:boss"}}}),
			"ada's own, who says that she acts for grace": p.Sign(
				supabase.Claims{"role": "authenticated", "sub": "ada", "act": map[string]any{"sub": "grace"}}),
			"grace's, signed by somebody else": supabase.Token(supabase.Claims{"alg": "HS256"},
				supabase.Claims{"role": "authenticated", "sub": "grace"}, strings.Repeat("x", 40)),
			"grace's, signed by nobody": supabase.Token(supabase.Claims{"alg": "none"},
				supabase.Claims{"role": "authenticated", "sub": "grace"}, ""),
		} {
			if a := d.Client().Query(token, approve); a.Status != 401 && a.Outcome() != "404 PT404" {
				t.Errorf("%s: %s (%s)", what, a.Outcome(), a.Message)
			}
		}
		// A decider other than the user in the token is refused: the decider is not an argument, and a token cannot name
		// roles.
		d.must("ada", `rpc('answer_tool_call', {call_id: '`+question+`', answer: {approved: true, by: 'grace'}})`,
			"404 PT404")
		d.must("ada", `rpc('answer_tool_call', {call_id: '`+question+`', answer: {approved: true}, by: 'grace'})`,
			"404 PGRST202")
		d.must("grace", `rpc('answer_tool_call', {call_id: '`+question+`', answer: {approved: true, by: 'ada'}})`,
			"422 PT422")
		d.must("ada", `schema('gem').from('roles').insert({subject: 'eve', role: 'boss'})`, "406 PGRST106")
		d.must("ada", `from('roles').insert({subject: 'eve', role: 'boss'})`, "404")
		// The call itself cannot answer for it either.
		d.must("ada", `rpc('answer_tool_call', {call_id: '`+call+`', answer: {approved: true}, name: '#`+
			strings.Repeat("a", 64)+`'})`, "422 PT422")
		d.must("ada", `from('core_tool_calls').insert({tool_name: 'wait.approval', parent_call_id: '`+call+
			`', parent_step: '##x'})`, "403 42501")
	})
	d.must("grace", approve, "200")
	env.StartWorker()
	if r := env.Await(call); r.Status != "succeeded" {
		t.Errorf("the call is %s: %s", r.Status, r.Result)
	}
	if got := p.Value("select string_agg(result ->> 'by', ', ') from core_tool_receipts where tool_name = " +
		"'wait.approval'"); got != "grace" {
		t.Errorf("decided by %s", got)
	}
}
