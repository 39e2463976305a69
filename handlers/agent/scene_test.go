package agent_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
)

// object is a JSON object.
type object = map[string]any

// scene is the program with its tools, and one model, which a script plays: a route speaks Anthropic's dialect by
// default, or the one of its name. A token costs 1 USD for 10⁶ in, and 2 out.
type scene struct {
	*handlertest.Env
	t      *testing.T
	server *llmtest.Server
}

func newScene(t *testing.T, change ...func(*handlertest.Options)) scene {
	t.Helper()
	return newSceneOf(t, nil, change...)
}

// newSceneOf has targets with further fields.
func newSceneOf(t *testing.T, target object, change ...func(*handlertest.Options)) scene {
	t.Helper()
	t.Parallel()
	s := scene{t: t, server: llmtest.Start(t, llmtest.Options{})}
	providers, targets, routes := object{}, object{}, object{"default": object{"targets": []string{"anthropic"}}}
	for _, d := range llmtest.Dialects {
		name := string(d)
		providers[name] = object{"dialect": d, "base_url": s.server.BaseURL(d), "local": true}
		targets[name] = object{"provider": d, "model": "model-a", "context": 2_000_000, "max_output": 10_000,
			"capabilities": []string{"tools", "thinking"},
			"usd_per_mtok": []object{{"input": "1", "output": "2", "cache_write": "1"}}}
		maps.Copy(targets[name].(object), target)
		routes[name] = object{"targets": []string{name}}
	}
	file, err := json.Marshal(object{"version": "1", "providers": providers, "targets": targets, "routes": routes})
	if err != nil {
		t.Fatal(err)
	}
	o := handlertest.Options{Registry: gem.BuiltInRegistry, Domains: builtin.Domains(),
		Environment: map[string]string{"LLM_ROUTES": string(file)},
		Worker:      func(o *worker.Options) { o.Concurrency = 8 }}
	for _, c := range change {
		c(&o)
	}
	s.Env = handlertest.Start(t, o)
	return s
}

// input is the input of agent.run; more adds to it.
func input(more ...object) string {
	all := object{"task": "Do it."}
	for _, m := range more {
		maps.Copy(all, m)
	}
	encoded, _ := json.Marshal(all)
	return string(encoded)
}

// agent is a call to agent.run with tools.
func agent(tools ...string) handlertest.Call { return run(object{"tools": tools}) }

func run(more ...object) handlertest.Call {
	return handlertest.Call{Tool: "agent.run", Input: input(more...), CreatedBy: "ada", Session: "s-1"}
}

// says lets the model answer so, one turn after the other.
func (s scene) says(turns ...llmtest.Script) { s.server.Script("", turns...) }

// wants is a turn of the model with calls to tools: a name, and its arguments, and so on.
func wants(namesAndArguments ...string) (turn llmtest.Script) {
	for i := 0; i < len(namesAndArguments); i += 2 {
		turn.Parts = append(turn.Parts, provider.Part{Type: provider.ToolCall, ID: fmt.Sprintf("id_%d", i/2+1),
			Name:      namesAndArguments[i],
			Arguments: json.RawMessage(namesAndArguments[i+1])})
	}
	return turn
}

// agentResult is what the tests look at in a result, and in the details of a failure.
type agentResult struct {
	Answer    string
	Turns     int
	ToolCalls int `json:"tool_calls"`
	Models    []string
	Usage     struct {
		Input    int64  `json:"input_tokens"`
		Output   int64  `json:"output_tokens"`
		Read     int64  `json:"cache_read_tokens"`
		Written  int64  `json:"cache_write_tokens"`
		Requests int    `json:"requests"`
		Cost     string `json:"cost_usd"`
		Unknown  int    `json:"unknown_requests"`
	}
	NotOffered []struct{ Tool, Why string } `json:"not_offered"`
}

func (s scene) answered(r *receipts.Receipt) agentResult {
	s.t.Helper()
	return handlertest.Output[agentResult](s.t, r)
}

// failedWith checks a failure's code, and returns its details.
func (s scene) failedWith(r *receipts.Receipt, code string) (u agentResult) {
	s.t.Helper()
	e := handlertest.ErrorOf(s.t, r)
	if string(e.Code) != code {
		s.t.Fatalf("got %s, want %s: %s", e.Code, code, r.Result)
	}
	if json.Unmarshal(e.Details, &u) != nil && code != "validation_error" {
		s.t.Fatalf("the details: %s", e.Details)
	}
	return u
}

// observed are the results that the model read in its last request.
func (s scene) observed() (all []observation) {
	s.t.Helper()
	messages := s.server.Last().Asked.Messages
	for _, p := range messages[len(messages)-1].Content {
		var o observation
		if p.Type != provider.ToolResult {
			s.t.Fatalf("a %s stands among the results: %+v", p.Type, p)
		}
		if err := json.Unmarshal([]byte(p.Content), &o); err != nil {
			s.t.Fatalf("an observation is no JSON: %v: %s", err, p.Content)
		}
		o.text, o.id, o.isError = p.Content, p.ToolCallID, p.IsError
		all = append(all, o)
	}
	return all
}

type observation struct {
	Status  string
	Result  json.RawMessage
	Code    string `json:"error_code"`
	Message string
	Cut     *struct {
		Bytes     int
		Beginning string
	}

	text, id string
	isError  bool
}

func (s scene) value(sql string, args ...any) (got string) {
	s.t.Helper()
	if err := s.DB.QueryRow(s.t.Context(), "select ("+sql+")::text", args...).Scan(&got); err != nil {
		s.t.Fatal(err)
	}
	return got
}

// children lists the calls that a call made: the name, the tool and the end of each.
func (s scene) children(id string) string {
	s.t.Helper()
	return s.value("select coalesce(string_agg(parent_step || ' ' || tool_name || ' ' || status, ', ' order by "+
		"parent_step), '') from core_tool_calls where parent_call_id = $1", id)
}

// replays checks that the code comes to the receipt of a call again.
func (s scene) replays(id string) {
	s.t.Helper()
	if r := s.Replay(id); !r.Same() || len(r.Unread) > 0 {
		s.t.Errorf("its replay: %+v", r)
	}
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("it lacks %q: %.2000s", part, text)
		}
	}
}

// registryOf is an option of a worker.
func registryOf(t *testing.T, file []byte) func(*worker.Options) {
	t.Helper()
	r, err := registry.Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	return func(o *worker.Options) { o.Registry = r }
}
