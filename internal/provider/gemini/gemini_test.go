package gemini_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/gemini"
	"github.com/gemworker/gem/internal/testing/recorded"
)

// Vertex AI answers in the same dialect.
var hosts = []string{"generativelanguage.googleapis.com", "aiplatform.googleapis.com"}

const key = "AIzaPlanted0123456789abcdefghijklmnopq"

func hello() *provider.Request {
	return &provider.Request{
		Model: "gemini-2.5-flash", MaxOutputTokens: 100,
		Messages: []provider.Message{{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "Hello"}}}},
	}
}

// ask sends a request to the transport and collects the answer.
func ask(t testing.TB, rt http.RoundTripper, r *provider.Request) (*provider.Answer, []provider.Event, error) {
	t.Helper()
	p := gemini.New(provider.Endpoint{BaseURL: "https://generativelanguage.googleapis.com", Key: key,
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
	for line := range strings.SplitSeq(body, "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var e map[string]any
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatal(err)
		}
		a.Model, a.RequestID = e["modelVersion"].(string), e["responseId"].(string)
		c := e["candidates"].([]any)[0].(map[string]any)
		for _, x := range c["content"].(map[string]any)["parts"].([]any) {
			x := x.(map[string]any)
			p := provider.Part{Type: provider.Text}
			p.Text, _ = x["text"].(string)
			p.Signature, _ = x["thoughtSignature"].(string)
			if call, ok := x["functionCall"].(map[string]any); ok {
				p.Type, p.Name, p.ID = provider.ToolCall, call["name"].(string), "call_0"
				if id, ok := call["id"].(string); ok {
					p.ID = id
				}
				p.Arguments, _ = json.Marshal(call["args"])
			}
			if n := len(a.Parts); n > 0 && p.Type == provider.Text && a.Parts[n-1].Type == provider.Text {
				a.Parts[n-1].Text += p.Text
				a.Parts[n-1].Signature += p.Signature
			} else {
				a.Parts = append(a.Parts, p)
			}
		}
		if reason, ok := c["finishReason"].(string); ok {
			a.ProviderStop, a.Stop = reason, provider.EndTurn
		}
		u := e["usageMetadata"].(map[string]any)
		n := func(name string) int64 { f, _ := u[name].(float64); return int64(f) }
		if n("totalTokenCount") > 0 {
			a.Usage = provider.Usage{
				Input: n("promptTokenCount"), Output: n("candidatesTokenCount") + n("thoughtsTokenCount"),
				CacheRead: n("cachedContentTokenCount"),
				Reasoning: n("thoughtsTokenCount"), Known: true,
			}
		}
	}
	for _, p := range a.Parts {
		if p.Type == provider.ToolCall {
			a.Stop = provider.ToolUse
		}
	}
	return a
}

func TestRecordedStreamsSayTheSameHoweverTheyAreCut(t *testing.T) {
	t.Parallel()
	known := map[string]string{
		"892eaa8ab22f": "", "bf499dee7561": "", "f057df34d00f": "Ruby is the best language to learn.",
		"81981eee416a": "Ruby is a great language to learn!",
		"f327b7a3615d": "1, 2, 3", "22d397d925ea": "1, 2, 3", "e9141cad961e": "1\n2\n3",
	}
	for _, r := range recorded.Load(t, "stream", hosts...) {
		t.Run(r.ID, func(t *testing.T) {
			t.Parallel()
			want := read(t, r.Body)
			if text, ok := known[r.ID]; ok && (text != want.Text() || text == "" &&
				want.Parts[0].Name != "best_language_to_learn") {
				t.Fatalf("the recording says %+v", want)
			}
			all := make([]int, len(r.Body))
			for i := range all {
				all[i] = i
			}
			for _, cuts := range append([][]int{nil, all}, each(recorded.Places(r.Body))...) {
				s := r.Response()
				s.Cuts = cuts
				if got, _, err := ask(t, s, hello()); err != nil || !reflect.DeepEqual(got, want) {
					t.Fatalf("cut at %.20v: %+v, %v, not %+v", cuts, got, err, want)
				}
			}
		})
	}
}

func each(places []int) (cuts [][]int) {
	for _, p := range places {
		cuts = append(cuts, []int{p})
	}
	return cuts
}

func TestRecordedAnswersAreReadAsStreamsOfOneEvent(t *testing.T) {
	t.Parallel()
	count := 0
	for _, r := range recorded.Load(t, "answer", hosts...) {
		var body bytes.Buffer
		if err := json.Compact(&body, []byte(r.Body)); err != nil {
			t.Fatal(err)
		}
		stream := "data: " + body.String() + "\r\n\r\n"
		if strings.Contains(stream, `"inlineData"`) || strings.Contains(stream, `"executableCode"`) {
			continue
		}
		count++
		want := read(t, stream)
		if got, _, err := ask(t, recorded.Events(stream), hello()); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v, not %+v", r.ID, got, err, want)
		}
	}
	if count < 15 {
		t.Errorf("%d recorded answers were read", count)
	}
}

