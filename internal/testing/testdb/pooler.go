package testdb

import (
	"context"
	"errors"
	"net/url"
	"os"
	"sync"
	"testing"

	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/testing/pgbouncer"
)

// Route is the way in which a worker under test reaches its database: directly, or through a PgBouncer in the mode of
// the environment variable GEM_TEST_POOLER (session or transaction). There is one PgBouncer per test binary. Its pool
// is just large enough for the workers of a test. Tests themselves connect directly.
type Route struct {
	// URL is for the worker's statements, and Listen for its notifications, like DIRECT_URL.
	URL, Listen string
	// Mode is the pool mode of URL.
	Mode pgpool.PoolMode
}

// The pool sizes of the PgBouncer per database, for two workers with up to eight connections for calls.
const (
	// sessionPool has room for all connections that they open.
	sessionPool = 2 * (8 + 3)
	// transactionPool has room for the transactions of half of their calls, and one connection for claims and heartbeats.
	transactionPool = 8 + 1
)

// RouteTo returns the route to a database, which is a URL. A server of the test's own is reached directly.
func RouteTo(t testing.TB, database string) Route {
	t.Helper()
	mode := pgbouncer.Mode(os.Getenv("GEM_TEST_POOLER"))
	if mode == "" || !isShared(database) { // the pooler leads to the shared server only
		return Route{URL: database, Listen: database, Mode: pgpool.Direct}
	}
	p, err := thePooler()
	if err != nil {
		t.Fatalf("GEM_TEST_POOLER=%s: %v", mode, err)
	}
	if mode == pgbouncer.Session {
		return Route{URL: p.URL(database), Listen: p.URL(database), Mode: pgpool.SessionPooler}
	}
	return Route{URL: p.URL(database), Listen: database, Mode: pgpool.TransactionPooler}
}

// isShared reports whether a database is on the server that tests share.
func isShared(database string) bool {
	s, err := theServer(nil)
	if err != nil {
		return true // starting the pooler reports it
	}
	u, err := url.Parse(database)
	return err == nil && u.Host == s.admin.Host
}

// thePooler starts the PgBouncer on its first call. It ends at the latest with the test binary.
var thePooler = sync.OnceValues(func() (*pgbouncer.Pooler, error) {
	o := pgbouncer.Options{Mode: pgbouncer.Mode(os.Getenv("GEM_TEST_POOLER"))}
	switch o.Mode {
	case pgbouncer.Session:
		o.PoolSize = sessionPool
	case pgbouncer.Transaction:
		o.PoolSize = transactionPool
	default:
		return nil, errors.New("it may be session or transaction")
	}
	s, err := theServer(nil)
	if err != nil {
		return nil, err
	}
	p, err := pgbouncer.Run(context.Background(), s.admin.String(), o)
	if err == nil {
		s.pooler.Store(p)
	}
	return p, err
})
