package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// callTx is the transaction that a handler and its receipt share. It begins with the handler's first statement and
// commits with the finish, each in one round trip, and so costs a call that writes one row two round trips.
//
// It outlives no call: when a handler ignores its context and goes on, its statements are refused, and the connection
// goes back to the pool only after the transaction is gone from it.
type callTx struct {
	pool   *pgxpool.Pool
	ctx    context.Context // ends with the call, and with it every statement, whatever context the handler passes
	cancel context.CancelFunc

	mu     sync.Mutex
	conn   *pgxpool.Conn // nil until the first statement
	pgx    *pgx.Conn     // the same connection, once taken from conn
	open   chan struct{} // closed when the statement under way has ended; nil when there is none
	ended  bool
	failed error // the first error that Postgres gave: the transaction can only be rolled back from then on
}

var (
	// errEnded is what a handler gets that goes on after its call has ended.
	errEnded = errors.New("the call has ended, and its transaction with it")
	// errOpen is what a handler gets that leaves rows open, or uses the transaction from two goroutines at once.
	errOpen           = errors.New("a statement of this transaction is still under way: read its rows to the end, or close them, before the next")
	errConnectionLost = errors.New("the connection to Postgres was lost")
)

func newCallTx(ctx context.Context, pool *pgxpool.Pool) *callTx {
	t := &callTx{pool: pool}
	t.ctx, t.cancel = context.WithCancel(ctx)
	return t
}

// Exec runs a statement.
func (t *callTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	rows, err := t.Query(ctx, sql, args...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	rows.Close()
	return rows.CommandTag(), rows.Err()
}

// QueryRow runs a statement that gives one row.
func (t *callTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := t.Query(ctx, sql, args...)
	return &callRow{rows: rows, err: err}
}

// Query runs a statement. The rows must be read to their end or closed before the next one.
func (t *callTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(t.ctx, cancel)
	rows := &callRows{tx: t, release: func() { stop(); cancel() }}

	t.mu.Lock()
	switch {
	case t.ended:
		t.mu.Unlock()
		rows.release()
		return nil, errEnded
	case t.open != nil:
		t.mu.Unlock()
		rows.release()
		return nil, errOpen
	}
	t.open = make(chan struct{})
	t.mu.Unlock()

	var err error
	if t.pgx == nil {
		err = t.begin(ctx, rows, sql, args)
	} else {
		rows.Rows, err = t.pgx.Query(ctx, sql, args...)
	}
	if err != nil {
		rows.release()
		t.statementEnded(err)
		return nil, err
	}
	return rows, nil
}

// begin sends the begin and the first statement together.
func (t *callTx) begin(ctx context.Context, rows *callRows, sql string, args []any) error {
	conn, err := t.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.conn, t.pgx = conn, conn.Conn()
	t.mu.Unlock()
	batch := &pgx.Batch{}
	batch.Queue("begin")
	batch.Queue(sql, args...)
	results := t.pgx.SendBatch(ctx, batch)
	if _, err = results.Exec(); err == nil {
		rows.Rows, err = results.Query()
	}
	if err != nil {
		_ = results.Close()
		return err
	}
	rows.batch = results
	return nil
}

func (t *callTx) statementEnded(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed == nil && err != nil {
		t.failed = err
		if t.pgx != nil && t.pgx.IsClosed() { // whatever the error says: it comes from the way to Postgres
			t.failed = errConnectionLost
		}
	}
	close(t.open)
	t.open = nil
}

// begun says whether any statement was sent.
func (t *callTx) begun() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.conn != nil
}

// broken returns the error that doomed the transaction: the first that Postgres gave, or that the connection was lost.
func (t *callTx) broken() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

// finish writes the receipt and commits, in one round trip. committing says which of the two an error comes from. After
// an error nothing of the transaction stays once it is rolled back, unless the connection broke while committing: then
// only the database knows.
func (t *callTx) finish(ctx context.Context, final receipts.Final) (committing bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return false, errEnded
	}
	if t.open != nil {
		return false, errOpen
	}
	batch := &pgx.Batch{}
	batch.Queue(receipts.FinishSQL, final.Args()...)
	batch.Queue("commit")
	results := t.pgx.SendBatch(ctx, batch)
	if _, err = results.Exec(); err == nil {
		committing = true
		_, err = results.Exec()
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return committing, err
	}
	t.ended = true
	t.cancel()
	t.conn.Release()
	return true, nil
}

// rollback ends the transaction without a trace. A statement under way is told to stop; one that does not stop within
// two seconds loses its connection.
func (t *callTx) rollback() {
	t.cancel()
	t.mu.Lock()
	if t.ended {
		t.mu.Unlock()
		return
	}
	t.ended = true // from here on no statement begins
	open := t.open
	t.mu.Unlock()

	if open != nil {
		select {
		case <-open:
		case <-time.After(2 * time.Second):
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.conn != nil { // the handler still has it in its hands: it is taken from the pool and cut
				t.conn.Hijack()
				_ = t.pgx.PgConn().Conn().Close()
			}
			return
		}
	}
	if t.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), statementDeadline)
	defer cancel()
	if _, err := t.pgx.Exec(ctx, "rollback"); err != nil {
		_ = t.pgx.Close(ctx) // a transaction that can not be ended ends with its connection
		t.mu.Lock()
		if t.failed == nil {
			t.failed = errConnectionLost
		}
		t.mu.Unlock()
	}
	t.conn.Release()
}

// callRows ends the batch that began the transaction, and the joined context, when the rows are read.
type callRows struct {
	pgx.Rows
	tx      *callTx
	batch   pgx.BatchResults
	release func()
	done    bool
}

func (r *callRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *callRows) Close() {
	r.Rows.Close()
	if r.done {
		return
	}
	r.done = true
	if r.batch != nil {
		_ = r.batch.Close()
	}
	r.release()
	r.tx.statementEnded(r.Err())
}

// callRow reads the one row of a QueryRow.
type callRow struct {
	rows pgx.Rows
	err  error
}

func (r *callRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}