func TestNoStreamIsCompleteBeforeItsTerminalEvent(t *testing.T) {
	t.Parallel()
	bodies := map[string]string{"thoughts": thoughts}
	if os.Getenv("GEM_TEST_DATA") != "" {
		for _, r := range recorded.Load(t, "stream", hosts...) {
			bodies[r.ID] = r.Body
		}
	}
	for name, body := range bodies {
		for i, end := range append([]int{0}, recorded.Ends(body)...) {
			if end == len(body) {
				continue
			}
			for _, broken := range []error{nil, io.ErrUnexpectedEOF} {
				s := recorded.Events(body[:end])
				s.Err = broken
				_, _, err := ask(t, s, hello())
				if e, ok := errors.AsType[*provider.Error](err); !ok || e.Kind != provider.Cut {
					t.Errorf("%s after %d events, %v: %v", name, i, broken, err)
				}
			}
		}
	}
}

// Some models give a finishReason with every event, so the answer is whole only when the body ends where it should.
func TestAFinishReasonDoesNotMakeACutStreamWhole(t *testing.T) {
	t.Parallel()
	finished := events(parts(`{"text":"Pay nobody unless "}`, stop))
	half := `data: {"candidates":[{"content":{"parts":[{"text":"the`
	for name, c := range map[string]struct {
		rest string
		err  error
		kind provider.ErrorKind
	}{
		"a reset between events":    {"", syscall.ECONNRESET, provider.Cut},
		"a reset within an event":   {half, syscall.ECONNRESET, provider.Cut},
		"an end within a line":      {half, nil, provider.Cut},
		"an end within an event":    {"data: " + parts(`{"text":"the"}`, stop) + "\n", nil, provider.Cut},
		"an event without an end":   {half + strings.Repeat("x", 2<<20), nil, provider.AnswerTooBig},
		"a body that ends too soon": {"", io.ErrUnexpectedEOF, provider.Cut},
	} {
		s := recorded.Events(finished + c.rest)
		s.Err = c.err
		a, _, err := ask(t, s, hello())
		if e, ok := errors.AsType[*provider.Error](err); !ok || e.Kind != c.kind {
			t.Errorf("%s: got %+v, %v, want the error %s", name, a, err, c.kind)
		}
	}
	if a, _, err := ask(t, recorded.Events(finished), hello()); err != nil || a.Stop != provider.EndTurn {
		t.Errorf("a whole body: got %+v, %v", a, err)
	}
}

func events(data ...string) string {
	var b strings.Builder
	for _, d := range data {
		b.WriteString("data: " + d + "\r\n\r\n")
	}
	return b.String()
}

func parts(parts, more string) string {
	return `{"candidates":[{"content":{"role":"model","parts":[` + parts + `]},"index":0` + more +
		`}],"modelVersion":"gemini-x","responseId":"resp_1"}`
}

const (
	stop  = `,"finishReason":"STOP"`
	usage = `{"usageMetadata":{"promptTokenCount":10,"toolUsePromptTokenCount":2,"cachedContentTokenCount":4,"candidatesTokenCount":5,"thoughtsTokenCount":7,"totalTokenCount":24}}`
)

var thoughts = events(
	parts(`{"text":"Hm, é.","thought":true}`, ""),
	parts(`{"text":"","thoughtSignature":"c2lnLTA="}`, ""),
	parts(`{"functionCall":{"name":"look","args":{"z":12345678901234567890,"a":1.0}},"thoughtSignature":"c2lnLTE="},{"functionCall":{"name":"bare"}}`, ""),
	parts(`{"functionCall":{"id":"fc-9","name":"named","args":{"t":"\u00e9<"}}}`, stop),
)

