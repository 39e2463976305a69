package pgpool

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// canceller cancels a statement on the server when its context ends; a connection that does not answer in time is lost.
//
// pgx has one that hangs up on the request as soon as the statement has ended, whoever was faster. PgBouncer 1.18 ends with
// a fatal error then (pgbouncer issue 801): this one waits for the other side to hang up.
type canceller struct {
	conn  *pgconn.PgConn
	ended chan struct{} // the statement's answer is read
	done  chan struct{}
}

const (
	// settle is left to a request that was taken, so that it does not hit the connection's next statement.
	settle = 100 * time.Millisecond
	// askAgain is for a request that came before its statement did, and found nothing to cancel.
	askAgain = 300 * time.Millisecond
	// hangUp is for a request that nobody answers.
	hangUp = time.Minute
)

func (c *canceller) HandleCancel(context.Context) {
	c.ended, c.done = make(chan struct{}), make(chan struct{})
	deadline := time.Now().Add(cancelPatience)
	_ = c.conn.Conn().SetDeadline(deadline)
	go func() {
		defer close(c.done)
		lost := time.After(time.Until(deadline))
		for {
			select {
			case <-c.request():
			case <-lost:
				return // of the connection nothing is left, and the request waits for its answer alone
			}
			select {
			case <-c.ended:
				time.Sleep(settle)
				return
			case <-lost:
				return
			case <-time.After(askAgain):
			}
		}
	}()
}

// request sends a request. What it returns is closed when the other side has hung up.
func (c *canceller) request() <-chan struct{} {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		ctx, cancel := context.WithTimeout(context.Background(), hangUp)
		defer cancel()
		_ = c.conn.CancelRequest(ctx) // the connection's deadline is what counts
	}()
	return answered
}

func (c *canceller) HandleUnwatchAfterCancel() {
	close(c.ended)
	<-c.done
	_ = c.conn.Conn().SetDeadline(time.Time{})
}
