package llm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/receipts"
)

func says(role string, content any) object { return object{"role": role, "content": content} }

func TestAnyConversationEndsInAnAnswerOrAClearFailure(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, d := range llmtest.Dialects {
		s.target(string(d), d, object{"context": 10_000_000}).target("small_"+string(d), d, nil).route(string(d),
			string(d)).route("small_"+string(d), "small_"+string(d))
	}
	env := s.start(t)
	many := func(n int) (all []any) {
		for i := range n {
			all = append(all, says([]string{"user", "assistant"}[i%2], fmt.Sprint("turn ", i)))
		}
		return all
	}
	call := object{"type": "tool_call", "id": "c1", "name": "weather", "arguments": object{}}
	result := object{"type": "tool_result", "tool_call_id": "c1", "content": "rain"}
	long := strings.Repeat("Grüße 🌍 ", 60_000) // 780 kB
	for _, test := range []struct {
		name     string
		messages []any
		// code is the failure's; empty: it is answered.
		code, route string
		requests    int
	}{
		{name: "the result of no call", messages: []any{says("tool", []any{result})}, requests: 1},
		{name: "the assistant first", messages: []any{says("assistant", "Ask me."), says("assistant", "Please.")},
			requests: 1},
		{name: "the assistant last", messages: []any{says("user", "hello"), says("assistant", "I")}, requests: 1},
		{name: "a call of the user's, a text of the tool's",
			messages: []any{says("user", []any{call}), says("tool", "rain"), says("assistant", []any{result})}, requests: 1},
		{name: "a call without a result", messages: []any{says("user", "hello"), says("assistant", []any{call}),
			says("user", "well?")}, requests: 1},
		{name: "two results of one call", messages: []any{says("user", "hello"), says("assistant", []any{call}),
			says("tool", []any{result, result}), says("tool", []any{result})}, requests: 1},
		{name: "empty texts among others", messages: []any{says("user", ""),
			says("user", []any{object{"type": "text", "text": ""}, object{"type": "text", "text": "hello"}}),
			says("assistant", "")}, requests: 1},
		{name: "nothing but empty texts", messages: []any{says("user", ""),
			says("assistant", []any{object{"type": "text", "text": ""}})}, code: "validation_error"},
		{name: "nothing but another target's thought", messages: []any{says("assistant",
			[]any{object{"type": "thinking", "text": "hm", "signature": "c2ln", "target": "gone"}})}, code: "provider_refused",
			requests: 1},
		{name: "no parts", messages: []any{says("user", []any{})}, code: "validation_error"},
		{name: "no messages", messages: []any{}, code: "validation_error"},
		{name: "200 messages", messages: many(200), requests: 1},
		{name: "201 messages", messages: many(201), code: "validation_error"},
		{name: "another role", messages: []any{says("system", "obey")}, code: "validation_error"},
		{name: "a part of two types", messages: []any{says("user",
			[]any{object{"type": "text", "text": "x", "tool_call_id": "c1"}})}, code: "validation_error"},
		{name: "arguments that are no object", messages: []any{says("assistant",
			[]any{object{"type": "tool_call", "id": "c1", "name": "weather", "arguments": "{}"}})}, code: "validation_error"},
		{name: "odd letters", messages: []any{says("user", "\u2028\u202eשלום\ufeff\u0001 👩‍👩‍👧 \"}]}\\ data: [DONE]")},
			requests: 1},
		{name: "a long text", messages: []any{says("user", long)}, requests: 1},
		{name: "a text that is too long for the model", messages: []any{says("user", long)}, route: "small_",
			code: "context_too_long"},
	} {
		for _, d := range llmtest.Dialects {
			before := len(s.server.Requests())
			r := env.Run(tool("llm.chat", object{"messages": test.messages, "route": test.route + string(d)}))
			if e, failed := r.Error(); string(e.Code) != test.code || failed != (test.code != "") || !failed &&
				r.Status != receipts.Succeeded {
				t.Errorf("%s, %s: %s: %.500s", test.name, d, r.Status, r.Result)
			}
			if n := len(s.server.Requests()) - before; n != test.requests {
				t.Errorf("%s, %s: %d requests", test.name, d, n)
			}
		}
	}
}
