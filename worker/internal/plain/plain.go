// Package plain reads the errors of handlers and of Postgres. It copies the used parts, and hides the parts for
// operators from the readers of receipts.
package plain

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/lanes"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5/pgconn"
)

// Error copies the used parts of an error: the type, the texts, and whether the next attempt may succeed. The methods
// of an error, for example of a nil pointer, may panic or never return. They are called only here, while such a fault
// counts as the handler's. An error of Postgres that the handler did not convert into a failure becomes a failure with
// the reference.
func Error(err error, reference string) error {
	var (
		notConfigured *handlers.NotConfigured
		unencodable   *handlers.OutputError
		failure       *handlers.Failure
		copied        error
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &notConfigured):
		c := *notConfigured
		copied = &c
	case errors.As(err, &unencodable):
		copied = &handlers.OutputError{Err: errors.New(unencodable.Err.Error())}
	case errors.As(err, &failure):
		copied = &handlers.Failure{Code: failure.Code, Message: failure.Message,
			Details: advised(receipts.CleanDetails(failure.Details), failure.Advice), Context: failure.Context}
	case FromPostgres(err) != nil:
		copied = Refusal(err, reference)
	default:
		copied = errors.New(PublicMessage(err))
	}
	switch {
	case NothingSent(err):
		return handlers.NothingSent(copied, Pause(err))
	case IsTransient(err):
		return handlers.TransientAfter(copied, Pause(err))
	}
	return copied
}

// advised returns details with the advice of a failure. Details from remote services may contain advice, too. Unknown
// advice is dropped.
func advised(details json.RawMessage, advice handlers.Advice) json.RawMessage {
	fields := map[string]json.RawMessage{}
	if string(details) != "null" && json.Unmarshal(details, &fields) != nil {
		if !advice.Valid() {
			return details
		}
		fields = map[string]json.RawMessage{"details": details}
	}
	if !advice.Valid() {
		given, there := fields["advice"]
		if !there || json.Unmarshal(given, &advice) == nil && advice.Valid() {
			return details
		}
		delete(fields, "advice")
	} else {
		fields["advice"] = json.RawMessage(strconv.Quote(string(advice)))
	}
	return receipts.CleanDetails(fields)
}

// Context returns the part of an error that only operators may read, or "".
func Context(err error) string {
	if failed := (*handlers.Failure)(nil); errors.As(err, &failed) {
		return failed.Context
	}
	return ""
}

// PublicMessage returns the text of a handler's error for a receipt. Errors of Postgres are hidden: see [Refusal].
func PublicMessage(err error) string {
	if isHidden(err) {
		return refusedMessage
	}
	return OwnMessage(err)
}

// OwnMessage returns the text of an error of the worker's own statements, which contain values of calls. It hides
// connection errors, because they name hosts and users.
func OwnMessage(err error) string {
	var connectErr *pgconn.ConnectError
	if errors.As(err, &connectErr) {
		return "Postgres could not be reached."
	}
	if e := FromPostgres(err); e != nil {
		return withoutValues(err, e)
	}
	return err.Error()
}

// IsTransient reports whether the next attempt may succeed: the handler says so, or Postgres does.
func IsTransient(err error) bool {
	var transient *handlers.TransientError
	switch {
	case errors.As(err, &transient):
		return true
	case errors.Is(err, lanes.ErrEnded) || errors.Is(err, lanes.ErrStatementOpen):
		return false
	}
	return store.IsTransient(err) || errors.Is(err, lanes.ErrConnectionLost)
}

// NothingSent reports whether the attempt had no effect, so that the call may run again in any mode of its tool.
func NothingSent(err error) bool {
	transient := (*handlers.TransientError)(nil)
	return errors.As(err, &transient) && transient.NothingSent
}

// Pause returns the minimum pause before the next attempt that an error requires.
func Pause(err error) time.Duration {
	if transient := (*handlers.TransientError)(nil); errors.As(err, &transient) {
		return transient.After
	}
	return 0
}
