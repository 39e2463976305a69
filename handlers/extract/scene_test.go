package extract_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"sync"
	"testing"
	"unicode/utf16"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers/extract"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/handlers/llm"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
)

// object is a JSON object.
type object = map[string]any

// asked is what a scripted model was asked: a text, and what is around it.
type asked struct {
	System, User        string
	Before, Text, After string
	Model               string
	Repair              bool
}

var mark = regexp.MustCompile(`(?s)^(?:<<<BEFORE ([0-9a-f]{16})>>>\n(.*?)\n)?<<<TEXT ([0-9a-f]{16})>>>\n(.*)$`)

// questionOf reads a prompt.
func questionOf(r *llmtest.Request) (a asked) {
	a.System, a.User, a.Model = r.Asked.System, r.Asked.Messages[0].Content[0].Text, r.Asked.Model
	found := mark.FindStringSubmatch(a.User)
	if found == nil {
		return a
	}
	a.Before = found[2]
	text, rest, _ := strings.Cut(found[4], "\n<<<END "+found[3]+">>>\n")
	a.Repair = rest != ""
	a.Text, a.After, _ = strings.Cut(text, "\n<<<AFTER "+found[3]+">>>\n")
	return a
}

// says is an answer with items of the class token.
func says(quotes ...string) string {
	items := []object{}
	for _, q := range quotes {
		items = append(items, object{"class": "token", "quote": q})
	}
	encoded, _ := json.Marshal(object{"extractions": items})
	return string(encoded)
}

var token = regexp.MustCompile(`\bT\d+\b`)

// finds answers a question as a good model does: the tokens T1, T2 and so on in the text.
func finds(a asked) llmtest.Script { return llmtest.Say(says(token.FindAllString(a.Text, -1)...)) }

// scene is a model that answers by what it is asked, and a worker that asks it.
type scene struct {
	*handlertest.Env
	server *llmtest.Server
	routes string
	mu     sync.Mutex
	by     map[string]func(asked) llmtest.Script
}

// on sets who answers where the window has a word.
func (s *scene) on(word string, answer func(asked) llmtest.Script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.by[word] = answer
}

