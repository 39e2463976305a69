package pgpool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Wait calls connect until it succeeds, since a database that is just starting is worth waiting for. It gives up when
// patience has passed, when ctx ends, or at once where waiting cannot help, such as after a wrong password. retrying is
// called once for each new reason.
func Wait(ctx context.Context, connect func(context.Context) error, patience time.Duration, retrying func(reason string)) error {
	deadline := time.Now().Add(patience)
	pause, last := 100*time.Millisecond, ""
	for {
		err := connect(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errMalformed) || errors.Is(err, errStatementMode):
			return err
		}
		reason := Reason(err)
		if permanent(err) || time.Now().Add(pause).After(deadline) {
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

// permanent reports whether waiting cannot help: the password, the role or the database is wrong.
func permanent(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return false
	}
	return slices.Contains([]string{"28P01", "28000", "3D000"}, pgErr.Code) ||
		pgErr.Code == "08P01" && // PgBouncer's code for the same
			(strings.Contains(pgErr.Message, "authentication failed") || strings.Contains(pgErr.Message, "no such database"))
}

// Reason returns why a connection failed, without the parts of the connection string that may be secret.
func Reason(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return fmt.Sprintf("%s (SQLSTATE %s)", pgErr.Message, pgErr.Code)
	}
	var netErr *net.OpError
	if errors.As(err, &netErr) {
		return netErr.Error()
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	// pgx looks a name up once with TLS and once without, which often fails twice for the same reason.
	return strings.Join(slices.Compact(strings.Split(err.Error(), "\n")), "\n")
}
