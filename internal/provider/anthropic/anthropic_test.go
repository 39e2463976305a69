package anthropic_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/anthropic"
	"github.com/gemworker/gem/internal/testing/recorded"
)

const (
	host = "api.anthropic.com"
	key  = "sk-ant-planted-0123456789abcdefghij"
)

func hello() *provider.Request {
	return &provider.Request{
		Model: "claude-haiku-4-5", MaxOutputTokens: 100,
		Messages: []provider.Message{{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "Hello"}}}},
	}
}

// ask sends a request to the transport and collects the answer.
func ask(t testing.TB, rt http.RoundTripper, r *provider.Request) (*provider.Answer, []provider.Event, error) {
	t.Helper()
	p := anthropic.New(provider.Endpoint{BaseURL: "https://api.anthropic.com", Key: key,
		HTTP: &http.Client{Transport: rt}})
	s, err := p.Stream(t.Context(), r)
	if err != nil {
		return nil, nil, err
	}
	var events []provider.Event
	a, err := provider.Collect(s, func(e *provider.Event) { events = append(events, *e) })
	return a, events, err
}

// read is a second, simpler decoder of a stream, to compare with.
func read(t *testing.T, body string) *provider.Answer {
	t.Helper()
	a := &provider.Answer{}
	var text, calls strings.Builder
	for line := range strings.SplitSeq(body, "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var e struct {
			Type    string
			Message struct{ Model string }
			Block   struct{ Type, Name string } `json:"content_block"`
			Delta   struct {
				Type, Text string
				Stop       string `json:"stop_reason"`
			}
			Usage *struct {
				Input  int64 `json:"input_tokens"`
				Output int64 `json:"output_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatal(err)
		}
		if e.Message.Model != "" {
			a.Model = e.Message.Model
		}
		text.WriteString(e.Delta.Text)
		if e.Block.Type == "tool_use" {
			calls.WriteString(e.Block.Name)
		}
		if e.Delta.Stop != "" {
			a.ProviderStop = e.Delta.Stop
		}
		if e.Usage != nil {
			a.Usage = provider.Usage{Input: e.Usage.Input, Output: e.Usage.Output, Known: true}
		}
	}
	a.Parts = []provider.Part{{Type: provider.Text, Text: text.String()}}
	if calls.Len() > 0 {
		t.Fatal("the simple decoder knows no calls")
	}
	a.Stop = provider.EndTurn
	return a
}

func TestRecordedStreamsSayTheSameHoweverTheyAreCut(t *testing.T) {
	t.Parallel()
	known := map[string]string{
		"5afcdc46a8bc": "The Ruby programming language was created by Yukihiro Matsumoto in 1993.",
		"576e4401f217": "1\n2\n3",
		"76bd4b3699cb": "The latest stable Ruby version is 4.0.6, which was released in July 2026.",
	}
	for _, r := range recorded.Load(t, "stream", host) {
		t.Run(r.ID, func(t *testing.T) {
			t.Parallel()
			want := read(t, r.Body)
			if want.Text() != known[r.ID] {
				t.Fatalf("the recording says %q", want.Text())
			}
			for _, at := range append([]int{0}, recorded.Places(r.Body)...) {
				s := r.Response()
				s.Cuts = []int{at}
				if got, _, err := ask(t, s, hello()); err != nil || !reflect.DeepEqual(got, want) {
					t.Fatalf("cut at %d: %+v, %v, not %+v", at, got, err, want)
				}
			}
			all := make([]int, len(r.Body))
			for i := range all {
				all[i] = i
			}
			s := r.Response()
			s.Cuts = all
			if got, _, err := ask(t, s, hello()); err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("byte by byte: %+v, %v, not %+v", got, err, want)
			}
		})
	}
}

func TestNoStreamIsCompleteBeforeItsTerminalEvent(t *testing.T) {
	t.Parallel()
	bodies := map[string]string{"thoughts": thoughts, "calls": calls}
	if os.Getenv("GEM_TEST_DATA") != "" {
		for _, r := range recorded.Load(t, "stream", host) {
			bodies[r.ID] = r.Body
		}
	}
	for name, body := range bodies {
		ends := recorded.Ends(body)
		for i := 0; i+1 < len(ends); i++ {
			for _, broken := range []error{nil, io.ErrUnexpectedEOF} {
				s := recorded.Events(body[:ends[i]])
				s.Err = broken
				_, _, err := ask(t, s, hello())
				if e, ok := errors.AsType[*provider.Error](err); !ok || e.Kind != provider.Cut {
					t.Errorf("%s after %d events, %v: %v", name, i+1, broken, err)
				}
			}
		}
		if _, _, err := ask(t, recorded.Events(""), hello()); err == nil {
			t.Error("an empty body is an answer")
		}
	}
}

// event writes an event of a stream.
func event(data string) string {
	var e struct{ Type string }
	_ = json.Unmarshal([]byte(data), &e)
	return "event: " + e.Type + "\ndata: " + data + "\n\n"
}

func events(data ...string) string {
	var b strings.Builder
	for _, d := range data {
		b.WriteString(event(d))
	}
	return b.String()
}

const (
	started = `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"claude-x","content":[],"stop_reason":null,"usage":{"input_tokens":10,"cache_creation_input_tokens":3,"cache_read_input_tokens":4,"output_tokens":1}}}`
	stopped = `{"type":"message_stop"}`
)

var (
	thoughts = events(started,
		`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm, "}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"é."}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQBCg/+AB=="}}`,
		`{"type":"content_block_stop","index":0}`,
		`{"type":"content_block_start","index":1,"content_block":{"type":"redacted_thinking","data":"EmwKAhgB+/="}}`,
		`{"type":"content_block_stop","index":1}`,
		`{"type":"content_block_start","index":2,"content_block":{"type":"text","text":""}}`,
		`{"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":"Four."}}`,
		`{"type":"content_block_stop","index":2}`,
		`{"type":"message_delta","delta":{"stop_reason":"stop_sequence","stop_sequence":"."},"usage":{"output_tokens":25,"output_tokens_details":{"thinking_tokens":9}}}`,
		stopped)
	calls = events(started,
		`{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"toolu_1","name":"look","input":{}}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":""}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"at\": \"a\\"}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"\"é\", \"n\": 12345678901234567890}"}}`,
		`{"type":"content_block_stop","index":0}`,
		`{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_2","name":"whole","input":{"n":9007199254740993}}}`,
		`{"type":"content_block_stop","index":1}`,
		`{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_3","name":"bare","input":{}}}`,
		`{"type":"content_block_stop","index":2}`,
		`{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":30}}`,
		stopped)
)

