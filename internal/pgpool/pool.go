// Package pgpool opens GEM's connections to Postgres, direct or through a pooler.
package pgpool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	connectTimeout = 10 * time.Second
	// A statement whose context ends is cancelled on the server; a server that does not answer that in time loses the
	// connection.
	cancelPatience = 2 * time.Second
	// A connection that was idle for some time is asked before it is used; one on a network that swallows packets must not
	// cost more than the second of these.
	pingAfter   = 5 * time.Second
	pingTimeout = 2 * time.Second
)

// Options says how to connect.
type Options struct {
	// MaxConns is the size of the pool; 0 means 4.
	MaxConns int32
	// Pooled says that url may lead to a transaction pooler: no statement outlives its transaction on the server, and nothing
	// is sent behind a transaction before it is answered. See [Way.Keeps].
	Pooled bool
	// Unasked says that idle connections are used without a ping, since every statement on them has a short deadline.
	Unasked bool
	// Name stands in pg_stat_activity; empty means gem.
	Name string
}

var errMalformed = errors.New("the connection string is not valid: it has the form postgres://user:password@host:5432/database")

// Open makes a pool without connecting. A malformed url gives an error that does not contain it, since it holds a password.
func Open(ctx context.Context, url string, o Options) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, errMalformed
	}
	config.MaxConns = o.MaxConns
	if config.MaxConns <= 0 {
		config.MaxConns = 4
	}
	config.MaxConnIdleTime = 5 * time.Minute
	config.PingTimeout = pingTimeout
	config.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool {
		return !o.Unasked && p.IdleDuration > pingAfter
	}
	Prepare(config.ConnConfig, o)
	return pgxpool.NewWithConfig(ctx, config)
}

// Prepare sets on a connection's configuration what all of GEM's connections share.
func Prepare(config *pgx.ConnConfig, o Options) {
	config.ConnectTimeout = connectTimeout
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &canceller{conn: conn}
	}
	fatal := config.OnPgError
	config.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		// A session that was opened while the server took no writes may stay so when the server takes them again.
		return err.Code != "25006" && (fatal == nil || fatal(conn, err))
	}
	if o.Pooled {
		config.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	if o.Name == "" {
		o.Name = "gem"
	}
	setName(config, o.Name)
}

func setName(config *pgx.ConnConfig, name string) {
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = name
	}
}

// Wait connects, and tries again until patience has passed: a database that is just starting is worth waiting for. say is
// told, once for each new reason, why it waits.
func Wait(ctx context.Context, connect func(context.Context) error, patience time.Duration, say func(reason string)) error {
	deadline := time.Now().Add(patience)
	pause, last := 100*time.Millisecond, ""
	for {
		err := connect(ctx)
		if err == nil {
			return nil
		}
		reason := Reason(err)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, errMalformed) || errors.Is(err, errNoTransactions) {
			return err
		}
		if permanent(err) || time.Now().Add(pause).After(deadline) {
			return fmt.Errorf("Postgres can not be reached: %s", reason) //nolint:staticcheck // a name begins it
		}
		if reason != last {
			say(reason)
			last = reason
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(pause*2, 3*time.Second)
	}
}

// permanent reports whether waiting will not help: a wrong password, role or database.
func permanent(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return false
	}
	switch pgErr.Code {
	case "28P01", "28000", "3D000":
		return true
	case "08P01": // as PgBouncer says the same
		return strings.Contains(pgErr.Message, "authentication failed") || strings.Contains(pgErr.Message, "no such database")
	}
	return false
}

// Reason says why a connection failed, without the connection string's parts that may be secret.
func Reason(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return fmt.Sprintf("%s (SQLSTATE %s)", pgErr.Message, pgErr.Code)
	}
	var netErr *net.OpError
	if errors.As(err, &netErr) {
		return netErr.Error()
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	// A name without an address is looked up once with TLS and once without, and the two answers are often the same line.
	return strings.Join(slices.Compact(strings.Split(err.Error(), "\n")), "\n")
}
