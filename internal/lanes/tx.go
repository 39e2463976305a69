package lanes

import (
	"context"
	"sync"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Tx is the transaction that a handler and its receipt share. It begins with the handler's first statement and commits
// with the receipt, each in one round trip. After its end it refuses statements: a handler may ignore that its call has
// ended.
type Tx struct {
	lanes  *Lanes
	ctx    context.Context // every statement ends with it, whatever context the handler passes
	cancel context.CancelFunc

	mu      sync.Mutex
	conn    *pgxpool.Conn // its lane; nil until the first statement was sent
	pg      *pgx.Conn     // of the lane; it stays if a rollback takes the lane away from a statement
	current chan struct{} // closed when the statement under way has ended; nil if there is none
	ended   bool
	failed  error // the first error of a statement: from then on it can only be rolled back
}

// Begin returns a transaction for a handler that may take so long, and the context that ends with it. It must be
// finished or rolled back.
func (l *Lanes) Begin(ctx context.Context, timeout time.Duration) (context.Context, *Tx) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	return ctx, &Tx{lanes: l, ctx: ctx, cancel: cancel}
}

// Exec runs a statement.
func (t *Tx) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	rows, err := t.Query(ctx, sql, args...)
	if err == nil {
		rows.Close()
		tag, err = rows.CommandTag(), rows.Err()
	}
	return tag, err
}

// QueryRow runs a statement that returns a row. Its error comes with Scan.
func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := t.Query(ctx, sql, args...)
	return txRow(func(dest ...any) error {
		if err == nil {
			_, err = pgx.CollectOneRow(rows, func(row pgx.CollectableRow) (none struct{}, err error) {
				return none, row.Scan(dest...)
			})
		}
		return err
	})
}

type txRow func(dest ...any) error

func (scan txRow) Scan(dest ...any) error { return scan(dest...) }

// Query runs a statement. The rows must be read to their end or closed before the next one.
func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	t.mu.Lock()
	switch {
	case t.ended:
		t.mu.Unlock()
		return nil, ErrEnded
	case t.current != nil:
		t.mu.Unlock()
		return nil, ErrStatementOpen
	}
	t.current = make(chan struct{})
	t.mu.Unlock()
	rows := &txRows{tx: t, release: func() {}}
	if ctx != t.ctx {
		joined, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(t.ctx, cancel)
		ctx, rows.release = joined, func() { stop(); cancel() }
	}
	var err error
	if t.pg == nil {
		err = t.begin(ctx, rows, sql, args)
	} else {
		rows.Rows, err = t.pg.Query(ctx, sql, args...)
	}
	if err != nil {
		rows.end(err)
		return nil, err
	}
	return rows, nil
}

// begin gets a lane, on which begin and the first statement were sent, and reads the answers up to the statement's
// rows.
func (t *Tx) begin(ctx context.Context, rows *txRows, sql string, args []any) (err error) {
	if len(args) > 0 {
		if rewriter, ok := args[0].(pgx.QueryRewriter); ok { // such as pgx.NamedArgs
			if sql, args, err = rewriter.RewriteQuery(ctx, nil, sql, args[1:]); err != nil {
				return err
			}
		}
	}
	first := &job{sql: sql, args: args, handler: ctx, done: make(chan error, 1)}
	if err := t.lanes.do(ctx, first); err != nil {
		return err
	}
	t.mu.Lock()
	if t.ended { // the call was abandoned in the meantime
		t.mu.Unlock()
		first.cancel()
		_ = first.pipeline.Close()
		t.lanes.rollback(first.conn)
		return ErrEnded
	}
	t.conn, t.pg = first.conn, first.conn.Conn()
	t.mu.Unlock()
	stop, release := context.AfterFunc(ctx, first.cancel), rows.release
	rows.pipeline, rows.release = first.pipeline, func() { stop(); release() }
	if _, err := readAnswer(first.pipeline, true); err != nil { // to begin
		return err
	}
	reader, err := readAnswer(first.pipeline, false)
	if err == nil {
		rows.Rows = pgx.RowsFromResultReader(t.pg.TypeMap(), reader)
	}
	return err
}

// Open reports whether a statement was tried, and the transaction has not ended.
func (t *Tx) Open() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.ended && (t.conn != nil || t.failed != nil)
}

// Finish runs a last statement and commits, in one round trip. written means that the statement was accepted, and the
// error is the commit's. After an error the transaction must be rolled back. If the connection broke, only the database
// knows what stays.
func (t *Tx) Finish(last store.Statement) (written bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ended:
		return false, ErrEnded
	case t.current != nil:
		return false, ErrStatementOpen
	case t.failed != nil:
		return false, ErrBroken
	}
	commit := &job{sql: last.SQL, args: last.Args, values: last.Values, commit: true, done: make(chan error, 1)}
	taken := t.lanes.roundTrip(t.conn, commit)
	if commit.written {
		t.ended = true
		t.cancel()
		if !taken {
			go t.lanes.serve(t.conn)
		}
	}
	return commit.written, <-commit.done
}

// Rollback ends the transaction without a trace, unless it has ended, and returns the first error of a statement or of
// the connection. It cancels a statement under way, and closes the connection if the statement does not stop.
func (t *Tx) Rollback() error {
	t.cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return t.failed
	}
	t.ended = true // from here on no statement begins
	stopped := true
	if current := t.current; current != nil {
		t.mu.Unlock()
		select {
		case <-current:
		case <-time.After(2 * time.Second):
			stopped = false
		}
		t.mu.Lock()
	}
	switch {
	case t.conn == nil:
	case !stopped: // the handler still uses the connection
		_ = t.conn.Hijack().PgConn().Conn().Close()
		t.conn = nil
		go t.lanes.serve(nil)
	case t.lanes.rollback(t.conn) && t.failed == nil:
		t.failed = ErrConnectionLost
	}
	return t.failed
}

// txRows are the rows of the current statement.
type txRows struct {
	pgx.Rows
	tx       *Tx
	pipeline *pgconn.Pipeline // of a first statement; otherwise nil
	release  func()           // takes the statement out of reach of the contexts that could end it; nil after its end
}

func (r *txRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *txRows) Close() {
	r.Rows.Close()
	if r.release != nil {
		r.end(r.Err())
	}
}

// end ends the current statement, and keeps its error.
func (r *txRows) end(err error) {
	t := r.tx
	if r.pipeline != nil {
		_ = r.pipeline.Close()
	}
	r.release()
	r.release = nil
	// asked before the lock: an argument of the handler's may have made the error
	stale := r.pipeline != nil && store.IsStale(err)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil && t.conn != nil && t.conn.Conn().PgConn().TxStatus() == 'I' {
		err = ErrNoTransaction
	}
	if t.failed == nil && err != nil {
		t.failed = err
		if stale && t.conn != nil { // it is nil if the connection was taken away
			_ = t.conn.Conn().Close(context.Background()) // which does not wait for an answer
		}
		if t.conn != nil && t.conn.Conn().IsClosed() { // whatever the error says
			t.failed = ErrConnectionLost
		}
	}
	close(t.current)
	t.current = nil
}