func TestThoughtsKeepTheirSignaturesAndUsageIsNotSummed(t *testing.T) {
	t.Parallel()
	want := &provider.Answer{
		Parts: []provider.Part{
			{Type: provider.Thinking, Text: "Hm, é.", Signature: "EqQBCg/+AB=="},
			{Type: provider.Thinking, Redacted: true, Signature: "EmwKAhgB+/="},
			{Type: provider.Text, Text: "Four."},
		},
		Stop: provider.StopSequence, ProviderStop: "stop_sequence", Model: "claude-x", RequestID: "req_1",
		Usage: provider.Usage{Input: 17, Output: 25, CacheRead: 4, CacheWrite: 3, Reasoning: 9, Known: true},
	}
	for at := range len(thoughts) {
		s := recorded.Events(thoughts, at)
		s.Header.Set("Request-Id", "req_1")
		if got, _, err := ask(t, s, hello()); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("cut at %d: %+v, %v", at, got, err)
		}
	}
}

func TestArgumentsComeWholeFromAnyPieces(t *testing.T) {
	t.Parallel()
	want := []provider.Part{
		{Type: provider.ToolCall, ID: "toolu_1", Name: "look",
			Arguments: json.RawMessage(`{"at":"a\"é","n":12345678901234567890}`)},
		{Type: provider.ToolCall, ID: "toolu_2", Name: "whole", Arguments: json.RawMessage(`{"n":9007199254740993}`)},
		{Type: provider.ToolCall, ID: "toolu_3", Name: "bare", Arguments: json.RawMessage(`{}`)},
	}
	for at := range len(calls) {
		got, _, err := ask(t, recorded.Events(calls, at), hello())
		if err != nil || got.Stop != provider.ToolUse || !reflect.DeepEqual(got.Parts, want) {
			t.Fatalf("cut at %d: %+v, %v", at, got, err)
		}
	}
}

func TestTheStreamOutlivesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	body := ": hello\n\n" + event(`{"type":"ping"}`) + event(started) + event(`{"type":"from_the_future","index":7}`) +
		"id: 7\nretry: 10\n" + event(`{"type":"content_block_start","index":0,"content_block":{"type":"hologram","x":[1]}}`) +
		event(`{"type":"content_block_delta","index":0,"delta":{"type":"hologram_delta","y":1}}`) +
		event(`{"type":"content_block_stop","index":0}`) +
		// without the name of the event, with CRLF, and in two lines of data
		"data: {\"type\":\"content_block_start\",\"index\":1,\r\ndata: " +
		"\"content_block\":{\"type\":\"text\",\"text\":\"A\"}}\r\n\r\n" +
		event(`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":""}}`) +
		event(`{"type":"message_delta","delta":{"stop_reason":"somewhat"},"usage":{}}`) + event(stopped)
	a, seen, err := ask(t, recorded.Events(body), hello())
	if err != nil || a.Text() != "A" || a.Stop != provider.EndTurn || a.ProviderStop != "somewhat" || a.Usage.Output != 1 {
		t.Fatalf("%+v, %v", a, err)
	}
	for i, e := range seen[:2] {
		if e.Kind != provider.KeepAlive || e.IsContent() {
			t.Errorf("event %d is %+v", i, e)
		}
	}
}

func TestStopsAreMapped(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]provider.Stop{
		"end_turn": provider.EndTurn, "max_tokens": provider.MaxTokens, "stop_sequence": provider.StopSequence,
		"tool_use": provider.ToolUse,
		"refusal":  provider.Refusal, "model_context_window_exceeded": provider.MaxTokens, "pause_turn": provider.EndTurn,
	} {
		a, _, err := ask(t, recorded.Events(events(started, `{"type":"message_delta","delta":{"stop_reason":"`+reason+`"}}`,
			stopped)), hello())
		if err != nil || a.Stop != want || a.ProviderStop != reason {
			t.Errorf("%s: %+v, %v", reason, a, err)
		}
	}
	if _, _, err := ask(t, recorded.Events(events(started, stopped)), hello()); err == nil {
		t.Error("an end without a reason is an answer")
	}
}

func TestErrorEventsHaveTheirKinds(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]provider.ErrorKind{
		"overloaded_error": provider.Overloaded, "api_error": provider.Unavailable, "rate_limit_error": provider.RateLimited,
		"timeout_error":        provider.Unavailable,
		"authentication_error": provider.Unauthorized, "billing_error": provider.Unauthorized,
		"permission_error": provider.Unauthorized, "not_found_error": provider.NotFound,
		"request_too_large": provider.TooLarge, "invalid_request_error": provider.BadRequest,
		"new_error": provider.Unavailable,
	} {
		for _, before := range []string{"", event(started)} {
			s := recorded.Events(before + event(`{"type":"error","error":{"type":"`+kind+`","message":"Sorry, `+key+
				`"},"request_id":"req_7"}`))
			s.Header.Set("Retry-After", "10") // recorded with successes too: it says nothing of this failure
			_, _, err := ask(t, s, hello())
			e, ok := errors.AsType[*provider.Error](err)
			if !ok || e.Kind != want || e.RetryAfter != 0 || e.RequestID != "req_7" || strings.Contains(err.Error(), "planted") {
				t.Errorf("%s: %#v", kind, err)
			}
		}
	}
	if _, _, err := ask(t, recorded.Events("event: error\ndata: nonsense\n\n"), hello()); err == nil {
		t.Error("an error that is no JSON is none")
	}
}

