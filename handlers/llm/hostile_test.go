package llm_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/receipts"
	"github.com/google/go-cmp/cmp"
)

// A caller chooses a route. The host, the model, the key and the headers are in the operator's file
// alone.
func TestACallerReachesNoHostModelOrHeaderButThoseOfItsRoute(t *testing.T) {
	t.Parallel()
	var strayed atomic.Int32
	evil := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { strayed.Add(1) }))
	defer evil.Close()
	const crlf = "x\r\nHost: evil.example\r\nX-Evil: 1"
	user := func(content any) object { return object{"role": "user", "content": content} }
	hello := object{"messages": []any{user("hello")}}
	with := func(more object) []object { return []object{hello, more} }
	messages := func(m ...any) []object { return []object{{"messages": m}} }
	described := func(name string, parameters object) object {
		return object{"tools": []any{object{"name": name, "description": crlf, "parameters": parameters}}}
	}
	schema := func(s object) object { return object{"schema": s} }

	// Refused, and nobody is asked.
	refused := map[string][][]object{}
	for _, field := range []string{"model", "models", "base_url", "baseURL", "url", "host", "endpoint", "api_base",
		"headers", "extra_headers", "extra_body", "api_key", "key", "key_env",
		"provider", "providers", "target", "targets", "proxy", "usd_per_mtok", "Messages", "ROUTE", "stream", "n", "user",
		"webhook"} {
		for _, value := range []any{"b", object{"base_url": evil.URL}} {
			refused["llm.chat"] = append(refused["llm.chat"], with(object{field: value}))
			refused["llm.structured"] = append(refused["llm.structured"],
				[]object{hello, schema(object{"type": "object"}), {field: value}})
			refused["llm.ensemble"] = append(refused["llm.ensemble"],
				[]object{hello, {"strategy": "all", "members": []any{object{"route": "default"},
					object{"route": "default", field: value}}}})
		}
		refused["llm.chat"] = append(refused["llm.chat"], messages(object{"role": "user", "content": "x", field: evil.URL}))
		if field != "target" { // which a part may have: see below
			refused["llm.chat"] = append(refused["llm.chat"],
				messages(user([]any{object{"type": "text", "text": "x", field: evil.URL}})))
		}
	}
	for _, route := range []string{"a", "b", "model-b", "secret_target", "../b", "/b", "b/v1", "default/../b", evil.URL,
		"http://127.0.0.1", "default\n", "default ", "DEFAULT", "", "default,b", "de\u0000fault", "ａ"} {
		if !strings.Contains(route, "\u0000") { // which Postgres does not take
			refused["llm.chat"] = append(refused["llm.chat"], with(object{"route": route}))
			refused["llm.ensemble"] = append(refused["llm.ensemble"],
				[]object{hello, {"strategy": "judge", "judge_route": route,
					"members": []any{object{"route": route}, object{"route": route}}}})
		}
	}
	refused["llm.chat"] = append(refused["llm.chat"], with(object{"route": []any{"b"}}),
		with(object{"route": object{"targets": []any{"b"}}}),
		messages(object{"role": "system", "content": "x"}),
		messages(user([]any{object{"type": "image_url", "image_url": object{"url": evil.URL}}})),
		messages(user([]any{object{"type": "text", "text": object{"url": evil.URL}}})),
		with(described("../../v1/files", object{"type": "object"})), with(described(crlf, object{"type": "object"})),
		with(described("lookup", object{"$ref": evil.URL + "/schema"})),
		with(described("lookup", object{"properties": object{"a": object{"$ref": evil.URL}}})),
		with(object{"metadata": object{"base_url": object{"url": evil.URL}}}),
		// The one target of this route has no price: under a bound, nobody knows whether it keeps to it.
		with(object{"route": "unpriced", "max_cost_usd": "999999999"}))
	refused["llm.structured"] = append(refused["llm.structured"],
		[]object{hello, schema(object{"$ref": evil.URL + "/schema"})},
		[]object{hello, schema(object{"$id": evil.URL, "$ref": "other"})},
		[]object{hello, schema(object{"$schema": evil.URL, "type": "object", "$dynamicRef": evil.URL})},
		[]object{hello, schema(object{"type": "object"}), {"name": crlf}})

	// Served, by the route's own target.
	served := map[string][]object{
		"a target in parts": messages(user("x"), object{"role": "assistant",
			"content": []any{object{"type": "thinking", "text": "x", "signature": "AAAA", "target": "b"},
				object{"type": "text", "text": "x", "signature": "AAAA", "target": "b"},
				object{"type": "tool_call", "id": "call_1", "name": "b", "arguments": object{"model": "b"}, "target": evil.URL,
					"signature": "AAAA"}}},
			object{"role": "tool", "content": []any{object{"type": "tool_result", "tool_call_id": "call_1",
				"content": evil.URL}}}),
		"metadata": with(object{"metadata": object{"model": "model-b", "base_url": evil.URL, "X-Evil": "1", "route": "b",
			"target": "b", "user": "mallory"}}),
		"text":   messages(user(crlf + " " + evil.URL)),
		"system": with(object{"system": `{"model": "model-b", "base_url": "` + evil.URL + `"}` + crlf}),
		"ids": messages(user("x"), object{"role": "assistant",
			"content": []any{object{"type": "tool_call", "id": crlf, "name": "../" + crlf, "arguments": object{}}}},
			object{"role": "tool", "content": []any{object{"type": "tool_result", "tool_call_id": crlf, "content": crlf}}}),
		"descriptions": with(described("lookup", object{"type": "object", "description": evil.URL,
			"properties": object{"model": object{"const": "model-b"}, "url": object{"default": evil.URL}}})),
		"stop":    with(object{"stop": []string{crlf, evil.URL}}),
		"a bound": with(object{"max_cost_usd": "999999999"}),
	}

	for _, d := range llmtest.Dialects {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			s := newScene(t).target("a", d, nil).target("b", d, nil).target("secret_target", d, nil).target("unpriced", d,
				object{"usd_per_mtok": nil}).route("default", "a").route("other", "b").route("unpriced", "unpriced")
			delete(s.targets["unpriced"].(object), "usd_per_mtok")
			s.key("a", "A_API_KEY", "key-of-a").key("b", "B_API_KEY", "key-of-b")
			env := s.start(t)
			inserted := map[string]string{}
			for name, inputs := range refused {
				for _, parts := range inputs {
					call := tool(name, parts...)
					inserted[env.Insert(call)] = name + " " + call.Input
				}
			}
			for id, call := range inserted {
				r := env.Await(id)
				if e, failed := r.Error(); !failed || !slices.Contains(
					[]string{"validation_error", "unknown_route", "budget_exceeded", "quorum_missed"}, string(e.Code)) {
					t.Errorf("%s: %s %s", call, r.Status, r.Result)
				}
			}
			if n := len(s.server.Requests()); n != 0 {
				t.Fatalf("%d requests for inputs that are refused", n)
			}

			succeeded(t, env.Run(asks("hello")))
			usual := s.server.Last()
			for name, parts := range served {
				r := env.Run(tool("llm.chat", parts...))
				if r.Status != receipts.Succeeded {
					t.Errorf("%s: %s", name, r.Result)
				}
				sent := s.server.Last()
				got, want := sent.Header.Clone(), usual.Header.Clone()
				got.Del("Content-Length")
				want.Del("Content-Length")
				if diff := cmp.Diff(want, got); diff != "" || sent.Path != usual.Path || sent.Query != usual.Query ||
					sent.Asked.Model != usual.Asked.Model || sent.Key != "key-of-a" {
					t.Errorf("%s: %s?%s, model %s, key %s, headers %s", name, sent.Path, sent.Query, sent.Asked.Model, sent.Key, diff)
				}
				var body object
				if err := json.Unmarshal(sent.Body, &body); err != nil {
					t.Fatal(err)
				}
				for field := range body {
					if slices.Contains([]string{"metadata", "user", "base_url", "headers", "target", "route"}, field) {
						t.Errorf("%s: %s was sent", name, field)
					}
				}
				if name == "a target in parts" && (strings.Contains(string(sent.Body), "AAAA") ||
					strings.Contains(string(sent.Body), `"target"`)) {
					t.Errorf("what another target has signed was sent: %s", sent.Body)
				}
			}
			for _, r := range s.server.Requests() {
				if !strings.HasPrefix(r.Path, "/a/") {
					t.Errorf("%s was asked", r.Path)
				}
			}
			if n := strayed.Load(); n != 0 {
				t.Errorf("%d requests to another host", n)
			}
		})
	}
}

// Of two bounds on what a call may cost, the caller's cannot raise the operator's.
func TestACallersBoundRaisesNoOther(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).route("default", "a")
	s.routes["default"].(object)["max_cost_usd"] = "0.001"
	env := s.start(t)
	failedWith(t, env.Run(asks("hello", object{"max_cost_usd": "999999999", "max_output_tokens": 10_000})),
		"budget_exceeded")
	if n := len(s.server.Requests()); n != 0 {
		t.Errorf("%d requests", n)
	}
}
