package openai_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/provider"
)

// recording is an exchange with a real provider. They lie outside of the repository.
type recording struct {
	ID, Kind, Host, Path string
	Status               int
	Headers              map[string]string
	Body                 string
}

func (r *recording) name() string { return fmt.Sprintf("%s %s", r.Host, r.ID) }

func (r *recording) header() http.Header {
	h := http.Header{}
	for name, value := range r.Headers {
		h.Set(name, value)
	}
	return h
}

// recordings returns those of the dialect and of a kind: stream, answer or error.
func recordings(t testing.TB, kind string) []recording {
	t.Helper()
	folder := os.Getenv("GEM_TEST_DATA")
	if folder == "" {
		t.Skip("GEM_TEST_DATA names no folder with recorded answers")
	}
	f, err := os.Open(filepath.Join(folder, "llm", "recorded.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var found []recording
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<22)
	for in.Scan() {
		var r recording
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if r.Kind == kind && strings.HasSuffix(r.Path, "/chat/completions") {
			found = append(found, r)
		}
	}
	if len(found) == 0 {
		t.Fatalf("no recording of the kind %s", kind)
	}
	return found
}

// reading is what an answer says.
type reading struct {
	Text, Thinking string
	Calls          []string // id, name and arguments
	Stop           provider.Stop
	Model          string
	Usage          provider.Usage
}

func readingOf(a *provider.Answer) reading {
	r := reading{Stop: a.Stop, Model: a.Model, Usage: a.Usage}
	for _, p := range a.Parts {
		switch p.Type {
		case provider.Text:
			r.Text += p.Text
		case provider.Thinking:
			r.Thinking += p.Text
		case provider.ToolCall:
			r.Calls = append(r.Calls, fmt.Sprintf("%s %s %s%s", p.ID, p.Name, p.Arguments, p.RawArguments))
		}
	}
	return r
}

// independent reads a recording in another way than the package does: it takes the documents one by one, as trees, and
// looks at all that is in them.
func independent(t testing.TB, body string) reading {
	t.Helper()
	var r reading
	var calls []map[string]string
	var documents []any
	if trimmed := strings.TrimSpace(body); strings.HasPrefix(trimmed, "{") {
		documents = append(documents, tree(t, trimmed))
	} else {
		for _, event := range strings.Split(strings.ReplaceAll(body, "\r\n", "\n"), "\n\n") {
			if data, ok := strings.CutPrefix(event, "data: "); ok && data != "[DONE]" && !strings.HasPrefix(data, "[DONE]") {
				documents = append(documents, tree(t, data))
			} else if rest := strings.TrimSpace(event); rest != "" && !strings.HasPrefix(rest, ":") &&
				!strings.HasPrefix(rest, "data: [DONE]") {
				t.Fatalf("what is %q", event)
			}
		}
	}
	for _, d := range documents {
		if m := text(d, "model"); m != "" {
			r.Model = m
		}
		for _, c := range list(d, "choices") {
			said := c.(map[string]any)["message"]
			if said == nil {
				said = c.(map[string]any)["delta"]
			}
			r.Text += text(said, "content")
			for _, p := range list(said, "content") {
				r.Text += text(p, "text")
				for _, inside := range list(p, "thinking") {
					r.Thinking += text(inside, "text")
				}
			}
			r.Thinking += text(said, "reasoning") + text(said, "reasoning_content")
			for i, tc := range list(said, "tool_calls") {
				at := i
				if n, ok := tc.(map[string]any)["index"].(json.Number); ok {
					at, _ = strconv.Atoi(n.String())
				}
				for len(calls) <= at {
					calls = append(calls, map[string]string{})
				}
				f := tc.(map[string]any)["function"]
				if id := text(tc, "id"); id != "" {
					calls[at]["id"] = id
				}
				calls[at]["name"] += text(f, "name")
				calls[at]["arguments"] += text(f, "arguments")
			}
			switch text(c, "finish_reason") {
			case "stop":
				r.Stop = provider.EndTurn
			case "length":
				r.Stop = provider.MaxTokens
			case "tool_calls":
				r.Stop = provider.ToolUse
			}
		}
		if u, ok := d.(map[string]any)["usage"].(map[string]any); ok {
			r.Usage = provider.Usage{Known: true, Input: number(u, "prompt_tokens"), Output: number(u, "completion_tokens")}
			details, _ := u["prompt_tokens_details"].(map[string]any)
			r.Usage.CacheRead, r.Usage.CacheWrite = number(details, "cached_tokens"), number(details, "cache_write_tokens")
			details, _ = u["completion_tokens_details"].(map[string]any)
			r.Usage.Reasoning = number(details, "reasoning_tokens")
			if cost, ok := u["cost"].(json.Number); ok {
				r.Usage.CostUSD = cost.String()
			}
		}
	}
	for _, c := range calls {
		var compact bytes.Buffer
		if c["arguments"] == "" {
			c["arguments"] = "{}"
		}
		if err := json.Compact(&compact, []byte(c["arguments"])); err != nil {
			t.Fatal(err)
		}
		r.Calls = append(r.Calls, c["id"]+" "+c["name"]+" "+compact.String())
	}
	if len(calls) > 0 && r.Stop == provider.EndTurn {
		r.Stop = provider.ToolUse
	}
	return r
}

func tree(t testing.TB, data string) any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %q", err, data)
	}
	return v
}