func TestFailedResponsesHaveTheirKinds(t *testing.T) {
	t.Parallel()
	body := func(kind, message string) string {
		return fmt.Sprintf(`{"type":"error","error":{"type":%q,"message":%q},"request_id":"req_9"}`, kind, message)
	}
	for _, test := range []struct {
		status int
		header http.Header
		body   string
		kind   provider.ErrorKind
		after  time.Duration
	}{
		{429, http.Header{"Retry-After": {"7"}}, body("rate_limit_error", "slow down"), provider.RateLimited,
			7 * time.Second},
		{529, nil, body("overloaded_error", "Overloaded"), provider.Overloaded, 0},
		{400, nil, body("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
			provider.ContextLength, 0},
		{400, nil, body("invalid_request_error", "Your credit balance is too low to access the API."), provider.Unauthorized,
			0},
		{400, nil, body("invalid_request_error", "messages: at least one"), provider.BadRequest, 0},
		{413, nil, "<html>too large</html>", provider.TooLarge, 0},
		{404, nil, body("not_found_error", "model: claude-0"), provider.NotFound, 0},
		{302, http.Header{"Location": {"https://elsewhere.example/"}}, "", provider.NotFound, 0},
		{500, nil, strings.Repeat("x", 1<<20), provider.Unavailable, 0},
		{204, nil, "", provider.BadRequest, 0},
	} {
		hits := 0
		s := &recorded.Response{Status: test.status, Header: test.header, Body: test.body,
			Seen: func(*http.Request, []byte) { hits++ }}
		if s.Header == nil {
			s.Header = http.Header{}
		}
		_, _, err := ask(t, s, hello())
		e, ok := errors.AsType[*provider.Error](err)
		if !ok || e.Kind != test.kind || e.Status != test.status || e.RetryAfter != test.after ||
			len([]rune(e.Message)) > 500 || hits != 1 {
			t.Errorf("%d %.80s: %#v after %d requests", test.status, test.body, err, hits)
		}
		if ok && strings.HasPrefix(test.body, "{") && e.RequestID != "req_9" {
			t.Errorf("%d: the request is %q", test.status, e.RequestID)
		}
	}
	_, _, err := ask(t, &recorded.Response{Status: 200, Header: http.Header{"Content-Type": {"application/json"}},
		Body: `{}`}, hello())
	if e, ok := errors.AsType[*provider.Error](err); !ok || e.Kind != provider.Garbled {
		t.Errorf("a response that is no stream: %v", err)
	}
}

func TestRecordedErrorsHaveTheirKinds(t *testing.T) {
	t.Parallel()
	for _, r := range recorded.Load(t, "error", host) {
		_, _, err := ask(t, r.Response(), hello())
		e, ok := errors.AsType[*provider.Error](err)
		want := &provider.Error{Kind: provider.Unauthorized, Status: 401, Final: true,
			RequestID: "req_011CeCGmBjaWkq37Sf5iU7so"}
		if !ok || !reflect.DeepEqual(e, want) {
			t.Errorf("%s: %#v", r.ID, err)
		}
	}
}

func TestTheEnvironmentMovesNothing(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the request went elsewhere")
	}))
	defer other.Close()
	dir := t.TempDir()
	for name, value := range map[string]string{
		"ANTHROPIC_BASE_URL": other.URL, "ANTHROPIC_API_KEY": "env-key", "ANTHROPIC_AUTH_TOKEN": "env-token",
		"ANTHROPIC_PROFILE":    "nobody",
		"ANTHROPIC_CONFIG_DIR": dir, "ANTHROPIC_CUSTOM_HEADERS": "X-Env: env-header\nAuthorization: env-header",
		"ANTHROPIC_WEBHOOK_SIGNING_KEY": "env-hook",
		"ANTHROPIC_FEDERATION_RULE_ID":  "env-rule", "ANTHROPIC_ORGANIZATION_ID": "env-org",
		"ANTHROPIC_IDENTITY_TOKEN":      "env-identity",
		"ANTHROPIC_IDENTITY_TOKEN_FILE": dir + "/none", "ANTHROPIC_SERVICE_ACCOUNT_ID": "env-account",
		"ANTHROPIC_WORKSPACE_ID":                       "env-space",
		"ANTHROPIC_OPEN_TELEMETRY_TRACES_CONTENT_MODE": "content", "AWS_REGION": "env-region", "XDG_CONFIG_HOME": dir,
		"HTTP_PROXY": other.URL, "HTTPS_PROXY": other.URL, "http_proxy": other.URL, "https_proxy": other.URL,
		"ALL_PROXY": other.URL,
	} {
		t.Setenv(name, value)
	}
	for _, key := range []string{key, ""} {
		for _, client := range []*http.Client{provider.NewHTTP(nil), nil} {
			hits := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				hits++
				if r.URL.Path != "/base/v1/messages" || r.Header.Get("X-Api-Key") != key || r.Header.Get("Authorization") != "" ||
					strings.Contains(fmt.Sprint(r.Header), "env-") || r.Header.Get("Traceparent") != "" ||
					strings.Contains(fmt.Sprint(r.Header), "Stainless") {
					t.Errorf("%s %v", r.URL, r.Header)
				}
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprint(w, calls)
			}))
			for _, base := range []string{"/base", "/base/", "/base/v1", "/base/v1/"} {
				p := anthropic.New(provider.Endpoint{BaseURL: server.URL + base, Key: key, HTTP: client})
				s, err := p.Stream(t.Context(), hello())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := provider.Collect(s, nil); err != nil {
					t.Error(err)
				}
			}
			server.Close()
			if hits != 4 {
				t.Errorf("%d requests", hits)
			}
		}
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte(thoughts))
	f.Add([]byte(calls))
	f.Add([]byte("event: message_start\ndata: {\"type\":\"message_start\",\"message\":7}\n\n"))
	f.Add([]byte("data: [1]\n\ndata: null\n\ndata: \"x\"\n\n"))
	f.Add([]byte("data: {\"type\":\"message_delta\",\"delta\":[],\"usage\":[1]}\n\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		a, _, err := ask(t, recorded.Events(string(body)), hello())
		if err == nil && (!strings.Contains(string(body), "message_stop") || a.ProviderStop == "") {
			t.Errorf("an answer without an end: %+v", a)
		}
		if _, ok := errors.AsType[*provider.Error](err); err != nil && !ok {
			t.Errorf("a bare error: %v", err)
		}
	})
}

