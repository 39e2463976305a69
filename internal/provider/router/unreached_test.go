package router

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/provider/ledger"
	"github.com/jackc/pgx/v5/pgconn"
)

// A call whose connection to Postgres broke is tried again. What Postgres refused is not.
func TestAStatementThatWasNotRefusedIsWorthAnotherAttempt(t *testing.T) {
	t.Parallel()
	for err, again := range map[error]bool{
		fmt.Errorf("end a request to a model: %w", syscall.ECONNRESET): true,
		&pgconn.ConnectError{}: true,
		fmt.Errorf("begin a request to a model: %w", &pgconn.PgError{Code: "42501"}): false,
		ledger.ErrNotHeld: false,
	} {
		if transient := (*handlers.TransientError)(nil); errors.As(unreached(err), &transient) != again {
			t.Errorf("%T: %v", err, !again)
		}
	}
	if err := unreached(nil); err != nil {
		t.Error(err)
	}
}