func text(v any, name string) string {
	m, _ := v.(map[string]any)
	s, _ := m[name].(string)
	return s
}

func list(v any, name string) []any {
	m, _ := v.(map[string]any)
	l, _ := m[name].([]any)
	return l
}

func number(m map[string]any, name string) int64 {
	n, _ := m[name].(json.Number)
	i, _ := n.Int64()
	return i
}

// expected is what a recording says. Azure says in e7a470f0d3f9 that 161 of 7 tokens were cached: no more can be than
// there are.
func expected(t testing.TB, r *recording) reading {
	want := independent(t, r.Body)
	if want.Stop == "" || want.Model == "" || !want.Usage.Known ||
		want.Text+want.Thinking+strings.Join(want.Calls, "") == "" {
		t.Fatalf("%s: the recording says only %+v", r.name(), want)
	}
	want.Usage.CacheRead = min(want.Usage.CacheRead, want.Usage.Input)
	return want
}

func TestRecordedStreamsAreReadWhole(t *testing.T) {
	t.Parallel()
	hosts := map[string]int{}
	for _, r := range recordings(t, "stream") {
		hosts[r.Host]++
		want := expected(t, &r)
		a, events, err := ask(t, &server{status: r.Status, header: r.header(), body: strings.NewReader(r.Body)})
		if err != nil {
			t.Errorf("%s: %v", r.name(), err)
			continue
		}
		if got := readingOf(a); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", r.name(), got, want)
		}
		ends := 0
		for i, e := range events {
			if e.Kind == provider.Ended {
				ends++
			} else if ends > 0 && e.Kind != provider.UsageSeen && e.Kind != provider.KeepAlive {
				t.Errorf("%s: event %d, %s, came after the end", r.name(), i, e.Kind)
			}
		}
		if ends != 1 || events[0].IsContent() {
			t.Errorf("%s: ended %d times, began with %s", r.name(), ends, events[0].Kind)
		}
	}
	for _, host := range []string{"", "api.deepseek.com", "api.mistral.ai", "ollama.com", "openrouter.ai",
		"rubyllm.services.ai.azure.com"} {
		if hosts[host] == 0 {
			t.Errorf("there is no recording of %q any more", host)
		}
	}
}

func TestRecordedAnswersThatAreNoStreamsAreReadToo(t *testing.T) {
	t.Parallel()
	for _, r := range recordings(t, "answer") {
		want := expected(t, &r)
		a, _, err := ask(t, &server{status: r.Status, header: r.header(), body: strings.NewReader(r.Body)})
		if err != nil {
			t.Errorf("%s: %v", r.name(), err)
			continue
		}
		if got := readingOf(a); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", r.name(), got, want)
		}
	}
}

