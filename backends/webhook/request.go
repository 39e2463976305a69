package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/outbound"
	"github.com/gemworker/gem/internal/plainjson"
	"github.com/gemworker/gem/receipts"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"go.opentelemetry.io/otel/propagation"
)

// webhook is one tool of a service.
type webhook struct {
	*service
	url   string
	shown string // the URL, or a description if it is a secret
	once  bool   // the tool's mode is none: it must not run twice
}

// run makes one request, which is one attempt of the call.
func (w *webhook) run(ctx context.Context, _ handlers.Tx, call *handlers.Call) (json.RawMessage, error) {
	if w.missing != nil {
		return nil, w.missing
	}
	body := []byte(call.Input)
	if !w.plain {
		var err error
		if body, err = encode(call); err != nil {
			return nil, err
		}
	}
	if len(body) > maxBody {
		return nil, handlers.Fail("input_too_large", fmt.Sprintf("The request would have %d bytes, and can have %d (1 "+
			"MiB): make a call with a smaller input.", len(body), maxBody))
	}
	req, err := w.request(ctx, call.ID, body)
	if err != nil {
		return nil, err
	}
	resp, sent, err := w.send(req)
	if err != nil {
		call.Called(w.domain, w.shown, 0)
		return nil, w.unanswered(ctx, call, err, sent)
	}
	call.Called(w.domain, w.shown, resp.StatusCode)
	if w.plain && resp.StatusCode/100 == 2 {
		_ = resp.Body.Close()
		return plainjson.Encode(map[string]any{"status_code": resp.StatusCode})
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	_ = resp.Body.Close()
	switch {
	case err != nil:
		return nil, w.unanswered(ctx, call, err, true)
	case len(answer) <= maxBody:
	case resp.StatusCode == http.StatusOK:
		return nil, handlers.Fail("answer_too_large", fmt.Sprintf("%s answered %d with more than %d bytes (1 MiB).", w.domain,
			resp.StatusCode, maxBody))
	case w.once: // the answer may contain a result
		return nil, w.outcomeUnknown(call, fmt.Sprintf("it answered %d with more than %d bytes", resp.StatusCode, maxBody))
	default:
		answer = answer[:maxBody]
	}
	return w.read(call, resp.StatusCode, resp.Header, w.withoutSecrets(answer))
}

// send makes one request, follows no redirect and keeps no cookie. sent means that the service may have received it.
func (w *webhook) send(req *http.Request) (resp *http.Response, sent bool, err error) {
	var wrote atomic.Bool
	traced := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{WroteHeaders: func() { wrote.Store(true) }})
	resp, err = outbound.Once(w.transport).RoundTrip(req.WithContext(traced))
	return resp, wrote.Load(), err
}

// encode returns the body of the request.
func encode(call *handlers.Call) ([]byte, error) {
	return plainjson.Encode(struct {
		Call  about           `json:"call"`
		Input json.RawMessage `json:"input"`
	}{aboutCall(call), call.Input})
}

// about describes a call to a service.
type about struct {
	ID        string  `json:"id"`
	Tool      string  `json:"tool"`
	Attempt   int     `json:"attempt"`
	SessionID *string `json:"session_id"`
	CreatedBy *string `json:"created_by"`
}

func aboutCall(call *handlers.Call) about {
	orNull := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	return about{call.ID, call.Tool, call.Attempt, orNull(call.SessionID), orNull(call.CreatedBy)}
}

func (w *webhook) request(ctx context.Context, id string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return nil, handlers.Fail("invalid_request", "The url of "+w.domain+" cannot be written as a request.")
	}
	req.GetBody = nil // so that nothing sends it again
	req.Header = w.header.Clone()
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "gem")
	req.Header.Set("Idempotency-Key", id)
	if w.plain {
		return req, nil
	}
	now := time.Now()
	signature, err := w.signer.Sign(id, now, body)
	if err != nil {
		return nil, fmt.Errorf("the request cannot be signed: %w", err)
	}
	req.Header.Set(standardwebhooks.HeaderWebhookID, id)
	req.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	req.Header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(req.Header))
	return req, nil
}

// unanswered returns the error of a request without a complete answer. sent means that the service may have received
// the request.
func (w *webhook) unanswered(ctx context.Context, call *handlers.Call, err error, sent bool) error {
	var unknown *net.DNSError
	passing := handlers.IsNetworkError(err)
	if w.plain { // the error may name the host, which may be secret
		unknown, err = nil, errors.New("the connection failed")
	}
	switch {
	case sent && w.once:
		why := "the connection broke"
		if ctx.Err() != nil {
			why = "the call's time was over before it answered"
		}
		return w.outcomeUnknown(call, why)
	case !sent && errors.As(err, &unknown):
		return handlers.NothingSent(fmt.Errorf("the host of %s, %s, could not be resolved", w.domain, unknown.Name), 0)
	case !sent && ctx.Err() != nil:
		return handlers.NothingSent(fmt.Errorf("%s could not be connected within the call's time, and nothing was sent",
			w.domain), 0)
	case !sent:
		return handlers.NothingSent(fmt.Errorf("%s could not be connected, and nothing was sent: %s", w.domain,
			value.OneLine(err.Error(), w.secrets...)), 0)
	case ctx.Err() != nil:
		return ctx.Err()
	case passing:
		return handlers.Transient(fmt.Errorf("no answer from %s: %s", w.domain, value.OneLine(err.Error(), w.secrets...)))
	}
	return handlers.Fail("request_failed", fmt.Sprintf("The request to %s failed: %s", w.domain,
		value.OneLine(err.Error(), w.secrets...)))
}

// outcomeUnknown returns the error of a call that may have taken effect and must not run twice.
func (w *webhook) outcomeUnknown(call *handlers.Call, why string) error {
	return &handlers.Failure{Code: string(receipts.OutcomeUnknown),
		Message: fmt.Sprintf("%s got the request, and %s. %s must not run twice: whether it took effect is not "+
			"known. Check whether it did, and if not, make a new call.", w.domain, why, call.Tool)}
}
