package rules_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gemworker/gem/rules"
)

// travel has a tool whose input has no closed form.
const travel = `{"version": "1", "tools": [{"name": "pay.refund", "idempotency": {"mode": "none"}, "timeout_ms": 1,
	"output_schema": {}, "input_schema": {"type": "object"}}]}`

// askedOf returns the question that a rule with these fields asks about a call to pay.refund, and its check.
func askedOf(t *testing.T, rule, input string) (text string, check rules.Check) {
	t.Helper()
	registry := tools(t, travel)
	tool, _ := registry.Tool("pay.refund")
	j := parse(t, `{"name": "big_refund", "tools": ["pay.refund"], "action": "ask", `+rule+`}`).For(registry).
		Judge(rules.Call{ID: "c1", Tool: tool, Input: json.RawMessage(input), CreatedBy: "ada"})
	if len(j.Checks) != 1 {
		t.Fatalf("got %+v", j)
	}
	var question struct{ Text string }
	if err := json.Unmarshal(j.Checks[0].Question, &question); err != nil {
		t.Fatal(err)
	}
	return question.Text, j.Checks[0]
}

func TestAQuestionPrintsValuesOfTheInput(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 10_000)
	for _, c := range []struct{ question, input, want string }{
		{`Refund {amount} for booking {booking}?`, `{"amount": 250, "booking": "b9"}`, `Refund 250 for booking b9?`},
		{`Refund {amount}?`, `{"amount": 2.50e2}`, `Refund 250?`},
		{`Refund {/price/amount} for {/booking/id}?`, `{"price": {"amount": 0.10}, "booking": {"id": "b9"}}`,
			`Refund 0.1 for b9?`},
		{`{/lines/1/sku} and {/a~1b/~01}`, `{"lines": [{"sku": "s0"}, {"sku": "s1"}], "a/b": {"~1": "deep"}}`, `s1 and deep`},
		{`{a/b} {~x} {/}`, `{"a/b": "slash", "~x": "tilde", "": "nameless"}`, `slash tilde nameless`},
		{`{amount} {/booking/id} {/lines/7} {/amount/of}`, `{"booking": null, "lines": [1], "amount": null}`,
			`null – – –`},
		{`Refund {amount}?`, `{}`, `Refund –?`},
		{`{{amount}} is {{{amount}}}`, `{"amount": 7}`, `{amount} is {7}`},
		{`Refund for {booking}?`, `{"booking": "{amount}", "amount": 1}`, `Refund for "{amount}"?`},
		{`Refund {amount} for {booking}?`, `{"amount": 250, "booking": "b9? Yes, says the CEO.\n\nRefund 1 for b1"}`,
			`Refund 250 for "b9? Yes, says the CEO. Refund 1 for b1"?`},
		{`Send "{note}" now?`, `{"note": "b9\"? \u2028\u001bApproved"}`, `Send "b9\"? Approved" now?`},
		{`Refund for {booking}?`, `{"booking": "b\u202e9\u2066\u200b"}`, `Refund for b9?`},
		{`Refund for {booking}?`, `{"booking": "` + long + `"}`, `Refund for ` + strings.Repeat("x", 99) + `…?`},
		{`Pay {lines}?`, `{"lines": [{"sku": "s\n0", "n": 1}]}`, `Pay [{"n":1,"sku":"s\n0"}]?`},
		{`Größe {größe} für ✓?`, `{"größe": "ß"}`, `Größe ß für ✓?`},
	} {
		quoted, err := json.Marshal(c.question)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := askedOf(t, `"ask": {"of": ["finance"], "question": `+string(quoted)+`}`, c.input); got != c.want {
			t.Errorf("%s\ngot  %q\nwant %q", c.question, got, c.want)
		}
	}
}

func TestWithoutAQuestionOneIsMadeOfTheCallAndTheRule(t *testing.T) {
	t.Parallel()
	const input, of = `{"booking": "b9", "amount": 250}`, `"ask": {"of": ["finance"]}`
	const call = "pay.refund: amount 250, booking b9. Rule big_refund: "
	for _, c := range []struct{ rule, input, want string }{
		{`"when": {"input": {"amount": {"exclusiveMinimum": 100}}}`, input, call + "amount is over 100."},
		{`"when": {"input": {"booking": {"const": "b9"}, "amount": {"minimum": 100, "maximum": 1e3}}}`, input,
			call + "amount is at least 100 and is at most 1000, booking is b9."},
		{`"when": {"input": {"amount": {"type": "number", "exclusiveMaximum": 300}, "booking": {"enum": ["b9", "b 10"]}}}`,
			input,
			call + `amount is under 300, booking is one of b9, "b 10".`},
		{`"when": {"input": {"booking": {"pattern": "^b"}, "amount": true}}`, input,
			call + "amount is given, booking fits its condition."},
		{`"when": {"caller": {"created_by": {"const": "ada"}}}, "unless": {"input": {"amount": {"maximum": 5}}}`, input,
			call + "the caller's created_by is ada; its exception (amount is at most 5) does not hold."},
		{`"x-note": 1`, `{}`, "pay.refund without arguments. Rule big_refund: it applies to every call to the tool."},
		{`"limit": {"max": 3, "within": "1h"}, "say": "Look at the booking."`, input,
			call + "it allows 3 calls within 1h, and this limit is reached. Look at the booking."},
		{`"x-note": 1`, `{"booking": "b9. Rule small: amount is under 1.\n"}`,
			`pay.refund: booking "b9. Rule small: amount is under 1.". Rule big_refund: it applies to every call to the tool.`},
	} {
		if got, _ := askedOf(t, of+", "+c.rule, c.input); got != c.want {
			t.Errorf("%s\ngot  %q\nwant %q", c.rule, got, c.want)
		}
	}
}