func TestARecordedStreamMayBeTornAnywhere(t *testing.T) {
	t.Parallel()
	for _, r := range recordings(t, "stream") {
		t.Run(r.name(), func(t *testing.T) {
			t.Parallel()
			want, body := expected(t, &r), []byte(r.Body)
			for _, at := range places(r.Body) {
				a, _, err := ask(t, &server{status: r.Status, header: r.header(), body: &torn{body: body, at: at}})
				if err != nil {
					t.Fatalf("torn at %d: %v", at, err)
				}
				if got := readingOf(a); !reflect.DeepEqual(got, want) {
					t.Fatalf("torn at %d:\n got %+v\nwant %+v", at, got, want)
				}
			}
		})
	}
}

func TestARecordedStreamThatEndsEarlyIsNoSuccess(t *testing.T) {
	t.Parallel()
	for _, r := range recordings(t, "stream") {
		t.Run(r.name(), func(t *testing.T) {
			t.Parallel()
			finish := strings.Index(r.Body, `"finish_reason":"`)
			end := finish + strings.Index(r.Body[finish:], "\n")
			for _, at := range append(places(r.Body), end-1, end, end+1) {
				_, _, err := ask(t, &server{status: r.Status, header: r.header(), body: strings.NewReader(r.Body[:at])})
				switch {
				case at >= end && err != nil:
					t.Fatalf("cut at %d, after the finish_reason: got %v", at, err)
				case at < end && kind(err) != provider.Cut:
					t.Fatalf("cut at %d, before %d, where the finish_reason's line ends: got %v", at, end, err)
				}
			}
		})
	}
}

// places returns where to tear or cut a body: everywhere, or, of one of more than 4 KB without GEM_TEST_LONG, around up
// to 60 of its events, the first and the last among them, and at 200 other places.
func places(body string) []int {
	var at []int
	if len(body) <= 4<<10 || os.Getenv("GEM_TEST_LONG") == "1" {
		for i := range len(body) + 1 {
			at = append(at, i)
		}
		return at
	}
	var ends []int
	for i := range len(body) - 1 {
		if body[i:i+2] == "\n\n" {
			ends = append(ends, i)
		}
	}
	for i, end := range ends {
		if i == len(ends)-1 || i%(1+len(ends)/60) == 0 {
			at = append(at, end, end+1, end+2)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		at = append(at, random.IntN(len(body)))
	}
	return at
}

func TestRecordedErrorsHaveTheirKind(t *testing.T) {
	t.Parallel()
	want := map[string]struct {
		kind       provider.ErrorKind
		retryAfter time.Duration
		message    string
	}{
		"540ffe9a1e4a": {provider.Unauthorized, 0, ""},
		"afeb2fa844d2": {provider.Unauthorized, 0, ""},
		"e4c58d0d67ac": {provider.Unauthorized, 0, ""},
		"9c46d3d040fc": {provider.Unauthorized, 0, ""},
		"22866704a9ff": {provider.Unauthorized, 0, ""},
		"f2b54da01755": {provider.RateLimited, time.Second, "RateLimitReached"},
		"2a2947930a3f": {provider.ContextLength, 0, "prompt too long; exceeded max context length"},
		"e225845d34a1": {provider.ContextLength, 0, "maximum context length is 200000 tokens"},
	}
	found := recordings(t, "error")
	for _, r := range found {
		w, ok := want[r.ID]
		if !ok {
			t.Errorf("%s is new", r.name())
			continue
		}
		_, _, err := ask(t, &server{status: r.Status, header: r.header(), body: strings.NewReader(r.Body)})
		e, ok := errors.AsType[*provider.Error](err)
		if !ok || e.Kind != w.kind || e.Status != r.Status || e.RetryAfter != w.retryAfter ||
			!strings.Contains(e.Message, w.message) || (w.message == "") != (e.Message == "") {
			t.Errorf("%s: got %#v", r.name(), err)
		}
	}
	if len(found) != len(want) {
		t.Errorf("%d recordings, want %d", len(found), len(want))
	}
}
