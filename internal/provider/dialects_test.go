package provider_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/anthropic"
	"github.com/gemworker/gem/internal/provider/gemini"
	"github.com/gemworker/gem/internal/provider/openai"
	"github.com/gemworker/gem/internal/testing/recorded"
)

// dialect is a dialect. Every behavior below has a column for each.
type dialect int

const (
	ofAnthropic dialect = iota
	ofOpenAI
	ofGemini
	dialects
)

func (d dialect) String() string { return [...]string{"anthropic", "openai", "gemini"}[d] }

func (d dialect) at(e provider.Endpoint) provider.Provider {
	switch d {
	case ofAnthropic:
		return anthropic.New(e)
	case ofOpenAI:
		return openai.New(e)
	}
	return gemini.New(e)
}

func asking() *provider.Request {
	return &provider.Request{Model: "m", MaxOutputTokens: 100, Messages: []provider.Message{
		{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "Hello"}}},
	}}
}

// shared is a key that looks like none.
const shared = "Planted-Key-Of-Nobody"

func (d dialect) ask(t *testing.T, rt http.RoundTripper) (*provider.Answer, error) {
	t.Helper()
	s, err := d.at(provider.Endpoint{BaseURL: "https://provider.invalid", Key: shared, HTTP: &http.Client{Transport: rt}}).
		Stream(t.Context(), asking())
	if err != nil {
		return nil, err
	}
	return provider.Collect(s, func(*provider.Event) {})
}

// wire are pieces of a dialect's streams, each of whole events.
type wire [dialects]string

func data(all ...string) string { return "data: " + strings.Join(all, "\n\ndata: ") + "\n\n" }

var (
	begins = wire{
		data(`{"type":"message_start","message":{"model":"m","usage":{"input_tokens":7,"output_tokens":1}}}`), "", "",
	}
	// one says "one".
	one = wire{
		data(`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`,
			`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"one"}}`),
		data(`{"model":"m","choices":[{"index":0,"delta":{"content":"one"}}]}`),
		data(`{"modelVersion":"m","candidates":[{"content":{"parts":[{"text":"one"}]}}]}`),
	}
	// look calls a tool.
	look = wire{
		data(`{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"c","name":"look","input":{}}}`,
			`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"at\":1}"}}`,
			`{"type":"content_block_stop","index":1}`),
		data(`{"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":` +
			`{"name":"look","arguments":"{\"at\":1}"}}]}}]}`),
		data(`{"modelVersion":"m","candidates":[{"content":{"parts":[{"functionCall":` +
			`{"id":"c","name":"look","args":{"at":1}}}]}}]}`),
	}
)

// ends are the ends of a whole answer, with a usage of 7 and 3 tokens. reasons are in the order of the dialects.
func ends(reasons ...string) wire {
	return wire{
		data(`{"type":"message_delta","delta":{"stop_reason":"`+reasons[0]+`"},"usage":{"output_tokens":3}}`,
			`{"type":"message_stop"}`),
		data(`{"choices":[{"index":0,"delta":{},"finish_reason":"`+reasons[1]+`"}],`+
			`"usage":{"prompt_tokens":7,"completion_tokens":3}}`, "[DONE]"),
		data(`{"candidates":[{"finishReason":"` + reasons[2] + `"}],` +
			`"usageMetadata":{"promptTokenCount":7,"candidatesTokenCount":3}}`),
	}
}

func (w wire) then(all ...wire) wire {
	for d := range w {
		for _, next := range all {
			w[d] += next[d]
		}
	}
	return w
}

func everywhere(text string) wire { return wire{text, text, text} }

