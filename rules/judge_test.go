package rules_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

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

// refund is a call of billing.refund.
func refund(t testing.TB, input string) rules.Call {
	t.Helper()
	tool, _ := tools(t, shop).Tool("billing.refund")
	return rules.Call{ID: "c1", Tool: tool, Input: json.RawMessage(input), SessionID: "s1", CreatedBy: "ann"}
}

func judge(t testing.TB, c rules.Call, entries ...string) rules.Judgement {
	t.Helper()
	return parse(t, entries...).For(tools(t, shop)).Judge(c)
}

func TestTheExampleOfThePaperIsJudged(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/example.json")
	if err != nil {
		t.Fatal(err)
	}
	s, err := rules.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	j := s.For(tools(t, shop)).Judge(refund(t, `{"amount": 120.50, "to": "bob"}`))
	out, _ := json.MarshalIndent(j, "", " ")
	t.Log(string(out))
}
