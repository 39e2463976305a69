package supabase_test

import (
	"encoding/json"
	"testing"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/supabase"
)

const zeros = "0000000000000000000000000000000000000000000000000000000000000000"

// A frontend reads and answers questions, and gets the reason if it may not.
func TestFrontendsAnswerQuestions(t *testing.T) {
	t.Parallel()
	p := supabase.Start(t, supabase.Options{})
	d := desk{p, t}
	env := handlertest.Start(t, handlertest.Options{Database: p.DatabaseURL, Domains: builtin.Domains(),
		Registry: gem.BuiltInRegistry})
	p.Exec("insert into gem.roles values ('grace', 'boss'), ('service_role', 'robot')")
	id := map[string]string{}
	for name, call := range map[string]string{
		"own":      `tool_name: 'wait.answer', input: {text: 'own', schema: {type: 'integer', maximum: 9}}`,
		"boss":     `tool_name: 'wait.approval', input: {text: 'boss', tool: 'a.b', input: {n: 1}, by: ['role:boss'], digest: '` + zeros + `'}`,
		"late":     `tool_name: 'wait.answer', input: {text: 'late', until: '2200-01-01T00:00:00Z'}`,
		"event":    `tool_name: 'wait.event', input: {text: 'event'}`,
		"robot":    `tool_name: 'wait.approval', input: {text: 'robot', tool: 'a.b', input: {}, by: ['role:robot'], digest: '` + zeros + `'}`,
		"mistaken": `tool_name: 'wait.answer', input: {text: 'mistaken', by: ['everyone']}`,
	} {
		var made string
		if err := json.Unmarshal(d.must("ada", `rpc('enqueue_tool_call', {`+call+`})`, "200").Data, &made); err != nil {
			t.Fatal(err)
		}
		id[name] = made
		if name == "mistaken" {
			if e := handlertest.ErrorOf(t, env.Await(made)); e.Code != "validation_error" {
				t.Errorf("a question that nobody may answer: %+v", e)
			}
			continue
		}
		env.Until(name+" to wait", func() bool {
			return p.Value("select coalesce(waits_for, status) from core_tool_calls where id = '"+made+"'") == "answer"
		})
	}
	for _, c := range [][3]string{
		{"ada", "text, by, input, until, schema",
			`[{"text":"late","by":["owner"],"input":null,"until":"2200-01-01T00:00:00+00:00","schema":{"type":"string"}},` +
				`{"text":"own","by":["owner"],"input":null,"until":null,"schema":{"type":"integer","maximum":9}}]`},
		{"eve", "text", `[]`},
		{"grace", "text, tool", `[{"text":"boss","tool":"wait.approval"}]`},
		{"server", "text, tool", `[{"text":"event","tool":"wait.event"},{"text":"late","tool":"wait.answer"},` +
			`{"text":"own","tool":"wait.answer"},{"text":"robot","tool":"wait.approval"}]`},
	} {
		if got := string(d.must(c[0], `from('open_questions').select('`+c[1]+`').order('text')`, "200").Data); got != c[2] {
			t.Errorf("%s sees %s, want %s", c[0], got, c[2])
		}
	}
	d.must("visitor", `from('open_questions').select('text')`, "401 42501")
	for _, change := range []string{`insert({text: 'x'})`, `update({text: 'x'}).eq('text', 'own')`,
		`delete().eq('text', 'own')`} {
		if a := d.ask("ada", `from('open_questions').`+change); a.Status < 400 {
			t.Errorf("%s: %s", change, a.Outcome())
		}
	}

	answer := func(who, name, value, outcome string) {
		t.Helper()
		d.must(who, `rpc('answer_tool_call', {call_id: '`+id[name]+`', answer: `+value+`})`, outcome)
	}
	id["none"] = "00000000-0000-7000-8000-000000000000"
	answer("visitor", "own", "1", "401 42501")
	answer("grace", "own", "1", "404 PT404")
	answer("ada", "none", "1", "404 PT404")
	answer("ada", "own", "10", "422 PT422")
	answer("ada", "own", "7", "200")
	answer("ada", "own", "7", "200")
	answer("ada", "own", "8", "409 PT409")
	env.Await(id["own"])
	answer("ada", "own", "7", "200")
	answer("ada", "mistaken", "'x'", "404 PT404")
	answer("ada", "boss", "{approved: true}", "404 PT404")
	answer("server", "boss", "{approved: true}", "404 PT404")
	answer("grace", "boss", "{approved: true, digest: 'x'}", "422 PT422")
	answer("grace", "boss", "{approved: true}", "200")
	answer("server", "robot", "{approved: false}", "200")
	answer("ada", "event", "1", "404 PT404")
	answer("server", "event", "{paid: true}", "200")
	p.Exec("create or replace function gem.now() returns timestamptz language sql volatile as 'select " +
		"pg_catalog.clock_timestamp() + interval ''300 years'''")
	answer("ada", "late", "'x'", "410 PT410")
}