func TestCallsOfToolsKeepTheirSignaturesAndNumbers(t *testing.T) {
	t.Parallel()
	want := []provider.Part{
		{Type: provider.Thinking, Text: "Hm, é."},
		{Type: provider.Text, Signature: "c2lnLTA="},
		{Type: provider.ToolCall, ID: "call_0", Name: "look", Signature: "c2lnLTE=",
			Arguments: json.RawMessage(`{"z":12345678901234567890,"a":1.0}`)},
		{Type: provider.ToolCall, ID: "call_1", Name: "bare", Arguments: json.RawMessage(`{}`)},
		{Type: provider.ToolCall, ID: "fc-9", Name: "named", Arguments: json.RawMessage(`{"t":"\u00e9<"}`)},
	}
	for at := range len(thoughts) {
		got, _, err := ask(t, recorded.Events(thoughts, at), hello())
		if err != nil || got.Stop != provider.ToolUse || got.ProviderStop != "STOP" || !reflect.DeepEqual(got.Parts, want) ||
			got.Usage.Known {
			t.Fatalf("cut at %d: %+v, %v", at, got, err)
		}
	}
}

// GEM reads no arguments in pieces, and the tool must not run without them.
func TestACallInPiecesIsGarbled(t *testing.T) {
	t.Parallel()
	for _, piece := range []string{`"willContinue":true`, `"partialArgs":[{"jsonPath":"$.a","stringValue":"b"}]`} {
		_, _, err := ask(t, recorded.Events(events(parts(`{"functionCall":{"name":"look",`+piece+`}}`, stop))), hello())
		if e, ok := errors.AsType[*provider.Error](err); !ok || e.Kind != provider.Garbled {
			t.Errorf("%s: %v", piece, err)
		}
	}
}

func TestUsageIsTheLastSeen(t *testing.T) {
	t.Parallel()
	early := `{"usageMetadata":{"promptTokenCount":10,"totalTokenCount":10}}`
	none := `{"usageMetadata":{"trafficType":"ON_DEMAND"}}`
	want := provider.Usage{Input: 12, Output: 12, CacheRead: 4, Reasoning: 7, Known: true}
	a, seen, err := ask(t, recorded.Events(events(none, early, parts(`{"text":"A"}`, stop), usage, none)), hello())
	if err != nil || a.Usage != want {
		t.Errorf("%+v, %v", a, err)
	}
	if last := seen[len(seen)-1]; last.Kind != provider.Ended {
		t.Errorf("the last event is %+v", last)
	}
	if a, _, err = ask(t, recorded.Events(events(none, parts(`{"text":"A"}`, stop))), hello()); err != nil ||
		a.Usage.Known {
		t.Errorf("a usage without figures: %+v, %v", a, err)
	}
}

func TestOddNumbersOfTokensHarmNoAnswer(t *testing.T) {
	t.Parallel()
	for figure, want := range map[string]provider.Usage{
		`-5`:         {Output: 2, Known: true},
		`1.5`:        {Input: 2, Output: 2, Known: true},
		`4294967296`: {Input: 4294967296, Output: 2, Known: true},
		`1e30`:       {Input: 1e18, Output: 2, Known: true},
		`"12"`:       {Input: 12, Output: 2, Known: true},
		`"many"`:     {},
		`"NaN"`:      {},
		`{}`:         {},
	} {
		odd := `{"usageMetadata":{"promptTokenCount":` + figure +
			`,"candidatesTokenCount":2,"promptTokensDetails":[{"tokenCount":` + figure + `}]}}`
		a, _, err := ask(t, recorded.Events(events(parts(`{"text":"A"}`, stop+`,"tokenCount":`+figure), odd)), hello())
		if err != nil || a.Usage != want || len(a.Parts) != 1 || a.Parts[0].Text != "A" {
			t.Errorf("%s: got %+v, %v", figure, a, err)
		}
	}
	a, _, err := ask(t, recorded.Events(events(parts(`{"text":"A"}`, stop), `{"usageMetadata":"tokenCount"}`)), hello())
	if err != nil || a.Usage.Known {
		t.Errorf("a usage that is a text: got %+v, %v", a, err)
	}
}

