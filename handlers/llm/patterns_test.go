package llm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/receipts"
)

// 30 bytes of a pattern take 40 KB and a millisecond: a caller with many of them would take a worker's memory, and its
// processors.
func TestPatternsOfACallThatAreTooLargeTogetherAreRefused(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).route("default", "a")
	env := s.start(t)
	many := func(n int, pattern string) object {
		return object{"type": "object", "anyOf": []any{object{"patternProperties": object{pattern: true}},
			object{"pattern": strings.TrimSuffix(strings.Repeat(pattern+"|", n), "|")}}}
	}
	var tools []any
	for i := range 64 {
		tools = append(tools, object{"name": fmt.Sprint("tool_", i), "parameters": many(4, "(a{1,31}){1,31}")})
	}
	refusedAs(t, env.Run(asks("hello", object{"tools": tools})), "validation_error")
	refusedAs(t, env.Run(tool("llm.structured", object{"messages": []any{object{"role": "user", "content": "x"}},
		"schema": many(200, "(a{1,31}){1,31}")})), "validation_error")
	if n := len(s.server.Requests()); n != 0 {
		t.Errorf("%d requests", n)
	}
	s.server.Always("", llmtest.Say("fine"))
	tools = tools[:0]
	for i := range 64 {
		tools = append(tools, object{"name": fmt.Sprint("tool_", i), "parameters": many(4, "^[a-z][a-z0-9_]{0,62}$")})
	}
	succeeded(t, env.Run(asks("hello", object{"tools": tools})))
}

// refusedAs checks a failure's code alone.
func refusedAs(t *testing.T, r *receipts.Receipt, code string) {
	t.Helper()
	if e, ok := r.Error(); !ok || string(e.Code) != code {
		t.Errorf("not %s: %s %.300s", code, r.Status, r.Result)
	}
}
