package receipts

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Querier is used by the archive and leaves with it.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}
