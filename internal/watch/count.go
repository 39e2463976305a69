package watch

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// A statement is one that reads. Those that begin and end a transaction, and its settings, go with it and are not counted.

type countKey struct{}

// Counted returns a context within which n counts the statements of [Read], and those that [Count] tells of.
func Counted(ctx context.Context, n *atomic.Int64) context.Context {
	return context.WithValue(ctx, countKey{}, n)
}

// Count counts a statement that is sent past [Read].
func Count(ctx context.Context) {
	if n, ok := ctx.Value(countKey{}).(*atomic.Int64); ok {
		n.Add(1)
	}
}

// counting counts the statements of a transaction.
type counting struct{ pgx.Tx }

func (c counting) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	Count(ctx)
	return c.Tx.Query(ctx, sql, args...)
}

func (c counting) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	Count(ctx)
	return c.Tx.QueryRow(ctx, sql, args...)
}

func (c counting) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for range b.Len() {
		Count(ctx)
	}
	return c.Tx.SendBatch(ctx, b)
}
