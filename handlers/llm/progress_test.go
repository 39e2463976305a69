package llm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// shows adds progress to a call to llm.chat.
var shows = object{"progress": true}

// eager writes progress as often as it may be.
func eager(o *handlertest.Options) { o.Environment["LLM_PROGRESS_INTERVAL_MS"] = "50" }

// lazy writes it only at the end of answers.
func lazy(o *handlertest.Options) { o.Environment["LLM_PROGRESS_INTERVAL_MS"] = "60000" }

// reader reads the progress of a call as a browser does: it asks for what is new, and starts over when attempt grows.
type reader struct {
	env     *handlertest.Env
	call    string
	attempt int
	seq     int

	text, thinking string
	arguments      map[int]string
	names          map[int]string
	status         []string // of all attempts
}

func read(env *handlertest.Env, call string) *reader {
	return &reader{env: env, call: call, arguments: map[int]string{}, names: map[int]string{}}
}

// read returns how many rows were new.
func (r *reader) read(t *testing.T) (n int) {
	t.Helper()
	rows, _ := r.env.DB.Query(context.Background(), "select attempt, seq, kind, data from core_tool_progress where "+
		"call_id = $1 and seq > $2 order by seq", r.call, r.seq)
	var (
		attempt, seq int
		kind         string
		data         struct {
			Text, ID, Name, Arguments         string
			Index                             int
			State, Step, Target, Outcome, Why string
		}
		raw json.RawMessage
	)
	_, err := pgx.ForEachRow(rows, []any{&attempt, &seq, &kind, &raw}, func() error {
		data.Text, data.ID, data.Name, data.Arguments, data.Index, data.State, data.Step, data.Target, data.Outcome,
			data.Why = "", "", "", "", 0, "", "", "", "", ""
		if err := json.Unmarshal(raw, &data); err != nil {
			return err
		}
		if seq != r.seq+1 || attempt < r.attempt {
			return fmt.Errorf("row %d of attempt %d follows row %d of attempt %d", seq, attempt, r.seq, r.attempt)
		}
		if attempt > r.attempt {
			r.text, r.thinking = "", ""
			clear(r.arguments)
			clear(r.names)
		}
		r.attempt, r.seq = attempt, seq
		n++
		switch kind {
		case "text":
			r.text += data.Text
		case "thinking":
			r.thinking += data.Text
		case "tool_call":
			r.names[data.Index] = strings.TrimSpace(r.names[data.Index] + data.ID + " " + data.Name)
			r.arguments[data.Index] += data.Arguments
		case "status":
			r.status = append(r.status, strings.TrimSpace(
				strings.Join(strings.Fields(data.State+" "+data.Step+" "+data.Target+" "+data.Outcome+" "+data.Why), " ")))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAReaderSeesTheAnswerWhileItComes(t *testing.T) {
	t.Parallel()
	for _, d := range llmtest.Dialects {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			s := newScene(t).target("a", d, nil).route("default", "a")
			gate := make(chan struct{})
			s.server.Script("/a", llmtest.Script{Parts: []provider.Part{{Type: provider.Text,
				Text: strings.Repeat("Über <b>alles</b> & 日本語. ", 40) + "\x00"},
				{Type: provider.ToolCall, ID: "call_a", Name: "weather",
					Arguments: json.RawMessage(`{"city":"Köln","days":[1,2,3]}`)}},
				Before: func(ctx context.Context, delta int) {
					if delta == 20 {
						select {
						case <-gate:
						case <-ctx.Done():
						}
					}
				}})
			env := s.start(t, eager)
			id := env.Insert(asks("hello", shows, object{"tools": []any{object{"name": "weather",
				"parameters": object{"type": "object"}}}}))
			r := read(env, id)
			env.Until("a part of the answer", func() bool { r.read(t); return len(r.text) > 100 })
			if got := env.Journal(id); len(got) != 2 {
				t.Errorf("it shows %q, and the journal has %v", r.text, got)
			}
			close(gate)
			receipt := env.Await(id)
			got := succeeded(t, receipt)
			r.read(t)
			if r.text != got.Text || r.attempt != 1 {
				t.Errorf("it showed %q, want %q", r.text, got.Text)
			}
			var sent, shown any
			if json.Unmarshal(got.ToolCalls[0].Arguments, &sent) != nil ||
				json.Unmarshal([]byte(r.arguments[0]), &shown) != nil || !cmp.Equal(sent, shown) ||
				r.names[0] != got.ToolCalls[0].ID+" weather" {
				t.Errorf("it showed the call %v %v, want %+v", r.names, r.arguments, got.ToolCalls)
			}
			if want := []string{"asked main a"}; !cmp.Equal(r.status, want) {
				t.Errorf("status: got %q, want %q", r.status, want)
			}
		})
	}
}

func TestThoughtsAreShownApart(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.Anthropic, nil).route("default", "a")
	s.server.Script("/a", llmtest.Think("I think of what to say.", "c2lnbmVk", "So it is."))
	env := s.start(t, lazy)
	id := env.Insert(asks("Why?", shows, object{"effort": "low"}))
	succeeded(t, env.Await(id))
	r := read(env, id)
	// The end of the answer does not wait for the interval, and what came until then is joined.
	if n := r.read(t); n != 3 || r.thinking != "I think of what to say." || r.text != "So it is." {
		t.Errorf("%d rows: %+v", n, r)
	}
}

func TestNothingIsShownUnlessTheCallAsks(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).route("default", "a")
	env := s.start(t, eager)
	succeeded(t, env.Run(asks("hello")))
	succeeded(t, env.Run(asks("hello", object{"progress": false})))
	succeeded(t, env.Run(tool("llm.ensemble", object{"strategy": "all",
		"messages": []any{object{"role": "user", "content": "hello"}},
		"members":  []any{object{"route": "default"}, object{"route": "default"}}})))
	var n int
	if err := env.DB.QueryRow(t.Context(), "select count(*) from core_tool_progress").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d rows, %v", n, err)
	}
}

