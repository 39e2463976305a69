package rules_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem/defects"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/rules"
)

var update = flag.Bool("update", false, "write what was got into the files of testdata")

func golden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile("testdata/"+name, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Error(diff)
	}
}

func TestParseNamesEveryDefectOfAFileAtOnce(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/hostile.json")
	if err != nil {
		t.Fatal(err)
	}
	_, err = rules.Parse(text)
	var invalid *defects.InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("got %v, want an *defects.InvalidError", err)
	}
	golden(t, "hostile.txt", err.Error()+"\n")
}

func TestParseRefusesFilesThatAreNone(t *testing.T) {
	t.Parallel()
	many := strings.Repeat(`{"name": "a", "tools": ["a.b"], "action": "warn"},`, 1001)
	for name, c := range map[string]struct{ text, want string }{
		"no JSON":    {`{"version": "1",}`, "is not valid JSON: line 1, column 17"},
		"a list":     {`[]`, "must be an object but is a list"},
		"nothing":    {``, "is not valid JSON"},
		"two values": {file() + `{}`, "after top-level value"},
		"too large":  {file() + strings.Repeat(" ", 1<<20), "may have at most 1048576"},
		"too deep": {`{"version": "1", "rules": [], "x-a": ` + strings.Repeat("[", 250) + strings.Repeat("]", 250) +
			`}`, "nested more than 200 levels"},
		"no rules": {`{"version": "1"}`, "rules: is missing"},
		"too many rules": {`{"version": "1", "rules": [` + strings.TrimSuffix(many, ",") + `]}`,
			"rules: has too many items: the number is 1001 and must be at most 1000"},
		"long texts": {file(`{"name": "a", "tools": ["a.b"], "action": "warn", "say": "` + strings.Repeat("a", 1001) +
			`"}`), "a: say: is too long"},
		"long pointers": {file(
			`{"name": "a", "tools": ["a.b"], "action": "warn", "limit": {"max": 1, "within": "1s", "per": ["input:/` +
				strings.Repeat("a", 200) + `"]}}`), "a: limit.per[0]: has 207 bytes"},
	} {
		s, err := rules.Parse([]byte(c.text))
		var invalid *defects.InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, %v; want %q", name, s, err, c.want)
		}
	}
}

func TestParseReadsWhatIsWritten(t *testing.T) {
	t.Parallel()
	s := parse(t,
		`{"name": "a", "tools": ["a.b"], "permissions": ["send:*"], "action": "block", "say": "Do b.",
			"limit": {"max": 2.50, "within": "90s", "sum": "/amount", "per": ["session", "input:/a~1b"]}}`,
		`{"name": "b", "tools": ["a.*"], "action": "wait", "limit": {"max": 3, "within": "24h"}, "at_most": "7d"}`,
		`{"name": "c", "tools": ["a.b"], "action": "ask", "ask": {"of": ["finance"]}, "requires": {"tool": "a.c", "within": "5m"}}`,
		`{"name": "d", "tools": ["a.b"], "action": "off", "ask": {"of": ["finance"], "within": "366d"}, "after": {"tools": ["a.c"]}}`,
		`{"name": "e", "tools": ["a.b"], "action": "warn", "failures": {"in_a_row": 100, "cooldown": "8d", "per": ["tool"]}, "x-why": [1]}`,
	).Rules()
	type shown struct {
		Limit          *rules.Limit
		Requires       *rules.Requires
		After          *rules.After
		Failures       *rules.Failures
		Of             []string
		Within, AtMost time.Duration
	}
	day := 24 * time.Hour
	want := []shown{
		{Limit: &rules.Limit{Max: "2.5", Within: 90 * time.Second, Sum: "/amount", Per: []string{"session", "input:/a~1b"}},
			Within: day, AtMost: time.Hour},
		{Limit: &rules.Limit{Max: "3", Within: day}, Within: day, AtMost: 7 * day},
		{Requires: &rules.Requires{Tools: []string{"a.c"}, Within: 5 * time.Minute}, Of: []string{"finance"}, Within: day,
			AtMost: time.Hour},
		{After: &rules.After{Tools: []string{"a.c"}, Ended: []string{"succeeded"}}, Of: []string{"finance"},
			Within: 366 * day, AtMost: time.Hour},
		{Failures: &rules.Failures{InARow: 100, Per: []string{"tool"}, Cooldown: 8 * day}, Within: day, AtMost: time.Hour},
	}
	var got []shown
	for _, r := range s {
		got = append(got, shown{r.Limit, r.Requires, r.After, r.Failures, r.Of, r.Within, r.AtMost})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if r := s[0]; r.Name != "a" || r.Say != "Do b." || r.Action != rules.Block ||
		!slices.Equal(r.Permissions, []string{"send:*"}) {
		t.Errorf("got %+v", r)
	}
}

func TestWhatWasCountedIsKeptForTheLongestRule(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rule string
		want time.Duration
	}{
		"a limit":     {`"action": "block", "limit": {"max": 1, "within": "2h"}`, 2 * time.Hour},
		"a cooldown":  {`"action": "warn", "failures": {"in_a_row": 1, "cooldown": "3h"}`, 3 * time.Hour},
		"a turn":      {`"action": "wait", "limit": {"max": 1, "within": "1m"}`, time.Hour},
		"an order":    {`"action": "warn", "requires": {"tool": "a.b", "within": "3h"}`, 3 * time.Hour},
		"a session":   {`"action": "warn", "requires": {"tool": "a.b"}`, 0},
		"a question":  {`"action": "ask", "ask": {"of": ["a"]}`, 0},
		"an old one":  {`"action": "off", "ask": {"of": ["a"]}`, 0},
		"only a word": {`"action": "warn"`, 0},
	} {
		s := parse(t, `{"name": "a", "tools": ["a.b"], `+c.rule+`}`)
		if s.Longest() != c.want {
			t.Errorf("%s: got %v", name, s.Longest())
		}
	}
}