func TestStopsAreMapped(t *testing.T) {
	t.Parallel()
	finish := func(reason string) string { return `,"finishReason":"` + reason + `"` }
	for _, test := range []struct {
		body, reason string
		stop         provider.Stop
		kind         provider.ErrorKind
	}{
		{body: events(parts(`{"text":"A"}`, finish("STOP")), parts(`{"text":"B"}`, finish("STOP"))), reason: "STOP",
			stop: provider.EndTurn},
		{body: events(parts(`{"text":"A"}`, finish("MAX_TOKENS"))), reason: "MAX_TOKENS", stop: provider.MaxTokens},
		{body: events(parts(`{"text":"A"}`, finish("SAFETY"))), reason: "SAFETY", stop: provider.Refusal},
		{body: events(`{"candidates":[{"finishReason":"PROHIBITED_CONTENT"}]}`), reason: "PROHIBITED_CONTENT",
			stop: provider.Refusal},
		{body: events(`{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":3}}`), reason: "SAFETY",
			stop: provider.Refusal},
		{body: events(`{"candidates":[{"finishReason":"OTHER"}]}`), reason: "OTHER", stop: provider.Refusal},
		{body: events(parts(`{"text":"A"}`, finish("NEW_REASON"))), reason: "NEW_REASON", stop: provider.EndTurn},
		{body: events(parts(`{"text":"A"}`, finish("MALFORMED_FUNCTION_CALL"))), kind: provider.Unavailable},
		{body: events(parts(`{"text":"A"}`, finish("FINISH_REASON_UNSPECIFIED"))), kind: provider.Cut},
		{body: events(parts(`{"text":"A"}`, finish("CONTINUATION")+`,"continuationToken":"YWJj"`)), kind: provider.Cut},
	} {
		hits := 0
		s := recorded.Events(test.body)
		s.Seen = func(*http.Request, []byte) { hits++ }
		a, _, err := ask(t, s, hello())
		e, _ := errors.AsType[*provider.Error](err)
		if hits != 1 || (err == nil) != (test.kind == "") || e != nil && e.Kind != test.kind || err == nil &&
			(a.Stop != test.stop || a.ProviderStop != test.reason) {
			t.Errorf("%s: %+v, %v after %d requests", test.body, a, err, hits)
		}
	}
}

func TestTheStreamOutlivesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	body := ": keep alive\r\n\r\nevent: message\r\nid: 1\r\n" + events(`{"fromTheFuture":{"x":1}}`) +
		"data: {\"candidates\":[{\"content\":\r\ndata: {\"parts\":[{\"hologram\":1},{\"text\":\"A\"}]}}]}\n\n" +
		events(`{"candidates":[{"index":1,"content":{"parts":[{"text":"another candidate"}]},"finishReason":"STOP"}]}`,
			parts(`{"inlineData":{"mimeType":"image/png","data":"AA=="}},{"text":""}`, ""), parts(``, stop))
	a, seen, err := ask(t, recorded.Events(body), hello())
	if err != nil || a.Text() != "A" || a.Stop != provider.EndTurn || a.Model != "gemini-x" || a.RequestID != "resp_1" {
		t.Fatalf("%+v, %v", a, err)
	}
	for i, e := range seen[:2] {
		if e.Kind != provider.KeepAlive {
			t.Errorf("event %d is %+v", i, e)
		}
	}
}

func TestErrorEventsHaveTheirKinds(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]provider.ErrorKind{
		`{"error":{"code":503,"status":"UNAVAILABLE","message":"The model is overloaded, ` + key +
			`"}}`: provider.Overloaded,
		`{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"quota","details":[{"@type":"RetryInfo","retryDelay":"48s"}]}}`: provider.RateLimited,
		`{"error":{"code":500,"message":"internal"}}`:                        provider.Unavailable,
		`{"error":{"status":"PERMISSION_DENIED","message":"no"}}`:            provider.Unauthorized,
		`{"error":{"code":400,"status":"INVALID_ARGUMENT","message":"bad"}}`: provider.BadRequest,
		`{"error":"something of ` + key +
			`"}`: provider.Unavailable,
		`{"error":{"code":"x"}}`: provider.Unavailable,
		`{"error":{"code":400,"status":"INVALID_ARGUMENT","message":"The input token count (9) exceeds the maximum number of tokens"} }`: provider.ContextLength,
	} {
		for _, before := range []string{"", events(parts(`{"text":"A"}`, ""))} {
			_, _, err := ask(t, recorded.Events(before+events(data)), hello())
			e, ok := errors.AsType[*provider.Error](err)
			if !ok || e.Kind != want || strings.Contains(err.Error(), "Planted") {
				t.Errorf("%s: %#v", data, err)
			}
			if ok && want == provider.RateLimited && e.RetryAfter != 48*time.Second {
				t.Errorf("%s: %#v", data, e)
			}
		}
	}
}

