package cli

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/telemetry"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/notify"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
)

// setup assembles the worker of gem worker, gem dev and gem demo, in two steps: prepare and connect.
type setup struct {
	program  *Program
	config   *config.Config
	log      *zap.Logger
	console  io.Writer     // where OpenTelemetry's exporter `console` writes
	patience time.Duration // how long to wait for a database that cannot be reached
	// isolated takes only the database from the environment. The registry is the program's own; the domains read only
	// the configuration in environment and no files, so no tool reaches anything outside. Nothing is traced or
	// measured.
	isolated    bool
	environment map[string]string // replaces the real one, if isolated

	registry    *registry.Registry // filled in by prepare, like the six below
	from        string             // the source of the registry
	rules       *rules.Set         // nil if there are none
	notify      *notify.Set        // nil if there is none
	domains     *backends.Domains  // nil if there are none
	domainsFrom string
	lookup      func(string) string
	telemetry   *telemetry.Telemetry
	adminURL    string          // of the private server's superuser, who makes logins
	pools       []*pgxpool.Pool // filled in by connect, like the one below
	listenURL   string
	opened      []backend // opened by newWorker
}

// prepare does everything that needs no database.
func (s *setup) prepare(ctx context.Context) (err error) {
	s.lookup = os.Getenv
	if s.isolated {
		s.lookup = func(variable string) string { return s.environment[variable] }
	}
	load := func() (*registry.Registry, string, error) { return s.program.loadRegistry(s.lookup("TOOLS_REGISTRY")) }
	if s.isolated {
		load = s.program.ownRegistry
	}
	if s.registry, s.from, err = load(); err != nil {
		return usageError{err}
	}
	s.log.Info("registry loaded", zap.String("from", s.from), zap.String("version", s.registry.Version),
		zap.Int("tools", len(s.registry.Tools())), zap.String("sha256", s.registry.SHA256()))
	if err := s.prepareDomains(); err != nil {
		return usageError{err}
	}
	bound, _, err := s.program.fit(s.registry, s.domains) // tools without a backend are known only with the database
	if err != nil {
		return usageError{err}
	}
	if err := s.prepareRules(bound); err != nil {
		return usageError{err}
	}
	if err := s.prepareNotify(); err != nil {
		return usageError{err}
	}
	if err := binding.Configure(s.lookup, s.program.domains()...); err != nil {
		return err
	}
	if s.isolated {
		return nil
	}
	version, _ := s.program.version()
	s.telemetry, err = telemetry.Start(ctx, telemetry.Options{Worker: s.config.WorkerID, Version: version,
		Console: s.console, Log: s.log})
	if err != nil {
		return usageError{err}
	}
	return nil
}

// prepareRules loads the rules, if there are any. An isolated worker has none.
func (s *setup) prepareRules(bound *binding.Handlers) (err error) {
	if s.isolated {
		return nil
	}
	var from string
	if s.rules, from, err = s.program.loadRules(os.Getenv("TOOLS_RULES")); err != nil {
		return err
	}
	if s.rules == nil {
		s.log.Info("no rules")
		return nil
	}
	s.log.Info("rules loaded", zap.String("from", from), zap.String("version", s.rules.Version),
		zap.Int("rules", len(s.rules.Rules())),
		zap.String("sha256", s.rules.SHA256()))
	_, err = rulesFit(s.rules, s.registry, bound)
	return err
}

// prepareNotify loads notify.json, if there is one. An isolated worker has none.
func (s *setup) prepareNotify() (err error) {
	if s.isolated {
		return nil
	}
	var from string
	if s.notify, from, err = notify.Find(os.Getenv("GEM_NOTIFY")); err != nil || s.notify == nil {
		return err
	}
	s.log.Info("notices loaded", zap.String("from", from), zap.String("version", s.notify.Version),
		zap.Strings("channels", s.notify.Channels()), zap.String("sha256", s.notify.SHA256()))
	return s.notify.Check(s.registry)
}

// connect opens the connections and creates the worker, without starting it.
func (s *setup) connect(ctx context.Context) (*worker.Worker, error) {
	mode, listenURL, err := findRoutes(ctx, s)
	s.listenURL = listenURL
	if err != nil {
		return nil, err
	}
	// With the listening connection, these are at most WORKER_CONNECTIONS + 3 connections.
	for _, o := range []pgpool.Options{
		{Mode: mode, MaxConns: 2, OwnSQL: true, NoPing: true, Name: "gem control"},
		{Mode: mode, MaxConns: int32(s.config.CallConnections()), Name: "gem calls"},
	} {
		pool, err := pgpool.Open(ctx, s.config.DatabaseURL.Reveal(), o)
		if err != nil {
			return nil, usage("DATABASE_URL: %w", err)
		}
		s.pools = append(s.pools, pool)
	}
	err = whenUsable(ctx, s.patience, s.retrying, func(ctx context.Context) error {
		return migrations.Check(ctx, s.pools[0], s.program.sources(s.registry)...)
	})
	if err != nil {
		return nil, refusal(err)
	}
	answers := 1
	if !mode.KeepsSession() { // each statement may reach another server
		answers = 5
	}
	if err := checkOneServer(ctx, s.pools[0], answers); err != nil {
		return nil, err
	}
	if !mode.KeepsSession() {
		s.lookAtIsolation(ctx, s.pools[0])
	}
	if err := binding.Open(s.environmentOfDomains(), s.program.domainsOf(s.registry)...); err != nil {
		return nil, err
	}
	return s.newWorker()
}

