package pgpool

import (
	"context"
	"runtime"
	"sync"
	"weak"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// PoolMode describes the other end of a connection string: Postgres itself, or a pooler in some mode.
type PoolMode string

const (
	// Unknown is a pooler that has not been seen to change a client's server connection, or anything that was never
	// probed.
	Unknown PoolMode = ""
	// Direct is Postgres itself.
	Direct PoolMode = "direct"
	// SessionPooler is a pooler that the operator declared to be in session mode. A probe cannot prove that, but it can
	// disprove it.
	SessionPooler PoolMode = "session pooler"
	// TransactionPooler is a pooler that may give each transaction another server connection.
	TransactionPooler PoolMode = "transaction pooler"
)

// KeepsSession reports whether a client certainly keeps its server connection. Then prepared statements stay, and a
// transaction may be sent before the previous one is answered.
func (m PoolMode) KeepsSession() bool { return m == Direct || m == SessionPooler }

// MayNotify reports whether notifications may arrive. LISTEN must still prove that they do.
func (m PoolMode) MayNotify() bool { return m != TransactionPooler }

// keeping has the pools for which KeepsStatements is true.
var keeping sync.Map // of weak.Pointer[pgxpool.Pool]

func markKeeping(pool *pgxpool.Pool) {
	p := weak.Make(pool)
	keeping.Store(p, true)
	runtime.AddCleanup(pool, func(p weak.Pointer[pgxpool.Pool]) { keeping.Delete(p) }, p)
}

// KeepsStatements reports whether statements stay prepared on pool's server connections, and several transactions may
// be sent before the answers arrive. It is true only for a pool from [Open] with a mode that keeps sessions. Any other
// pool may lead through a transaction pooler.
func KeepsStatements(pool *pgxpool.Pool) bool {
	_, ok := keeping.Load(weak.Make(pool))
	return ok
}

// Querier runs statements. A pool and a transaction implement it.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// ReadCommitted runs f with the isolation level read committed, so that each statement sees all earlier commits,
// whatever the server's default is. It passes the pool itself if its sessions have that level, and otherwise a
// transaction.
func ReadCommitted(ctx context.Context, pool *pgxpool.Pool, f func(Querier) error) error {
	if KeepsStatements(pool) {
		return f(pool)
	}
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error { return f(tx) })
}
