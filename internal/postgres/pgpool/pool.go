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
	// cancelTimeout limits how long the server may take to cancel a statement whose context has ended. After that the
	// connection is dropped.
	cancelTimeout = 2 * time.Second
	// A connection that was idle for pingAfter is pinged before it is used. A network that swallows packets must not cost
	// more than pingTimeout.
	pingAfter   = 5 * time.Second
	pingTimeout = 2 * time.Second
)

// Options of a pool or a connection. The zero value works with every pooler that has transactions.
type Options struct {
	// MaxConns is the size of the pool. The default is 4.
	MaxConns int32
	// Mode is what the connection string leads to: see [Probe]. Unless it keeps sessions, no prepared statement outlives
	// its transaction on the server.
	Mode PoolMode
	// CloseIdle is how long a connection is kept that nobody uses. The default is 5 minutes.
	CloseIdle time.Duration
	// NoPing uses idle connections without a ping first, for pools whose every statement has a short deadline.
	NoPing bool
	// OwnSQL says that only GEM's own statements run here: Postgres then finds functions, operators and types in
	// pg_catalog alone. Otherwise an overload in a schema of the login's search path could match better than Postgres's
	// own, and run as the login. A pooler's sessions keep their path unless Mode keeps sessions: the next client may be
	// someone else.
	OwnSQL bool
	// Name is the application_name in pg_stat_activity, unless the connection string has one. The default is gem.
	Name string

	cancelWithin time.Duration // in place of cancelTimeout, for tests
}

var errMalformed = errors.New("the connection string is not valid: it has the form " +
	"postgres://user:password@host:5432/database")

// Open makes a pool without connecting. It fails only on a malformed url, with an error that does not show the url,
// since it holds a password.
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

// keepalives let the server notice within a minute that a client's machine has vanished. By default it takes two hours,
// for which an open transaction keeps its locks. A pooler's connections to the server are the pooler's matter.
var keepalives = map[string]string{"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10",
	"tcp_keepalives_count": "3"}

// ownPath is the search path of sessions for GEM's own statements.
const ownPath = "pg_catalog, pg_temp"

// Configure sets what all of GEM's connections have in common: timeouts, how statements are cancelled and cached, the
// name, the check of what a pooler hands over, and the isolation level, read committed, where the mode keeps what is
// set for a session. Connected directly, they also have the server look for clients that vanished, unless the
// connection string says how. Of o it reads Mode, OwnSQL and Name.
func Configure(config *pgx.ConnConfig, o Options) {
	config.ConnectTimeout = connectTimeout
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &canceller{conn: conn, limit: cmp.Or(o.cancelWithin, cancelTimeout)}
	}
	keep := config.OnPgError
	config.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		// A session that began while the server was read-only may stay read-only after the server is not.
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

// errNotOurs closes a connection, and with it the one that the pooler has to the server.
var errNotOurs = errors.New("the pooler handed over a connection whose answers belong to another client")

// begin sends a unique query, to detect whose answers arrive on a new connection. A pooler may pass a server connection
// on while answers to the previous client are under way, as PgBouncer 1.18 does after several statements at once. It
// also sets the isolation level and the search path, which a pooler may refuse as parameters of the connection.
func begin(ctx context.Context, conn *pgconn.PgConn, o Options) error {
	question := rand.Text()
	sql := "select '" + question + "'"
	if o.OwnSQL {
		// If nobody probed, Postgres itself is known by its process id: a pooler makes up its own key for cancel requests.
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