// answer answers by the words of the window, or as a good model does.
func (s *scene) answer(r *llmtest.Request) llmtest.Script {
	a := questionOf(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	for word, answer := range s.by {
		if strings.Contains(a.Before+a.Text+a.After, word) {
			return answer(a)
		}
	}
	return finds(a)
}

// requests counts those so far whose window has a word.
func (s *scene) requests(word string) (n int) {
	for _, r := range s.server.Requests() {
		if a := questionOf(&r); strings.Contains(a.Before+a.Text+a.After, word) {
			n++
		}
	}
	return n
}

// start starts a worker.
func start(t *testing.T, change ...func(*handlertest.Options)) *scene {
	t.Helper()
	s := &scene{by: map[string]func(asked) llmtest.Script{}}
	s.server = llmtest.Start(t, llmtest.Options{Answer: s.answer})
	s.routes = routes(s.server, "")
	o := options(s.routes)
	for _, c := range change {
		c(&o)
	}
	s.Env = handlertest.Start(t, o)
	return s
}

// options are those of a program that reads documents.
func options(routes string) handlertest.Options {
	l := llm.Domain()
	return handlertest.Options{Registry: gem.BuiltInRegistry, Domains: []any{l, extract.Domain(l)},
		Environment: map[string]string{"LLM_ROUTES": routes},
		Worker:      func(o *worker.Options) { o.Concurrency = 8 }}
}

// onSameDatabase starts a worker of a program with other routes.
func (s *scene) onSameDatabase(t *testing.T, routes string) *handlertest.Env {
	t.Helper()
	o := options(routes)
	o.Database = s.URL
	return handlertest.Start(t, o)
}

// routes is a routes file with two targets of two models, and a route for each. Their provider needs a key if key names
// a variable.
func routes(server *llmtest.Server, key string) string {
	provider := object{"dialect": llmtest.OpenAI, "base_url": server.BaseURL(llmtest.OpenAI), "local": true}
	if key != "" {
		provider["key_env"] = key
	}
	targets := object{}
	for _, name := range []string{"model_a", "model_b"} {
		targets[name] = object{"provider": "scripted", "model": name, "context": 100_000, "max_output": 10_000,
			"capabilities": []string{"structured"},
			"usd_per_mtok": []any{object{"input": "1", "output": "2", "cache_write": "1"}}}
	}
	encoded, _ := json.Marshal(object{"version": "1", "providers": object{"scripted": provider}, "targets": targets,
		"routes": object{"default": object{"targets": []string{"model_a"}}, "other": object{"targets": []string{"model_b"}}}})
	return string(encoded)
}

// tokens is a program with one class.
var tokens = object{"instructions": "Extract tokens.", "classes": []object{{"name": "token"}}}

// run is a call to extract.run about a text, in shards of 500 characters without context; more adds to its input.
func run(text string, more ...object) handlertest.Call {
	input := object{"text": text, "program": tokens, "chunk": object{"size": 500, "context": 0}}
	for _, m := range more {
		maps.Copy(input, m)
	}
	for key, value := range input {
		if value == nil {
			delete(input, key)
		}
	}
	encoded, _ := json.Marshal(input)
	return handlertest.Call{Tool: "extract.run", Input: string(encoded), CreatedBy: "ada"}
}

// document is a text of so many shards of 500 characters about a word: the token T1 is in the first, T2 in the
// second, and so on.
func document(word string, shards int) string {
	var b strings.Builder
	for n := 1; n <= shards; n++ {
		b.WriteString(paragraph(word, n))
	}
	return b.String()
}

// paragraph fills a shard: 400 characters.
func paragraph(word string, n int) string {
	line := fmt.Sprintf("T%d stands in a line about %s.\n", n, word)
	return line + strings.Repeat("x", 398-len(line)) + "\n\n"
}

// found is what the tests look at in a result, or in the details of a failure.
type found struct {
	Document struct {
		SHA256, Offsets string
		Length          int
	}
	ProgramHash  string `json:"program_hash"`
	Models       []string
	Kind         string `json:"result_kind"`
	Completeness struct {
		Kind                 string
		Shards, Read, Failed int
	}
	Extractions []struct {
		Class, Quote, Match string
		Start, End, Line    int
		Shard               int
		Attributes          json.RawMessage
	}
	Found         int
	RejectedCount int `json:"rejected_count"`
	Rejected      []struct {
		Shard                int
		Class, Quote, Reason string
	}
	Shards       []piece
	FailedShards []piece `json:"failed_shards"`
	Usage        struct {
		Calls    int `json:"llm_calls"`
		Requests int
		Input    int64  `json:"input_tokens"`
		Output   int64  `json:"output_tokens"`
		Cost     string `json:"cost_usd"`
		Cached   int    `json:"cached_shards"`
	}
}

type piece struct {
	Index, Start, End int
	CallID            string `json:"call_id"`
	Status, Code      string
	Cached            bool
	Calls             int
	Covered           float64
}

// succeeded returns the result of a receipt, whose quotes must be in the text at their places.
func succeeded(t *testing.T, r *receipts.Receipt, text string) found {
	t.Helper()
	f := handlertest.Output[found](t, r)
	for _, e := range f.Extractions {
		if got := slice(text, f.Document.Offsets, e.Start, e.End); got != e.Quote {
			t.Errorf("the text has %q at %d to %d, and the quote is %q", got, e.Start, e.End, e.Quote)
		}
	}
	return f
}

// failedWith returns the details of a failure, which must have a code.
func failedWith(t *testing.T, r *receipts.Receipt, code string) (f found) {
	t.Helper()
	e := handlertest.ErrorOf(t, r)
	if string(e.Code) != code {
		t.Fatalf("not %s: %s", code, r.Result)
	}
	if e.Details != nil {
		if err := json.Unmarshal(e.Details, &f); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// slice is text[start:end] in a unit.
func slice(text, unit string, start, end int) string {
	switch unit {
	case "byte":
		return text[start:end]
	case "codepoint":
		return string([]rune(text)[start:end])
	}
	return string(utf16.Decode(utf16.Encode([]rune(text))[start:end]))
}

// spans are what a result has, in order, such as "T1 12-14".
func (f *found) spans() string {
	var all []string
	for _, e := range f.Extractions {
		all = append(all, fmt.Sprintf("%s %d-%d", e.Quote, e.Start, e.End))
	}
	return strings.Join(all, ", ")
}

// reasons are why items were rejected, in order.
func (f *found) reasons() string {
	var all []string
	for _, r := range f.Rejected {
		all = append(all, r.Reason)
	}
	return strings.Join(all, " ")
}
