// Package gemini speaks Google's Gemini API, on Google's SDK.
package gemini

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"iter"
	"log"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/genai"

	"github.com/gemworker/gem/internal/llm"
)

type provider struct {
	// generate sends a request when its events are asked for. It hides the SDK's client, for the size of the binary: see package anthropic.
	generate func(ctx context.Context, model string, contents []*genai.Content, config *genai.GenerateContentConfig) iter.Seq2[*genai.GenerateContentResponse, error]
	key      string
	err      error // why there is no client
}

// New returns the provider at e. Its BaseURL is such as https://generativelanguage.googleapis.com; the API's version, v1beta, may stand
// at its end.
func New(e llm.Endpoint) llm.Provider {
	p := &provider{key: e.Key}
	base, version := strings.TrimRight(e.BaseURL, "/"), "v1beta"
	for _, v := range []string{"v1beta", "v1"} {
		if rest, ok := strings.CutSuffix(base, "/"+v); ok {
			base, version = rest, v
			break
		}
	}
	watch := llm.Watch{Key: e.Key, Failed: p.failed, Alive: "{}", Prepare: func(r *http.Request) {
		r.Header.Del("X-Goog-Api-Key")
		if e.Key != "" {
			r.Header.Set("X-Goog-Api-Key", e.Key)
		}
	}}
	key := e.Key
	if key == "" {
		key = "none" // the SDK would look for another one; Prepare takes it away
	}
	client, err := quietly(func() (*genai.Client, error) {
		return genai.NewClient(context.Background(), &genai.ClientConfig{
			Backend: genai.BackendGeminiAPI, APIKey: key, HTTPClient: watch.Client(e.HTTP),
			HTTPOptions: genai.HTTPOptions{BaseURL: base + "/", APIVersion: version},
		})
	})
	if err != nil {
		p.err = err
		return p
	}
	p.generate = client.Models.GenerateContentStream
	return p
}

var quiet sync.Mutex

// quietly makes a client without the SDK's warnings. If two variables hold keys it says which one it takes, and takes neither.
func quietly(client func() (*genai.Client, error)) (*genai.Client, error) {
	quiet.Lock()
	defer quiet.Unlock()
	before := log.Writer()
	log.SetOutput(others{before})
	defer log.SetOutput(before)
	return client()
}

// others writes what is none of the SDK's warnings.
type others struct{ io.Writer }

func (o others) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("Both GOOGLE_API_KEY and GEMINI_API_KEY are set")) {
		return len(line), nil
	}
	return o.Writer.Write(line)
}

// Stream sends the request. It returns with the first event. See [llm.Provider].
func (p *provider) Stream(ctx context.Context, r *llm.Request) (llm.Stream, error) {
	if p.err != nil {
		return nil, &llm.Error{Kind: llm.BadRequest, Message: llm.Clean(p.err.Error(), p.key)}
	}
	contents, config, err := params(r)
	if err != nil {
		return nil, &llm.Error{Kind: llm.BadRequest, Message: llm.Clean(err.Error(), p.key)}
	}
	x := &llm.Exchange{Keep: true}
	inner, cancel := context.WithCancel(x.In(ctx))
	s := &stream{ctx: ctx, cancel: cancel, x: x, key: p.key}
	s.next, s.stop = iter.Pull2(p.generate(inner, r.Model, contents, config))
	if s.fetch(); s.err != nil {
		_ = s.Close()
		return nil, s.err
	}
	return s, nil
}

// failure is the body of a response that is no success, and the data of an error event.
type failure struct {
	Error struct {
		Code    int      `json:"code"`
		Status  string   `json:"status"`
		Message string   `json:"message"`
		Details []detail `json:"details"`
	} `json:"error"`
}

type detail struct {
	Reason string `json:"reason"`
	Delay  string `json:"retryDelay"`
}

// statuses are those that stand for the names of errors, where an event has no code.
var statuses = map[string]int{
	"INVALID_ARGUMENT": 400, "OUT_OF_RANGE": 400, "FAILED_PRECONDITION": 400, "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403, "NOT_FOUND": 404,
	"ABORTED": 500, "RESOURCE_EXHAUSTED": 429, "INTERNAL": 500, "UNKNOWN": 500, "UNAVAILABLE": 503, "DEADLINE_EXCEEDED": 504,
}

func (p *provider) failed(status int, h http.Header, body []byte) *llm.Error {
	var list []json.RawMessage
	if json.Unmarshal(body, &list) == nil && len(list) > 0 {
		body = list[0]
	}
	var f failure
	if json.Unmarshal(body, &f) != nil || f.Error.Message == "" {
		f.Error.Message = string(body)
	}
	return f.as(status, h, p.key)
}

// as makes an error of f. A key that is wrong, a country that is not served, and an account without billing are answered with a 400: the
// request itself is not at fault.
func (f *failure) as(status int, h http.Header, key string) *llm.Error {
	as := status
	wrongKey := slices.ContainsFunc(f.Error.Details, func(d detail) bool { return strings.HasPrefix(d.Reason, "API_KEY_") })
	if status == http.StatusBadRequest && (wrongKey || f.Error.Status == "FAILED_PRECONDITION" || strings.Contains(f.Error.Message, "API key not valid")) {
		as = http.StatusForbidden
	}
	e := llm.Failed(as, h, f.Error.Message, key, time.Now())
	e.Status = status
	for _, d := range f.Error.Details {
		if delay, err := time.ParseDuration(d.Delay); err == nil && delay > 0 && e.RetryAfter == 0 {
			e.RetryAfter = min(delay, 24*time.Hour)
		}
	}
	return e
}

// late maps an error event of a stream.
func (s *stream) late(data []byte) *llm.Error {
	var f failure
	_ = json.Unmarshal(data, &f) // an event that says nothing is an error all the same
	status := f.Error.Code
	if status < 300 || status > 599 {
		status = statuses[f.Error.Status]
	}
	if status == 0 {
		status = http.StatusInternalServerError
	}
	e := f.as(status, nil, s.key)
	e.Status, e.RequestID = http.StatusOK, s.request
	return e
}
