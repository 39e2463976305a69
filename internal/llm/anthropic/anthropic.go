// Package anthropic speaks Anthropic's Messages API, on Anthropic's SDK.
package anthropic

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/anthropics/anthropic-sdk-go/packages/ssestream"

	"github.com/gemworker/gem/internal/llm"
)

// ping is the data of an event that brings nothing.
const ping = `{"type":"ping"}`

type provider struct {
	// post sends a request. It hides the SDK's client: the linker keeps every method of a type that a value in an interface holds, here
	// those of all services of the API, 10 MB.
	post func(ctx context.Context, params *sdk.MessageNewParams, resp **http.Response) error
	key  string
}

// New returns the provider at e. Its BaseURL is such as https://api.anthropic.com; a /v1 at its end is left out, since the SDK adds it.
func New(e llm.Endpoint) llm.Provider {
	p := &provider{key: e.Key}
	watch := llm.Watch{Key: e.Key, Failed: p.failed, Alive: ping, Ping: "ping", Typed: true, Prepare: func(r *http.Request) {
		// The SDK says much of the machine. Nobody needs it to answer.
		for name := range r.Header {
			if strings.HasPrefix(name, "X-Stainless-") {
				r.Header.Del(name)
			}
		}
	}}
	// Without a client of the SDK there is nothing that reads the environment.
	options := []option.RequestOption{
		option.WithBaseURL(strings.TrimSuffix(strings.TrimRight(e.BaseURL, "/"), "/v1")),
		option.WithHTTPClient(watch.Client(e.HTTP)),
		option.WithMaxRetries(0),
		option.WithoutOpenTelemetry(), // the tools have spans of their own, and propagate no context to providers
	}
	if e.Key != "" {
		options = append(options, option.WithAPIKey(e.Key))
	}
	messages := sdk.NewMessageService(options...)
	p.post = func(ctx context.Context, params *sdk.MessageNewParams, resp **http.Response) error {
		// The SDK's own stream keeps pings to itself, and leaves out events without a type, which some servers of this dialect send.
		return messages.NewStreaming(ctx, *params, option.WithResponseBodyInto(resp)).Err()
	}
	return p
}

// Stream sends the request. See [llm.Provider].
func (p *provider) Stream(ctx context.Context, r *llm.Request) (llm.Stream, error) {
	params, err := params(r)
	if err != nil {
		return nil, &llm.Error{Kind: llm.BadRequest, Message: llm.Clean(err.Error(), p.key)}
	}
	x := &llm.Exchange{}
	inner, cancel := context.WithCancel(x.In(ctx))
	var resp *http.Response
	if err := p.post(inner, params, &resp); err != nil {
		cancel()
		return nil, llm.Broke(ctx, err, false, p.key)
	}
	return &stream{
		ctx: ctx, cancel: cancel, x: x, events: ssestream.NewDecoder(resp), key: p.key,
		blocks: map[int64]*block{}, request: llm.RequestID(resp.Header, p.key),
	}, nil
}

// failure is the body of a response that is no success, and the data of an error event.
type failure struct {
	Error struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	} `json:"error"`
	RequestID string `json:"request_id"`
}

func (p *provider) failed(status int, h http.Header, body []byte) *llm.Error {
	var f failure
	if json.Unmarshal(body, &f) != nil || f.Error.Message == "" {
		f.Error.Message = string(body)
	}
	as := status
	if status == http.StatusBadRequest && strings.Contains(f.Error.Message, "credit balance") {
		as = http.StatusPaymentRequired // only the message says so
	}
	e := llm.Failed(as, h, f.Error.Message, p.key, time.Now())
	e.Status = status
	return f.named(e, p.key)
}

// named gives e the request's id of the body, if the headers had none.
func (f *failure) named(e *llm.Error, key string) *llm.Error {
	if e.RequestID == "" {
		e.RequestID = llm.RequestID(http.Header{"Request-Id": {f.RequestID}}, key)
	}
	return e
}

// statuses are those that the API documents for the types of its errors. In a stream there is only the type.
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

// late maps an error event of a stream. The response's headers are those of a success: its Retry-After is not meant for a failure.
func late(data []byte, h http.Header, key string) *llm.Error {
	var f failure
	_ = json.Unmarshal(data, &f) // an event that says nothing is an error all the same
	status := statuses[f.Error.Type]
	if status == 0 {
		status = http.StatusInternalServerError
	}
	e := llm.Failed(status, nil, f.Error.Message, key, time.Now())
	e.Status, e.RequestID = http.StatusOK, llm.RequestID(h, key)
	return f.named(e, key)
}
