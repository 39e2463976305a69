package mcp

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/internal/pgpool"
	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// invalid is the error of a request that is wrong: -32602.
func invalid(format string, args ...any) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf(format, args...)}
}

// internal is the error of a request that could not be served: -32603.
func internal(format string, args ...any) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: fmt.Sprintf(format, args...)}
}

// noCall is the error for a call that is not there, and for one of somebody else.
func noCall(id string) error { return invalid("there is no call %s of yours", id) }

// withCodes gives every error a code of JSON-RPC: the SDK would send others with the code 0.
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

// reason says why the database did not do what it was to do, without the parts of the connection string that may be secret.
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
	case errors.Is(err, context.DeadlineExceeded):
		return "Postgres did not answer in time"
	}
	return err.Error()
}

// refused returns the words in which the database refuses what an agent asks for, on which it can act, and false for an error of another kind.
func refused(err error) (why string, ok bool) {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return "", false
	}
	switch {
	case e.Code == "42501" && e.Routine != "exec_stmt_raise": // Postgres refuses it, and none of our functions: a grant is missing
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

// again reports whether a statement that failed may succeed if it is sent again.
func again(err error) bool {
	return store.IsTransient(err) || pgpool.IsAway(err) || errors.Is(err, context.DeadlineExceeded)
}

// answered reports whether Postgres itself said why it did not do what it was sent, and is not about to end.
func answered(err error) bool { return store.HasCode(err, "") && !store.HasCode(err, "08", "57P") }