func TestFailedResponsesHaveTheirKinds(t *testing.T) {
	t.Parallel()
	body := func(code int, status, message, details string) string {
		return fmt.Sprintf(`{"error":{"code":%d,"status":%q,"message":%q,"details":[%s]}}`, code, status, message, details)
	}
	info := `{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[]},{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"48s"}`
	reason := `{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID","domain":"googleapis.com"}`
	for _, test := range []struct {
		status int
		header http.Header
		body   string
		kind   provider.ErrorKind
		after  time.Duration
	}{
		{429, nil, body(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota", info), provider.RateLimited,
			48 * time.Second},
		{429, http.Header{"Retry-After": {"7"}}, body(429, "RESOURCE_EXHAUSTED", "quota", info), provider.RateLimited,
			7 * time.Second},
		{429, nil, "[" + body(429, "RESOURCE_EXHAUSTED", "quota", info) + "]", provider.RateLimited, 48 * time.Second},
		{503, nil, body(503, "UNAVAILABLE", "The model is overloaded.", ""), provider.Overloaded, 0},
		{400, nil, body(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", reason),
			provider.Unauthorized, 0},
		{400, nil, body(400, "FAILED_PRECONDITION", "User location is not supported for the API use.", ""),
			provider.Unauthorized, 0},
		{400, nil, body(400, "INVALID_ARGUMENT", "The input token count (1200000) exceeds the maximum number of tokens "+
			"allowed (1048576).", ""), provider.ContextLength, 0},
		{400, nil, body(400, "INVALID_ARGUMENT", "contents is not specified", ""), provider.BadRequest, 0},
		{404, nil, body(404, "NOT_FOUND", "models/x is not found", ""), provider.NotFound, 0},
		{307, http.Header{"Location": {"https://elsewhere.example/"}}, "", provider.NotFound, 0},
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
		if !ok || e.Kind != test.kind || e.Status != test.status || e.RetryAfter != test.after || hits != 1 {
			t.Errorf("%d %.80s: %#v after %d requests", test.status, test.body, err, hits)
		}
	}
}

func TestTheEnvironmentMovesNothing(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the request went elsewhere")
	}))
	defer other.Close()
	for name, value := range map[string]string{
		"GOOGLE_GEMINI_BASE_URL": other.URL, "GOOGLE_VERTEX_BASE_URL": other.URL, "GOOGLE_API_KEY": "env-google",
		"GEMINI_API_KEY":            "env-gemini",
		"GOOGLE_GENAI_USE_VERTEXAI": "true", "GOOGLE_GENAI_USE_ENTERPRISE": "1", "GOOGLE_CLOUD_PROJECT": "env-project",
		"GOOGLE_CLOUD_LOCATION": "env-location",
		"GOOGLE_CLOUD_REGION":   "env-region", "GOOGLE_APPLICATION_CREDENTIALS": "/nowhere",
		"HTTP_PROXY": other.URL, "HTTPS_PROXY": other.URL, "http_proxy": other.URL, "https_proxy": other.URL,
		"ALL_PROXY": other.URL,
	} {
		t.Setenv(name, value)
	}
	var logged bytes.Buffer
	before := log.Writer()
	log.SetOutput(&logged)
	defer log.SetOutput(before)
	for _, key := range []string{key, ""} {
		for _, client := range []*http.Client{provider.NewHTTP(nil), nil} {
			for _, base := range []string{"/base", "/base/", "/base/v1beta", "/base/v1beta/", "/base/v1"} {
				version := "v1beta"
				if base == "/base/v1" {
					version = "v1"
				}
				hits := 0
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					hits++
					if r.URL.RequestURI() != "/base/"+version+"/models/gemini-2.5-flash:streamGenerateContent?alt=sse" ||
						r.Header.Get("X-Goog-Api-Key") != key || r.Header.Get("Authorization") != "" ||
						strings.Contains(fmt.Sprint(r.Header), "env-") {
						t.Errorf("%s %v", r.URL, r.Header)
					}
					w.Header().Set("Content-Type", "text/event-stream")
					fmt.Fprint(w, thoughts)
				}))
				p := gemini.New(provider.Endpoint{BaseURL: server.URL + base, Key: key, HTTP: client})
				s, err := p.Stream(t.Context(), hello())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := provider.Collect(s, nil); err != nil {
					t.Error(err)
				}
				server.Close()
				if hits != 1 {
					t.Errorf("%d requests", hits)
				}
			}
		}
	}
	// A broken body is an error, and not a line in the log.
	s := recorded.Events(events(parts(`{"text":"A"}`, "")))
	s.Err = io.ErrUnexpectedEOF
	if _, _, err := ask(t, s, hello()); err == nil {
		t.Error("a broken body is an answer")
	}
	if logged.Len() > 0 {
		t.Errorf("the log has %s", logged.String())
	}
	log.Print("ours")
	if !strings.Contains(logged.String(), "ours") {
		t.Error("the log is lost")
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte(thoughts))
	f.Add([]byte(events(usage, parts(`{"text":"A"}`, stop))))
	f.Add([]byte(events(`{"candidates":{"x":1}}`)))
	f.Add([]byte(events(`{"candidates":[null,7]}`,
		`{"candidates":[{"content":{"parts":[null,{"thoughtSignature":"%"}]}}]}`)))
	f.Add([]byte("data: [1]\n\ndata: null\n\ndata: \"x\"\n\n{\"error\":{}}\n\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		a, _, err := ask(t, recorded.Events(string(body)), hello())
		if err == nil && a.ProviderStop == "" {
			t.Errorf("an answer without an end: %+v", a)
		}
		if _, ok := errors.AsType[*provider.Error](err); err != nil && !ok {
			t.Errorf("a bare error: %v", err)
		}
	})
}