func TestAReaderIsToldWhenAnotherTargetIsAsked(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).target("b", llmtest.Anthropic, nil).target("c", llmtest.OpenAI,
		nil).route("default", "a", "b").route("only", "c")
	s.server.Always("/a", llmtest.Script{Fault: llmtest.Status(503)})
	s.server.Always("/c", llmtest.Script{Fault: llmtest.Status(400)})
	s.server.Always("/b", llmtest.Say("from b"))
	env := s.start(t, lazy)
	for route, want := range map[string][]string{"default": {"asked main a", "failed main a overloaded", "asked main b"},
		"only": {"asked main c", "failed main c bad_request"}} {
		id := env.Insert(asks("hello", shows, object{"route": route}))
		env.Await(id)
		r := read(env, id)
		r.read(t)
		if !cmp.Equal(r.status, want) {
			t.Errorf("%s: got %q, want %q", route, r.status, want)
		}
	}
}

// The first attempt's worker is lost during its answer, without knowing it: whatever arrives after that is not shown.
func TestALostWorkerShowsNothingMoreAndTheNextAttemptIsShownWhole(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).route("default", "a")
	gate := make(chan struct{})
	s.server.Script("/a", llmtest.Script{Parts: llmtest.Say(strings.Repeat("of the first ", 20)).Parts,
		Before: func(ctx context.Context, delta int) {
			if delta == 3 {
				select {
				case <-gate:
				case <-ctx.Done():
				}
			}
		}})
	s.server.Always("/a", llmtest.Say("the answer of the second attempt"))
	env := s.start(t, eager, func(o *handlertest.Options) { o.NoWorker = true })
	lost := env.StartWorker()
	id := env.Insert(asks("hello", shows))
	r := read(env, id)
	env.Until("a part of the first answer", func() bool { r.read(t); return r.text == "of the first of the firs" })
	lost.Kill()
	close(gate)
	lost.Stop() // after the end of the answer, which nobody wants
	if n := r.read(t); n != 0 {
		t.Errorf("%d rows of an attempt that was lost: %q", n, r.text)
	}
	env.StartWorker()
	got := succeeded(t, env.Await(id))
	r.read(t)
	if r.attempt != 2 || r.text != got.Text || got.Text != "the answer of the second attempt" {
		t.Errorf("attempt %d: %q, and the receipt has %q", r.attempt, r.text, got.Text)
	}
	if want := []string{"asked main a", "asked main a"}; !cmp.Equal(r.status, want) {
		t.Errorf("status: %q", r.status)
	}
}

// An attempt that breaks off stays to be seen until the next one has something.
func TestAnAnswerThatBreaksOffIsShownAnew(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).target("b", llmtest.Anthropic, nil).route("default", "a", "b")
	s.server.Always("/a", llmtest.Say("this answer is much longer than three deltas are").
		With(llmtest.After(3, llmtest.CleanCut)))
	s.server.Always("/b", llmtest.Say("from b"))
	env := s.start(t, lazy)
	id := env.Insert(asks("hello", shows))
	env.Until("the call to be put back", func() bool { return slicesContains(env.Journal(id), "retried") })
	r := read(env, id)
	if r.read(t); r.text != "this answer is much long" || r.status[len(r.status)-1] != "failed main a cut" {
		t.Errorf("%+v", r)
	}
	env.Pass(10 * time.Second)
	succeeded(t, env.Await(id))
	if r.read(t); r.text != "from b" || r.attempt != 2 {
		t.Errorf("%+v", r)
	}
}
