package rules_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
)

// shop is a registry with a few tools.
const shop = `{"version": "7", "tools": [
  {"name": "billing.refund", "input_schema": {"type": "object", "additionalProperties": false, "required": ["amount"],
    "properties": {"amount": {"type": "number", "minimum": 0}, "to": {"type": "string"}, "note": {"type": "string"}, "lines": {"type": "array"}}},
    "output_schema": {}, "permissions": ["write:db"], "idempotency": {"mode": "none"}, "timeout_ms": 1000},
  {"name": "billing.list", "input_schema": {"type": "object"}, "output_schema": {}, "permissions": ["read:db"], "idempotency": {"mode": "none"}, "timeout_ms": 1000},
  {"name": "comms.send_sms", "input_schema": {"type": "object", "properties": {"to": {"type": "string"}}}, "output_schema": {}, "permissions": ["send:sms"],
    "idempotency": {"mode": "none"}, "timeout_ms": 1000}]}`

func tools(t testing.TB, text string) *registry.Registry {
	t.Helper()
	r, err := registry.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func parse(t testing.TB, entries ...string) *rules.Set {
	t.Helper()
	s, err := rules.Parse([]byte(file(entries...)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func file(entries ...string) string {
	return `{"version": "1.0.0", "rules": [` + strings.Join(entries, ",\n") + `]}`
}

// refund is a call to billing.refund.
func refund(t testing.TB, input string) rules.Call {
	t.Helper()
	tool, _ := tools(t, shop).Tool("billing.refund")
	return rules.Call{ID: "c1", Tool: tool, Input: json.RawMessage(input), SessionID: "s1", CreatedBy: "ann"}
}

func judge(t testing.TB, c rules.Call, entries ...string) rules.Judgement {
	t.Helper()
	return parse(t, entries...).For(tools(t, shop)).Judge(c)
}

// on is a rule for billing.refund.
func on(rest string) string { return `{"name": "r", "tools": ["billing.refund"], ` + rest + `}` }

func TestARuleIsForWhatItsNamesPermissionsAndConditionsSay(t *testing.T) {
	t.Parallel()
	call := refund(t, `{"amount": 120, "to": "bob"}`)
	nobody := call
	nobody.CreatedBy, nobody.SessionID = "", ""
	child := call
	child.Child, child.SignedIn = true, true
	for name, c := range map[string]struct {
		rule string
		call rules.Call
		met  bool
	}{
		"its name":       {`"tools": ["comms.send_sms", "billing.refund"]`, call, true},
		"another name":   {`"tools": ["billing.list"]`, call, false},
		"its domain":     {`"tools": ["billing.*"]`, call, true},
		"its permission": {`"permissions": ["write:db"]`, call, true},
		"its verb":       {`"permissions": ["write:*"]`, call, true},
		"another verb":   {`"permissions": ["send:*", "writes:*"]`, call, false},
		"one of both":    {`"tools": ["billing.list"], "permissions": ["write:db"]`, call, true},
		"a field fits": {`"tools": ["billing.*"], "when": {"input": {"amount": {"exclusiveMinimum": 100}}}`, call,
			true},
		"a field does not fit": {`"tools": ["billing.*"], "when": {"input": {"amount": {"exclusiveMinimum": 120}}}`, call,
			false},
		"a field is not there": {`"tools": ["billing.*"], "when": {"input": {"note": true}}`, call, false},
		"one of two fits": {`"tools": ["billing.*"], "when": {"input": {"amount": true, "to": {"const": "eve"}}}`, call,
			false},
		"both fit":              {`"tools": ["billing.*"], "when": {"input": {"amount": {"const": 120.0}, "to": {"const": "bob"}}}`, call, true},
		"the caller fits":       {`"tools": ["billing.*"], "when": {"caller": {"created_by": {"const": "ann"}, "session_id": {"const": "s1"}}}`, call, true},
		"nobody is no caller":   {`"tools": ["billing.*"], "when": {"caller": {"created_by": true}}`, nobody, false},
		"no session":            {`"tools": ["billing.*"], "when": {"caller": {"session_id": true}}`, nobody, false},
		"not signed in":         {`"tools": ["billing.*"], "when": {"caller": {"signed_in": {"const": false}, "child": {"const": false}}}`, nobody, true},
		"a child":               {`"tools": ["billing.*"], "when": {"caller": {"signed_in": {"const": true}, "child": {"const": true}}}`, child, true},
		"input and caller":      {`"tools": ["billing.*"], "when": {"input": {"amount": true}, "caller": {"child": {"const": true}}}`, call, false},
		"an exception":          {`"tools": ["billing.*"], "unless": {"input": {"to": {"const": "bob"}}}`, call, false},
		"no exception":          {`"tools": ["billing.*"], "unless": {"input": {"to": {"const": "eve"}}}`, call, true},
		"half an exception":     {`"tools": ["billing.*"], "unless": {"input": {"to": {"const": "bob"}}, "caller": {"child": {"const": true}}}`, call, true},
		"a case and exception":  {`"tools": ["billing.*"], "when": {"input": {"amount": true}}, "unless": {"caller": {"created_by": {"const": "ann"}}}`, call, false},
		"a decided exception":   {`"tools": ["billing.*"], "when": {"input": {"amount": true}}, "unless": {"input": {"amount": {"minimum": 100}}}`, call, false},
		"what is never allowed": {`"tools": ["billing.*"], "when": {"input": {"to": false}}`, call, false},
	} {
		for _, action := range []rules.Action{rules.Block, rules.Warn, rules.Off} {
			j := judge(t, c.call, `{"name": "r", "action": "`+string(action)+`", `+c.rule+`}`)
			var want []rules.Action
			if c.met && action != rules.Off {
				want = []rules.Action{action}
			}
			var got []rules.Action
			for _, v := range j.Verdicts {
				got = append(got, v.Action)
			}
			if !slices.Equal(got, want) || len(j.Checks) > 0 {
				t.Errorf("%s: got %+v, want %v", name, j, want)
			}
		}
	}
}

func TestNoRulesSayNothing(t *testing.T) {
	t.Parallel()
	var none *rules.Judge
	call := refund(t, `{"amount": 1}`)
	if j := none.Judge(call); j.Verdicts != nil || j.Checks != nil {
		t.Errorf("got %+v", j)
	}
	if none.JudgeResult(call, nil, nil) != nil {
		t.Error("no rules have a verdict")
	}
}

func TestChecksSayWhatTheRuleSays(t *testing.T) {
	t.Parallel()
	call := refund(t, `{"amount": 1.50, "to": "bob", "lines": [{"id": 1e2}]}`)
	nobody := call
	nobody.CreatedBy = ""
	long := refund(t, `{"amount": 1, "to": "`+strings.Repeat("b", 200)+`"}`)
	for name, c := range map[string]struct {
		rule string
		call rules.Call
		want rules.Check
	}{
		"calls": {`"action": "block", "limit": {"max": 5, "within": "1m"}`, call,
			rules.Check{Action: rules.Block, Kind: rules.Count, Counter: "r/calls per all []", Max: "5", WithinMS: 60_000,
				CoarseMS: 3000}},
		"calls together, of nobody": {`"action": "block", "limit": {"max": 5, "within": "1m"}`, nobody,
			rules.Check{Action: rules.Block, Kind: rules.Count, Counter: "r/calls per all []", Max: "5", WithinMS: 60_000}},
		"calls apart": {`"action": "warn", "limit": {"max": 5, "within": "1m", "per": ["caller", "tool", "session", "input:/to", "input:/lines/0/id"]}`, call,
			rules.Check{Action: rules.Warn, Kind: rules.Count,
				Counter: `r/calls per caller,tool,session,input:/to,input:/lines/0/id ["ann","billing.refund",["s1","ann"],"1b0ed536deb39ddcf8e689b39c38e8a5","ad57366865126e55649ecb23ae1d4888"]`, Max: "5", WithinMS: 60_000}},
		"nobody, and nothing": {`"action": "block", "limit": {"max": 5, "within": "1m", "per": ["session", "caller", "input:/note"]}`, nobody,
			rules.Check{Action: rules.Block, Kind: rules.Count,
				Counter: `r/calls per session,caller,input:/note [["s1",null],null,null]`, Max: "5", WithinMS: 60_000}},
		"a long value": {`"action": "block", "limit": {"max": 5, "within": "1m", "per": ["input:/to"]}`, long,
			rules.Check{Action: rules.Block, Kind: rules.Count,
				Counter: `r/calls per input:/to ["` + fmt.Sprintf("%x",
					sha256.Sum256([]byte(`"`+strings.Repeat("b", 200)+`"`)))[:32] + `"]`, Max: "5", WithinMS: 60_000, CoarseMS: 3000}},
		"starts": {`"action": "wait", "at_most": "10m", "limit": {"max": 1, "within": "1s", "per": ["tool"]}`, call,
			rules.Check{Action: rules.Wait, Kind: rules.Count, Counter: `r/starts per tool ["billing.refund"]`, Max: "1",
				WithinMS: 1000, CoarseMS: 50, AtMostMS: 600_000}},
		"a sum": {`"action": "block", "limit": {"max": 500.50, "within": "24h", "sum": "/amount", "per": ["caller"]}`, call,
			rules.Check{Action: rules.Block, Kind: rules.Sum, Counter: `r/sum:/amount per caller ["ann"]`, Max: "500.5",
				WithinMS: 86_400_000, Add: "1.5"}},
		"a success": {`"action": "block", "requires": {"tools": ["billing.*", "gone.tool"], "within": "30m"}`, call,
			rules.Check{Action: rules.Block, Kind: rules.Required,
				Tools: []string{"billing.list", "billing.refund", "gone.tool"}, WithinMS: 1_800_000}},
		"an end": {`"action": "block", "after": {"tools": ["comms.*"], "ended": ["timeout", "failed"]}`, call,
			rules.Check{Action: rules.Block, Kind: rules.Afterwards, Tools: []string{"comms.send_sms"},
				Ended: []string{"failed", "timeout"}}},
		"failures": {`"action": "block", "failures": {"in_a_row": 3, "per": ["tool"], "cooldown": "5m"}`, call,
			rules.Check{Action: rules.Block, Kind: rules.FailureRow, Counter: `r/failures per tool ["billing.refund"]`,
				InARow: 3, CooldownMS: 300_000, CoarseMS: 15_000}},
	} {
		j := judge(t, c.call, on(c.rule))
		c.want.Rule = "r"
		if diff := cmp.Diff([]rules.Check{c.want}, j.Checks); diff != "" || len(j.Verdicts) > 0 {
			t.Errorf("%s: %v %s", name, j.Verdicts, diff)
		}
	}
}

func TestCountersDoNotDependOnHowAnInputIsWritten(t *testing.T) {
	t.Parallel()
	rule := on(`"action": "block", "limit": {"max": 5, "within": "1m", "per": ["input:/lines"]}`)
	a := judge(t, refund(t, `{"amount": 1, "lines": [{"a": 1.50, "b": "\u0061"}]}`), rule)
	b := judge(t, refund(t, `{"lines":[{"b":"a","a":15e-1}],"amount":1}`), rule)
	other := judge(t, refund(t, `{"lines":[{"b":"a","a":1.51}],"amount":1}`), rule)
	if a.Checks[0].Counter != b.Checks[0].Counter {
		t.Errorf("got %s and %s", a.Checks[0].Counter, b.Checks[0].Counter)
	}
	if a.Checks[0].Counter == other.Checks[0].Counter {
		t.Error("two values are counted together")
	}
}

func TestABlockLeavesNoChecks(t *testing.T) {
	t.Parallel()
	j := judge(t, refund(t, `{"amount": 1}`),
		`{"name": "a", "tools": ["billing.*"], "action": "block", "limit": {"max": 5, "within": "1m"}}`,
		`{"name": "b", "tools": ["billing.*"], "action": "warn"}`,
		`{"name": "c", "tools": ["billing.*"], "action": "block"}`)
	if len(j.Checks) > 0 || len(j.Verdicts) != 2 || j.Verdicts[0].Rule != "b" || j.Verdicts[1].Rule != "c" {
		t.Errorf("got %+v", j)
	}
}

func TestARuleOfASessionRefusesACallWithoutOne(t *testing.T) {
	t.Parallel()
	call := refund(t, `{"amount": 1}`)
	call.SessionID = ""
	for _, word := range []string{
		`"requires": {"tool": "billing.list"}`, `"after": {"tools": ["billing.list"]}`,
		`"limit": {"max": 5, "within": "1m", "per": ["caller", "session"]}`,
		`"failures": {"in_a_row": 1, "cooldown": "1m", "per": ["session"]}`,
	} {
		for action, want := range map[string]rules.Action{"block": rules.Block, "ask": rules.Block, "warn": rules.Warn} {
			ask := ""
			if action == "ask" {
				ask = `, "ask": {"of": ["a"]}`
			}
			j := judge(t, call, on(`"action": "`+action+`", `+word+ask))
			if len(j.Verdicts) != 1 || len(j.Checks) > 0 {
				t.Fatalf("%s, %s: got %+v", word, action, j)
			}
			v := j.Verdicts[0]
			if v.Action != want || v.Undecided || !strings.Contains(v.Message,
				"this call has none. Make it with a session_id.") {
				t.Errorf("%s, %s: got %+v", word, action, v)
			}
			if ruling := j.Rule("1.0.0", rules.Answer{}); want == rules.Block && ruling.Code != "rule_blocked" {
				t.Errorf("%s, %s: got %+v", word, action, ruling)
			}
		}
	}
}

func TestWhatCannotBeDecidedBlocks(t *testing.T) {
	t.Parallel()
	// Each of many items is held against each of many alternatives.
	costly := `{"items": {"anyOf": [{"type": "null"}` + strings.Repeat(`, {"minLength": 3}`, 100) + `]}}`
	list := strings.TrimSuffix(strings.Repeat(`"ab",`, 100_000), ",")
	for name, c := range map[string]struct{ rule, input string }{
		"too expensive": {`"when": {"input": {"lines": ` + costly + `}}`,
			`{"amount": 1, "lines": [` + list + `]}`},
		"an exception too expensive": {`"unless": {"input": {"lines": ` + costly + `}}`,
			`{"amount": 1, "lines": [` + list + `]}`},
		"an input that is none":       {`"when": {"input": {"lines": true}}`, `{"amount": 1`},
		"a sum of text":               {`"limit": {"max": 1, "within": "1m", "sum": "/to"}`, `{"amount": 1, "to": "bob"}`},
		"a sum of nothing":            {`"limit": {"max": 1, "within": "1m", "sum": "/to"}`, `{"amount": 1}`},
		"a sum below 0":               {`"limit": {"max": 1, "within": "1m", "sum": "/amount"}`, `{"amount": -0.5}`},
		"a scope that cannot be read": {`"limit": {"max": 1, "within": "1m", "per": ["input:/to"]}`, `{"to": "\ud800"}`},
	} {
		call := refund(t, c.input)
		j := judge(t, call, on(`"action": "block", `+c.rule))
		if len(j.Verdicts) != 1 || !j.Verdicts[0].Undecided || j.Verdicts[0].Action != rules.Block || len(j.Checks) > 0 {
			t.Errorf("%s: got %+v", name, j)
			continue
		}
		if ruling := j.Rule("1.0.0", rules.Answer{}); ruling.Code != "rule_error" ||
			!strings.Contains(ruling.Message, "The rule r (rules 1.0.0) could not be judged") {
			t.Errorf("%s: got %+v", name, ruling)
		}
		warned := judge(t, call, on(`"action": "warn", `+c.rule))
		if len(warned.Verdicts) != 1 || warned.Verdicts[0].Undecided || warned.Verdicts[0].Action != rules.Warn {
			t.Errorf("%s: got %+v", name, warned)
		}
	}
	// A field that does not fit decides, whatever cannot be decided.
	j := judge(t, refund(t, `{"amount": 1, "lines": [`+list+`]}`),
		on(`"action": "block", "when": {"input": {"lines": `+costly+`, "amount": {"const": 2}}}`))
	if len(j.Verdicts) > 0 {
		t.Errorf("got %+v", j)
	}
}

func TestAPanicInJudgingBlocks(t *testing.T) {
	t.Parallel()
	call := refund(t, `{"amount": 1}`)
	judge := parse(t, on(`"action": "block", "limit": {"max": 1, "within": "1m"}`)).For(tools(t, shop))
	if j := judge.Judge(call); len(j.Checks) != 1 {
		t.Errorf("got %+v", j)
	}
	if v := rules.Panics(judge, call); v.Action != rules.Block || !v.Undecided || strings.Contains(v.Message, "boom") {
		t.Errorf("got %+v", v)
	}
}

func TestADigestIsOfTheCallItsInputTheToolAndTheRule(t *testing.T) {
	t.Parallel()
	const rule = `"action": "ask", "ask": {"of": ["finance"]}`
	ask := func(registry, rule string, change func(*rules.Call)) rules.Check {
		t.Helper()
		call := refund(t, `{"amount": 120.50, "to": "bob"}`)
		call.Tool, _ = tools(t, registry).Tool("billing.refund")
		change(&call)
		j := parse(t, on(rule), `{"name": "other", "tools": ["billing.list"], "action": "warn"}`).For(tools(t, registry)).
			Judge(call)
		if len(j.Checks) != 1 {
			t.Fatalf("got %+v", j)
		}
		return j.Checks[0]
	}
	same := func(*rules.Call) {}
	first := ask(shop, rule, same).Digest
	if !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(first) {
		t.Errorf("got %s", first)
	}
	for name, got := range map[string]string{
		"another way to write it": ask(shop, rule, func(c *rules.Call) {
			c.Input = json.RawMessage(` {"to":"\u0062ob","amount":1205e-1} `)
		}).Digest,
		"another caller": ask(shop, rule, func(c *rules.Call) {
			c.CreatedBy, c.SessionID, c.Child, c.SignedIn = "eve", "s2", true, true
		}).Digest,
		"another registry": ask(strings.Replace(strings.Replace(shop, `"7"`, `"8"`, 1), `["send:sms"]`,
			`["send:mail"]`, 1), rule, same).Digest,
		"other words of the tool": ask(strings.Replace(shop, `{"name": "billing.refund",`,
			`{"name": "billing.refund", "description": "x", "hints": {"title": "T"}, "receipt_fields": ["result.id"], "x-note": 1,`, 1), rule, same).Digest,
	} {
		if got != first {
			t.Errorf("%s: the digest changed", name)
		}
	}
	for name, got := range map[string]string{
		"another call": ask(shop, rule, func(c *rules.Call) { c.ID = "c2" }).Digest,
		"another input": ask(shop, rule, func(c *rules.Call) {
			c.Input = json.RawMessage(`{"amount": 120.51, "to": "bob"}`)
		}).Digest,
		"more input": ask(shop, rule, func(c *rules.Call) {
			c.Input = json.RawMessage(`{"amount": 120.50, "to": "bob", "note": null}`)
		}).Digest,
		"another tool entry": ask(strings.Replace(shop, `1000`, `1001`, 1), rule, same).Digest,
		"another rule":       ask(shop, `"action": "ask", "ask": {"of": ["finance", "boss"]}`, same).Digest,
		"another text":       ask(shop, rule+`, "say": "Why?"`, same).Digest,
	} {
		if got == first {
			t.Errorf("%s: the digest did not change", name)
		}
	}
}

func TestAQuestionFitsTheToolThatAsks(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../tools.registry.json")
	if err != nil {
		t.Fatal(err)
	}
	approval, _ := tools(t, string(text)).Tool("wait.approval")
	rule := on(`"action": "ask", "ask": {"of": ["finance", "boss"], "within": "2h"}, "say": "Ask Bob first.", "when": {"input": {"amount": {"minimum": 100}}}`)
	type question struct {
		Tool, Text, Digest string
		CallID             string `json:"call_id"`
		Input              map[string]any
		By                 []string
		Others             bool
		Rules              []struct{ Name, Message string }
	}
	for name, c := range map[string]struct {
		input string
		shown int
	}{
		"small": {`{"amount": 120, "to": "bob"}`, 2},
		"large": {`{"amount": 120, "note": "` + strings.Repeat("a", 300<<10) + `"}`, 0},
	} {
		check := judge(t, refund(t, c.input), rule).Checks[0]
		if faults := approval.ValidateInput(check.Question); faults != nil {
			t.Errorf("%s: %v", name, faults)
		}
		var q question
		if err := json.Unmarshal(check.Question, &q); err != nil {
			t.Fatal(err)
		}
		if q.Tool != "billing.refund" || q.CallID != "c1" || q.Digest != check.Digest ||
			!slices.Equal(q.By, []string{"role:finance", "role:boss"}) || !q.Others ||
			len(q.Rules) != 1 || q.Rules[0].Name != "r" || len(q.Input) != c.shown || check.AskMS != 7_200_000 ||
			check.Kind != rules.ItsCall {
			t.Errorf("%s: got %+v of %+v", name, q, check)
		}
		if large := c.shown == 0; large != strings.Contains(q.Text, "read it in the call c1") ||
			!strings.Contains(q.Text, "Ask Bob first.") {
			t.Errorf("%s: got %q", name, q.Text)
		}
	}
}

func TestTheOrderOfRulesChangesOnlyThatOfMessages(t *testing.T) {
	t.Parallel()
	entries := []string{
		`{"name": "a", "tools": ["billing.*"], "action": "warn"}`,
		`{"name": "b", "tools": ["billing.*"], "action": "block", "limit": {"max": 1, "within": "1m"}}`,
		`{"name": "c", "tools": ["billing.*"], "action": "ask", "ask": {"of": ["x"]}}`,
		`{"name": "d", "permissions": ["write:db"], "action": "wait", "limit": {"max": 1, "within": "1m"}}`,
	}
	sorted := func(j rules.Judgement) (verdicts []rules.Verdict, checks []rules.Check) {
		verdicts = slices.SortedFunc(slices.Values(j.Verdicts),
			func(a, b rules.Verdict) int { return strings.Compare(a.Rule, b.Rule) })
		checks = slices.SortedFunc(slices.Values(j.Checks),
			func(a, b rules.Check) int { return strings.Compare(a.Rule, b.Rule) })
		return verdicts, checks
	}
	call := refund(t, `{"amount": 1}`)
	verdicts, checks := sorted(judge(t, call, entries...))
	slices.Reverse(entries)
	reversed := judge(t, call, entries...)
	v, c := sorted(reversed)
	if diff := cmp.Diff(verdicts, v) + cmp.Diff(checks, c); diff != "" {
		t.Error(diff)
	}
	if len(c) != 3 || reversed.Checks[0].Rule != "d" {
		t.Errorf("got %+v", reversed)
	}
}

func TestRulesLookAtWhatAHandlerDid(t *testing.T) {
	t.Parallel()
	judge := parse(t,
		`{"name": "many", "tools": ["billing.*"], "action": "block", "when": {"effects": {"db_writes": {"minItems": 2}}}, "say": "Do less."}`,
		`{"name": "big", "tools": ["billing.*"], "action": "warn", "when": {"input": {"amount": {"minimum": 100}}, "result": {"ok": {"const": true}}}}`,
		`{"name": "other", "tools": ["billing.*"], "action": "warn", "unless": {"result": {"ok": true}}}`,
		`{"name": "before", "tools": ["billing.*"], "action": "block"}`,
	).For(tools(t, shop))
	call := refund(t, `{"amount": 120}`)
	for name, c := range map[string]struct{ result, effects, want string }{
		"all":            {`{"ok": true}`, `{"db_writes": [{}, {}]}`, "many block, big warn"},
		"nothing":        {`{"ok": false}`, `{}`, ""},
		"no object":      {`[1]`, `{"db_writes": [{}]}`, "other warn"},
		"null":           {`null`, `null`, "other warn"},
		"not to be read": {`{"ok": true}`, `{"db_writes": `, "many block undecided, big warn"},
	} {
		var got []string
		for _, v := range judge.JudgeResult(call, json.RawMessage(c.result), json.RawMessage(c.effects)) {
			said := v.Rule + " " + string(v.Action)
			if v.Undecided {
				said += " undecided"
			}
			got = append(got, said)
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: got %v, want %s", name, got, c.want)
		}
	}
	if j := judge.Judge(call); len(j.Verdicts) != 1 || j.Verdicts[0].Rule != "before" {
		t.Errorf("got %+v", j)
	}
	verdicts := judge.JudgeResult(call, json.RawMessage(`{"ok": true}`), json.RawMessage(`{"db_writes": [{}, {}]}`))
	ruling := rules.Judgement{Verdicts: verdicts}.Rule("1.0.0", rules.Answer{Outcome: rules.Passed})
	if ruling.Code != "rule_blocked" || !strings.Contains(ruling.Message, "effects.db_writes") ||
		ruling.Details.(rules.Details).Do != "Do less." {
		t.Errorf("got %+v", ruling)
	}
}
