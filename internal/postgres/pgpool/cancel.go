package pgpool

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// canceller cancels a statement on the server when its context ends. It drops a connection that does not answer in
// time.
//
// pgx's own handler closes the cancel request as soon as the statement has ended. That crashes PgBouncer 1.18
// (pgbouncer issue 801), so canceller waits until the other side closes it.
type canceller struct {
	conn  *pgconn.PgConn
	limit time.Duration // see cancelTimeout
	ended chan struct{} // closed when the statement's answer has been read
	done  chan struct{} // closed when no request can reach the connection's next statement
}

const (
	// settleTime is how long an accepted request may take to reach the statement.
	settleTime = 100 * time.Millisecond
	// cancelAgain is the pause before the next request. A request that arrives before the statement has begun cancels
	// nothing.
	cancelAgain = 300 * time.Millisecond
	// requestTimeout limits a request that nobody answers.
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
				return // the last request still waits for its answer
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

// request sends a cancel request. The channel is closed when the other side has closed the connection.
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
