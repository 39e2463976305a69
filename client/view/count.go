package view

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// Only statements that read are counted. Statements that begin and end a transaction or set its options are not.

type countKey struct{}

// Counted returns a context in which n counts the statements of [Read], and the statements that [Count] adds.
func Counted(ctx context.Context, n *atomic.Int64) context.Context {
	return context.WithValue(ctx, countKey{}, n)
}

// Count counts a statement that does not go through [Read].
func Count(ctx context.Context) {
	if n, ok := ctx.Value(countKey{}).(*atomic.Int64); ok {
		n.Add(1)
	}
}

// countingTx is a transaction that counts its statements.
type countingTx struct{ pgx.Tx }

func (c countingTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	Count(ctx)
	return c.Tx.Query(ctx, sql, args...)
}

func (c countingTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	Count(ctx)
	return c.Tx.QueryRow(ctx, sql, args...)
}

func (c countingTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for range b.Len() {
		Count(ctx)
	}
	return c.Tx.SendBatch(ctx, b)
}