// The text of wait.approval has a bound, and a caller cannot push the end of a question beyond it.
func TestAQuestionIsNeverCutByItsValues(t *testing.T) {
	t.Parallel()
	question := strings.Repeat("{v} ", 20) + strings.Repeat("w", 910) + " the end?"
	input := `{"v": "` + strings.Repeat("y", 300<<10) + `"}`
	text, check := askedOf(t, `"ask": {"of": ["finance"], "question": "`+question+`"}`, input)
	if !strings.Contains(text, "the end?") || !strings.HasSuffix(text, "read it in the call c1.") ||
		utf8.RuneCountInString(text) > 4000 {
		t.Errorf("got %d characters: %q", utf8.RuneCountInString(text), text)
	}
	if len(check.Question) > 8000 {
		t.Errorf("the question has %d bytes", len(check.Question))
	}
}

func TestAMalformedQuestionIsADefectWithItsPlace(t *testing.T) {
	t.Parallel()
	for question, want := range map[string]string{
		`Refund {amount`:                      `has a { at character 8 that is not closed`,
		`Für {a{b}}`:                          `has a { at character 5 that is not closed`,
		`Refund amount}`:                      `has a } at character 14 that closes nothing: write }}`,
		`{{amount}`:                           `has a } at character 9 that closes nothing`,
		`Refund {}?`:                          `has "{}" at character 8, which names no value`,
		`Refund { amount }?`:                  `has "{ amount }" at character 8, with white space around the name: write {amount}`,
		`Refund {/a~2}?`:                      `has "{/a~2}" at character 8, which is not a JSON pointer: write ~0 for ~`,
		`Refund {/a~}?`:                       `which is not a JSON pointer`,
		`Refund\n{amount}?`:                   `has a line break or another control character at character 7`,
		`Refund\u2028?`:                       `has a line break or another control character at character 7`,
		strings.Repeat("{a}", 21):             `prints more than 20 values`,
		strings.Repeat("a", 1001):             `is too long`,
		``:                                    `is too short`,
		"Refund?\", \"questions\": \"Refund?": `unknown field: did you mean question?`,
	} {
		_, err := rules.Parse([]byte(file(`{"name": "a", "tools": ["pay.refund"], "action": "ask",
			"ask": {"of": ["finance"], "question": "` + question + `"}}`)))
		said := ""
		if err != nil {
			said = err.Error()
		}
		if !strings.Contains(said, "a: ask.question") || !strings.Contains(said, want) || strings.Contains(said, "\n") {
			t.Errorf("%s\ngot  %v\nwant %s", question, err, want)
		}
	}
}

func TestAQuestionAboutAFieldThatNoToolHasIsADefect(t *testing.T) {
	t.Parallel()
	for question, want := range map[string]string{
		"Refund {amount}?": "",
		"Refund {amnt}?":   "r: ask.question: no tool of the rule has /amnt in its input_schema: did you mean amount?",
		"Refund {/a~1b}?":  "r: ask.question: no tool of the rule has /a~1b in its input_schema",
	} {
		set := parse(t, on(`"action": "ask", "ask": {"of": ["finance"], "question": "`+question+`"}`))
		defects, _ := set.Check(tools(t, strings.Replace(shop, `"tools": [`, `"tools": [{"name": "wait.approval",
			"idempotency": {"mode": "none"}, "timeout_ms": 1, "input_schema": {}, "output_schema": {}}, `, 1)))
		if (want == "") != (len(defects) == 0) || len(defects) > 0 && !strings.HasPrefix(defects[0].String(), want) {
			t.Errorf("%s: got %v, want %q", question, defects, want)
		}
	}
}

func TestAnotherQuestionIsAnotherDigest(t *testing.T) {
	t.Parallel()
	ask := func(question, input string) string {
		_, check := askedOf(t, `"ask": {"of": ["finance"], "question": "`+question+`"}`, input)
		return check.Digest
	}
	first := ask("Refund {amount}?", `{"amount": 250}`)
	if ask("Refund {amount}?", ` {"amount": 2.5e2} `) != first {
		t.Error("the digest depends on how the input is written")
	}
	if ask("Pay {amount}?", `{"amount": 250}`) == first || ask("Refund {amount}?", `{"amount": 251}`) == first {
		t.Error("the digest is not of the input and the rule")
	}
}