func (s *setup) environmentOfDomains() handlers.Env {
	return handlers.Env{Pool: s.pools[1], Log: s.log, Meter: s.telemetry.Meter(), Isolated: s.isolated}
}

// newWorker creates a worker for the registry, once everything is connected.
func (s *setup) newWorker() (*worker.Worker, error) {
	bound, err := s.openBackends()
	if err != nil {
		return nil, err
	}
	version, _ := s.program.version()
	return worker.New(worker.Options{
		Calls:         s.pools[1],
		Control:       s.pools[0],
		ListenURL:     s.listenURL,
		Registry:      s.registry,
		Rules:         s.rules,
		Notify:        s.notify,
		Dashboard:     s.config.DashboardURL,
		Handlers:      bound,
		Name:          s.config.WorkerID,
		Version:       version,
		Concurrency:   s.config.WorkerConcurrency,
		PollInterval:  s.config.PollInterval(),
		ShutdownGrace: s.config.ShutdownGrace,
		Tracer:        s.telemetry.Tracer(),
		Meter:         s.telemetry.Meter(),
		Log:           s.log,
	})
}

// retrying logs why it waits for the database.
func (s *setup) retrying(reason string) {
	s.log.Warn("Postgres cannot be reached yet, trying again", zap.String("reason", reason),
		zap.Duration("for_at_most", s.patience))
}

// checkOneServer returns an error if two connections of a pool lead to different servers, as they may through a pooler
// or a load balancer that distributes them. Workers would mistake each change of server for a failover.
// answers is how often each connection is asked.
func checkOneServer(ctx context.Context, db *pgxpool.Pool, answers int) error {
	seen := map[time.Time]bool{}
	for range 2 {
		conn, err := db.Acquire(ctx)
		if err != nil {
			return refusal(err)
		}
		defer conn.Release() // not earlier, so that the pool opens a second connection
		for range answers {
			var server time.Time
			if err := conn.QueryRow(ctx, "select gem.server()").Scan(&server); err != nil {
				return refusal(err)
			}
			seen[server] = true
		}
	}
	if len(seen) > 1 {
		return usage("DATABASE_URL leads to %d different Postgres servers: set it to a pooler or an address that leads "+
			"only to the primary", len(seen))
	}
	return nil
}

// lookAtIsolation warns about a default isolation level that makes calls slow and conflict, if the worker cannot set
// its own: through a pooler, other clients may share its sessions.
func (s *setup) lookAtIsolation(ctx context.Context, db *pgxpool.Pool) {
	var level, remedy string
	err := db.QueryRow(ctx, `select pg_catalog.current_setting('transaction_isolation'),
		pg_catalog.format('alter role %I in database %I set default_transaction_isolation = %L', session_user,
			pg_catalog.current_database(), 'read committed')`).
		Scan(&level, &remedy)
	if err == nil && level != "read committed" {
		s.log.Warn("transactions are "+level+" by default, so calls are slow and conflict, and GEM cannot change "+
			"that through a pooler: "+
			"run the statement below and restart the pooler's connections, or set DATABASE_URL to Postgres itself",
			zap.String("default_transaction_isolation", level), zap.String("statement", remedy))
	}
}

// close releases everything. It does not wait for a handler that ignores the end of its context and keeps a
// connection.
func (s *setup) close() {
	s.closeBackends()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for _, pool := range s.pools {
			pool.Close()
		}
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
	s.telemetry.Stop()
}

// configFromEnv returns the configuration of a process that serves others. It uses the database that DATABASE_URL
// names, never one that happens to run in the working directory.
func configFromEnv() (*config.Config, error) {
	cfg, err := config.Load()
	if err == nil {
		err = cfg.RequireDatabase()
	}
	return cfg, err
}

// usePrivate sets the database of a private server, which has no pooler.
func usePrivate(cfg *config.Config, url string) {
	cfg.DatabaseURL, cfg.DirectURL, cfg.DatabasePooler = handlers.Secret(url), "", "none"
}
