// Package anthropic implements Anthropic's Messages API.
package anthropic

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/provider"
)

// version is the API's, which each request names.
const version = "2023-06-01"

type dialect struct {
	provider.Endpoint
	url string
}

// New returns the provider at e. Its BaseURL is such as https://api.anthropic.com, with or without a /v1 at its end.
func New(e provider.Endpoint) provider.Provider {
	return &dialect{e, strings.TrimSuffix(strings.TrimRight(e.BaseURL, "/"), "/v1") + "/v1/messages"}
}

// Stream sends the request. See [provider.Provider].
func (p *dialect) Stream(ctx context.Context, r *provider.Request) (provider.Stream, error) {
	body, err := params(r)
	if err != nil {
		return nil, &provider.Error{Kind: provider.BadRequest, Message: provider.Clean(err.Error(), p.Key)}
	}
	header := http.Header{"Anthropic-Version": {version}}
	if p.Key != "" {
		header.Set("X-Api-Key", p.Key)
	}
	inner, cancel := context.WithCancel(ctx)
	events, err := provider.Post{HTTP: p.HTTP, URL: p.url, Header: header, Body: body, Key: p.Key,
		Failed: p.failed}.Send(inner)
	if err != nil {
		cancel()
		return nil, provider.Broke(ctx, err, false, p.Key)
	}
	s := &stream{
		Queue: provider.Queue{Events: events, Cancel: cancel}, ctx: ctx, key: p.Key,
		blocks: map[int64]*block{}, request: provider.RequestID(events.Header, p.Key),
	}
	s.Read = s.read
	return s, nil
}

// failure is the body of a response that is not a success, and the data of an error event.
type failure struct {
	Error struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	} `json:"error"`
	RequestID string `json:"request_id"`
}

func (p *dialect) failed(status int, h http.Header, body []byte) *provider.Error {
	var f failure
	if json.Unmarshal(body, &f) != nil || f.Error.Message == "" {
		f.Error.Message = string(body)
	}
	as := status
	if status == http.StatusBadRequest && strings.Contains(f.Error.Message, "credit balance") {
		as = http.StatusPaymentRequired // only the message contains this
	}
	e := provider.Failed(as, h, f.Error.Message, p.Key, time.Now())
	e.Status = status
	return f.named(e, p.Key)
}

// named sets the request's id in e from the body, if the headers had none.
func (f *failure) named(e *provider.Error, key string) *provider.Error {
	if e.RequestID == "" {
		e.RequestID = provider.RequestID(http.Header{"Request-Id": {f.RequestID}}, key)
	}
	return e
}

// statuses maps the API's types of errors to their documented statuses. A stream has only the type.
var statuses = map[string]int{
	"invalid_request_error": http.StatusBadRequest,
	"authentication_error":  http.StatusUnauthorized,
	"billing_error":         http.StatusPaymentRequired,
	"permission_error":      http.StatusForbidden,
	"not_found_error":       http.StatusNotFound,
	"request_too_large":     http.StatusRequestEntityTooLarge,
	"rate_limit_error":      http.StatusTooManyRequests,
	"api_error":             http.StatusInternalServerError,
	"timeout_error":         http.StatusGatewayTimeout,
	"overloaded_error":      529,
}

// late maps an error event of a stream. The response's headers belong to a success, so their Retry-After does not
// apply.
func late(data []byte, h http.Header, key string) *provider.Error {
	var f failure
	_ = json.Unmarshal(data, &f) // an empty event is still an error
	status := statuses[f.Error.Type]
	if status == 0 {
		status = http.StatusInternalServerError
	}
	e := provider.Failed(status, nil, f.Error.Message, key, time.Now())
	e.Status, e.RequestID = http.StatusOK, provider.RequestID(h, key)
	return f.named(e, key)
}
