package handlers

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// NotConfigured says that the tool exists but is not set up: the call's outcome is not_configured.
type NotConfigured struct {
	Reason      string   `json:"reason"`
	RequiredEnv []string `json:"required_env"` // the variables that are missing, by name
	NextSteps   []string `json:"next_steps"`   // what a person does to set it up
}

func (e *NotConfigured) Error() string { return "not configured: " + e.Reason }

// Failure is an error with details for the receipt. Any other error becomes an execution_error with only its message.
// Either way a user reads the message: do not put secrets into it. Users do not see the text of a Postgres error, unless a Failure
// replaces it: the receipt has its SQLSTATE and a reference, and operators find the rest in the journal and the log, without values of rows.
type Failure struct {
	Code    string // a receipt's error_code; empty means execution_error
	Message string // a sentence for a person
	Details any    // anything that JSON can hold; may be nil
	Advice  Advice // whether to make the call again, if the tool knows; it becomes details.advice
	Context string // where it happened, for operators: in the journal and the log, never on the receipt
}

// Advice tells the caller of a failed call whether to make it again.
type Advice string

// The advice that a failure may carry.
const (
	Never       Advice = "never"        // it would fail again
	Later       Advice = "later"        // the same call may succeed later
	ChangeInput Advice = "change_input" // it may succeed with another input
)

// Valid reports whether a is one of the three.
func (a Advice) Valid() bool { return a == Never || a == Later || a == ChangeInput }

func (e *Failure) Error() string { return e.Message }

// Fail is a [Failure] with the code execution_error. Its details have a reason, for programs.
func Fail(reason, message string) error {
	return &Failure{Message: message, Details: map[string]string{"reason": reason}}
}

// NotFound is the failure of a call that names a row which does not exist.
func NotFound(table, id string) error {
	return &Failure{
		Message: fmt.Sprintf("There is no row %s in %s: check the id.", id, table),
		Details: map[string]string{"reason": "not_found", "table": table, "id": id},
	}
}

// Transient marks an error that may be gone at the next attempt, such as a refused connection or a 503. If the call may
// run again, it is tried again with backoff, up to the tool's retry.max_attempts; otherwise it fails as with any error. Nil stays nil.
func Transient(err error) error {
	return TransientAfter(err, 0)
}

// MostAfter is the longest pause that [TransientAfter] asks for.
const MostAfter = 15 * time.Minute

// TransientAfter is a [Transient] whose next attempt begins after a pause of at least d, such as a server's Retry-After: in the queue, and in
// no slot. It spends an attempt. Where d is longer than [MostAfter], it is err itself, and no further attempt is made.
func TransientAfter(err error, d time.Duration) error {
	if err == nil || d > MostAfter {
		return err
	}
	return &TransientError{Err: err, After: max(d, 0)}
}

// TransientError is the error that [Transient] and [TransientAfter] return.
type TransientError struct {
	Err error
	// After is how long to wait at least; the backoff may be longer.
	After time.Duration
	// NothingSent means that the attempt had no effect: see [NothingSent].
	NothingSent bool
}

// NothingSent marks the error of an attempt that had no outside effect, such as a refused connection or an unknown host, if it had made no
// other request. The call runs again as with [TransientAfter], in every mode of idempotency.
func NothingSent(err error, d time.Duration) error {
	if err == nil || d > MostAfter {
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

// IsNetworkError reports whether err says that a connection could not be made or broke, which is worth another attempt. A
// certificate that is not trusted is not.
func IsNetworkError(err error) bool {
	var untrusted *tls.CertificateVerificationError
	if errors.As(err, &untrusted) {
		return false
	}
	var netErr net.Error
	return errors.As(err, &netErr) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}
