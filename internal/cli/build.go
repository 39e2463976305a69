package cli

import (
	"context"
	"io"
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
	deps := handlers.Deps{}
	if !p.isolated {
		deps = outside(p.config)
	}
	deps.DB = calls
	bound, err := handlers.Bind(handlers.BuiltIn(deps)...)
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
