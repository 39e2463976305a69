package provider

import (
	"fmt"
	"time"
)

// ErrorKind is the kind of failure of a request.
type ErrorKind string

// The kinds of errors. A dialect maps its provider's errors to them, by status and body.
const (
	Unreachable   ErrorKind = "unreachable"       // no connection, TLS, DNS, a connection that broke before the response
	Unauthorized  ErrorKind = "unauthorized"      // 401, 402, 403
	NotFound      ErrorKind = "not_found"         // 404, 3xx: no such model or address
	BadRequest    ErrorKind = "bad_request"       // 400, 422 and all other statuses
	TooLarge      ErrorKind = "request_too_large" // 413
	ContextLength ErrorKind = "context_too_long"  // 400 that says that the prompt does not fit the model
	RateLimited   ErrorKind = "rate_limited"      // 429
	Overloaded    ErrorKind = "overloaded"        // 503, 529
	Unavailable   ErrorKind = "unavailable"       // 408, 500, 502, 504, and such an error event
	Late          ErrorKind = "late"              // no first content in its time
	Stalled       ErrorKind = "stalled"           // no further content in its time
	Cut           ErrorKind = "cut"               // the body ended, or the connection broke, before the terminal event
	Garbled       ErrorKind = "garbled"           // a body that is not of the dialect
	AnswerTooBig  ErrorKind = "answer_too_large"  // a line or an answer over its limit
)

// Error is why a request got no complete answer.
type Error struct {
	Kind ErrorKind
	// Status is the response's, 0 without one.
	Status int
	// Message is the provider's, or ours: at most 500 characters, in one line, without keys. It is empty for Unauthorized.
	Message string
	// RetryAfter is the pause that the provider requests; 0 if none.
	RetryAfter time.Duration
	// Final means that by the provider's words another attempt is useless.
	Final bool
	// RequestID is the provider's, if it gave one.
	RequestID string
	// Err is the cause, if there is one.
	Err error
}

func (e *Error) Error() string {
	what := string(e.Kind)
	if e.Status != 0 {
		what = fmt.Sprintf("%s (HTTP %d)", what, e.Status)
	}
	if e.Message != "" {
		what += ": " + e.Message
	}
	return what
}

func (e *Error) Unwrap() error { return e.Err }
