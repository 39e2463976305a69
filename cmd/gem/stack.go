package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/internal/pgpool"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/telemetry"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
)

// What a worker is made of, put together in one place for `gem worker`, `gem dev` and `gem demo`.

// controlConns is the size of the pool for claims and heartbeats. With those that calls share and one that listens, a
// worker opens WORKER_CONNECTIONS + 3.
const controlConns = 2

// stack holds a worker and what it works with. close gives all of it back.
type stack struct {
	worker         *worker.Worker
	calls, control *pgxpool.Pool
}

// parts says how a worker is put together.
type parts struct {
	config   *config.Config
	registry *registry.Registry
	deps     handlers.Deps // DB is filled in
	log      *zap.Logger
	patience time.Duration // with a database that can not be reached
	// telemetry may be nil: nothing is traced or measured.
	telemetry *telemetry.Telemetry
}

// build connects and makes the worker. It does not start it.
func build(ctx context.Context, p parts) (_ *stack, err error) {
	s := &stack{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	routes, err := findRoutes(ctx, p)
	if err != nil {
		return nil, err
	}
	mode := routes.database
	if s.control, err = pgpool.Open(ctx, p.config.DatabaseURL.Reveal(), pgpool.Options{
		MaxConns: controlConns, Mode: mode, NoPing: true, Name: "gem control"}); err != nil {
		return nil, usage("DATABASE_URL: %w", err)
	}
	if s.calls, err = pgpool.Open(ctx, p.config.DatabaseURL.Reveal(), pgpool.Options{
		MaxConns: int32(p.config.CallConnections()), Mode: mode, Name: "gem calls"}); err != nil {
		return nil, usage("DATABASE_URL: %w", err)
	}
	if err := checkSchema(ctx, s.control); err != nil {
		return nil, err
	}

	p.deps.DB = s.calls
	bound, err := handlers.Bind(handlers.BuiltIn(p.deps)...)
	if err != nil {
		return nil, err
	}
	program, _ := buildVersion()
	s.worker, err = worker.New(worker.Options{
		Calls:         s.calls,
		Control:       s.control,
		ListenURL:     routes.listenURL(),
		Registry:      p.registry,
		Handlers:      bound,
		Name:          p.config.WorkerID,
		Version:       program,
		Concurrency:   p.config.WorkerConcurrency,
		PollInterval:  p.config.PollInterval(),
		ShutdownGrace: p.config.ShutdownGrace,
		Tracer:        p.telemetry.Tracer(),
		Meter:         p.telemetry.Meter(),
		Log:           p.log,
	})
	return s, err
}

// close closes the pools. A handler that ignores its end may hold a connection for ever: it is not waited for.
func (s *stack) close() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for _, pool := range []*pgxpool.Pool{s.calls, s.control} {
			if pool != nil {
				pool.Close()
			}
		}
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}

// startTelemetry sends traces and metrics when the variables of OpenTelemetry ask for it; else it returns nil.
func startTelemetry(ctx context.Context, cfg *config.Config, console io.Writer, log *zap.Logger) (*telemetry.Telemetry, error) {
	program, _ := buildVersion()
	t, err := telemetry.Start(ctx, telemetry.Options{Worker: cfg.WorkerID, Version: program, Console: console, Log: log})
	if err != nil {
		return nil, usageError{err}
	}
	return t, nil
}

// loadConfig reads the environment.
func loadConfig() (*config.Config, error) {
	cfg, err := config.Load()
	if err != nil {
		return nil, usageError{err}
	}
	return cfg, nil
}

// loadDatabaseConfig reads the environment of a command that needs a database.
func loadDatabaseConfig() (*config.Config, error) {
	cfg, err := loadConfig()
	if err != nil {
		return nil, err
	}
	if err := cfg.RequireDatabase(); err != nil {
		return nil, usageError{err}
	}
	return cfg, nil
}

// withDatabase is cfg with a private server's database, to which every way is direct.
func withDatabase(cfg *config.Config, url string) *config.Config {
	own := *cfg
	own.DatabaseURL, own.DirectURL, own.DatabasePooler = config.Secret(url), "", "none"
	return &own
}

// consoleLogger is the log of a worker that a person watches, whatever LOG_FORMAT says.
func consoleLogger(cfg *config.Config) *zap.Logger {
	own := *cfg
	own.LogFormat = "console"
	return own.Logger()
}

// outside is what the tools need that reach out of Postgres, as the environment sets it up.
func outside(cfg *config.Config) handlers.Deps {
	return handlers.Deps{
		SMTP: handlers.SMTP{
			Host: cfg.SMTPHost, Port: cfg.SMTPPort, Username: cfg.SMTPUsername.Reveal(), Password: cfg.SMTPPassword.Reveal(),
			From: cfg.SMTPFrom, TLS: cfg.SMTPTLS,
		},
		Twilio: handlers.Twilio{
			AccountSID: cfg.TwilioAccountSID, AuthToken: cfg.TwilioAuthToken.Reveal(), From: cfg.TwilioFrom, BaseURL: cfg.TwilioBaseURL,
		},
		HTTP: handlers.HTTPConfig{AllowedHosts: cfg.HTTPAllowedHosts},
	}
}

// registryFile is looked for in the working directory when TOOLS_REGISTRY names no other.
const registryFile = "tools.registry.json"

// loadRegistry reads the registry at path, else the one in the working directory, else the one that is built in. from
// says which it was.
func loadRegistry(path string) (r *registry.Registry, from string, err error) {
	if path == "" {
		if _, err := os.Stat(registryFile); errors.Is(err, fs.ErrNotExist) {
			if r, err = registry.Parse(gem.BuiltInRegistry); err != nil {
				err = fmt.Errorf("the built-in registry is refused:\n%w", err)
			}
			return r, "built in", err
		}
		path = registryFile
	}
	r, err = registry.ReadFile(path)
	return r, path, err
}

// checkSchema refuses a database whose schema is older than this program. A newer one is fine: each migration lets the
// workers of the version before go on.
func checkSchema(ctx context.Context, db store.DB) error {
	needs, err := migrations.Newest()
	if err != nil {
		return err
	}
	has, err := schemaVersion(ctx, db)
	if err != nil {
		return fmt.Errorf("read the schema's version: %w", refusal(err))
	}
	if has < needs {
		return fmt.Errorf("the database's schema is at version %d, and this program needs version %d: run `gem migrate`", has, needs)
	}
	return nil
}

// schemaVersion is 0 for a database that was never migrated.
func schemaVersion(ctx context.Context, db store.DB) (version int64, err error) {
	err = db.QueryRow(ctx, "select coalesce(max(version_id), 0) from gem.migrations where is_applied").Scan(&version)
	if lacksSchema(err) {
		return 0, nil
	}
	return version, err
}
