// Package pgpool opens GEM's connections to Postgres, direct or through a pooler.
package pgpool

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	connectTimeout = 10 * time.Second
	// cancelTimeout limits the time in which the server cancels a statement whose context has ended. After that the
	// connection is dropped.
	cancelTimeout = 2 * time.Second
	// A connection that was idle for pingAfter is pinged before use. A network that drops packets must not cost more than
	// pingTimeout.
	pingAfter   = 5 * time.Second
	pingTimeout = 2 * time.Second
)

// Options of a pool or a connection. The zero value works with every pooler that supports transactions.
type Options struct {
	// MaxConns is the size of the pool. The default is 4.
	MaxConns int32
	// Mode describes the other end of the connection string: see [Probe]. Unless it keeps sessions, no prepared statement
	// outlives its transaction on the server.
	Mode PoolMode
	// CloseIdle is how long an unused connection is kept. The default is 5 minutes.
	CloseIdle time.Duration
	// NoPing uses idle connections without a ping. Use it only if all statements of the pool have a short deadline.
	NoPing bool
	// OwnSQL states that only GEM's own statements run here. Postgres then looks up functions, operators and types only in
	// pg_catalog. Otherwise an overload in a schema of the login's search path could match better than Postgres's own, and
	// run as the login. A pooler's sessions keep their path unless Mode keeps sessions, because the next client may be
	// another program.
	OwnSQL bool
	// Name is the application_name in pg_stat_activity, unless the connection string has one. The default is gem.
	Name string

	cancelWithin time.Duration // replaces cancelTimeout, for tests
}

var errMalformed = errors.New("the connection string is not valid: it has the form " +
	"postgres://user:password@host:5432/database")

// Open creates a pool without connecting. It returns an error only for a malformed url. The error does not contain the
// url, since it has a password.
func Open(ctx context.Context, url string, o Options) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, errMalformed
	}
	config.MaxConns = cmp.Or(o.MaxConns, 4)
	config.MaxConnIdleTime = cmp.Or(o.CloseIdle, 5*time.Minute)
	config.HealthCheckPeriod = min(config.HealthCheckPeriod, config.MaxConnIdleTime/2)
	config.PingTimeout = pingTimeout
	config.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool {
		return !o.NoPing && p.IdleDuration > pingAfter
	}
	Configure(config.ConnConfig, o)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err == nil && config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		markKeeping(pool)
	}
	return pool, err
}

// keepalives let the server detect a vanished client within a minute. By default it takes two hours, during which an
// open transaction keeps its locks. The pooler itself is responsible for its connections to the server.
var keepalives = map[string]string{"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10",
	"tcp_keepalives_count": "3"}

// ownPath is the search path of sessions for GEM's own statements.
const ownPath = "pg_catalog, pg_temp"

// Configure sets what all connections of GEM have in common: timeouts, how statements are cancelled and cached, the
// name, the check of connections from a pooler, and the isolation level read committed if the mode keeps session
// settings. On direct connections it also lets the server detect vanished clients, unless the connection string has
// these settings. It reads only Mode, OwnSQL and Name of o.
func Configure(config *pgx.ConnConfig, o Options) {
	config.ConnectTimeout = connectTimeout
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &canceller{conn: conn, limit: cmp.Or(o.cancelWithin, cancelTimeout)}
	}
	keep := config.OnPgError
	config.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		// A session that began while the server was read-only may stay read-only afterwards.
		return err.Code != "25006" && (keep == nil || keep(conn, err))
	}
	if !o.Mode.KeepsSession() {
		config.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	setName(config, cmp.Or(o.Name, "gem"))
	if o.Mode == Direct {
		config.RuntimeParams["default_transaction_isolation"] = "read committed"
		for name, value := range keepalives {
			config.RuntimeParams[name] = cmp.Or(config.RuntimeParams[name], value)
		}
		if o.OwnSQL {
			config.RuntimeParams["search_path"] = ownPath
		}
		return
	}
	connected := config.AfterConnect
	config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		err := begin(ctx, conn, o)
		if err == nil && connected != nil {
			err = connected(ctx, conn)
		}
		return err
	}
}

// errNotOurs closes a connection, and with it the pooler's connection to the server.
var errNotOurs = errors.New("the pooler handed over a connection whose answers belong to another client")

// begin sends a unique query, to detect answers that belong to another client on a new connection. A pooler may reuse a
// server connection while answers to the previous client are still to come, as PgBouncer 1.18 does after several
// statements at once. begin also sets the isolation level and the search path, which a pooler may refuse as parameters
// of the connection.
func begin(ctx context.Context, conn *pgconn.PgConn, o Options) error {
	question := rand.Text()
	sql := "select '" + question + "'"
	if o.OwnSQL {
		// Without a probe, Postgres itself is recognised by its process id. A pooler makes up its own key for cancel
		// requests.
		sql = fmt.Sprintf("select pg_catalog.set_config('search_path', '%s', false) "+
			"where %v or pg_catalog.pg_backend_pid() = %d; ", ownPath, o.Mode.KeepsSession(), conn.PID()) + sql
	}
	if o.Mode.KeepsSession() {
		sql = "set default_transaction_isolation = 'read committed'; " + sql
	}
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return err
	}
	if len(results) == 0 || len(results[len(results)-1].Rows) != 1 ||
		string(results[len(results)-1].Rows[0][0]) != question {
		return errNotOurs
	}
	return nil
}

func setName(config *pgx.ConnConfig, name string) {
	config.RuntimeParams["application_name"] = cmp.Or(config.RuntimeParams["application_name"], name)
}
