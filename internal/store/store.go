// Package store is the Go face of the state machine in SQL: every call of a gem function that a worker makes, and what
// workers and clients read of the core tables, a Go function each. The rules are in the SQL; nothing is decided here.
//
// A statement that moves a call names the attempt that moves it. When that attempt no longer has the call, the statement
// changes nothing and its error is [IsNotHeld].
package store

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB runs statements: a pool, a connection or a transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Attempt is one run of a call. It is the fence: a call is moved only by the attempt that claimed it last.
type Attempt struct {
	CallID   string
	Number   int // counts the claims of the call, from 1
	WorkerID string
}

// split returns attempts as the two arrays that the gem functions take.
func split(attempts []Attempt) (ids []string, numbers []int) {
	ids, numbers = make([]string, len(attempts)), make([]int, len(attempts))
	for i, a := range attempts {
		ids[i], numbers[i] = a.CallID, a.Number
	}
	return ids, numbers
}
