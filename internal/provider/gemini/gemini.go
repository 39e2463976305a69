// Package gemini implements Google's Gemini API.
package gemini

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/provider"
)

type dialect struct {
	provider.Endpoint
}

// New returns the provider at e. Its BaseURL is such as https://generativelanguage.googleapis.com; it may end with the
// API's version, v1beta or v1. The default is v1beta.
func New(e provider.Endpoint) provider.Provider {
	e.BaseURL = strings.TrimRight(e.BaseURL, "/")
	if !strings.HasSuffix(e.BaseURL, "/v1beta") && !strings.HasSuffix(e.BaseURL, "/v1") {
		e.BaseURL += "/v1beta"
	}
	return &dialect{e}
}

// Stream sends the request. It returns with the first event. See [provider.Provider].
func (p *dialect) Stream(ctx context.Context, r *provider.Request) (provider.Stream, error) {
	body, err := params(r)
	if err != nil {
		return nil, &provider.Error{Kind: provider.BadRequest, Message: provider.Clean(err.Error(), p.Key)}
	}
	path, err := modelPath(r.Model)
	if err != nil {
		return nil, &provider.Error{Kind: provider.BadRequest, Message: provider.Clean(err.Error(), p.Key)}
	}
	header := http.Header{}
	if p.Key != "" {
		header.Set("X-Goog-Api-Key", p.Key)
	}
	inner, cancel := context.WithCancel(ctx)
	events, err := provider.Post{
		HTTP: p.HTTP, URL: p.BaseURL + "/" + path + ":streamGenerateContent?alt=sse", Header: header, Body: body, Key: p.Key,
		Failed: p.failed,
	}.Send(inner)
	if err != nil {
		cancel()
		return nil, provider.Broke(ctx, err, false, p.Key)
	}
	s := &stream{Queue: provider.Queue{Events: events, Cancel: cancel}, ctx: ctx, key: p.Key}
	s.Read = s.take
	if s.Fetch(); s.Err() != nil {
		_ = s.Close()
		return nil, s.Err()
	}
	return s, nil
}

// failure is the body of a response that is not a success, and the data of an error event.
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

// statuses maps the names of errors to statuses, for events without a code.
var statuses = map[string]int{
	"INVALID_ARGUMENT": 400, "OUT_OF_RANGE": 400, "FAILED_PRECONDITION": 400, "UNAUTHENTICATED": 401,
	"PERMISSION_DENIED": 403, "NOT_FOUND": 404,
	"ABORTED": 500, "RESOURCE_EXHAUSTED": 429, "INTERNAL": 500, "UNKNOWN": 500, "UNAVAILABLE": 503,
	"DEADLINE_EXCEEDED": 504,
}

func (p *dialect) failed(status int, h http.Header, body []byte) *provider.Error {
	var list []json.RawMessage
	if json.Unmarshal(body, &list) == nil && len(list) > 0 {
		body = list[0]
	}
	var f failure
	if json.Unmarshal(body, &f) != nil || f.Error.Message == "" {
		f.Error.Message = string(body)
	}
	return f.as(status, h, p.Key)
}

// as converts f into an error. The API answers a wrong key, an unsupported country and an account without billing with
// a 400, although the request itself is not at fault.
func (f *failure) as(status int, h http.Header, key string) *provider.Error {
	as := status
	wrongKey := slices.ContainsFunc(f.Error.Details,
		func(d detail) bool { return strings.HasPrefix(d.Reason, "API_KEY_") })
	if status == http.StatusBadRequest && (wrongKey || f.Error.Status == "FAILED_PRECONDITION" ||
		strings.Contains(f.Error.Message, "API key not valid")) {
		as = http.StatusForbidden
	}
	e := provider.Failed(as, h, f.Error.Message, key, time.Now())
	e.Status = status
	for _, d := range f.Error.Details {
		if delay, err := time.ParseDuration(d.Delay); err == nil && delay > 0 && e.RetryAfter == 0 {
			e.RetryAfter = min(delay, 24*time.Hour)
		}
	}
	return e
}

// late maps an error event of a stream.
func (s *stream) late(data []byte) *provider.Error {
	var f failure
	_ = json.Unmarshal(data, &f) // an empty event is still an error
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