// Its arguments would read as none, and the tool would run with them.
func TestACallToAToolThatDoesNotEndIsNoAnswer(t *testing.T) {
	t.Parallel()
	begins := event(
		`{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"b","input":{"c":1}}}`)
	ends := event(`{"type":"content_block_stop","index":0}`)
	grows := func(index int) string {
		return event(fmt.Sprintf(
			`{"type":"content_block_delta","index":%d,"delta":{"type":"input_json_delta","partial_json":"{}"}}`, index))
	}
	rest := event(`{"type":"message_delta","delta":{"stop_reason":"tool_use"}}`) + event(stopped)
	for name, c := range map[string]struct {
		events string
		want   provider.ErrorKind
	}{
		"it does not end":              {begins, provider.Cut},
		"another begins in its place":  {begins + begins + ends, provider.Garbled},
		"both end":                     {begins + ends + begins + ends, ""},
		"arguments of no block":        {begins + grows(7) + ends, provider.Garbled},
		"arguments after its end":      {begins + ends + grows(0), provider.Garbled},
		"arguments of an unknown kind": {begins + strings.Replace(grows(0), "input_json_delta", "tool_input_delta", 1) + ends, provider.Garbled},
		"arguments without a kind":     {begins + strings.Replace(grows(0), `"type":"input_json_delta",`, "", 1) + ends, provider.Garbled},
		"an empty text within it": {begins + event(
			`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":""}}`) + ends, ""},
		"no arguments after its end": {begins + ends + strings.Replace(grows(0), "{}\"}", "\"}", 1), ""},
		"arguments without an index": {begins + strings.Replace(grows(0), `"index":0,`, "", 1) + ends, provider.Garbled},
		"arguments of a text": {event(`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`) +
			grows(0) + ends, provider.Garbled},
		"a second message": {begins + ends + event(started), provider.Garbled},
		"it begins after the reason": {
			event(`{"type":"message_delta","delta":{"stop_reason":"end_turn"}}`) + begins + ends, provider.Garbled},
	} {
		_, _, err := ask(t, recorded.Events(event(started)+c.events+rest), hello())
		got := provider.ErrorKind("")
		if e, ok := errors.AsType[*provider.Error](err); ok {
			got = e.Kind
		}
		if got != c.want || err != nil && got == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEndlessStreamsEnd(t *testing.T) {
	t.Parallel()
	for name, unit := range map[string]string{
		"data": "data: " + strings.Repeat("x", 1<<10) + "\n",
		"blocks": event(
			`{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"b","input":{}}}`) +
			event(`{"type":"content_block_stop","index":0}`),
	} {
		_, _, err := ask(t, recorded.Events(event(started)+strings.Repeat(unit, 6000)), hello())
		if e, ok := errors.AsType[*provider.Error](err); !ok || e.Kind != provider.AnswerTooBig {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// sent returns the body that a request has.
func sent(t *testing.T, r *provider.Request) map[string]any {
	t.Helper()
	var body []byte
	s := recorded.Events(calls)
	s.Seen = func(_ *http.Request, b []byte) { body = b }
	if _, _, err := ask(t, s, r); err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func same(t *testing.T, got any, want string) {
	t.Helper()
	var w any
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, w) {
		text, _ := json.Marshal(got)
		t.Errorf("got  %s\nwant %s", text, want)
	}
}

func TestARequestCarriesAllOfAConversation(t *testing.T) {
	t.Parallel()
	temperature, topP := 0.5, 0.9
	r := &provider.Request{
		Model: "claude-haiku-4-5", System: "Be brief.", Target: "haiku", MaxOutputTokens: 900, Temperature: &temperature,
		TopP: &topP, Stop: []string{"END"},
		Messages: []provider.Message{
			{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "Look <it> up"}, {Type: provider.Text}}},
			{Role: provider.Assistant, Content: provider.Content{
				{Type: provider.Thinking, Text: "Hm, é.", Signature: "EqQBCg/+AB==", Target: "haiku"},
				{Type: provider.Thinking, Redacted: true, Signature: "EmwKAhgB+/=", Target: "haiku"},
				{Type: provider.Thinking, Text: "Another's.", Signature: "other", Target: "gpt"},
				{Type: provider.Thinking, Text: "Unsigned.", Target: "haiku"},
				{Type: provider.Text, Text: "I look."},
				{Type: provider.ToolCall, ID: "toolu_1", Name: "look", Arguments: json.RawMessage(`{"n":1}`), Signature: "gemini's",
					Target: "gemini"},
				{Type: provider.ToolCall, ID: "toolu_2", Name: "look", RawArguments: "{"},
			}},
			{Role: provider.FromTool, Content: provider.Content{{Type: provider.ToolResult, ToolCallID: "toolu_1",
				Content: "one"}}},
			{Role: provider.FromTool, Content: provider.Content{{Type: provider.ToolResult, ToolCallID: "toolu_2",
				Content: "no JSON", IsError: true}}},
			{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "Well?"}}},
			{Role: provider.Assistant, Content: provider.Content{{Type: provider.Thinking, Text: "Not sent.", Target: "gpt"}}},
		},
		Tools: []provider.Tool{{Name: "look", Description: "Looks.",
			Parameters: json.RawMessage(
				`{"type":"object","properties":{"n":{"type":"integer","maximum":7}},"additionalProperties":false}`)}},
		ToolChoice: provider.ChooseRequired,
	}
	same(t, sent(t, r),
		`{"model":"claude-haiku-4-5","max_tokens":900,"stream":true,"temperature":0.5,"top_p":0.9,"stop_sequences":["END"],
		"system":[{"type":"text","text":"Be brief."}],
		"messages":[
			{"role":"user","content":[{"type":"text","text":"Look <it> up"}]},
			{"role":"assistant","content":[
				{"type":"thinking","thinking":"Hm, é.","signature":"EqQBCg/+AB=="},
				{"type":"redacted_thinking","data":"EmwKAhgB+/="},
				{"type":"text","text":"I look."},
				{"type":"tool_use","id":"toolu_1","name":"look","input":{"n":1}},
				{"type":"tool_use","id":"toolu_2","name":"look","input":{}}]},
			{"role":"user","content":[
				{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"text","text":"one"}]},
				{"type":"tool_result","tool_use_id":"toolu_2","is_error":true,"content":[{"type":"text","text":"no JSON"}]},
				{"type":"text","text":"Well?"}]}],
		"tools":[{"name":"look","description":"Looks.","input_schema":{"type":"object","properties":{"n":{"type":"integer","maximum":7}},"additionalProperties":false}}],
		"tool_choice":{"type":"any"}}`)
}

func TestARequestIsCachedIfItsBeginningComesAgain(t *testing.T) {
	t.Parallel()
	r := hello()
	r.Cache = true
	if got := sent(t, r); got["system"] != nil {
		t.Errorf("an empty system text was sent: %v", got["system"])
	} else {
		same(t, got["cache_control"], `{"type":"ephemeral"}`)
	}
	r.System = "Be brief."
	same(t, sent(t, r)["system"], `[{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}]`)
	r.Cache = false
	if got := sent(t, r)["cache_control"]; got != nil {
		t.Errorf("it was to be cached: %v", got)
	}
}

func TestAnAnswerGoesBackByteForByte(t *testing.T) {
	t.Parallel()
	a, _, err := ask(t, recorded.Events(thoughts), hello())
	if err != nil {
		t.Fatal(err)
	}
	r := hello()
	r.Target = "haiku"
	for i := range a.Parts {
		a.Parts[i].Target = "haiku"
	}
	text, err := json.Marshal(a.Parts) // it goes through the journal
	if err != nil {
		t.Fatal(err)
	}
	var parts provider.Content
	if err := json.Unmarshal(text, &parts); err != nil {
		t.Fatal(err)
	}
	r.Messages = append(r.Messages, provider.Message{Role: provider.Assistant, Content: parts})
	same(t, sent(t, r)["messages"].([]any)[1], `{"role":"assistant","content":[
		{"type":"thinking","thinking":"Hm, é.","signature":"EqQBCg/+AB=="},{"type":"redacted_thinking","data":"EmwKAhgB+/="},{"type":"text","text":"Four."}]}`)
}

func TestRequestsHaveTheShapeOfRecordedOnes(t *testing.T) {
	t.Parallel()
	covered := 0
	for _, kind := range []string{"stream", "answer", "error"} {
		for _, rec := range recorded.Load(t, kind, host) {
			var want map[string]any
			if err := json.Unmarshal([]byte(rec.Request), &want); err != nil {
				t.Fatal(err)
			}
			r := &provider.Request{Model: want["model"].(string), MaxOutputTokens: int(want["max_tokens"].(float64))}
			if system, ok := want["system"].([]any); ok {
				r.System = system[0].(map[string]any)["text"].(string)
			}
			if temperature, ok := want["temperature"].(float64); ok {
				r.Temperature = &temperature
			}
			ours := want["tools"] == nil // the provider's own tools are not ours to ask for
			for _, m := range want["messages"].([]any) {
				message := provider.Message{Role: provider.Role(m.(map[string]any)["role"].(string))}
				for _, c := range m.(map[string]any)["content"].([]any) {
					ours = ours && c.(map[string]any)["type"] == "text"
					text, _ := c.(map[string]any)["text"].(string)
					message.Content = append(message.Content, provider.Part{Type: provider.Text, Text: text})
				}
				r.Messages = append(r.Messages, message)
			}
			if !ours {
				continue
			}
			covered++
			want["stream"] = true
			if got := sent(t, r); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %v, not %v", rec.ID, got, want)
			}
		}
	}
	if covered != 7 {
		t.Errorf("%d recorded requests were compared", covered)
	}
}