// Each behavior that the dialects have in common is a row, with the bytes of each dialect.
func TestDialectsReadTheirStreamsAlike(t *testing.T) {
	t.Parallel()
	const broken = provider.ErrorKind("")
	ended := ends("end_turn", "stop", "STOP")
	for what, row := range map[string]struct {
		bodies wire
		stop   provider.Stop
		text   string
		calls  int
		kind   provider.ErrorKind // of the error; empty: it is an answer
	}{
		"a text":        {begins.then(one, one, ended), provider.EndTurn, "oneone", 0, broken},
		"a call":        {begins.then(one, look, ends("tool_use", "tool_calls", "STOP")), provider.ToolUse, "one", 1, broken},
		"a long answer": {begins.then(one, ends("max_tokens", "length", "MAX_TOKENS")), provider.MaxTokens, "one", 0, broken},
		"a refusal":     {begins.then(one, ends("refusal", "content_filter", "SAFETY")), provider.Refusal, "one", 0, broken},
		"comments": {everywhere(":\n\n").then(begins, everywhere(": x\n\n"), one, ended), provider.EndTurn, "one", 0,
			broken},
		"an odd usage": {wire{
			data(`{"type":"message_delta","delta":{},"usage":{"output_tokens":"many"}}`),
			data(`{"choices":[],"usage":{"prompt_tokens":"many"}}`),
			data(`{"usageMetadata":{"promptTokenCount":"many"}}`),
		}.then(begins, one, ended), provider.EndTurn, "one", 0, broken},
		"no end":        {begins.then(one), "", "", 0, provider.Cut},
		"nothing":       {wire{}, "", "", 0, provider.Cut},
		"no JSON":       {begins.then(one, everywhere(data("?")), ended), "", "", 0, provider.Garbled},
		"a list":        {begins.then(one, everywhere(data("[]")), ended), "", "", 0, provider.Garbled},
		"a JSON text":   {begins.then(one, everywhere(data(`"text"`)), ended), "", "", 0, provider.Garbled},
		"two documents": {begins.then(one, everywhere(data(`{"x":1}{"x":2}`)), ended), "", "", 0, provider.Garbled},
		"another form": {begins.then(one, wire{
			data(`{"type":"content_block_delta","delta":7}`), data(`{"choices":1}`), data(`{"candidates":1}`),
		}, ended), "", "", 0, provider.Garbled},
		"an error": {begins.then(one, wire{
			data(`{"type":"error","error":{"type":"overloaded_error","message":"no"}}`),
			data(`{"error":{"code":503,"message":"no"}}`),
			data(`{"error":{"code":503,"status":"UNAVAILABLE","message":"no"}}`),
		}), "", "", 0, provider.Overloaded},
		"a long line":  {begins.then(everywhere(strings.Repeat("x", 2<<20))), "", "", 0, provider.AnswerTooBig},
		"a long event": {begins.then(everywhere("data: " + strings.Repeat("x", 2<<20))), "", "", 0, provider.AnswerTooBig},
		"a long name":  {begins.then(everywhere("event: " + strings.Repeat("x", 2<<20))), "", "", 0, provider.AnswerTooBig},
		"many texts": {begins.then(wire{
			strings.Repeat(strings.ReplaceAll(one[0], "one", strings.Repeat("x", 1<<10)), 3000),
			strings.Repeat(strings.ReplaceAll(one[1], "one", strings.Repeat("x", 1<<10)), 3000),
			strings.Repeat(strings.ReplaceAll(one[2], "one", strings.Repeat("x", 1<<10)), 3000),
		}), "", "", 0, provider.AnswerTooBig},
	} {
		for d := range dialects {
			a, err := d.ask(t, recorded.Events(row.bodies[d]))
			e, _ := errors.AsType[*provider.Error](err)
			switch {
			case row.kind != broken:
				if e == nil || e.Kind != row.kind {
					t.Errorf("%s of %s: %v, want %s", what, d, err, row.kind)
				}
			case err != nil || a.Text() != row.text || a.Stop != row.stop || a.Model != "m":
				t.Errorf("%s of %s: %+v, %v", what, d, a, err)
			default:
				calls := 0
				for _, p := range a.Parts {
					if p.Type == provider.ToolCall {
						calls++
						if p.ID != "c" || p.Name != "look" || string(p.Arguments) != `{"at":1}` {
							t.Errorf("%s of %s: %+v", what, d, p)
						}
					}
				}
				if u := a.Usage; calls != row.calls || !u.Known || u.Input != 7 || u.Output != 3 {
					t.Errorf("%s of %s: %d calls, %+v", what, d, calls, u)
				}
			}
		}
	}
}

