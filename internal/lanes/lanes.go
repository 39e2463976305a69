// Package lanes carries what calls write to Postgres over few connections.
package lanes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// lanes carry what calls write over a few connections, as many as the pool has. A lane that is free sends all that waits in
// one go, each in a transaction of its own, and reads the answers in that order, so that those which share a connection do
// not wait for one another's round trip:
//
//	finish, commit of the transaction that held the lane │ receipt │ receipt │ … │ begin, first statement of the next one
//
// That transaction then holds the lane to its end. Nothing is put off to be sent with something else: whoever comes while a
// lane is free has it to itself.
//
// Where a pooler may give each transaction another server connection, a lane sends one at a time: there are poolers that take
// the connection back at the first answer, and lose what was sent behind it.
type Lanes struct {
	pool     *pgxpool.Pool
	count    int  // as many as the pool has connections
	oneByOne bool // nothing is sent behind a transaction before it is answered

	mu       sync.Mutex
	busy     int // lanes at work, those that a transaction holds among them
	receipts []*receiptJob
	begins   []*beginJob
	began    bool // what was sent last, one by one, was a begin
}

func New(pool *pgxpool.Pool) *Lanes {
	return &Lanes{pool: pool, count: int(pool.Config().MaxConns), oneByOne: !keepsStatements(pool.Config().ConnConfig)}
}

// maxReceipts is how many receipts a lane sends in one go. One that waits for a lock keeps those behind it waiting.
const maxReceipts = 16

// receiptJob is a receipt in a transaction of its own.
type receiptJob struct {
	args  []any
	ended chan error // with room for one, as below: whoever answers does not wait
}

// beginJob is the first statement of a transaction.
type beginJob struct {
	ctx    context.Context // ends when its handler waits no longer
	sql    string
	args   []any
	answer chan held

	mu   sync.Mutex
	gone bool // its handler went on, and args are the handler's again
}

// leave returns when args are not in use, and will not be.
func (j *beginJob) leave() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.gone = true
}

// held is a lane in the hands of a transaction whose first statement was sent: the answers to begin and to the statement
// are still to be read.
type held struct {
	conn     *pgxpool.Conn
	pipeline *pgconn.Pipeline
	cancel   context.CancelFunc // ends the statement
	err      error              // the lane is not held; the statement was not run
}

