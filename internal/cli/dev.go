package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/worker"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

type devOptions struct {
	dir   string // of the data; if empty, that of dataFolder
	fresh bool
}

func devCommand(p *Program) *cobra.Command {
	var o devOptions
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a private Postgres and a worker until Ctrl-C",
		Long: `
It prints the connection string for other programs, an INSERT to paste, and the
link of a dashboard, at port 8470 or the next free one. Other gem commands that
run in this folder without DATABASE_URL use its database.

A folder has the same port and password at each start: .gem/dev.json keeps them,
and only its owner can read it. The data is kept in .gem too, or in the user's
cache if the server's user cannot reach this folder; --fresh drops it. git
ignores .gem. Only one gem dev can run in a folder at a time.

The environment configures the worker, as for gem worker (see gem worker
--help). Variables that are not set come from .env in the working directory.
DATABASE_URL is ignored. gem dev reads the registry, rules, domains and routes
again when their files appear or change, even under the same version. It reports
a faulty file, and the worker continues with the previous one; at the start, gem
dev waits until the file is repaired. The same applies to tools.sql, which may
define tools as SQL functions, and their tables: gem dev runs it in the database
at the start and after each change. It prints each question with the command
that answers it.

If PostgREST is installed, it also runs a REST server, as Supabase does.`,
		Example: "  gem dev\n  gem dev --fresh                   start with no data",
		RunE: func(cmd *cobra.Command, _ []string) error {
			state, err := openDevState(o.fresh)
			if err != nil {
				return err
			}
			defer state.close()
			if err := readEnvFile(cmd.ErrOrStderr()); err != nil {
				return err
			}
			cfg, err := config.Load()
			if err != nil {
				return err
			}
			return p.dev(cmd.Context(), cfg, state, o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&o.fresh, "fresh", false, "drop the data of this folder first")
	cmd.Flags().StringVar(&o.dir, "dir", "", "keep the data in this `folder`")
	return cmd
}

// dev runs the server and the worker until ctx ends.
func (p *Program) dev(
	ctx context.Context, cfg *config.Config, state *devState, o devOptions, out, progress io.Writer,
) (err error) {
	if cfg.DatabaseURL != "" && cfg.DatabaseURL.Reveal() != state.url() {
		fmt.Fprintln(progress, "DATABASE_URL is set, but ignored: gem dev has its own database. For the database of "+
			"DATABASE_URL: gem worker")
	}
	if o.dir == "" {
		if o.dir, err = dataFolder(); err != nil {
			return err
		}
	}
	if err := p.awaitFiles(ctx, progress); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	cfg.LogFormat = "console" // a person reads it
	var lines heldLog
	log := cfg.LoggerTo(&lines)
	config.RouteStandardLog(log)
	defer lines.release(os.Stderr)
	s := &setup{program: p, config: cfg, log: log, console: out, patience: time.Minute}
	if err := s.prepare(ctx); err != nil {
		return err
	}
	server, err := startDevServer(ctx, state, o, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	databaseURL := state.url()
	s.adminURL = server.URL("postgres")
	if err := prepareDevDatabase(ctx, s.adminURL, state.Password); err != nil {
		return err
	}
	if _, err := p.migrate(ctx, databaseURL, migrations.Options{}, s.registry); err != nil {
		return err
	}
	defer s.close()
	usePrivate(cfg, databaseURL)
	sql := &toolsSQL{url: databaseURL, log: log, progress: progress}
	if sql.await(ctx); ctx.Err() != nil {
		return nil
	}
	w, err := s.connect(ctx)
	if err != nil {
		return err
	}
	models, err := s.program.chosenModels()
	if err != nil {
		return err
	}
	now := contracts{s.registry, s.from, s.rules, s.notify, s.domains, models}
	if err := s.forgetEarlier(ctx, now); err != nil {
		return err
	}

	mcpURL, err := s.makeLogin(ctx, databaseURL, "mcp", "gem_mcp", state.passwordOf("mcp"))
	if err != nil {
		return err
	}
	pages, stopPages, err := s.serveDashboard(ctx, databaseURL, out)
	if err != nil {
		return err
	}
	defer stopPages()
	sample := bestSample(s.registry)
	fmt.Fprintf(out, `A private Postgres and a worker run until Ctrl-C.
The data is in %s; gem dev --fresh drops it.
%s, registry %s (%s): gem registry list shows them.

Commands of gem in this folder use this database. For other programs, the same at each start:
  export DATABASE_URL='%s'

A call, in SQL:
  %s returning id;
  select status, result from core_tool_receipts where call_id = '…';  -- the id that the insert returned

Or:
  %s

An MCP server for agents, which has the rights of a signed-in user:
  GEM_DASHBOARD_URL='%s' %sDATABASE_URL='%s' gem mcp

The dashboard, for one browser:
  %s

`, o.dir, toolsOf(s.registry), s.registry.Version, s.from, databaseURL, sample.insert(), sample.command(),
		strings.TrimSuffix(pages.url, "/"), s.registryFile(), mcpURL, pages.link)
	lines.release(os.Stderr)
	watching, stopWatching := context.WithCancel(ctx)
	var watches sync.WaitGroup
	defer watches.Wait()
	defer stopWatching()
	changes := make(chan contracts)
	watches.Go(func() { s.serveREST(watching, state, out, progress) })
	watches.Go(func() { s.watchQuestions(watching, out) })
	watches.Go(func() { sql.watch(watching) })
	watches.Go(func() { p.watchFiles(watching, now, changes, log, progress) })
	err = s.runOn(ctx, w, changes)
	if err == nil && ctx.Err() != nil {
		fmt.Fprintf(progress, "\nThe data is kept in %s: gem dev continues with it.\n", o.dir)
	}
	return err
}

// startDevServer starts the server on the folder's port and saves its password.
func startDevServer(ctx context.Context, state *devState, o devOptions, progress io.Writer) (*pgserver.Server, error) {
	server, err := pgserver.Start(ctx, pgserver.Options{
		DataDir: o.dir, Superuser: devSuperuser, Durable: true, Fresh: o.fresh, Port: state.Port, Password: state.Password,
		Log: func(line string) { fmt.Fprintln(progress, line) },
	})
	if errors.Is(err, pgserver.ErrPortTaken) {
		return nil, fmt.Errorf("another program has port %d, which %s keeps for this folder: stop that program, "+
			"or write another port into the file, and into DATABASE_URL wherever you use it", state.Port, devFile)
	}
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(server.URL("postgres"))
	if err == nil && u.User.Username() != devSuperuser {
		err = fmt.Errorf("the data in %s is of an earlier gem dev, which ran %s as a superuser: gem dev --fresh drops it",
			o.dir, toolsFile)
	}
	if err == nil {
		state.Password, _ = u.User.Password() // existing data keeps its password
		err = state.save()
	}
	if err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	return server, nil
}

// runOn runs the worker until ctx ends, and restarts it when the contracts change.
func (s *setup) runOn(ctx context.Context, w *worker.Worker, changes <-chan contracts) error {
	for {
		running, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- w.Run(running) }()
		var now contracts
		select {
		case err := <-ended:
			stop()
			return refusal(err)
		case now = <-changes:
			stop()
		}
		if err := <-ended; err != nil || ctx.Err() != nil {
			return refusal(err)
		}
		s.registry, s.from, s.rules, s.notify, s.domains = now.registry, now.from, now.rules, now.notify, now.domains
		if err := s.forgetEarlier(ctx, now); err != nil {
			return err
		}
		// A new tool may belong to a domain with tables.
		if _, err := s.program.migrate(ctx, s.config.DatabaseURL.Reveal(), migrations.Options{}, s.registry); err != nil {
			return err
		}
		if err := s.openModels(); err != nil {
			return err
		}
		var err error
		if w, err = s.newWorker(); err != nil {
			return err
		}
	}
}

// makeLogin creates a login of the private server, a member of some roles, and returns its connection string. The
// password has only letters and digits.
func (s *setup) makeLogin(ctx context.Context, databaseURL, name, roles, password string) (string, error) {
	db, err := connectAdmin(ctx, s.adminURL)
	if err != nil {
		return "", err
	}
	defer db.Close(context.WithoutCancel(ctx))
	_, err = db.Exec(ctx, `do $$ begin if to_regrole('`+name+`') is null then create role `+name+
		` login; end if; end $$;
		grant `+roles+` to `+name+`;
		alter role `+name+` password '`+password+`'`)
	if err != nil {
		return "", fmt.Errorf("create the role %s: %w", name, err)
	}
	u, err := url.Parse(databaseURL)
	if err != nil {
		return "", err
	}
	u.User = url.UserPassword(name, password)
	return u.String(), nil
}

// operatorLogin is the login of the dashboard that gem dev and gem demo serve.
const operatorLogin = "operator"

// serveDashboard serves the pages of the private server until stop is called.
func (s *setup) serveDashboard(ctx context.Context, databaseURL string, out io.Writer) (pages *site, stop func(),
	err error) {
	var o siteOptions
	if o.readURL, err = s.makeLogin(ctx, databaseURL, "monitor", "gem_monitor", rand.Text()); err != nil {
		return nil, nil, err
	}
	if o.actURL, err = s.makeLogin(ctx, databaseURL, operatorLogin, "gem_operator, gem_mcp", rand.Text()); err != nil {
		return nil, nil, err
	}
	return s.serveSite(ctx, o, out)
}

// serveSite serves pages, with the logins of o, until stop is called.
func (s *setup) serveSite(ctx context.Context, o siteOptions, out io.Writer) (pages *site, stop func(), err error) {
	o.log, o.out = s.log.WithOptions(zap.IncreaseLevel(zap.WarnLevel)), out
	if pages, err = openPrivateSite(ctx, o); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := pages.serve(ctx); err != nil {
			s.log.Error("the dashboard ended", zap.Error(err))
		}
	}()
	return pages, func() { cancel(); <-ended }, nil
}
