package handlers

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// NotConfigured reports that the tool exists but is not set up. The call ends as not_configured. Return it before the
// handler has any effect: an operator may repeat such a call without confirmation, unless its receipt lists effects.
type NotConfigured struct {
	Reason      string   `json:"reason"`
	RequiredEnv []string `json:"required_env"` // the variables that are missing, by name
	NextSteps   []string `json:"next_steps"`   // what a person does to set it up
}

func (e *NotConfigured) Error() string { return "not configured: " + e.Reason }

// Failure is an error with details for the receipt. Any other error becomes an execution_error with the error's
// message, unless it comes from Postgres. Users can read the message, so it must not contain secrets. Users see the
// text of a Postgres error only if a Failure contains it. Otherwise the receipt has the error's SQLSTATE and a
// reference, by which operators find the text in the journal and the log. Values of rows are left out there, too.
type Failure struct {
	Code    string // a receipt's error_code; empty means execution_error
	Message string // a sentence for a person
	Details any    // anything that JSON can hold; may be nil
	Advice  Advice // whether to repeat the call, if the tool knows; it becomes details.advice
	Context string // where it failed, for operators; it is kept in the journal and the log, never on the receipt
}

// Advice tells the caller whether to repeat a failed call.
type Advice string

// The possible advice.
const (
	Never       Advice = "never"        // it would fail again
	Later       Advice = "later"        // the same call may succeed later
	ChangeInput Advice = "change_input" // it may succeed with another input
)

// Valid reports whether a is one of the three constants.
func (a Advice) Valid() bool { return a == Never || a == Later || a == ChangeInput }

func (e *Failure) Error() string { return e.Message }

// Fail returns a [Failure] with the code execution_error. The reason is in its details, where programs can read it.
func Fail(reason, message string) error {
	return &Failure{Message: message, Details: map[string]string{"reason": reason}}
}

// NotFound returns a Failure for a call that refers to a row that does not exist.
func NotFound(table, id string) error {
	return &Failure{
		Message: fmt.Sprintf("There is no row %s in %s: check the id.", id, table),
		Details: map[string]string{"reason": "not_found", "table": table, "id": id},
	}
}

// Transient marks an error that a retry may resolve, such as a refused connection or a 503. If the call may run again,
// the worker retries it with backoff, up to the tool's retry.max_attempts. Otherwise the call fails as with any other
// error. Transient returns nil for nil.
func Transient(err error) error {
	return TransientAfter(err, 0)
}

// MaxPause is the longest pause that [TransientAfter] accepts.
const MaxPause = 15 * time.Minute

// TransientAfter is like [Transient], but the next attempt begins after a pause of at least d, such as a server's
// Retry-After. The call pauses in the queue and occupies no slot. The failed attempt counts towards retry.max_attempts.
// If d is longer than [MaxPause], TransientAfter returns err itself, and the call fails.
func TransientAfter(err error, d time.Duration) error {
	if err == nil || d > MaxPause {
		return err
	}
	return &TransientError{Err: err, After: max(d, 0)}
}

// TransientError is the error that [Transient] and [TransientAfter] return.
type TransientError struct {
	Err error
	// After is the minimum pause; the backoff may be longer.
	After time.Duration
	// NothingSent means that the attempt had no effect: see [NothingSent].
	NothingSent bool
}

// NothingSent marks the error of an attempt that had no external effect, for example because the connection was
// refused, or the name of the host is unknown. The call is retried as with [TransientAfter], even if the tool's
// idempotency mode is none.
func NothingSent(err error, d time.Duration) error {
	if err == nil || d > MaxPause {
		return err
	}
	return &TransientError{Err: err, After: max(d, 0), NothingSent: true}
}

func (e *TransientError) Error() string { return e.Err.Error() }
func (e *TransientError) Unwrap() error { return e.Err }

// OutputError is the error of an output that cannot be written as JSON, such as a NaN.
type OutputError struct{ Err error }

func (e *OutputError) Error() string { return "the output cannot be written as JSON: " + e.Err.Error() }
func (e *OutputError) Unwrap() error { return e.Err }

// IsNetworkError reports whether err means that a connection failed or broke. A retry may then succeed. It returns
// false for an untrusted certificate.
func IsNetworkError(err error) bool {
	var untrusted *tls.CertificateVerificationError
	if errors.As(err, &untrusted) {
		return false
	}
	var netErr net.Error
	return errors.As(err, &netErr) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed)
}
