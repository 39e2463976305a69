package mcp

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// invalid returns the error of an invalid request: -32602.
func invalid(format string, args ...any) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf(format, args...)}
}

// internal returns the error of a request that could not be served: -32603.
func internal(format string, args ...any) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: fmt.Sprintf(format, args...)}
}

// noCall returns the error for a call that does not exist, or that belongs to somebody else.
func noCall(id string) error { return &noCallError{invalid("you have no call %s", id)} }

type noCallError struct{ error }

func (e *noCallError) Unwrap() error { return e.error }

// withCodes gives every error a JSON-RPC code: the SDK would send the code 0 for others.
func withCodes(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		result, err := next(ctx, method, req)
		var coded *jsonrpc.Error
		if err != nil && !errors.As(err, &coded) {
			err = internal("%s", reason(err))
		}
		return result, err
	}
}

// reason returns why the database failed, without the parts of the connection string that may be secret.
func reason(err error) string {
	var (
		config     *config.InvalidError
		connectErr *pgconn.ConnectError
		pgErr      *pgconn.PgError
	)
	switch {
	case errors.As(err, &config):
		return config.Error()
	case errors.As(err, &connectErr):
		return "Postgres cannot be reached: " + pgpool.Reason(err)
	case store.HasCode(err, "42P01", "42703", "42883", "3F000"):
		return "the database lacks GEM's tables, or has those of an older version: run `gem migrate`"
	case errors.As(err, &pgErr):
		return "Postgres: " + pgpool.Reason(err)
	case errors.Is(err, errBusy):
		return errBusy.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "Postgres did not answer in time"
	}
	return err.Error()
}

// refused returns the database's message if it rejected the request for a reason that an agent can act on, and false
// for other errors.
func refused(err error) (why string, ok bool) {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return "", false
	}
	switch {
	case e.Code == "42501" && e.Routine != "exec_stmt_raise":
		// Postgres raised it, not one of our functions: a grant is missing.
		return "", false
	case !store.HasCode(err, "22", "23", "54", "42501", "PT409", "PT429"):
		return "", false
	}
	lines := []string{e.Message}
	for _, more := range []string{e.Detail, e.Hint} {
		if more != "" {
			lines = append(lines, more)
		}
	}
	return strings.Join(lines, "\n"), true
}

// again reports whether a retry of the failed statement may succeed.
func again(err error) bool {
	return store.IsTransient(err) || pgpool.IsAway(err) || errors.Is(err, context.DeadlineExceeded)
}

// answered reports whether Postgres itself returned the error, and is not shutting down.
func answered(err error) bool { return store.HasCode(err, "") && !store.HasCode(err, "08", "57P") }
