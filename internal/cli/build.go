package cli

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/internal/pgpool"
	"github.com/gemworker/gem/internal/telemetry"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
)

// controlConns is the size of the pool for claims and heartbeats. With those that calls share and one that listens, a
// worker opens WORKER_CONNECTIONS + 3.
const controlConns = 2

// parts says how the worker of gem worker, gem dev or gem demo is put together.
type parts struct {
	program   *Program
	config    *config.Config
	registry  *registry.Registry
	log       *zap.Logger
	patience  time.Duration        // with a database that cannot be reached
	telemetry *telemetry.Telemetry // nil: nothing is traced or measured
	isolated  bool                 // the domains get no configuration, so that no tool reaches anything outside
}

// build connects and makes the worker, without starting it. done closes the connections.
func (p parts) build(ctx context.Context) (w *worker.Worker, done func(), err error) {
	lookup := os.Getenv
	if p.isolated {
		lookup = func(string) string { return "" }
	}
	if err := handlers.Configure(lookup, p.program.Domains...); err != nil {
		return nil, nil, usageError{err}
	}
	var pools []*pgxpool.Pool
	defer func() {
		if err != nil {
			closeAll(pools)
		}
	}()
	routes, err := findRoutes(ctx, p)
	if err != nil {
		return nil, nil, err
	}
	open := func(o pgpool.Options) (*pgxpool.Pool, error) {
		o.Mode = routes.database
		pool, err := pgpool.Open(ctx, p.config.DatabaseURL.Reveal(), o)
		if err != nil {
			return nil, usage("DATABASE_URL: %w", err)
		}
		pools = append(pools, pool)
		return pool, nil
	}
	control, err := open(pgpool.Options{MaxConns: controlConns, NoPing: true, Name: "gem control"})
	if err != nil {
		return nil, nil, err
	}
	calls, err := open(pgpool.Options{MaxConns: int32(p.config.CallConnections()), Name: "gem calls"})
	if err != nil {
		return nil, nil, err
	}
	if err := p.program.checkSchema(ctx, control); err != nil {
		return nil, nil, err
	}
	if err := handlers.Open(handlers.Env{Pool: calls, Log: p.log}, p.program.Domains...); err != nil {
		return nil, nil, err
	}
	bound, err := handlers.Bind(p.program.Domains...)
	if err != nil {
		return nil, nil, err
	}
	version, _ := p.program.version()
	w, err = worker.New(worker.Options{
		Calls:         calls,
		Control:       control,
		ListenURL:     routes.listenURL(),
		Registry:      p.registry,
		Handlers:      bound,
		Name:          p.config.WorkerID,
		Version:       version,
		Concurrency:   p.config.WorkerConcurrency,
		PollInterval:  p.config.PollInterval(),
		ShutdownGrace: p.config.ShutdownGrace,
		Tracer:        p.telemetry.Tracer(),
		Meter:         p.telemetry.Meter(),
		Log:           p.log,
	})
	return w, func() { closeAll(pools) }, err
}

// closeAll closes pools. A handler that ignores the end of its context may keep a connection for ever: it is not waited for.
func closeAll(pools []*pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for _, pool := range pools {
			pool.Close()
		}
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}

// startTelemetry sends traces and metrics if the variables of OpenTelemetry ask for it; otherwise it returns nil.
func (p *Program) startTelemetry(ctx context.Context, cfg *config.Config, console io.Writer, log *zap.Logger) (*telemetry.Telemetry, error) {
	version, _ := p.version()
	t, err := telemetry.Start(ctx, telemetry.Options{Worker: cfg.WorkerID, Version: version, Console: console, Log: log})
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

// withDatabase is cfg with the database of a private server, which no pooler stands before.
func withDatabase(cfg *config.Config, url string) *config.Config {
	own := *cfg
	own.DatabaseURL, own.DirectURL, own.DatabasePooler = handlers.Secret(url), "", "none"
	return &own
}

// consoleLogger is the log of a worker that a person watches, whatever LOG_FORMAT says.
func consoleLogger(cfg *config.Config) *zap.Logger {
	own := *cfg
	own.LogFormat = "console"
	return own.Logger()
}