func TestTheCanonicalFormKnowsNoFormatting(t *testing.T) {
	t.Parallel()
	read := func(text string) *rules.Set {
		s, err := rules.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a := read(`{"$schema": "x", "version": "1", "rules": [{"name": "a", "tools": ["a.b"], "action": "block", "limit": {"max": 1e1, "within": "1m"}}], "coding": {}}`)
	b := read("\ufeff" +
		`{ "coding": {}, "rules": [ { "limit": { "within": "1m", "max": 10.0 }, "action": "block", "tools": [ "a.\u0062" ], "name": "a" } ], "version": "1" }`)
	other := read(`{"version": "1", "rules": [{"name": "a", "tools": ["a.b"], "action": "block", "limit": {"max": 11, "within": "1m"}}], "coding": {}}`)
	const want = `{"coding":{},"rules":[{"action":"block","limit":{"max":10,"within":"1m"},"name":"a","tools":["a.b"]}],"version":"1"}`
	if string(a.JSON()) != want || string(b.JSON()) != want || a.SHA256() != b.SHA256() {
		t.Errorf("got %s and %s", a.JSON(), b.JSON())
	}
	if other.SHA256() == a.SHA256() {
		t.Error("another limit has the same hash")
	}
	if again := read(string(a.JSON())); again.SHA256() != a.SHA256() {
		t.Error("the canonical form parses to other rules")
	}
	if err := rules.CheckUpgrade(a, b); err != nil {
		t.Error(err)
	}
	if err := rules.CheckUpgrade(a, other); err == nil ||
		!strings.Contains(err.Error(),
			`version 1 of the rules has other contents than the recorded version 1: a was changed (limit); raise "version"`) {
		t.Error(err)
	}
	news := read(`{"version": "2", "rules": [{"name": "b", "tools": ["a.b"], "action": "warn"}], "coding": {"no_thrashing": "warn"}}`)
	if diff := cmp.Diff([]string{"a was removed", "b was added", "coding at the top was changed"},
		rules.Compare(a, news)); diff != "" {
		t.Error(diff)
	}
}

// The schema for editors and the code must know the same.
func TestTheEditorsSchemaKnowsWhatHandlersDo(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("rules.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type described struct {
		Description string               `json:"description"`
		Properties  map[string]described `json:"properties"`
	}
	var doc struct {
		Defs map[string]described `json:"$defs"`
		described
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	var visit func(path string, d described)
	visit = func(path string, d described) {
		for name, p := range d.Properties {
			if p.Description == "" {
				t.Errorf("%s.%s has no description", path, name)
			}
			visit(path+"."+name, p)
		}
	}
	visit("", doc.described)
	for name, d := range doc.Defs {
		visit(name, d)
	}
	var effects []string
	for i := range reflect.TypeFor[receipts.HandlerEffects]().NumField() {
		name, _, _ := strings.Cut(reflect.TypeFor[receipts.HandlerEffects]().Field(i).Tag.Get("json"), ",")
		effects = append(effects, name)
	}
	known := doc.Defs["condition"].Properties["effects"].Properties
	for _, name := range effects {
		if known[name].Description == "" {
			t.Errorf("the schema does not know the effect %s", name)
		}
	}
	if len(known) != len(effects) {
		t.Errorf("the schema knows %d effects, and handlers %d", len(known), len(effects))
	}
}

func TestCheckHoldsRulesAgainstTheRegistry(t *testing.T) {
	t.Parallel()
	text := strings.Replace(shop, `"tools": [`,
		`"tools": [{"name": "llm.chat", "input_schema": {"type": "object"}, "output_schema": {}, "permissions": ["net:llm"], "idempotency": {"mode": "none"}, "timeout_ms": 1},`, 1)
	for name, c := range map[string]struct {
		rule     string
		registry string
		defects  []string // beginnings
		notes    []string
	}{
		"a mistyped tool": {`"tools": ["billing.refnd"], "action": "warn"`, text,
			[]string{"a: tools[0]: the registry 7 has no tool billing.refnd: did you mean billing.refund?"}, nil},
		"a mistyped domain": {`"tools": ["biling.*", "comms.*"], "action": "warn"`, text,
			[]string{"a: tools[0]: the registry 7 has no tool biling.*: did you mean billing.*?"}, nil},
		"a permission of no tool": {`"permissions": ["send:smss", "fly:*"], "action": "warn"`, text,
			[]string{"a: permissions[0]: no tool of the registry 7 needs send:smss: did you mean send:sms?",
				"a: permissions[1]: no tool of the registry 7 needs fly:*: remove it"}, nil},
		"a success of no tool": {`"tools": ["billing.list"], "action": "warn", "requires": {"tool": "leads.list"}`,
			text, []string{"a: requires.tool: the registry 7 has no tool leads.list"}, nil},
		"an end of no tool": {`"tools": ["billing.list"], "action": "warn", "after": {"tools": ["leads.*"]}`,
			text, []string{"a: after.tools[0]: the registry 7 has no tool leads.*"}, nil},
		"a mistyped field": {`"tools": ["billing.refund"], "action": "warn", "when": {"input": {"amnt": true}}`,
			text, []string{"a: when.input.amnt: no tool of the rule has /amnt in its input_schema: did you mean amount?"}, nil},
		"a field in another": {`"tools": ["billing.refund"], "action": "warn", "unless": {"input": {"body": true}}`,
			text, []string{"a: unless.input.body: no tool of the rule has /body in its input_schema"}, nil},
		"a field that one lacks": {`"tools": ["billing.refund", "comms.send_sms"], "action": "warn", "when": {"input": {"amount": true}}`, text, nil, []string{"a: when.input.amount: the input of comms.send_sms has no /amount"}},
		"a field that may be there": {`"tools": ["billing.list"], "action": "warn", "when": {"input": {"amount": true}}`,
			text, nil, nil},
		"a scope of no input":  {`"tools": ["billing.refund"], "action": "block", "limit": {"max": 1, "within": "1m", "per": ["caller", "input:/too"]}`, text, []string{"a: limit.per[1]: no tool of the rule has /too"}, nil},
		"a streak of no input": {`"tools": ["billing.refund"], "action": "block", "failures": {"in_a_row": 1, "cooldown": "1m", "per": ["input:/too"]}`, text, []string{"a: failures.per[0]: no tool"}, []string{"a: it counts the calls of all callers together"}},
		"a sum":                {`"tools": ["billing.refund"], "action": "block", "limit": {"max": 1, "within": "1m", "sum": "/amount"}`, text, nil, []string{"a: it counts the calls of all callers together"}},
		"a sum of text":        {`"tools": ["billing.refund"], "action": "block", "limit": {"max": 1, "within": "1m", "sum": "/note"}`, text, []string{"a: limit.sum: /note is not a required number of at least 0 in the input_schema of billing.refund: add it to"}, []string{"a: it counts the calls of all callers together"}},
		"a sum that one lacks": {`"tools": ["billing.*"], "action": "block", "limit": {"max": 1, "within": "1m", "sum": "/amount"}`, text, []string{"a: limit.sum: /amount is not a required number of at least 0 in the input_schema of billing.list"}, []string{"a: it counts the calls of all callers together"}},
		"a question": {`"tools": ["billing.refund"], "action": "ask", "ask": {"of": ["a"]}`, text, nil,
			nil},
		"a shared limit that warns":       {`"tools": ["billing.refund"], "action": "warn", "limit": {"max": 1, "within": "1m"}`, text, nil, nil},
		"a shared limit of a closed tool": {`"tools": ["comms.send_sms"], "action": "block", "limit": {"max": 1, "within": "1m"}`, text, nil, nil},
		"none":                            {`"tools": ["billing.refund"], "action": "block", "limit": {"max": 0, "within": "1m"}`, text, nil, nil},
		"a question of a question": {`"permissions": ["ask:*"], "action": "ask", "ask": {"of": ["a"]}`, text,
			[]string{"a: action: is ask, but wait.answer asks people itself"}, nil},
		"a session alone":      {`"tools": ["billing.refund"], "action": "block", "limit": {"max": 1, "within": "1m", "per": ["session"]}`, text, nil, []string{"a: it looks at one session"}},
		"a session that warns": {`"tools": ["billing.refund"], "action": "warn", "limit": {"max": 1, "within": "1m", "per": ["session"]}`, text, nil, nil},
		"an agent's steps": {`"tools": ["llm.*"], "action": "block", "limit": {"max": 1, "within": "1m"}`,
			text, nil, []string{"a: it is for llm.chat, but the steps"}},
	} {
		defects, notes := parse(t, `{"name": "a", `+c.rule+`}`).Check(tools(t, c.registry))
		var said []string
		for _, d := range defects {
			said = append(said, d.String())
		}
		for what, pair := range map[string][2][]string{"defects": {said, c.defects}, "notes": {notes, c.notes}} {
			if !slices.EqualFunc(pair[0], pair[1], strings.HasPrefix) {
				t.Errorf("%s: %s: got %q, want %q", name, what, pair[0], pair[1])
			}
		}
	}
}

func TestCheckLooksIntoReferencesAndObjects(t *testing.T) {
	t.Parallel()
	const text = `{"version": "1", "tools": [{"name": "a.b", "output_schema": {"properties": {"id": {}}, "additionalProperties": false}, "idempotency": {"mode": "none"}, "timeout_ms": 1,
		"input_schema": {"type": "object", "allOf": [{"$ref": "#/$defs/money"}], "$defs": {"money": {"required": ["price"], "properties": {"price":
			{"type": "object", "required": ["amount"], "properties": {"amount": {"type": "integer", "exclusiveMinimum": 0}, "tax": {"type": "number", "minimum": 0}}}}}},
			"anyOf": [{"properties": {"other": {}}}, true]}}]}`
	for rule, want := range map[string]string{
		`"limit": {"max": 1, "within": "1m", "sum": "/price/amount"}`: "",
		`"limit": {"max": 1, "within": "1m", "sum": "/price/tax"}`:    "a: limit.sum: ",
		`"limit": {"max": 1, "within": "1m", "sum": "/price"}`:        "a: limit.sum: ",
		`"limit": {"max": 1, "within": "1m", "per": ["input:/price/amnt"]}`: "a: limit.per[0]: no tool of the rule has " +
			"/price/amnt in its input_schema: did you mean amount?",
		`"limit": {"max": 1, "within": "1m", "per": ["input:/price/amount/x"]}`: "",
		`"when": {"input": {"other": true}}`:                                    "",
		`"when": {"result": {"lead_id": true}}`: "a: when.result.lead_id: no tool of the " +
			"rule has /lead_id in its output_schema",
	} {
		defects, _ := parse(t, `{"name": "a", "tools": ["a.b"], "action": "block", `+rule+`}`).Check(tools(t, text))
		if got := fmt.Sprint(defects); len(defects) > 1 || (want == "") != (len(defects) == 0) ||
			!strings.Contains(got, want) {
			t.Errorf("%s: got %v, want %q", rule, got, want)
		}
	}
}

func TestBlocksByTheResultAreNamed(t *testing.T) {
	t.Parallel()
	s := parse(t, `{"name": "a", "permissions": ["send:*"], "action": "block", "when": {"effects": {"messages_sent": true}}}`,
		`{"name": "b", "tools": ["billing.*"], "action": "warn", "when": {"effects": {"messages_sent": true}}}`)
	got := map[string]string{}
	for _, tool := range tools(t, shop).Tools() {
		if rule, blocks := s.BlocksResult(tool); blocks {
			got[tool.Name] = rule
		}
	}
	if diff := cmp.Diff(map[string]string{"comms.send_sms": "a"}, got); diff != "" {
		t.Error(diff)
	}
}