func TestEffortLeavesRoomForTheAnswer(t *testing.T) {
	t.Parallel()
	turn := func(content ...provider.Part) []provider.Message {
		return []provider.Message{
			{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "Hello"}}},
			{Role: provider.Assistant, Content: content},
			{Role: provider.FromTool, Content: provider.Content{{Type: provider.ToolResult, ToolCallID: "a", Content: "b"}}},
		}
	}
	call := provider.Part{Type: provider.ToolCall, ID: "a", Name: "look"}
	thought := provider.Part{Type: provider.Thinking, Signature: "s", Target: "a"}
	for _, test := range []struct {
		model          string
		effort         provider.Effort
		most           int
		choice         provider.ToolChoice
		messages       []provider.Message
		thinking, conf string
	}{
		{"claude-haiku-4-5-20251001", provider.EffortHigh, 64000, "", nil, `{"type":"enabled","budget_tokens":24576}`,
			`null`},
		{"claude-haiku-4-5", provider.EffortHigh, 10000, "", nil, `{"type":"enabled","budget_tokens":5000}`, `null`},
		{"claude-opus-4-1-20250805", provider.EffortLow, 2048, provider.ChooseAuto, nil,
			`{"type":"enabled","budget_tokens":1024}`, `null`},
		{"claude-3-7-sonnet-latest", provider.EffortLow, 2047, "", nil, `null`, `null`},
		{"qwen3", provider.EffortLow, 64000, "", nil, `{"type":"enabled","budget_tokens":2048}`, `null`},
		{"claude-sonnet-4-20250514", provider.EffortMedium, 64000, provider.ChooseRequired, nil, `null`, `null`},
		{"claude-sonnet-4-5", provider.EffortMedium, 64000, "", turn(call), `null`, `null`},
		{"claude-sonnet-4-5", provider.EffortMedium, 64000, "", turn(thought, call),
			`{"type":"enabled","budget_tokens":8192}`, `null`},
		{"claude-sonnet-4-6", provider.EffortMedium, 100, "", turn(call), `{"type":"adaptive","display":"summarized"}`,
			`{"effort":"medium"}`},
		{"claude-opus-5", provider.EffortHigh, 100, provider.ChooseRequired, nil, `null`, `{"effort":"high"}`},
		{"claude-opus-5", provider.EffortAuto, 100, "", nil, `null`, `null`},
		{"claude-opus-5", "", 100, "", nil, `null`, `null`},
	} {
		temperature := 0.2
		r := hello()
		r.Model, r.Effort, r.Thinks, r.MaxOutputTokens, r.ToolChoice, r.Temperature, r.Target = test.model, test.effort, true,
			test.most, test.choice, &temperature, "a"
		r.Tools = []provider.Tool{{Name: "look", Parameters: json.RawMessage(`{"type":"object"}`)}}
		if test.messages != nil {
			r.Messages = test.messages
		}
		got := sent(t, r)
		same(t, got["thinking"], test.thinking)
		same(t, got["output_config"], test.conf)
		if got["max_tokens"] != float64(test.most) || (got["temperature"] == nil) != (got["thinking"] != nil) {
			t.Errorf("%+v: %v", test, got)
		}
		r.Thinks = false
		if got := sent(t, r); got["thinking"] != nil || got["output_config"] != nil {
			t.Errorf("a model that cannot think: %v", got)
		}
	}
}