func TestNoDialectShowsAKeyInAnError(t *testing.T) {
	t.Parallel()
	header := http.Header{
		"Content-Type": {"text/event-stream"}, "Request-Id": {shared}, "X-Request-Id": {shared}, "X-Echo": {shared},
		"Location": {"https://x.example/?key=" + shared},
	}
	said := `"message":"the key ` + shared + ` in body"`
	planted := wire{
		`{"type":"error","error":{"type":"invalid_request_error",` + said + `},"request_id":"` + shared + `"}`,
		`{"error":{"code":"` + shared + `","type":"x",` + said + `}}`,
		`{"error":{"code":400,"status":"INVALID_ARGUMENT",` + said + `}}`,
	}
	for d := range dialects {
		for what, r := range map[string]*recorded.Response{
			"400":              {Status: 400, Header: header, Body: planted[d]},
			"401":              {Status: 401, Header: header, Body: planted[d]},
			"403":              {Status: 403, Header: header, Body: planted[d]},
			"302":              {Status: 302, Header: header, Body: shared},
			"502":              {Status: 502, Header: header, Body: "<p>" + shared},
			"an error":         {Status: 200, Header: header, Body: data(planted[d])},
			"a named error":    {Status: 200, Header: header, Body: "event: error\n" + data(planted[d])},
			"no JSON":          {Status: 200, Header: header, Body: "event: content_block_delta\n" + data("{"+shared)},
			"an id":            {Status: 200, Header: header, Body: data(`{"id":"`+shared+`"}`, `{"responseId":"`+shared+`"}`)},
			"a type":           {Status: 200, Header: http.Header{"Content-Type": {shared}}},
			"a broken body":    {Status: 200, Header: header, Err: errors.New("broken: " + shared)},
			"a kind of errors": {Status: 200, Header: header, Body: data(`{"type":"error","error":{"type":"` + shared + `"}}`)},
		} {
			_, err := d.ask(t, r)
			e, ok := errors.AsType[*provider.Error](err)
			if !ok || strings.Contains(strings.ToLower(fmt.Sprintf("%+v %#v %v", *e, *e, e)), "planted") {
				t.Errorf("%s of %s: %#v", what, d, err)
			}
			for ; err != nil; err = errors.Unwrap(err) {
				if strings.Contains(strings.ToLower(err.Error()), "planted") {
					t.Errorf("%s of %s: %v", what, d, err)
				}
			}
		}
	}
}

func TestAStreamThatIsNoLongerWantedEndsItsConnection(t *testing.T) {
	t.Parallel()
	why := errors.New("it is no longer wanted")
	for d := range dialects {
		for name, end := range map[string]func(provider.Stream, context.CancelCauseFunc){
			"Close":         func(s provider.Stream, _ context.CancelCauseFunc) { _ = s.Close() },
			"the context":   func(_ provider.Stream, cancel context.CancelCauseFunc) { cancel(why) },
			"Close, aside":  func(s provider.Stream, _ context.CancelCauseFunc) { go s.Close(); s.Next() },
			"cancel, aside": func(s provider.Stream, cancel context.CancelCauseFunc) { go cancel(why); s.Next() },
		} {
			t.Run(d.String()+", "+name, func(t *testing.T) {
				t.Parallel()
				closed := make(chan struct{})
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(w, begins[d]+one[d])
					w.(http.Flusher).Flush()
					<-r.Context().Done()
					close(closed)
				}))
				defer server.Close()
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				p := d.at(provider.Endpoint{BaseURL: server.URL, Key: shared, HTTP: provider.NewHTTP(nil)})
				s, err := p.Stream(ctx, asking())
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				for s.Next() {
					if e := s.Current(); e.IsContent() {
						break
					}
				}
				end(s, cancel)
				<-closed
				if s.Next() {
					t.Errorf("there was another event: %+v", s.Current())
				}
				if err := s.Err(); err == nil || ctx.Err() != nil && !errors.Is(err, why) {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

func TestWhatBreaksBeforeTheResponseIsUnreachable(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	why := errors.New("nobody waits any more")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	for d := range dialects {
		p := d.at(provider.Endpoint{BaseURL: server.URL, Key: shared, HTTP: provider.NewHTTP(nil)})
		_, err := p.Stream(t.Context(), asking())
		if e, ok := errors.AsType[*provider.Error](err); !ok || e.Kind != provider.Unreachable {
			t.Errorf("%s: %v", d, err)
		}
		if _, err := p.Stream(ended, asking()); !errors.Is(err, why) {
			t.Errorf("%s: %v", d, err)
		}
	}
}