func TestEndlessStreamsEnd(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<10)
	for name, unit := range map[string]string{
		"data":     "data: " + long + "\n",
		"finished": events(parts(`{"text":"`+long+`"}`, stop)), "calls": events(parts(`{"functionCall":{"name":"a"}}`, "")),
	} {
		_, _, err := ask(t, recorded.Events(events(parts(`{"text":"A"}`, ""))+strings.Repeat(unit, 3000)), hello())
		if e, ok := errors.AsType[*provider.Error](err); !ok || e.Kind != provider.AnswerTooBig {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// sent returns the body that a request has.
func sent(t *testing.T, r *provider.Request) (map[string]any, string) {
	t.Helper()
	var body []byte
	s := recorded.Events(thoughts)
	s.Seen = func(_ *http.Request, b []byte) { body = b }
	if _, _, err := ask(t, s, r); err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatal(err)
	}
	return m, string(body)
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
	temperature, topP := 0.7, 0.95
	r := &provider.Request{
		Model: "gemini-3-flash-preview", System: "Be brief.", Target: "flash", MaxOutputTokens: 900,
		Temperature: &temperature,
		TopP:        &topP, Stop: []string{"END"},
		Messages: []provider.Message{
			{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "Look <it> up"}, {Type: provider.Text}}},
			{Role: provider.Assistant, Content: provider.Content{
				{Type: provider.Thinking, Text: "Hm.", Signature: "c2lnLXQ=", Target: "flash"},
				{Type: provider.Thinking, Text: "A summary.", Target: "flash"},
				{Type: provider.Thinking, Text: "Another's.", Signature: "b3RoZXI=", Target: "gpt"},
				{Type: provider.Text, Text: "I look.", Signature: "b3RoZXI=", Target: "gpt"},
				{Type: provider.Text, Signature: "c2lnLTA=", Target: "flash"},
				{Type: provider.ToolCall, ID: "call_0", Name: "look", Arguments: json.RawMessage(`{"n":12345678901234567890}`),
					Signature: "c2lnLTE=", Target: "flash"},
				{Type: provider.ToolCall, ID: "fc-9", Name: "hear", RawArguments: "{"},
			}},
			{Role: provider.FromTool, Content: provider.Content{{Type: provider.ToolResult, ToolCallID: "call_0",
				Content: "one"}}},
			{Role: provider.FromTool, Content: provider.Content{{Type: provider.ToolResult, ToolCallID: "fc-9",
				Content: "no JSON", IsError: true}}},
			{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "Well?"}}},
			{Role: provider.Assistant, Content: provider.Content{{Type: provider.ToolCall, ID: "toolu_1", Name: "look",
				Arguments: json.RawMessage(`{}`), Signature: "b3RoZXI=", Target: "claude"}}},
			{Role: provider.FromTool, Content: provider.Content{{Type: provider.ToolResult, ToolCallID: "toolu_1"}}},
		},
		Tools: []provider.Tool{
			{Name: "look", Description: "Looks.", Parameters: json.RawMessage(
				`{"type":"object","properties":{"n":{"type":"integer","maximum":9007199254740993,"multipleOf":2}}}`)},
			{Name: "hear"},
		},
		ToolChoice: provider.ChooseRequired,
	}
	got, text := sent(t, r)
	same(t, got, `{"generationConfig":{"maxOutputTokens":900,"temperature":0.7,"topP":0.95,"stopSequences":["END"]},
		"systemInstruction":{"parts":[{"text":"Be brief."}]},
		"contents":[
			{"role":"user","parts":[{"text":"Look <it> up"}]},
			{"role":"model","parts":[
				{"text":"Hm.","thought":true,"thoughtSignature":"c2lnLXQ="},
				{"text":"I look."},
				{"text":"","thoughtSignature":"c2lnLTA="},
				{"functionCall":{"name":"look","args":{"n":12345678901234567890}},"thoughtSignature":"c2lnLTE="},
				{"functionCall":{"id":"fc-9","name":"hear","args":{}}}]},
			{"role":"user","parts":[
				{"functionResponse":{"name":"look","response":{"output":"one"}}},
				{"functionResponse":{"id":"fc-9","name":"hear","response":{"error":"no JSON"}}},
				{"text":"Well?"}]},
			{"role":"model","parts":[{"functionCall":{"id":"toolu_1","name":"look","args":{}},"thoughtSignature":"c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="}]},
			{"role":"user","parts":[{"functionResponse":{"id":"toolu_1","name":"look","response":{"output":""}}}]}],
		"tools":[{"functionDeclarations":[
			{"name":"look","description":"Looks.","parametersJsonSchema":{"type":"object","properties":{"n":{"type":"integer","maximum":9007199254740993,"description":"(multipleOf: 2)"}}}},
			{"name":"hear","parametersJsonSchema":{"type":"object"}}]}],
		"toolConfig":{"functionCallingConfig":{"mode":"ANY"}}}`)
	for _, number := range []string{"12345678901234567890", "9007199254740993"} {
		if !strings.Contains(text, number) {
			t.Errorf("%s is not in %s", number, text)
		}
	}
	r.Model = "gemini-2.5-pro" // takes calls without a signature
	if _, text := sent(t, r); strings.Contains(text, "c2tpcF9") {
		t.Errorf("%s", text)
	}
}

