package llm_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers/handlertest"
	gemllm "github.com/gemworker/gem/handlers/llm"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
)

// object is a JSON object.
type object = map[string]any

// scene is a routes file over one fake server: each target has a provider of its own, below a path of the target's
// name, which is also the name of its queue: "/a".
type scene struct {
	server    *llmtest.Server
	providers object
	targets   object
	routes    object
	budgets   []any
	keys      map[string]string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	return &scene{server: llmtest.Start(t, llmtest.Options{}), providers: object{}, targets: object{}, routes: object{},
		keys: map[string]string{}}
}

// target adds a target with a price of 1 USD for 10⁶ tokens in, and 2 out; more overrides its fields.
func (s *scene) target(name string, d llmtest.Dialect, more object) *scene {
	s.providers[name] = object{"dialect": d, "base_url": s.server.BaseURL(d, "/"+name), "local": true}
	fields := object{"provider": name, "model": "model-" + name, "context": 100_000, "max_output": 10_000,
		"capabilities": []string{"tools", "thinking", "structured"},
		"usd_per_mtok": []any{object{"input": "1", "output": "2", "cache_write": "1"}}}
	maps.Copy(fields, more)
	s.targets[name] = fields
	return s
}

// route adds a route over targets.
func (s *scene) route(name string, targets ...string) *scene {
	s.routes[name] = object{"targets": targets}
	return s
}

// key lets the provider of a target need a key, which is set unless it is empty.
func (s *scene) key(target, variable, key string) *scene {
	s.providers[target].(object)["key_env"] = variable
	s.keys[variable] = key
	return s
}

func (s *scene) budget(name, scope, usd string) *scene {
	s.budgets = append(s.budgets, object{"name": name, "scope": scope, "period": "month", "usd": usd})
	return s
}

func (s *scene) file(t *testing.T) string {
	t.Helper()
	file := object{"version": "1", "providers": s.providers, "targets": s.targets, "routes": s.routes}
	if s.budgets != nil {
		file["budgets"] = s.budgets
	}
	encoded, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

// start starts a worker with the routes.
func (s *scene) start(t *testing.T, change ...func(*handlertest.Options)) *handlertest.Env {
	t.Helper()
	environment := maps.Clone(s.keys)
	if s.routes != nil {
		environment["LLM_ROUTES"] = s.file(t)
	}
	o := handlertest.Options{Registry: gem.BuiltInRegistry, Domains: []any{gemllm.Domain()}, Environment: environment,
		Worker: func(o *worker.Options) { o.Concurrency = 8 }}
	for _, c := range change {
		c(&o)
	}
	return handlertest.Start(t, o)
}

// asks is a call to llm.chat with one message; more adds to its input.
func asks(text string, more ...object) handlertest.Call {
	return tool("llm.chat", slices.Concat([]object{{"messages": []any{object{"role": "user", "content": text}}}}, more)...)
}

func tool(name string, parts ...object) handlertest.Call {
	input := object{}
	for _, p := range parts {
		maps.Copy(input, p)
	}
	encoded, _ := json.Marshal(input)
	return handlertest.Call{Tool: name, Input: string(encoded)}
}

// said is what the tests look at in a result.
type said struct {
	Text      string
	ToolCalls []struct {
		ID, Name  string
		Arguments json.RawMessage
		Raw       string `json:"arguments_raw"`
		Faults    []any
	} `json:"tool_calls"`
	Parts []json.RawMessage
	Stop  string `json:"stop_reason"`
	Model string
	Usage struct {
		Input     int64   `json:"input_tokens"`
		Output    int64   `json:"output_tokens"`
		Source    string  `json:"source"`
		Cost      *string `json:"cost_usd"`
		Reasoning int64   `json:"reasoning_tokens"`
		Call      struct {
			Requests int
			Cost     *string `json:"cost_usd"`
			Unknown  int     `json:"unknown_requests"`
		}
	}
	Routing struct {
		Route, Target string
		Version       string `json:"routes_version"`
		Tried         []struct {
			Target, Outcome string
			Status          int
		}
		Skipped []struct{ Target, Why string }
	}
	Output     json.RawMessage
	Repairs    int
	Winner     int
	Tie        bool
	Judge      *struct{ Reason string }
	Candidates []struct {
		Member int
		Text   string
		Output json.RawMessage
		Error  *struct {
			Code string `json:"error_code"`
		}
	}
}

// succeeded returns the result of a receipt.
func succeeded(t *testing.T, r *receipts.Receipt) said {
	t.Helper()
	if r.Status != receipts.Succeeded {
		t.Fatalf("%s: %s", r.Status, r.Result)
	}
	var s said
	if err := json.Unmarshal(r.Result, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// failedWith checks a failure's code, and returns its details.
func failedWith(t *testing.T, r *receipts.Receipt, code string) said {
	t.Helper()
	e, ok := r.Error()
	if !ok || string(e.Code) != code {
		t.Fatalf("not %s: %s %s", code, r.Status, r.Result)
	}
	var s said
	if e.Details != nil {
		if err := json.Unmarshal(e.Details, &s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// requested is an entry of external_calls.
type requested struct {
	Service string
	Status  int `json:"status_code"`
	LLM     struct {
		Request int
		Target  string
		Outcome string
	}
}

func external(t *testing.T, r *receipts.Receipt) []requested {
	t.Helper()
	var effects struct {
		External []requested `json:"external_calls"`
	}
	if err := json.Unmarshal(r.Effects, &effects); err != nil {
		t.Fatal(err)
	}
	return effects.External
}

// withTimeout returns a registry with another timeout of a tool.
func withTimeout(t *testing.T, registry []byte, tool string, ms int) []byte {
	t.Helper()
	return changed(t, registry, func(entry object) {
		if entry["name"] == tool {
			entry["timeout_ms"] = ms
		}
	})
}

// signedIn returns the registry with the tools open to signed-in users.
func signedIn(t *testing.T) []byte {
	t.Helper()
	return changed(t, gem.BuiltInRegistry, func(entry object) {
		if strings.HasPrefix(entry["name"].(string), "llm.") {
			entry["frontends"] = true
		}
	})
}

// changed returns a registry with changes in each entry, including the included ones.
func changed(t *testing.T, file []byte, change func(entry object)) []byte {
	t.Helper()
	r, err := registry.Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	var doc object
	if err := json.Unmarshal(r.JSON(), &doc); err != nil {
		t.Fatal(err)
	}
	for _, entry := range doc["tools"].([]any) {
		change(entry.(object))
	}
	doc["version"] = "1.99.0"
	encoded, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}
