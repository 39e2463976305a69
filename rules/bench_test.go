package rules_test

import (
	"testing"

	"github.com/gemworker/gem/rules"
)

// BenchmarkJudge judges a call that a rule is for.
func BenchmarkJudge(b *testing.B) {
	for name, rule := range map[string]string{
		"another_tool": `"action": "block", "when": {"input": {"amount": {"minimum": 100}}}`,
		"static":       `"action": "block", "when": {"input": {"amount": {"minimum": 1000}}}`,
		"static_warns": `"action": "warn", "when": {"input": {"amount": {"minimum": 100}}}`,
		"caller":       `"action": "block", "when": {"caller": {"child": {"const": true}}}`,
		"limit":        `"action": "block", "limit": {"max": 1, "within": "1m", "per": ["caller", "input:/to"]}`,
		"question":     `"action": "ask", "ask": {"of": ["finance"]}`,
	} {
		b.Run(name, func(b *testing.B) {
			registry := tools(b, shop)
			call := refund(b, `{"amount": 120.50, "to": "bob", "note": "for what was broken"}`)
			if name == "another_tool" {
				call.Tool, _ = registry.Tool("billing.list")
			}
			judge := parse(b, on(rule)).For(registry)
			var j rules.Judgement
			for b.Loop() {
				j = judge.Judge(call)
			}
			_ = j
		})
	}
}
