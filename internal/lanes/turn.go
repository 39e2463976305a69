package lanes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrBlocked is the error of a receipt that Postgres did not take in time: a lock on one of the tables, or a server that is
// far too slow.
var ErrBlocked = fmt.Errorf("the receipt could not be committed within %s: the database was blocked", StatementTimeout)

// turn sends what waits and reads the answers, up to those of a next transaction, which has then taken the lane. lead are
// the arguments of the receipt of the transaction that held it until now, if one did; committing and err are its.
func (l *Lanes) turn(conn *pgxpool.Conn, lead []any) (taken, committing bool, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	deadline := time.AfterFunc(StatementTimeout, cancel)
	defer func() {
		if taken {
			return // it is another's, all of it
		}
		deadline.Stop()
		if err != nil && conn.Conn().IsClosed() {
			err = errors.Join(ErrConnectionLost, err)
		}
		if err != nil && ctx.Err() != nil {
			err = errors.Join(ErrBlocked, err)
		}
		cancel()
	}()

	speech, err := speechOf(ctx, conn.Conn())
	if err != nil {
		l.fail(err) // the connection is new, and no good
		return false, false, err
	}
	// A statement that is not prepared here yet waits: preparing may fail, and would take the lead's transaction with it.
	batch, next := l.take(lead != nil, func(sql string) bool { return lead == nil || speech.knows(sql) })
	if next != nil && !speech.knows(next.sql) {
		// Preparing may wait for a lock, as long as the statement's handler does: the receipts go before it.
		l.sendReceipts(ctx, conn, speech, batch)
		batch = nil
		deadline.Stop()
		err := speech.learn(next.ctx, next.sql)
		deadline.Reset(StatementTimeout)
		if err != nil {
			next.answer <- held{err: nothingRan(err)}
			next = nil
		}
	}
	if lead == nil && conn.Conn().IsClosed() {
		l.putBack(batch, next)
		return false, false, ErrConnectionLost
	}
	pipeline := conn.Conn().PgConn().StartPipeline(ctx)
	if lead != nil {
		if err := speech.say(pipeline, "", store.FinishSQL, lead); err != nil {
			l.putBack(batch, next)
			return false, false, errors.Join(err, pipeline.Close())
		}
		speech.sayWord(pipeline, "commit")
		pipeline.SendPipelineSync()
	}
	batch = sayReceipts(pipeline, speech, batch)
	if next != nil {
		if err := sayBegin(pipeline, speech, next); err != nil {
			next.answer <- held{err: err}
			next = nil
		} else {
			pipeline.SendPipelineSync()
		}
	}
	_ = pipeline.Flush() // an error comes again with the first answer

	if lead != nil {
		committing, err = readCommit(pipeline)
		dropStale(conn, err)
		if err != nil && (!committing || conn.Conn().IsClosed()) {
			// Postgres refused what came behind it in the broken transaction, or never got it.
			_ = pipeline.Close()
			l.putBack(batch, next)
			return false, committing, err
		}
	}
	readReceipts(pipeline, conn, batch)
	if next == nil || conn.Conn().IsClosed() {
		_ = pipeline.Close()
		l.putBack(nil, next)
		return false, committing, err
	}
	deadline.Stop() // from here on the statement's own contexts end it
	next.answer <- held{conn: conn, pipeline: pipeline, cancel: cancel}
	return true, committing, err
}

// sendReceipts sends receipts alone and reads the answers.
func (l *Lanes) sendReceipts(ctx context.Context, conn *pgxpool.Conn, speech *speech, batch []*receiptJob) {
	if len(batch) == 0 {
		return
	}
	pipeline := conn.Conn().PgConn().StartPipeline(ctx)
	batch = sayReceipts(pipeline, speech, batch)
	_ = pipeline.Flush() // an error comes again with the first answer
	readReceipts(pipeline, conn, batch)
	_ = pipeline.Close()
}

// sayReceipts returns those that were sent; the others are told.
func sayReceipts(pipeline *pgconn.Pipeline, speech *speech, batch []*receiptJob) []*receiptJob {
	return slices.DeleteFunc(batch, func(job *receiptJob) bool {
		err := speech.say(pipeline, "", store.FinishSQL, job.args)
		if err != nil {
			job.ended <- err
			return true
		}
		pipeline.SendPipelineSync()
		return false
	})
}

func readReceipts(pipeline *pgconn.Pipeline, conn *pgxpool.Conn, batch []*receiptJob) {
	for _, job := range batch {
		err := readReceipt(pipeline)
		dropStale(conn, err)
		job.ended <- err
	}
}

func sayBegin(pipeline *pgconn.Pipeline, speech *speech, next *beginJob) error {
	next.mu.Lock()
	defer next.mu.Unlock()
	if next.gone {
		return context.Canceled
	}
	return speech.say(pipeline, "begin", next.sql, next.args)
}

// The SQLSTATEs of statements that are not what they were when they were prepared: someone said `deallocate all` or
// `discard all`, or a column of their result was added or changed; and of those that were cancelled.
const (
	notPrepared    = "26000"
	preparedBefore = "42P05" // by another client of a pooler
	otherColumns   = "0A000"
	otherFormats   = "08P01"
	queryCanceled  = "57014"
)

// dropStale closes a connection on which statements are not what they were.
func dropStale(conn *pgxpool.Conn, err error) {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && slices.Contains([]string{notPrepared, preparedBefore, otherColumns, otherFormats}, pgErr.Code) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Conn().Close(ctx)
	}
}

// readCommit reads the answers to a receipt and the commit behind it.
func readCommit(pipeline *pgconn.Pipeline) (committing bool, err error) {
	if err := readOne(pipeline); err != nil {
		return false, errors.Join(err, readSync(pipeline))
	}
	return true, errors.Join(readOne(pipeline), readSync(pipeline))
}

// readReceipt reads the answer to a receipt in a transaction of its own, which is committed when the sync is answered.
func readReceipt(pipeline *pgconn.Pipeline) error {
	return errors.Join(readOne(pipeline), readSync(pipeline))
}

// readOne reads the answer to one statement, whose rows are not of interest.
func readOne(pipeline *pgconn.Pipeline) error {
	answer, err := pipeline.GetResults()
	if err != nil {
		return err
	}
	rows, ok := answer.(*pgconn.ResultReader)
	if !ok {
		return ErrConnectionLost
	}
	_, err = rows.Close()
	return err
}

func readSync(pipeline *pgconn.Pipeline) error {
	answer, err := pipeline.GetResults()
	if err != nil {
		return err
	}
	if _, ok := answer.(*pgconn.PipelineSync); !ok {
		return ErrConnectionLost
	}
	return nil
}

const (
	// StatementTimeout limits a statement that ends a call.
	StatementTimeout = 10 * time.Second
	// ControlTimeout limits a rollback.
	ControlTimeout = 3 * time.Second
)
