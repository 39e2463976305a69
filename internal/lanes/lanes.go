// Package lanes runs the transactions of handlers and writes receipts, for more calls at once than there are
// connections.
//
// A lane is a connection in use. When it is free, it sends what waits by then in one round trip, each transaction with
// a sync of its own, and reads the answers in that order:
//
//	receipt and commit of the lane's transaction │ receipt │ receipt │ … │ begin, first statement of the next one
//
// That transaction then has the lane to its end. Nothing is held back to be sent with something else.
package lanes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Limits.
const (
	StatementTimeout = 10 * time.Second // of a statement that ends a call, and of the wait for a connection
	ControlTimeout   = 3 * time.Second  // of a rollback
	maxReceipts      = 16               // in a round trip: one that waits for a lock keeps those behind it waiting
)

// The errors of transactions and receipts, in addition to those of Postgres.
var (
	ErrNoConnection   = errors.New("no connection to Postgres was free in the call's time") // and nothing was sent
	ErrConnectionLost = errors.New("the connection to Postgres was lost")                   // or could not be opened
	ErrBlocked        = fmt.Errorf("the receipt could not be committed within %s: the database was blocked",
		StatementTimeout)
	ErrEnded         = errors.New("the call has ended, and its transaction with it")
	ErrStatementOpen = errors.New("a statement of this transaction is under way: read its rows to the end, or close " +
		"them, before the next")
	ErrNoTransaction = errors.New("it ended the transaction that it shares with its receipt, with commit or rollback; " +
		"what it committed stays")
	ErrBroken = errors.New("continued after a statement had failed") // whose error [Tx.Rollback] returns
)

// Lanes share the connections of a pool.
type Lanes struct {
	pool *pgxpool.Pool
	// keeps means that a client keeps its server connection: statements stay prepared on it, and a transaction is sent
	// before the one ahead of it is answered. Some poolers take the connection back at the first answer, and lose what is
	// behind it.
	keeps bool
	mu    sync.Mutex
	spare int // lanes that are not in use; there are as many as the pool has connections
	queue []*job
}

// job is one transaction's share of a round trip: a receipt, the end of a transaction, or its beginning.
type job struct {
	sql     string
	args    []any
	commit  bool            // the receipt ends the transaction that has the lane
	handler context.Context // of a first statement: ends when its handler no longer waits
	done    chan error      // has room for one
	written bool            // the receipt was accepted: an error is the commit's
	values  []*string       // get the columns of what the statement returns
	// The lane of a first statement: the answers to begin and to itself are still in the pipeline, and cancel ends them.
	conn     *pgxpool.Conn
	pipeline *pgconn.Pipeline
	cancel   context.CancelFunc
}

// New returns lanes over all connections of a pool.
func New(pool *pgxpool.Pool) *Lanes {
	return &Lanes{pool: pool, keeps: pgpool.KeepsStatements(pool), spare: int(pool.Config().MaxConns)}
}

// Write runs a statement in a transaction of its own. If ctx ends first, it may have been run all the same.
func (l *Lanes) Write(ctx context.Context, s store.Statement) error {
	return l.do(ctx, &job{sql: s.SQL, args: s.Args, values: s.Values, done: make(chan error, 1)})
}

// do waits until a job is done, or ctx ends. A first statement that is being sent is waited for: its arguments are in
// use.
func (l *Lanes) do(ctx context.Context, j *job) error {
	l.mu.Lock()
	l.queue = append(l.queue, j)
	if l.spare > 0 {
		l.spare--
		go l.serve(nil)
	}
	l.mu.Unlock()
	select {
	case err := <-j.done:
		return err
	case <-ctx.Done():
	}
	l.mu.Lock()
	queued := len(l.queue)
	l.queue = slices.DeleteFunc(l.queue, func(other *job) bool { return other == j })
	queued -= len(l.queue)
	l.mu.Unlock()
	switch {
	case queued > 0:
		return errors.Join(ErrNoConnection, ctx.Err())
	case j.handler == nil:
		return ctx.Err()
	}
	return <-j.done
}

// serve makes round trips until no job waits, or a transaction has the lane. conn is nil for a lane without a
// connection.
func (l *Lanes) serve(conn *pgxpool.Conn) {
	for {
		l.mu.Lock()
		idle := len(l.queue) == 0
		if idle {
			l.spare++
		}
		l.mu.Unlock()
		if conn != nil && (idle || conn.Conn().IsClosed()) {
			conn.Release()
			conn = nil
		}
		if idle {
			return
		}
		if conn == nil {
			if conn = l.connect(); conn == nil {
				return
			}
		}
		if l.roundTrip(conn) {
			return
		}
	}
}

// connect gets a connection for a lane, or ends the lane. Other lanes serve the queue then; if there are none, its jobs
// fail.
func (l *Lanes) connect() *pgxpool.Conn {
	ctx, cancel := context.WithTimeout(context.Background(), StatementTimeout)
	defer cancel()
	conn, err := l.pool.Acquire(ctx)
	if err == nil {
		if _, err = l.statements(ctx, conn); err == nil {
			return conn
		}
		_ = conn.Conn().Close(ctx)
		conn.Release()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spare++; l.spare == int(l.pool.Config().MaxConns) {
		for _, j := range l.queue {
			j.done <- errors.Join(ErrConnectionLost, err)
		}
		l.queue = nil
	}
	return nil
}

// take adds to a commit, if there is one, what the same round trip sends: receipts, and at most one first statement.
// Behind a commit nothing can be prepared: an error would break the transaction.
func (l *Lanes) take(commit []*job, s *statements) []*job {
	l.mu.Lock()
	defer l.mu.Unlock()
	var first, rest []*job
	jobs := commit
	for _, j := range l.queue {
		room := l.keeps || len(jobs)+len(first) == 0
		switch {
		case room && j.handler == nil && len(jobs) < maxReceipts:
			jobs = append(jobs, j)
		case room && j.handler != nil && len(first) == 0 && (len(commit) == 0 || s.prepared[j.sql] != nil):
			first = append(first, j)
		default:
			rest = append(rest, j)
		}
	}
	l.queue = rest
	return append(jobs, first...)
}

// putBack puts jobs that were not sent back to the head of the queue.
func (l *Lanes) putBack(jobs []*job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(slices.Clone(jobs), l.queue...)
}

// rollback ends the transaction that has a lane, and reports whether its connection is lost.
func (l *Lanes) rollback(conn *pgxpool.Conn) (lost bool) {
	ctx, cancel := context.WithTimeout(context.Background(), ControlTimeout)
	defer cancel()
	if _, err := conn.Conn().Exec(ctx, "rollback"); err != nil {
		_ = conn.Conn().Close(ctx) // the transaction ends with its connection
	}
	lost = conn.Conn().IsClosed()
	go l.serve(conn)
	return lost
}
