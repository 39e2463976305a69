package store

import (
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// The SQLSTATEs that GEM distinguishes. For all others the class is enough.
const (
	notHeld       = "GM001" // of the gem functions
	notRegistered = "GM002" // of the gem functions
	tooDeep       = "GM003" // of the gem functions
	withoutRules  = "GM004" // of the gem functions
	moved         = "GM006" // of the gem functions
	closedRole    = "PT403" // of the gem functions, for a question
	tooMany       = "PT429" // the same
	notPrepared   = "26000" // someone ran `deallocate all` or `discard all`
	alreadyExists = "42P05" // another client of a pooler prepared a statement of that name
	otherColumns  = "0A000" // a column of a prepared statement's result was added or changed
	otherFormats  = "08P01" // the same, as a protocol error
	lockTimeout   = "55P03"
	readOnly      = "25006"
	cancelled     = "57014" // by a statement_timeout of the server, or a person
	serialization = "40001"
	gone          = "23503" // a row refers to a row that was removed
	deadlock      = "40P01"
	tooLong       = "54000" // a text that would take a gigabyte
)

// HasCode reports whether err has an SQLSTATE that begins with one of codes, which are whole codes or classes.
func HasCode(err error, codes ...string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code != "" &&
		slices.ContainsFunc(codes, func(c string) bool { return strings.HasPrefix(pgErr.Code, c) })
}

// IsNotHeld reports whether the attempt no longer holds its call: another attempt does, or the call has ended.
func IsNotHeld(err error) bool { return HasCode(err, notHeld) }

// IsNotRegistered reports whether the worker has no row in core_workers, or its heartbeat has expired.
func IsNotRegistered(err error) bool { return HasCode(err, notRegistered) }

// IsWithoutRules reports whether the worker may not claim calls because it has no rules and the database requires them.
func IsWithoutRules(err error) bool { return HasCode(err, withoutRules) }

// IsMoved reports whether Postgres is another server than the one that the worker has met: see [MeetServer].
func IsMoved(err error) bool { return HasCode(err, moved) }

// IsForbidden reports whether the login lacks a right, or a function refuses what the worker may not do.
func IsForbidden(err error) bool { return HasCode(err, "42501") }

// IsTooDeep reports whether a call may not have children because it has too many ancestors.
func IsTooDeep(err error) bool { return HasCode(err, tooDeep) }

// IsRefusedQuestion reports whether the database refused a question of a user, or of a user's model: see
// gem.check_roles and gem.check_questions.
func IsRefusedQuestion(err error) bool { return HasCode(err, closedRole, tooMany) }

// IsTooLong reports whether Postgres could not build a text, because it would take a gigabyte.
func IsTooLong(err error) bool { return HasCode(err, tooLong) }

// IsGone reports whether a row that the statement refers to was removed.
func IsGone(err error) bool { return HasCode(err, gone) }

// IsRefusal reports whether Postgres will reject the statement again because of its values: they cannot be stored,
// break a constraint, or are too large. All other errors may be temporary.
func IsRefusal(err error) bool {
	var pgErr *pgconn.PgError
	// the next try has another time, and therefore another id
	if errors.As(err, &pgErr) && pgErr.ConstraintName == "core_tool_receipts_pkey" {
		return false
	}
	return HasCode(err, "22", "23", "54", tooDeep) || IsRefusedQuestion(err)
}

// IsStale reports whether a prepared statement no longer matches the database. Its connection must be closed.
func IsStale(err error) bool {
	return HasCode(err, notPrepared, alreadyExists, otherColumns, otherFormats)
}

// IsTransient reports whether the same transaction may succeed if it runs again: after a conflict with another
// transaction, while a server is full, stopping or read-only, and after an error of the connection.
func IsTransient(err error) bool {
	if HasCode(err, "") { // any SQLSTATE
		return HasCode(err, serialization, deadlock, readOnly, lockTimeout, cancelled, notPrepared, alreadyExists, "08", "53",
			"57P", "58")
	}
	var connectErr *pgconn.ConnectError
	return err != nil &&
		(errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &connectErr) || pgconn.SafeToRetry(err) || pgconn.Timeout(err))
}
