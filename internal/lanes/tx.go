package lanes

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Tx is the transaction that a handler and its receipt share. It begins with the handler's first statement and
// commits with the finish, each in one round trip, and so costs a call that writes one row two round trips.
//
// It outlives no call: when a handler ignores its context and goes on, its statements are refused, and the connection
// goes back to the pool only after the transaction is gone from it.
type Tx struct {
	lanes  *Lanes
	ctx    context.Context // the handler's: every statement ends with it, whatever context the handler passes
	cancel context.CancelFunc

	mu     sync.Mutex
	conn   *pgxpool.Conn // the lane that it holds; nil until the first statement was sent
	open   chan struct{} // closed when the statement under way has ended; nil when there is none
	ended  bool
	failed error // the first error that Postgres gave: the transaction can only be rolled back from then on
}

var (
	// ErrEnded is what a handler gets that goes on after its call has ended.
	ErrEnded = errors.New("the call has ended, and its transaction with it")
	// ErrStatementOpen is what a handler gets that leaves rows open, or uses the transaction from two goroutines at once.
	ErrStatementOpen  = errors.New("a statement of this transaction is still under way: read its rows to the end, or close them, before the next")
	ErrConnectionLost = errors.New("the connection to Postgres was lost")
)

// Exec runs a statement.
func (t *Tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	rows, err := t.Query(ctx, sql, args...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	rows.Close()
	return rows.CommandTag(), rows.Err()
}

// QueryRow runs a statement that gives one row.
func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := t.Query(ctx, sql, args...)
	return &callRow{rows: rows, err: err}
}

// Query runs a statement. The rows must be read to their end or closed before the next one.
func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows := &callRows{tx: t, release: func() {}}
	if ctx != t.ctx {
		joined, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(t.ctx, cancel)
		ctx, rows.release = joined, func() { stop(); cancel() }
	}

	t.mu.Lock()
	switch {
	case t.ended:
		t.mu.Unlock()
		rows.release()
		return nil, ErrEnded
	case t.open != nil:
		t.mu.Unlock()
		rows.release()
		return nil, ErrStatementOpen
	}
	t.open = make(chan struct{})
	t.mu.Unlock()

	var err error
	if t.conn == nil {
		err = t.begin(ctx, rows, sql, args)
	} else {
		rows.Rows, err = t.conn.Conn().Query(ctx, sql, args...)
	}
	if err != nil {
		rows.letGo()
		t.statementEnded(err)
		return nil, err
	}
	return rows, nil
}

// begin takes a lane, on which the begin and the first statement were sent together.
func (t *Tx) begin(ctx context.Context, rows *callRows, sql string, args []any) (err error) {
	if len(args) > 0 {
		if rewriter, ok := args[0].(pgx.QueryRewriter); ok { // such as pgx.NamedArgs
			if sql, args, err = rewriter.RewriteQuery(ctx, nil, sql, args[1:]); err != nil {
				return err
			}
		}
	}
	lane, err := t.lanes.first(ctx, sql, args)
	if err != nil {
		return err
	}
	t.mu.Lock()
	late := t.ended
	if !late {
		t.conn = lane.conn
	}
	t.mu.Unlock()
	if late { // the call was given up meanwhile
		lane.cancel()
		_ = lane.pipeline.Close()
		t.lanes.rollback(lane.conn)
		return ErrEnded
	}
	rows.first, rows.unwatch = lane.pipeline, context.AfterFunc(ctx, lane.cancel)
	if err := readOne(lane.pipeline); err != nil { // begin's
		return errors.Join(err, lane.pipeline.Close())
	}
	answer, err := lane.pipeline.GetResults()
	if err != nil {
		closeErr := lane.pipeline.Close()
		dropStale(lane.conn, err)
		return errors.Join(err, closeErr)
	}
	reader, ok := answer.(*pgconn.ResultReader)
	if !ok {
		return errors.Join(ErrConnectionLost, lane.pipeline.Close())
	}
	rows.Rows = pgx.RowsFromResultReader(lane.conn.Conn().TypeMap(), reader)
	return nil
}

func (t *Tx) statementEnded(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed == nil && err != nil {
		t.failed = err
		if t.conn != nil && t.conn.Conn().IsClosed() { // whatever the error says: it comes from the way to Postgres
			t.failed = ErrConnectionLost
		}
	}
	close(t.open)
	t.open = nil
}

// Begin returns a transaction for a handler that may take so long, and the context that ends with it.
func (l *Lanes) Begin(ctx context.Context, timeout time.Duration) (context.Context, *Tx) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	return ctx, &Tx{lanes: l, ctx: ctx, cancel: cancel}
}

// Open reports whether the transaction has begun and not ended.
func (t *Tx) Open() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.ended && (t.conn != nil || t.failed != nil)
}

// broken returns the error that doomed the transaction: the first that Postgres gave, or that the connection was lost.
func (t *Tx) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

// ReceiptError is the error of a receipt that was refused before the commit.
type ReceiptError struct{ Err error }

func (e *ReceiptError) Error() string { return e.Err.Error() }
func (e *ReceiptError) Unwrap() error { return e.Err }

// Finish writes the receipt and commits, in one round trip.
func (t *Tx) Finish(final store.Final) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return ErrEnded
	}
	if t.open != nil {
		return ErrStatementOpen
	}
	if t.failed != nil {
		return t.failed
	}
	committing, err := t.lanes.finish(t.conn, final)
	if err == nil || committing {
		t.ended = true
		t.cancel()
	}
	if err != nil && !committing {
		return &ReceiptError{err}
	}
	return err
}

// rollback ends the transaction without a trace. A statement under way is told to stop; one that does not stop within
// two seconds loses its connection.
func (t *Tx) Rollback() {
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
				t.lanes.abandon(t.conn)
			}
			return
		}
	}
	if t.conn == nil {
		return
	}
	if broken := t.lanes.rollback(t.conn); broken {
		t.mu.Lock()
		if t.failed == nil {
			t.failed = ErrConnectionLost
		}
		t.mu.Unlock()
	}
}

// callRows ends the pipeline that began the transaction, and the joined context, when the rows are read.
type callRows struct {
	pgx.Rows
	tx      *Tx
	first   *pgconn.Pipeline // nil but for the first statement
	unwatch func() bool      // the same
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
	if r.first != nil {
		_ = r.first.Close()
	}
	r.letGo()
	r.tx.statementEnded(r.Err())
}

// letGo takes the statement out of reach of the contexts that could end it.
func (r *callRows) letGo() {
	if r.unwatch != nil {
		r.unwatch()
	}
	r.release()
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
