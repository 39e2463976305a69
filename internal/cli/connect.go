package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/internal/envvar"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// usesDatabase ends the --help of each command that uses [connect].
const usesDatabase = `
It uses the database of DATABASE_URL or, without DATABASE_URL, the database of
the gem dev that runs in this folder.`

// usesDatabaseAsMonitor ends the --help of commands that show everyone's calls.
const usesDatabaseAsMonitor = usesDatabase + ` The role must own the tables or be a
member of gem_monitor.`

// connect opens the database of DATABASE_URL for a command that a person waits for: it returns an error at once if
// Postgres cannot be reached. Without DATABASE_URL, it opens the database of the gem dev that runs in the working
// directory.
func connect(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := configFromEnvOrDev()
	if err != nil {
		return nil, err
	}
	pool, err := open(ctx, cfg.DatabaseURL.Reveal())
	// it is starting, or waits until a file is repaired
	if err != nil && ctx.Err() == nil && os.Getenv("DATABASE_URL") == "" {
		return nil, fmt.Errorf("the gem dev of this folder does not run its database yet: see its output (%w)", err)
	}
	return pool, err
}

// connectWhenNeeded is connect for a command that can do without this database: it does not check whether Postgres can
// be reached.
func connectWhenNeeded(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := configFromEnvOrDev()
	if err != nil {
		return nil, err
	}
	return lazyPool(ctx, "DATABASE_URL", cfg.DatabaseURL.Reveal())
}

// lazyPool returns a pool of one connection for a few statements, which connects at the first of them. variable is
// where the URL is from. It does not probe the pooler.
func lazyPool(ctx context.Context, variable, url string) (*pgxpool.Pool, error) {
	pool, err := pgpool.Open(ctx, url, pgpool.Options{MaxConns: 1, OwnSQL: true})
	if err != nil {
		return nil, usage("%s: %w", variable, err)
	}
	return pool, nil
}

// usesReplica ends the --help of commands that can read from a standby.
const usesReplica = `

With READ_DATABASE_URL, the command reads from that standby, and prints how old
the data is. If the data is older than a minute or cannot be read, the command
reads from DATABASE_URL and prints why. --primary reads from DATABASE_URL.`

// replicaURL returns READ_DATABASE_URL, which may be empty.
func replicaURL() (string, error) {
	var c config.Replica
	err := envvar.Read(os.Getenv, &c)
	return c.URL.Reveal(), err
}

// openReplica opens the standby of READ_DATABASE_URL for a command. It returns nil if there is none.
func openReplica(ctx context.Context) (*pgxpool.Pool, error) {
	url, err := replicaURL()
	if err != nil || url == "" {
		return nil, err
	}
	return lazyPool(ctx, "READ_DATABASE_URL", url)
}

// configFromEnvOrDev returns the configuration with DATABASE_URL, or with the database of the gem dev that runs in
// the working directory. It returns an error if there is neither.
func configFromEnvOrDev() (*config.Config, error) {
	cfg, err := config.Load()
	if err != nil {
		return nil, err
	}
	if cfg.DatabaseURL == "" {
		cfg.DatabaseURL = handlers.Secret(runningDev())
	}
	return cfg, cfg.RequireDatabase()
}

// open returns a lazyPool that has connected.
func open(ctx context.Context, url string) (*pgxpool.Pool, error) {
	pool, err := lazyPool(ctx, "DATABASE_URL", url)
	if err != nil {
		return nil, err
	}
	if err := pgpool.Wait(ctx, pool.Ping, 0, nil); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// whenUsable calls run, which needs a server that accepts writes. It retries for up to patience while the server is
// unreachable, starting or read-only, and passes each new reason to retrying.
func whenUsable(ctx context.Context, patience time.Duration, retrying func(reason string),
	do func(context.Context) error) (err error) {
	waited := pgpool.Wait(ctx, func(ctx context.Context) error {
		if err = do(ctx); pgpool.IsAway(err) {
			return err
		}
		return nil
	}, patience, retrying)
	if waited != nil {
		return waited
	}
	return err
}

// refusal returns an error with Postgres's message, detail and hint, without the parts that only programs read. It
// never contains the connection string, which holds a password.
func refusal(err error) error {
	var (
		pgErr      *pgconn.PgError
		connectErr *pgconn.ConnectError
	)
	switch {
	case err == nil || errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &connectErr):
		return fmt.Errorf("Postgres cannot be reached: %s", pgpool.Reason(err)) //nolint:staticcheck // a name begins it
	case !errors.As(err, &pgErr):
		return err
	case lacksSchema(err):
		return fmt.Errorf("the database lacks GEM's tables, or has those of an older version (%s): run `gem migrate`",
			pgErr.Message)
	}
	return errors.New(strings.TrimSuffix(sentence(pgErr.Message)+advice(pgErr), "."))
}

// advice returns the detail and the hint of an error, one per line.
func advice(e *pgconn.PgError) (lines string) {
	for _, line := range []string{e.Detail, e.Hint} {
		if line != "" {
			lines += "\n" + sentence(line)
		}
	}
	return lines
}

// lacksSchema reports whether a table, column, function or schema is missing.
func lacksSchema(err error) bool { return store.HasCode(err, "42P01", "42703", "42883", "3F000") }
