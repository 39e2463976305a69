package store

import (
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// The SQLSTATEs that are asked for by name. For all others the class is enough.
const (
	notHeld       = "GM001" // of the gem functions
	noCall        = "PT404" // of cancel_tool_call, which PostgREST makes a 404
	notPrepared   = "26000" // someone ran `deallocate all` or `discard all`
	alreadyExists = "42P05" // another client of a pooler prepared a statement of that name
	otherColumns  = "0A000" // a column of a prepared statement's result was added or changed
	otherFormats  = "08P01" // the same, as the protocol sees it
	lockTimeout   = "55P03"
	readOnly      = "25006"
	cancelled     = "57014" // by a statement_timeout of the server, or a person
	serialization = "40001"
	gone          = "23503" // what a row refers to
	deadlock      = "40P01"
)

func code(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

func class(code string) string { return code[:min(2, len(code))] }

// IsNotHeld reports whether err says that the attempt no longer has its call: another attempt has it, or it has ended.
func IsNotHeld(err error) bool { return code(err) == notHeld }

// IsGone reports whether a row that the statement refers to was removed meanwhile.
func IsGone(err error) bool { return code(err) == gone }

// IsRefusal reports whether Postgres will refuse the statement again because of the values in it: they cannot be stored, break
// a rule, or are too large. All other errors are about Postgres, and may pass.
func IsRefusal(err error) bool { return slices.Contains([]string{"22", "23", "54"}, class(code(err))) }

// IsStale reports whether a prepared statement is not what it was when it was prepared. Its connection is of no more use.
func IsStale(err error) bool {
	return slices.Contains([]string{notPrepared, alreadyExists, otherColumns, otherFormats}, code(err))
}

// IsTransient reports whether the same transaction may succeed if it runs again: after a conflict with another transaction,
// while a server is full, goes down or takes no writes, and after an error of the connection.
func IsTransient(err error) bool {
	if code := code(err); code != "" {
		return slices.Contains([]string{serialization, deadlock, readOnly, lockTimeout, cancelled, notPrepared, alreadyExists}, code) ||
			slices.Contains([]string{"08", "53", "58"}, class(code)) || strings.HasPrefix(code, "57P")
	}
	var connectErr *pgconn.ConnectError
	return err != nil &&
		(errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &connectErr) || pgconn.SafeToRetry(err) || pgconn.Timeout(err))
}
