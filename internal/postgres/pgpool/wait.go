package pgpool

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Wait calls connect until it succeeds, because a database may be starting. It returns the last error when patience has
// passed or ctx ends. It returns at once if waiting cannot help, for example after a wrong password. It calls retrying
// once for each new reason.
func Wait(ctx context.Context, connect func(context.Context) error, patience time.Duration,
	retrying func(reason string)) error {
	deadline := time.Now().Add(patience)
	pause, last := 100*time.Millisecond, ""
	for {
		err := connect(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errMalformed) || errors.Is(err, errStatementMode) || errors.Is(err, errNoSession):
			return err
		}
		reason := Reason(err)
		if IsPermanent(err) || time.Now().Add(pause).After(deadline) {
			return fmt.Errorf("Postgres cannot be reached: %s", reason) //nolint:staticcheck // a name begins it
		}
		if reason != last {
			retrying(reason)
			last = reason
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(pause*2, 3*time.Second)
	}
}

// IsAway reports whether err shows that the server cannot be reached, is starting or stopping, or is temporarily
// read-only.
func IsAway(err error) bool {
	var (
		connectErr *pgconn.ConnectError
		pgErr      *pgconn.PgError
	)
	return errors.Is(err, errReadOnly) || errors.As(err, &connectErr) || pgconn.Timeout(err) ||
		errors.As(err, &pgErr) && (pgErr.Code == "25006" || strings.HasPrefix(pgErr.Code, "57P") ||
			strings.HasPrefix(pgErr.Code, "08"))
}

// IsPermanent reports whether waiting for a connection cannot help: the password, the role or the database is wrong,
// the server does not support TLS although the connection string requires it, or its certificate is not valid.
func IsPermanent(err error) bool {
	var (
		pgErr       *pgconn.PgError
		certificate *tls.CertificateVerificationError
	)
	cause := decisive(err)
	switch {
	case errors.As(cause, &certificate) || refusedTLS(cause):
		return true
	case !errors.As(cause, &pgErr):
		return false
	}
	return slices.Contains([]string{"28P01", "28000", "3D000"}, pgErr.Code) ||
		pgErr.Code == "08P01" && // PgBouncer's code for the same
			(strings.Contains(pgErr.Message, "authentication failed") || strings.Contains(pgErr.Message, "no such database"))
}

// Reason returns why a connection failed, without parts of the connection string that may be secret.
func Reason(err error) string {
	var pgErr *pgconn.PgError
	cause := decisive(err)
	switch {
	case errors.As(cause, &pgErr):
		return fmt.Sprintf("%s (SQLSTATE %s)", pgErr.Message, pgErr.Code)
	case refusedTLS(cause):
		return "the server has no TLS, and sslmode in the connection string asks for it: turn TLS on at the server, or " +
			"write sslmode=prefer or sslmode=disable"
	}
	return cause.Error()
}

// decisive returns the error that explains best why a connection failed. pgx tries each address with TLS and then, by
// default, without, and returns all errors. Errors from Postgres come first, and among them the temporary ones, because
// a server without room for a TLS connection may reject the one without TLS for another reason. Missing TLS support
// counts only if nothing else was tried.
func decisive(err error) (cause error) {
	rank := func(e error) int {
		var pgErr *pgconn.PgError
		switch {
		case errors.As(e, &pgErr) && (strings.HasPrefix(pgErr.Code, "53") || strings.HasPrefix(pgErr.Code, "57P")):
			return 3
		case errors.As(e, &pgErr):
			return 2
		case !refusedTLS(e):
			return 1
		}
		return 0
	}
	for _, e := range causes(err) {
		if cause == nil || rank(e) > rank(cause) {
			cause = e
		}
	}
	return cause
}

// causes returns the innermost meaningful errors of a tree.
func causes(err error) (all []error) {
	switch e := err.(type) { //nolint:errorlint // it looks at each level itself
	case *pgconn.PgError, *net.OpError, *net.DNSError, *tls.CertificateVerificationError:
		return []error{err}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			all = append(all, causes(inner)...)
		}
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return causes(inner)
		}
	}
	if len(all) == 0 {
		all = []error{err}
	}
	return all
}

// refusedTLS reports whether an error is pgx's error for a server without TLS, which has no type.
func refusedTLS(err error) bool { return err.Error() == "server refused TLS connection" }