func TestConversationsHaveTheShapeOfRecordedOnes(t *testing.T) {
	t.Parallel()
	covered, signed := 0, 0
	for _, kind := range []string{"stream", "answer"} {
		for _, rec := range recorded.Load(t, kind, hosts...) {
			var want map[string]any
			if err := json.Unmarshal([]byte(rec.Request), &want); err != nil {
				t.Fatal(err)
			}
			r := &provider.Request{Model: "gemini-3-flash-preview", MaxOutputTokens: 100, Target: "flash"}
			if system, ok := want["systemInstruction"].(map[string]any); ok {
				r.System = system["parts"].([]any)[0].(map[string]any)["text"].(string)
			}
			ours := true
			for _, c := range want["contents"].([]any) {
				c := c.(map[string]any)
				m := provider.Message{Role: provider.User}
				if c["role"] == "model" {
					m.Role = provider.Assistant
				}
				for _, x := range c["parts"].([]any) {
					x := x.(map[string]any)
					p := provider.Part{Type: provider.Text, Target: "flash"}
					p.Signature, _ = x["thoughtSignature"].(string)
					switch {
					case x["text"] != nil:
						p.Text = x["text"].(string)
					case x["functionCall"] != nil:
						call := x["functionCall"].(map[string]any)
						p.Type, p.ID, p.Name = provider.ToolCall, "call_0", call["name"].(string)
						p.Arguments, _ = json.Marshal(call["args"])
					case x["functionResponse"] != nil && len(x) == 1:
						p.Type, p.ToolCallID, p.Content = provider.ToolResult, "call_0", "Ruby"
						// The sender controls the contents of a response.
						x["functionResponse"].(map[string]any)["response"] = map[string]any{"output": "Ruby"}
					default:
						ours = false
					}
					if p.Signature != "" {
						signed++
					}
					m.Content = append(m.Content, p)
				}
				r.Messages = append(r.Messages, m)
			}
			if !ours || strings.Contains(rec.Request, "inlineData") || strings.Contains(rec.Request, "inline_data") {
				continue
			}
			if config, _ := want["generationConfig"].(map[string]any); config["responseJsonSchema"] != nil {
				r.Schema, _ = json.Marshal(config["responseJsonSchema"])
			}
			covered++
			got, _ := sent(t, r)
			config, _ := want["generationConfig"].(map[string]any)
			gotConfig := got["generationConfig"].(map[string]any)
			for _, name := range []string{"responseMimeType", "responseJsonSchema"} {
				if !reflect.DeepEqual(gotConfig[name], config[name]) {
					t.Errorf("%s: %s is %v, not %v", rec.ID, name, gotConfig[name], config[name])
				}
			}
			for _, name := range []string{"contents", "systemInstruction"} {
				if !reflect.DeepEqual(got[name], want[name]) {
					t.Errorf("%s: %s is %v, not %v", rec.ID, name, got[name], want[name])
				}
			}
		}
	}
	if covered < 20 || signed < 5 {
		t.Errorf("%d recorded requests with %d signatures were compared", covered, signed)
	}
}