// receipt ends a call whose handler has no transaction.
func (l *Lanes) Write(ctx context.Context, final store.Final) error {
	job := &receiptJob{args: final.Args(), ended: make(chan error, 1)}
	l.mu.Lock()
	l.receipts = append(l.receipts, job)
	l.employ()
	l.mu.Unlock()
	select {
	case err := <-job.ended:
		return err
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.receipts = slices.DeleteFunc(l.receipts, func(j *receiptJob) bool { return j == job })
	return ctx.Err() // it may be on its way: the next try is told
}

// ErrNoConnection is the error of a transaction that its call's time was over for before any connection was free to begin it.
var ErrNoConnection = errors.New("no connection to Postgres came free in the call's time")

// begin begins a transaction with its first statement, and returns the lane that it holds from here on.
func (l *Lanes) first(ctx context.Context, sql string, args []any) (held, error) {
	job := &beginJob{ctx: ctx, sql: sql, args: args, answer: make(chan held, 1)}
	l.mu.Lock()
	l.begins = append(l.begins, job)
	l.employ()
	l.mu.Unlock()
	select {
	case h := <-job.answer:
		return h, h.err
	case <-ctx.Done():
	}
	job.leave()
	l.mu.Lock()
	before := len(l.begins)
	l.begins = slices.DeleteFunc(l.begins, func(j *beginJob) bool { return j == job })
	onItsWay := len(l.begins) == before
	l.mu.Unlock()
	if onItsWay {
		go func() {
			if h := <-job.answer; h.err == nil {
				h.cancel()
				_ = h.pipeline.Close()
				l.rollback(h.conn)
			}
		}()
		return held{}, ctx.Err()
	}
	return held{}, errors.Join(ErrNoConnection, ctx.Err())
}

// finish ends the transaction that holds the lane with its receipt, and leaves the lane to who waits. committing says that
// an error comes from the commit, after which the transaction is over; after any other it is to be rolled back.
func (l *Lanes) finish(conn *pgxpool.Conn, final store.Final) (committing bool, err error) {
	taken, committing, err := l.turn(conn, final.Args())
	if (err == nil || committing) && !taken {
		l.leave(conn)
	}
	return committing, err
}

// rollback ends the transaction that holds the lane without a trace, and leaves the lane to who waits. broken says that the
// connection was lost with it.
func (l *Lanes) rollback(conn *pgxpool.Conn) (broken bool) {
	if !conn.Conn().IsClosed() && conn.Conn().PgConn().TxStatus() != 'I' {
		ctx, cancel := context.WithTimeout(context.Background(), ControlTimeout)
		if _, err := conn.Conn().Exec(ctx, "rollback"); err != nil {
			_ = conn.Conn().Close(ctx) // a transaction that can not be ended ends with its connection
		}
		cancel()
	}
	broken = conn.Conn().IsClosed()
	l.leave(conn)
	return broken
}

// leave gives up a lane that a transaction held.
func (l *Lanes) leave(conn *pgxpool.Conn) {
	l.mu.Lock()
	nobodyWaits := len(l.receipts) == 0 && len(l.begins) == 0
	if nobodyWaits {
		l.busy--
	}
	l.mu.Unlock()
	if nobodyWaits {
		conn.Release() // the pool drops one that is broken
		return
	}
	go l.work(conn)
}

// abandon gives up a lane whose connection a handler still uses: it is cut.
func (l *Lanes) abandon(conn *pgxpool.Conn) {
	raw := conn.Hijack()
	_ = raw.PgConn().Conn().Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy--
	if len(l.receipts)+len(l.begins) > 0 {
		l.employ()
	}
}

// employ puts one more lane to work, if there is one. It is called with the lock held.
func (l *Lanes) employ() {
	if l.busy < l.count {
		l.busy++
		go l.work(nil)
	}
}

// work serves who waits, until nobody does or a transaction holds the lane.
func (l *Lanes) work(conn *pgxpool.Conn) {
	for {
		l.mu.Lock()
		if len(l.receipts) == 0 && len(l.begins) == 0 {
			l.busy--
			l.mu.Unlock()
			if conn != nil {
				conn.Release()
			}
			return
		}
		l.mu.Unlock()
		if conn != nil && conn.Conn().IsClosed() {
			conn.Release()
			conn = nil
		}
		if conn == nil {
			var err error
			if conn, err = l.connect(); err != nil {
				if l.retire() {
					return
				}
				l.fail(err)
				continue
			}
		}
		if taken, _, _ := l.turn(conn, nil); taken {
			return
		}
	}
}

func (l *Lanes) connect() (*pgxpool.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), StatementTimeout)
	defer cancel()
	return l.pool.Acquire(ctx)
}

// retire gives up a lane that has no connection, if there are others at work: who waits is theirs to serve.
func (l *Lanes) retire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy == 1 {
		return false
	}
	l.busy--
	return true
}

// fail tells all who wait that there is no connection to be had.
func (l *Lanes) fail(err error) {
	err = nothingRan(err)
	l.mu.Lock()
	waiting, begins := l.receipts, l.begins
	l.receipts, l.begins = nil, nil
	l.mu.Unlock()
	for _, job := range waiting {
		job.ended <- err
	}
	for _, job := range begins {
		job.answer <- held{err: err}
	}
}

// nothingRan makes an error of the way to Postgres, and of a wait that was too long, one that is worth another attempt.
func nothingRan(err error) error {
	var said *pgconn.PgError
	if errors.As(err, &said) {
		return err
	}
	return fmt.Errorf("%w: %v", ErrConnectionLost, err) //nolint:errorlint // it is to count as nothing else
}

// take takes what is to be sent next: receipts, and the first begin that fits. lead says that it goes behind the end of a
// transaction.
func (l *Lanes) take(lead bool, fits func(sql string) bool) (batch []*receiptJob, next *beginJob) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(l.receipts), maxReceipts)
	if l.oneByOne {
		// One of either, by turns.
		if lead {
			return nil, nil
		}
		l.began = len(l.begins) > 0 && (len(l.receipts) == 0 || !l.began)
		if n = min(n, 1); l.began {
			next = l.begins[0]
			l.begins = slices.Delete(l.begins, 0, 1)
			return nil, next
		}
		fits = func(string) bool { return false }
	}
	batch = slices.Clone(l.receipts[:n])
	l.receipts = slices.Delete(l.receipts, 0, n)
	for i, job := range l.begins {
		if fits(job.sql) {
			l.begins = slices.Delete(l.begins, i, i+1)
			return batch, job
		}
	}
	return batch, nil
}

// putBack puts what was not run back to where it was.
func (l *Lanes) putBack(batch []*receiptJob, next *beginJob) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.receipts = append(slices.Clone(batch), l.receipts...)
	if next != nil {
		l.begins = append([]*beginJob{next}, l.begins...)
	}
}
