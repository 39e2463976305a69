package agent_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/registry"
)

// with returns the built-in registry with changed entries, and others. Included entries are among them.
func with(t *testing.T, change func(entry object), more ...object) []byte {
	t.Helper()
	var doc object
	r, err := registry.Parse(gem.BuiltInRegistry)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(r.JSON(), &doc); err != nil {
		t.Fatal(err)
	}
	tools := doc["tools"].([]any)
	for _, entry := range tools {
		change(entry.(object))
	}
	for _, entry := range more {
		tools = append(tools, entry)
	}
	doc["tools"], doc["version"] = tools, "1.99.0"
	encoded, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

func TestASignedInUserReachesThroughAnAgentWhatIsOpenToIt(t *testing.T) {
	s := newScene(t, func(o *handlertest.Options) {
		o.Registry = with(t, func(entry object) {
			if entry["name"] == "agent.run" {
				entry["frontends"] = true
			}
		})
	})
	signedIn := func(tools ...string) handlertest.Call {
		c := agent(tools...)
		c.SignedIn = true
		return c
	}
	sms := `{"to": "+61400000001", "message": "hi", "context_ref": {"type": "lead", "id": "1"}}`
	s.says(wants("comms_send_sms", sms, "comms.send_sms", sms, "comms_log_call_outcome", `{}`, "agent_run",
		input(object{"tools": []string{"comms.send_sms"}})), llmtest.Say("no"), llmtest.Say("done"))
	id := s.Insert(signedIn("comms.*", "comms.send_sms", "agent.run"))
	got := s.answered(s.Await(id))
	if len(got.NotOffered) != 2 || got.NotOffered[1].Tool != "comms.send_sms" ||
		!strings.Contains(got.NotOffered[1].Why, "send:sms") {
		t.Errorf("%+v", got)
	}
	for _, tool := range s.server.Requests()[0].Asked.Tools {
		if tool.Name == "comms_send_sms" || tool.Name == "comms_send_email" {
			t.Errorf("it was offered %s", tool.Name)
		}
	}
	seen := s.observed()
	for i, code := range []string{"not_allowed", "not_allowed", "validation_error", "not_allowed"} {
		if seen[i].Code != code {
			t.Errorf("observation %d: %s", i+1, seen[i].text)
		}
	}
	s.failedWith(s.Run(signedIn("comms.send_sms")), "not_allowed")
	s.failedWith(s.Run(signedIn("http.*")), "validation_error")
	if n := s.value(
		"select count(*) from core_tool_calls where tool_name in ('comms.send_sms', 'http.request')"); n != "0" {
		t.Errorf("%s calls of closed tools", n)
	}
	s.replays(id)
}

func TestToolsThatCannotBeMeantAreAMistakeOfTheCaller(t *testing.T) {
	s := newScene(t)
	for tool, want := range map[string]string{
		"os.make_coffee": "there is no tool os.make_coffee that agents may call: see `calls` in the registry's entry of " +
			"agent.run, or in its `overrides` if",
		"os.search_note": "os.search_note that agents may call: did you mean os.search_notes?",
		"coffee.*":       "/tools/1: there is no tool of coffee.*",
		"wait.approval":  "/tools/1: wait.approval is not for agents",
		"*":              "/tools/1",
		"os":             "A tool, such as leads.create, or a domain, such as leads.*",
	} {
		r := s.Run(agent("os.health_check", tool))
		s.failedWith(r, "validation_error")
		contains(t, string(r.Result), want)
	}
	if n := len(s.server.Requests()); n != 0 {
		t.Errorf("%d requests", n)
	}
}

func TestEachToolHasANameThatProvidersTakeAndThatMeansItAlone(t *testing.T) {
	names := []string{"lab.a_b.c", "lab.a.b", "lab.plain", "lab." + strings.Repeat("very_", 12)}
	var entries []object
	for _, name := range names {
		entries = append(entries, object{"name": name, "input_schema": true, "output_schema": true, "permissions": []string{},
			"timeout_ms":  1000,
			"idempotency": object{"mode": "none"}, "receipt_fields": []string{}, "description": name})
	}
	s := newScene(t, func(o *handlertest.Options) {
		o.Registry = with(t, func(entry object) {
			if entry["name"] == "agent.run" {
				entry["calls"] = []string{"lab.*", "llm.*"}
			}
		}, entries...)
	})
	s.says(llmtest.Say("ready"))
	s.answered(s.Run(agent("lab.*", "llm.ensemble")))
	byName, turn := map[string]string{}, []string{}
	for _, tool := range s.server.Last().Asked.Tools {
		if byName[tool.Name] != "" || !regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`).MatchString(tool.Name) {
			t.Errorf("the name %s of %s", tool.Name, tool.Description)
		}
		byName[tool.Name] = tool.Description
		turn = append(turn, tool.Name, "{}")
		var top object
		if err := json.Unmarshal(tool.Parameters, &top); err != nil || top["type"] != "object" || top["allOf"] != nil {
			t.Errorf("%s: %s", tool.Name, tool.Parameters)
		}
	}
	if len(byName) != 5 || byName["lab_a_b_c"] != "lab.a_b.c" || byName["lab_plain"] != "lab.plain" {
		t.Errorf("%v", byName)
	}
	s.says(wants(turn...), llmtest.Say("done"))
	id := s.Insert(agent("lab.*", "llm.ensemble"))
	s.answered(s.Await(id))
	for i, name := range s.server.Last().Asked.Tools {
		want := byName[name.Name]
		if got := s.value("select tool_name from core_tool_calls where parent_call_id = $1 and parent_step = $2", id,
			fmt.Sprintf("turn 1 call %d", i+1)); got != want && want[:4] == "lab." {
			t.Errorf("%s calls %s, want %s", name.Name, got, want)
		}
	}
}

func TestAToolThatWasTakenAwayMeanwhileIsObservedAsThat(t *testing.T) {
	s := newScene(t, func(o *handlertest.Options) { o.NoWorker = true })
	first := s.StartWorker()
	s.says(wants("wait_answer", asked), wants("os_create_note", note), llmtest.Say("done"))
	id := s.Insert(agent("wait.answer", "os.create_note"))
	q := s.Question(id)
	s.UntilItWaits(id, "call")
	first.Stop()
	s.Answer(q.ID, "blue")
	s.StartWorker(registryOf(t, with(t, func(entry object) {
		if entry["name"] == "agent.run" {
			entry["calls"] = []string{"leads.*"}
		}
	})))
	s.answered(s.Await(id))
	if tools := s.server.Last().Asked.Tools; len(tools) != 1 || tools[0].Name != "wait_answer" {
		t.Errorf("it was offered %+v", tools)
	}
	if o := s.observed()[0]; o.Code != "not_allowed" {
		t.Errorf("%s", o.text)
	}
	s.replays(id)
}

func TestAnAgentGivesItsAgentsNoOtherToolsThanItsOwn(t *testing.T) {
	s := newScene(t)
	inner := func(tools ...string) string { return input(object{"task": "Inner.", "tools": tools}) }
	s.says(wants("agent_run", inner("http.request"), "agent_run", inner("leads.*"), "agent_run",
		inner("os.*", "leads.create")), llmtest.Say("inner done"), llmtest.Say("done"))
	id := s.Insert(agent("agent.run", "os.*", "leads.create"))
	s.answered(s.Await(id))
	seen := s.observed()
	if seen[0].Code != "not_allowed" || seen[1].Code != "not_allowed" || seen[2].Status != "succeeded" {
		t.Errorf("%+v", seen)
	}
	contains(t, seen[0].Message, "http.request")
	contains(t, seen[2].text, "inner done")
	s.replays(id)
}
