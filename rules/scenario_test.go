package rules_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gemworker/gem/rules"
)

// played plays a file, with the tools of testdata where it names none.
func played(t *testing.T, path string) []rules.SequenceResult {
	t.Helper()
	s, err := rules.ReadScenario(path)
	if err != nil {
		t.Fatal(err)
	}
	r := s.Registry
	if r == nil {
		r = tools(t, shop)
	}
	all, err := s.Play(r)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestSequencesOfTheExampleComeAsTheySay(t *testing.T) {
	t.Parallel()
	for _, p := range played(t, "testdata/sequences.json") {
		if p.Differs != nil {
			t.Errorf("%s: %+v", p.Name, *p.Differs)
		}
	}
}

// scenario writes a file of one sequence about two rules.
func scenario(t *testing.T, steps string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "sequences.json")
	text := `{"rules": {"version": "1", "rules": [
		{"name": "a", "tools": ["billing.*"], "action": "warn", "unless": {"caller": {"created_by": {"const": "ada"}}}},
		{"name": "b", "tools": ["billing.list"], "action": "block", "limit": {"max": 1, "within": "1m"}},
		{"name": "c", "tools": ["billing.list"], "action": "block", "limit": {"max": 1, "within": "2m"}},
		{"name": "late", "tools": ["comms.send_sms"], "action": "wait", "at_most": "1m", "limit": {"max": 1, "within": "1m"}},
		{"name": "soon", "tools": ["comms.send_sms"], "action": "ask", "when": {"input": {"to": {"const": "+1"}}}, "ask": {"of": ["x"], "within": "1h"}},
		{"name": "then", "tools": ["comms.send_sms"], "action": "ask", "when": {"input": {"to": {"const": "+1"}}}, "ask": {"of": ["x"], "within": "2h"}},
		{"name": "many", "tools": ["billing.refund"], "action": "block", "when": {"result": {"n": {"minimum": 5}}}}]},
		"sequences": [{"name": "one", "steps": [` + steps + `]}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheFirstStepThatDiffersIsNamed(t *testing.T) {
	t.Parallel()
	list := `"call": {"tool": "billing.list"}`
	sms := `"call": {"tool": "comms.send_sms"}`
	cases := []struct{ steps, want string }{
		{`{` + list + `, "expect": "warn a"}, {` + list + `, "expect": "block"}`, ""},
		{`{` + list + `}, {` + list + `, "expect": "block c b"}`, ""},
		{`{` + list + `}, {` + list + `, "expect": "block b"}`, "step 2 expect block b: block b c"},
		{`{` + list + `, "expect": "run"}, {` + list + `, "expect": "run"}`, "step 1 expect run: warn a"},
		{`{"call": {"tool": "billing.list", "caller": "ada"}, "expect": "run"}, {"at": "60s", ` + list +
			`, "expect": "block c"}`, ""},
		{`{` + sms + `}, {` + sms + `, "expect": "wait late 60s"}, {` + sms + `, "expect": "block late"}`, ""},
		{`{` + sms + `}, {` + sms + `, "expect": "wait", "then": "wait"}`, "step 2 then wait: run"},
		{`{` + sms + `}, {` + sms + `, "expect": "wait 1m"}`, ""},
		{`{` + sms + `}, {"at": "500ms", ` + sms + `, "expect": "wait late 59s"}`,
			"step 2 expect wait late 59s: wait late 59500ms"},
		{`{"call": {"tool": "billing.refund", "input": {"amount": 1}}, "result": {"n": 5}, "expect": "block many"}`, ""},
		{`{"call": {"tool": "billing.refund", "input": {"amount": 1}}, "result": {"n": 4}, "expect": "warn a"}`, ""},
		{`{"call": {"tool": "billing.refund", "input": {"amount": 1}}, "result": {"n": 5}, "end": "failed", "expect": "warn a"}`, ""},
		{`{"call": {"tool": "comms.send_sms", "input": {"to": "+1"}}, "expect": "ask soon then", "then": "expired soon"}`,
			""},
		{`{"call": {"tool": "comms.send_sms", "input": {"to": "+1"}}, "answer": "approved", "then": "run"}`, ""},
		{`{"call": {"tool": "comms.send_sms", "input": {"to": "+1"}},
			"question": "comms.send_sms: to +1. Rule then: to is +1."}`, ""},
		{`{"call": {"tool": "comms.send_sms", "input": {"to": "+1"}}, "question": "Send it?"}`,
			"step 1 question Send it?: comms.send_sms: to +1. Rule soon: to is +1.\n" +
				"comms.send_sms: to +1. Rule then: to is +1."},
		{`{` + sms + `, "question": "Send it?"}`, "step 1 question Send it?: "},
	}
	for _, c := range cases {
		got := ""
		if d := played(t, scenario(t, c.steps))[0].Differs; d != nil {
			got = "step " + string(rune('0'+d.Step)) + " " + d.Field + " " + d.Want + ": " + d.Got
		}
		if got != c.want {
			t.Errorf("%s\ngot  %s\nwant %s", c.steps, got, c.want)
		}
	}
}

// A step that lets people answer a question which nobody asks differs in what comes of its call.
func TestAnAnswerToWhatIsNotAskedShowsTheDifference(t *testing.T) {
	t.Parallel()
	for _, steps := range []string{
		`{"call": {"tool": "billing.list"}, "expect": "ask big", "answer": "denied"}`,
		`{"call": {"id": "x", "tool": "billing.list"}, "expect": "ask big"}, {"of": "x", "answer": "approved"}`,
	} {
		s, err := rules.ReadScenario(scenario(t, steps))
		if err != nil {
			t.Fatal(err)
		}
		played, err := s.Play(tools(t, shop))
		if err != nil || played[0].Differs == nil || played[0].Differs.Step != 1 || played[0].Differs.Got != "warn a" {
			t.Errorf("%s: %+v %v", steps, played, err)
		}
	}
}

func TestAMistakeInAScenarioIsNamed(t *testing.T) {
	t.Parallel()
	cases := []struct{ steps, want string }{
		{`{"call": {"tool": "billing.lists"}}`,
			`step 1: the registry has no tool "billing.lists": did you mean billing.list?`},
		{`{"call": {"tool": "billing.refund"}}`, "step 1: the input does not fit billing.refund: "},
		{`{"at": "5s", "call": {"tool": "billing.list"}}, {"at": "4s", "call": {"tool": "billing.list"}}`,
			"step 2: at is earlier than in a previous step"},
		{`{"at": "5s"}`, "step 1: a step has either call"},
		{`{"of": "x", "answer": "approved"}`, "step 1: of names no earlier call"},
		{`{"call": {"id": "x", "tool": "billing.list"}}, {"of": "x", "answer": "approved"}`,
			`step 2: no question about the call x is open: its outcome is warn a`},
		{`{"call": {"id": "x", "tool": "billing.list"}}, {"call": {"id": "x", "tool": "billing.list"}}`,
			`step 2: there is another call x`},
		{`{"call": {"tool": "billing.list"}, "expects": "run"}`, "one: steps[0].expects: unknown field: did you mean"},
		{`{"call": {"tool": "billing.list"}, "expect": "stop"}`, "one: steps[0].expect: "},
	}
	for _, c := range cases {
		s, err := rules.ReadScenario(scenario(t, c.steps))
		if err == nil {
			_, err = s.Play(tools(t, shop))
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\ngot  %v\nwant %s", c.steps, err, c.want)
		}
	}
}
