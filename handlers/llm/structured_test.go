package llm_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/testing/llmtest"
)

var person = object{"schema": object{"type": "object", "additionalProperties": false,
	"required":   []string{"name", "age"},
	"properties": object{"name": object{"type": "string"}, "age": object{"type": "integer", "minimum": 0}}}}

func structured(more ...object) handlertestCall {
	c := asks("Who?", append([]object{person}, more...)...)
	c.Tool = "llm.structured"
	return c
}

func TestAnOutputThatFitsIsTakenAsItIsOrOutOfOneFence(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{"name": "Ada", "age": 36}`, "```json\n{\"name\": \"Ada\", \"age\": 36}\n```",
		"Here it is:\n```\n{\"name\": \"Ada\", \"age\": 36}\n```\nDone.", " \n{\"name\":\"Ada\",\"age\":36}\n"} {
		for _, d := range llmtest.Dialects {
			s := newScene(t).target("a", d, nil).route("default", "a")
			s.server.Always("/a", llmtest.Say(text))
			got := succeeded(t, s.start(t).Run(structured()))
			var p struct {
				Name string
				Age  int
			}
			if err := json.Unmarshal(got.Output, &p); err != nil || p.Name != "Ada" || p.Age != 36 || got.Repairs != 0 ||
				len(s.server.Requests()) != 1 {
				t.Errorf("%s, %q: %s", d, text, got.Output)
			}
			if asked := s.server.Last().Asked; asked.Schema == nil {
				t.Errorf("%s was not asked for the schema", d)
			}
		}
	}
}

func TestAModelWithoutSchemasIsToldTheSchemaInWords(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, object{"capabilities": []string{}}).route("default", "a")
	s.server.Always("/a", llmtest.Say(`{"name": "Ada", "age": 36}`))
	succeeded(t, s.start(t).Run(structured(object{"system": "Be brief."})))
	if asked := s.server.Last().Asked; asked.Schema != nil || !strings.HasPrefix(asked.System, "Be brief.\n\n") ||
		!strings.Contains(asked.System, `"age"`) {
		t.Errorf("%s", asked.System)
	}
}

func TestAnOutputThatDoesNotFitIsRepairedByTheSameModel(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).target("b", llmtest.OpenAI, nil).route("default", "a", "b")
	s.server.Script("/a", llmtest.Say(`{"name": "Ada", "age": -1}`), llmtest.Say(`{"name": "Ada", "age": 36}`))
	env := s.start(t)
	got := succeeded(t, env.Run(structured()))
	if got.Repairs != 1 || got.Usage.Call.Requests != 2 || got.Routing.Target != "a" {
		t.Errorf("%+v", got)
	}
	messages := s.server.Last().Asked.Messages
	if last := messages[len(messages)-1].Content[0].Text; len(messages) != 3 || !strings.Contains(last, "/age") {
		t.Errorf("%d messages, the last: %s", len(messages), last)
	}
	var labels string
	if err := env.DB.QueryRow(t.Context(), "select string_agg(label || ' ' || status, ', ' order by n) from "+
		"core_llm_requests").Scan(&labels); err != nil || labels != "main done, repair 1 done" {
		t.Errorf("%s %v", labels, err)
	}
}

func TestAnOutputThatNeverFitsFailsWithItsFaults(t *testing.T) {
	t.Parallel()
	for repairs, requests := range map[int]int{0: 1, 2: 3} {
		s := newScene(t).target("a", llmtest.Anthropic, nil).route("default", "a")
		s.server.Always("/a", llmtest.Say("no JSON at all"))
		r := s.start(t).Run(structured(object{"max_repairs": repairs}))
		got := failedWith(t, r, "output_schema_mismatch")
		if n := len(s.server.Requests()); n != requests || got.Usage.Call.Requests != requests {
			t.Errorf("%d repairs: %d requests, %+v", repairs, n, got.Usage)
		}
	}
}

func TestWhatIsNoAnswerIsNotRepaired(t *testing.T) {
	t.Parallel()
	for stop, code := range map[provider.Stop]string{provider.MaxTokens: "output_truncated", provider.Refusal: "refused"} {
		for _, d := range llmtest.Dialects {
			s := newScene(t).target("a", d, nil).route("default", "a")
			script := llmtest.Say(`{"name": "Ada", "age": 36}`)
			script.Stop = stop
			s.server.Always("/a", script)
			failedWith(t, s.start(t).Run(structured()), code)
			if n := len(s.server.Requests()); n != 1 {
				t.Errorf("%s of %s: %d requests", stop, d, n)
			}
		}
	}
}

func TestASchemaThatIsNoneIsRefusedWithoutARequest(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).route("default", "a")
	env := s.start(t)
	for name, schema := range map[string]object{
		"a wrong type":           {"type": "thing"},
		"a reference elsewhere":  {"$ref": "https://example.com/schema.json"},
		"a file":                 {"$ref": "file:///etc/passwd"},
		"larger than it may be":  {"type": "object", "description": strings.Repeat("x", 33<<10)},
		"deeper than it may be":  deep(40),
		"a pattern that is none": {"type": "string", "pattern": "("},
	} {
		r := env.Run(structured(object{"schema": schema}))
		if e, _ := r.Error(); e.Code != "validation_error" {
			t.Errorf("%s: %s %s", name, r.Status, r.Result)
		}
	}
	if n := len(s.server.Requests()); n != 0 {
		t.Errorf("%d requests", n)
	}
}

func deep(levels int) object {
	inner := object{"type": "string"}
	for i := range levels {
		inner = object{"type": "object", "properties": object{fmt.Sprint("p", i): inner}}
	}
	return inner
}