func TestTheSchemaIsTheSubsetThatTheProviderTakes(t *testing.T) {
	t.Parallel()
	r := hello()
	r.SchemaName = "person"
	r.Schema = json.RawMessage(
		`{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","required":["name"],"$defs":{"tag":{"type":"string","maxLength":9}},
		"properties":{"name":{"type":"string","minLength":1,"description":"Whose."},"age":{"type":"integer","minimum":0,"exclusiveMaximum":12345678901234567890},
			"mail":{"type":["string","null"],"format":"email"},"site":{"type":"string","format":"iri"},"n":{"enum":[1,2]},"any":true,
			"tags":{"type":"array","items":{"$ref":"#/$defs/tag","minLength":2},"minItems":1,"maxItems":5,"uniqueItems":true},
			"some":{"oneOf":[{"type":"string"},{"type":"object","properties":{"a":{"type":"number","multipleOf":0.5}},"additionalProperties":{"type":"string"}}]}}}`)
	got := sent(t, r)["output_config"].(map[string]any)
	same(t, got, `{"format":{"type":"json_schema","schema":{"type":"object","required":["name"],"additionalProperties":false,
		"$defs":{"tag":{"type":"string","description":"(maxLength: 9)"}},
		"properties":{"name":{"type":"string","description":"Whose. (minLength: 1)"},"age":{"type":"integer","description":"(minimum: 0, exclusiveMaximum: 12345678901234567890)"},
			"mail":{"type":["string","null"],"format":"email"},"site":{"type":"string","description":"(format: \"iri\")"},"n":{"enum":[1,2]},"any":true,
			"tags":{"type":"array","items":{"$ref":"#/$defs/tag"},"minItems":1,"description":"(maxItems: 5, uniqueItems: true)"},
			"some":{"anyOf":[{"type":"string"},{"type":"object","additionalProperties":false,"properties":{"a":{"type":"number","description":"(multipleOf: 0.5)"}}}]}}}}}`)

	for _, schema := range []string{`[]`, `{"properties":7}`, `{"anyOf":{}}`, `{`} {
		r.Schema = json.RawMessage(schema)
		_, _, err := ask(t, recorded.Events(calls), r)
		if e, ok := errors.AsType[*provider.Error](err); !ok || e.Kind != provider.BadRequest {
			t.Errorf("%s: %v", schema, err)
		}
	}
}

func TestPropertiesKeepTheirOrder(t *testing.T) {
	t.Parallel()
	r := hello()
	r.Schema = json.RawMessage(
		`{"type":"object","properties":{"zeal":{"type":"string"},"mind":{"type":"string"},"act":{"type":"string"}}}`)
	var body string
	s := recorded.Events(calls)
	s.Seen = func(_ *http.Request, b []byte) { body = string(b) }
	if _, _, err := ask(t, s, r); err != nil {
		t.Fatal(err)
	}
	at := []int{strings.Index(body, "zeal"), strings.Index(body, "mind"), strings.Index(body, "act")}
	if at[0] < 0 || !slices.IsSorted(at) {
		t.Errorf("%s", body)
	}
}
