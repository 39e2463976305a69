package pgpool

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// canceller cancels a statement on the server when its context ends, and drops a connection that does not answer in
// time.
//
// pgx's own handler hangs up on the cancel request as soon as the statement has ended. PgBouncer 1.18 crashes on that
// (pgbouncer issue 801), so this one waits until the other side hangs up.
type canceller struct {
	conn  *pgconn.PgConn
	limit time.Duration // see cancelTimeout
	ended chan struct{} // closed when the statement's answer has been read
	done  chan struct{} // closed when no request can hit the connection's next statement
}

const (
	// settleTime is how long an accepted request may still take to arrive at the statement.
	settleTime = 100 * time.Millisecond
	// cancelAgain is the pause before the next request: one that arrives before the statement has begun cancels nothing.
	cancelAgain = 300 * time.Millisecond
	// requestTimeout is for a request that nobody answers.
	requestTimeout = time.Minute
)

// HandleCancel starts to send cancel requests.
func (c *canceller) HandleCancel(context.Context) {
	c.ended, c.done = make(chan struct{}), make(chan struct{})
	_ = c.conn.Conn().SetDeadline(time.Now().Add(c.limit))
	dropped := time.After(c.limit)
	go func() {
		defer close(c.done)
		for {
			select {
			case <-c.request():
			case <-dropped:
				return // the request continues to wait for its answer
			}
			select {
			case <-c.ended:
				time.Sleep(settleTime)
				return
			case <-dropped:
				return
			case <-time.After(cancelAgain):
			}
		}
	}()
}

// request sends a cancel request. The channel is closed when the other side has hung up.
func (c *canceller) request() <-chan struct{} {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	go func() {
		defer cancel()
		_ = c.conn.CancelRequest(ctx) // if it fails, the connection's deadline ends the statement
	}()
	return ctx.Done()
}

// HandleUnwatchAfterCancel waits until the connection can be used again.
func (c *canceller) HandleUnwatchAfterCancel() {
	close(c.ended)
	<-c.done
	_ = c.conn.Conn().SetDeadline(time.Time{})
}
