package pgpool

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Way is what a connection string leads to.
type Way string

const (
	// Direct is Postgres itself.
	Direct Way = "direct"
	// Session is a pooler of which someone said that it keeps a server connection for each client. It can not be told by looking.
	Session Way = "session"
	// Pooled is a pooler that was not seen to change a client's server connection: in session mode, as far as can be seen.
	Pooled Way = "pooled"
	// Transaction is a pooler that was seen to change it from one transaction to the next.
	Transaction Way = "transaction"
)

// Keeps reports whether it is sure that a client keeps its server connection: statements stay prepared, and transactions may
// be sent one behind the other without waiting for the answers.
func (w Way) Keeps() bool { return w == Direct || w == Session }

// Notifies reports whether notifications may come through.
func (w Way) Notifies() bool { return w != Transaction }

// lookTime is what a look behind a pooler may take. What was not seen by then stays unknown.
const lookTime = 3 * time.Second

// errNoTransactions is the error of a pooler in statement mode.
var errNoTransactions = errors.New("the pooler is in statement mode, which has no transactions: use its session or transaction mode, or connect directly")

// Find finds out what url leads to, over two connections that it closes. said, if it is not empty, is taken for the answer. An
// error says that there is no way through: Postgres did not answer, or the pooler has no transactions.
func Find(ctx context.Context, url string, said Way) (Way, error) {
	a, err := lookThrough(ctx, url)
	if err != nil {
		return "", err
	}
	defer a.close()
	if said != "" {
		_, err := a.server(ctx, "begin")
		return said, withoutTransactions(err)
	}
	first, err := a.server(ctx, "")
	if err != nil {
		return "", err
	}

	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	b, err := lookThrough(ctx, url)
	if err != nil {
		return Pooled, nil // there is no room for a second connection, and nothing more is known
	}
	defer b.close()
	second, err := b.server(ctx, "begin")
	switch err = withoutTransactions(err); {
	case errors.Is(err, errNoTransactions):
		return "", err
	case err != nil:
		return Pooled, nil
	case second == first:
		return Transaction, nil
	}
	// The first one's turn while the second's transaction is open; then, since some poolers hand out what was idle longest,
	// once more each while nothing is under way.
	for _, turn := range []struct {
		of    *look
		after string
		want  uint32
	}{{a, "", first}, {b, "rollback", second}, {a, "", first}, {a, "", first}, {b, "", second}} {
		got, err := turn.of.server(ctx, turn.after)
		switch {
		case pgconn.Timeout(err): // with a connection of its own it would not have had to wait
			return Transaction, nil
		case err != nil:
			return Pooled, nil
		case got != turn.want:
			return Transaction, nil
		}
	}
	// A pooler makes up the key by which a client may cancel a statement. It holds the process id of the server.
	if a.PgConn().PID() == first && b.PgConn().PID() == second {
		return Direct, nil
	}
	return Pooled, nil
}

// withoutTransactions knows the answer of a pooler in statement mode to a begin.
func withoutTransactions(err error) error {
	if err != nil && strings.Contains(err.Error(), "statement pooling") {
		return errNoTransactions
	}
	return err
}

// look is a connection that asks which server process it talks to.
type look struct{ *pgx.Conn }

func lookThrough(ctx context.Context, url string) (*look, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, errMalformed
	}
	config.ConnectTimeout = connectTimeout
	setName(config, "gem look")
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return &look{conn}, nil
}

// server returns the process id of the server after a statement, if there is one.
func (l *look) server(ctx context.Context, after string) (uint32, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	results, err := l.PgConn().Exec(ctx, after+"; select pg_backend_pid()").ReadAll()
	if err != nil {
		return 0, err
	}
	if last := results[len(results)-1]; len(last.Rows) == 1 && len(last.Rows[0]) == 1 {
		id, err := strconv.ParseUint(string(last.Rows[0][0]), 10, 32)
		return uint32(id), err
	}
	return 0, errors.New("pg_backend_pid() gave no row")
}

// close waits for the other side to hang up, since the connection counts until then. After a timeout there is nothing to wait for.
func (l *look) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = l.Close(ctx)
	_ = l.PgConn().Conn().Close()
}
