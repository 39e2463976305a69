package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
)

// read interprets the answer of a service:
//
//	200 {"result", "effects"}                            the call succeeded, if the result fits the tool's output_schema
//	4xx {"error": {"error_code", "message", "details"}}  it failed
//	501                                                  it is not_configured; {"reason", "required_env", "next_steps"}
//	                                                     may give details
//	408, 425, 429 and 5xx                                it may run again, after Retry-After; after 502 and 504, it is
//	                                                     not known whether a tool that must not run twice took effect
//
// With url_env, any 2xx is a success: see [webhook.run]. The answers are not read.
//
// Any other answer is an execution_error that quotes it. After 101, or a result with another status than 200, it is not
// known whether a tool that must not run twice took effect.
func (w *webhook) read(call *handlers.Call, status int, header http.Header, body []byte) (json.RawMessage, error) {
	if w.plain {
		body = nil // it may contain a part of the URL, which is a secret
	}
	switch {
	case status == http.StatusOK:
		return w.success(call, body)
	case w.once && status < 200:
		return nil, w.outcomeUnknown(call, "it switched to another protocol")
	case w.once && hasResult(body):
		return nil, w.outcomeUnknown(call, fmt.Sprintf("it answered %d with a result: %s", status, w.quote(body)))
	case status == http.StatusNotImplemented:
		return nil, w.unconfigured(call, body)
	case w.once && (status == http.StatusBadGateway || status == http.StatusGatewayTimeout):
		return nil, w.outcomeUnknown(call, fmt.Sprintf("something before it gave up on its answer (%d: %s)", status,
			w.quote(body)))
	case mayPass(status):
		return nil, handlers.TransientAfter(fmt.Errorf("%s answered %d: %s", w.domain, status, w.quote(body)),
			retryAfter(header.Get("Retry-After"), time.Now()))
	case status >= 400:
		if failure, told := failed(body); told {
			return nil, failure
		}
	}
	return nil, w.unexpected(status, fmt.Sprintf("%s answered %d: %s", w.domain, status, w.quote(body)))
}

// unconfigured returns the end of a call whose service answered 501.
func (w *webhook) unconfigured(call *handlers.Call, body []byte) error {
	return backends.NotConfigured(body, handlers.NotConfigured{
		Reason: fmt.Sprintf("%s answered 501: it does not have %s, or not all that it needs.", w.domain, call.Tool),
		NextSteps: []string{fmt.Sprintf("Let the service at %s serve the tool: it said %q.", w.shown, w.quote(body)),
			"Make the call again."},
	})
}

// mayPass reports, by the status of an answer, whether the same request may succeed later.
func mayPass(status int) bool {
	return status == http.StatusRequestTimeout || status == http.StatusTooEarly ||
		status == http.StatusTooManyRequests || status >= 500
}

// success reads the answer of a tool that ran.
func (w *webhook) success(call *handlers.Call, body []byte) (json.RawMessage, error) {
	var said struct {
		Result  json.RawMessage `json:"result"`
		Effects json.RawMessage `json:"effects"`
	}
	err := decodeStrictly(body, &said)
	if err == nil && said.Result == nil {
		err = errors.New("it has no result")
	}
	if err != nil {
		return nil, w.unexpected(http.StatusOK, fmt.Sprintf(
			`%s answered 200, and not with {"result": ..., "effects": ...} in JSON (%s): %s`, w.domain,
			value.OneLine(err.Error(), w.secrets...), w.quote(body)))
	}
	if len(said.Effects) > 0 {
		if err := backends.AddEffects(call, said.Effects); err != nil {
			return nil, err
		}
	}
	return said.Result, nil
}

// decodeStrictly decodes a body that must be one value without unknown fields.
func decodeStrictly(body []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) && wrong.Field == "" { // its text names Go's types
		return fmt.Errorf("it is a %s", wrong.Value)
	} else if wrong != nil {
		return fmt.Errorf("its %s is a %s", wrong.Field, wrong.Value)
	}
	if err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("it has more than one value")
	}
	return nil
}

// hasResult reports whether the body of an error has a result or effects, which means that the tool may have run.
func hasResult(body []byte) bool {
	var said struct{ Result, Effects any }
	_ = json.Unmarshal(body, &said)
	effects, isObject := said.Effects.(map[string]any)
	return said.Result != nil || said.Effects != nil && (!isObject || len(effects) > 0)
}

// failed returns the failure in the body of a 4xx, if it has one.
func failed(body []byte) (failure error, told bool) {
	var said struct {
		Error *struct {
			Code    string          `json:"error_code"`
			Message string          `json:"message"`
			Details json.RawMessage `json:"details"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &said) == nil && said.Error != nil {
		told = said.Error.Code != "" || said.Error.Message != ""
	}
	if !told {
		return nil, false
	}
	return backends.Failure(said.Error.Code, said.Error.Message, said.Error.Details), true
}

// unexpected returns the error for an answer that this package does not know.
func (w *webhook) unexpected(status int, message string) error {
	return &handlers.Failure{Message: message, Details: map[string]any{"reason": "unexpected_answer",
		"status_code": status}}
}

func (w *webhook) quote(body []byte) string {
	if text := value.OneLine(string(body), w.secrets...); text != "" {
		return text
	}
	return "(an empty body)"
}

// retryAfter reads the header Retry-After, in seconds or as a time. It returns at most a day, which is longer than any
// call waits.
func retryAfter(text string, now time.Time) time.Duration {
	text = strings.TrimSpace(text)
	const most = 24 * time.Hour
	if seconds, err := strconv.ParseUint(text, 10, 64); err == nil {
		return time.Duration(min(seconds, uint64(most/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(at.Sub(now), 0), most)
	}
	return 0
}
