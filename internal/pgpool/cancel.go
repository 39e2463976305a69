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
	conn *pgconn.PgConn
	done chan struct{}
}

// settle is left to a request that was taken, so that it does not hit the connection's next statement.
const settle = 100 * time.Millisecond

func (c *canceller) HandleCancel(context.Context) {
	c.done = make(chan struct{})
	deadline := time.Now().Add(cancelPatience)
	_ = c.conn.Conn().SetDeadline(deadline)
	go func() {
		defer close(c.done)
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		defer cancel()
		_ = c.conn.CancelRequest(ctx) // the deadline is what counts
		time.Sleep(settle)
	}()
}

func (c *canceller) HandleUnwatchAfterCancel() {
	<-c.done
	_ = c.conn.Conn().SetDeadline(time.Time{})
}