func TestEffortLeavesRoomForTheAnswer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		model  string
		effort provider.Effort
		most   int
		want   string
	}{
		{"gemini-2.5-flash", provider.EffortHigh, 64000, `{"includeThoughts":true,"thinkingBudget":24576}`},
		{"gemini-2.5-pro", provider.EffortMedium, 5000, `{"includeThoughts":true,"thinkingBudget":2500}`},
		{"gemini-2.5-flash-lite", provider.EffortLow, 1000, `null`},
		{"gemini-2.0-flash", provider.EffortLow, 64000, `null`},
		{"gemini-3-pro-preview", provider.EffortMedium, 100, `{"includeThoughts":true,"thinkingLevel":"HIGH"}`},
		{"gemini-3.1-pro-preview", provider.EffortMedium, 100, `{"includeThoughts":true,"thinkingLevel":"MEDIUM"}`},
		{"models/gemini-4-argon", provider.EffortLow, 100, `{"includeThoughts":true,"thinkingLevel":"LOW"}`},
		{"gemini-3.5-flash", provider.EffortAuto, 100, `null`},
		{"gemini-3.5-flash", "", 100, `null`},
	} {
		r := hello()
		r.Model, r.Effort, r.Thinks, r.MaxOutputTokens = test.model, test.effort, true, test.most
		got, _ := sent(t, r)
		same(t, got["generationConfig"].(map[string]any)["thinkingConfig"], test.want)
		r.Thinks = false
		if got, _ := sent(t, r); got["generationConfig"].(map[string]any)["thinkingConfig"] != nil {
			t.Errorf("a model that cannot think: %v", got)
		}
	}
}

func TestTheSchemaIsTheSubsetThatTheProviderTakes(t *testing.T) {
	t.Parallel()
	r := hello()
	r.Schema = json.RawMessage(
		`{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","required":["zeal"],"definitions":{"tag":{"type":"string","maxLength":9}},
		"properties":{"zeal":{"type":"string","minLength":1,"description":"Whose."},"mind":{"type":"integer","minimum":0,"exclusiveMaximum":7,"default":1},
			"act":{"const":"x"},"no":{"const":null},"tags":{"type":"array","items":{"$ref":"#/definitions/tag","minLength":2},"maxItems":5,"uniqueItems":true}},
		"additionalProperties":false}`)
	got, text := sent(t, r)
	same(t, got["generationConfig"],
		`{"maxOutputTokens":100,"responseMimeType":"application/json","responseJsonSchema":{"type":"object","required":["zeal"],
		"$defs":{"tag":{"type":"string","description":"(maxLength: 9)"}},"additionalProperties":false,
		"properties":{"zeal":{"type":"string","description":"Whose. (minLength: 1)"},"mind":{"type":"integer","minimum":0,"description":"(exclusiveMaximum: 7)"},
			"act":{"enum":["x"]},"no":{"description":"(enum: [null])"},"tags":{"type":"array","items":{"$ref":"#/$defs/tag"},"maxItems":5,"description":"(uniqueItems: true)"}}}}`)
	at := []int{strings.Index(text, `"zeal":`), strings.Index(text, `"mind":`), strings.Index(text, `"act":`)}
	if at[0] < 0 || !slices.IsSorted(at) {
		t.Errorf("the properties have another order: %s", text)
	}
	for _, schema := range []string{`[]`, `{"properties":7}`, `{"anyOf":{}}`, `{`} {
		r.Schema = json.RawMessage(schema)
		_, _, err := ask(t, recorded.Events(thoughts), r)
		if e, ok := errors.AsType[*provider.Error](err); !ok || e.Kind != provider.BadRequest {
			t.Errorf("%s: %v", schema, err)
		}
	}
	for _, model := range []string{"", "a?b", "../x"} {
		r := hello()
		r.Model = model
		_, _, err := ask(t, recorded.Events(thoughts), r)
		if e, ok := errors.AsType[*provider.Error](err); !ok || e.Kind != provider.BadRequest {
			t.Errorf("the model %q: %v", model, err)
		}
	}
}
