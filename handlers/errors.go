package handlers

import "fmt"

// NotConfigured says that the tool exists and its setup is missing: the call's outcome is not_configured.
type NotConfigured struct {
	Reason      string   `json:"reason"`
	RequiredEnv []string `json:"required_env"` // the variables that are missing, by name
	NextSteps   []string `json:"next_steps"`   // what a person does to set it up
}

func (e *NotConfigured) Error() string { return "not configured: " + e.Reason }

// Failure is an error with details for the receipt. Any other error becomes an execution_error with its message alone,
// so wrap what a reader of the receipt may see, and nothing secret.
type Failure struct {
	Code    string // a receipt's error_code; empty means execution_error
	Message string // a sentence for a person
	Details any    // anything that JSON can hold; may be nil
}

func (e *Failure) Error() string { return e.Message }

// NotFound is the failure of a call that names a row which does not exist.
func NotFound(table, id string) error {
	return &Failure{
		Message: fmt.Sprintf("There is no row %s in %s: check the id.", id, table),
		Details: map[string]string{"reason": "not_found", "table": table, "id": id},
	}
}

// Transient marks an error that may be gone at the next attempt (a refused connection, a 503). Calls that may run again
// are tried again, with backoff, up to the tool's retry.max_attempts; for the others it is a failure like any other.
func Transient(err error) error { return &TransientError{Err: err} }

// TransientError is what [Transient] returns.
type TransientError struct{ Err error }

func (e *TransientError) Error() string { return e.Err.Error() }
func (e *TransientError) Unwrap() error { return e.Err }
