package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/elsewhere"
	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/internal/pgserver"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/registry"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

func devCommand(p *Program) *cobra.Command {
	var (
		keep bool
		dir  string
	)
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a private Postgres and a worker until Ctrl-C",
		Long: `
It prints the connection string for other terminals, an INSERT to paste, and the
link of a dashboard, at port 8470 or the next that is free. The worker is set up
from the environment, as gem worker is (see gem worker --help); only
DATABASE_URL is not used. A registry or domains that are read from a file are
read again when the file changes, also under the same version. tools.sql in the
working directory is run in the database at the start and when it changes: it
may hold tools that are SQL functions, and their tables. A call that asks
something is printed with the command that answers it. At the end everything is
stopped, and the data are gone unless --keep or --dir says otherwise.`,
		Example: "  gem dev\n  gem dev --keep                    go on with the same data next time",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load()
			if err != nil {
				return err
			}
			if keep && dir == "" {
				if dir, err = keptFolder(); err != nil {
					return err
				}
			}
			return p.dev(cmd.Context(), cfg, dir, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the data for the next time, in a folder of the user's cache")
	cmd.Flags().StringVar(&dir, "dir", "", "keep the data in this `folder`")
	return cmd
}

func keptFolder() (string, error) {
	cache, err := os.UserCacheDir()
	if os.Geteuid() == 0 && os.Getenv("XDG_CACHE_HOME") == "" {
		// Postgres does not run as root, and nobody else can reach what lies in root's own folder.
		cache, err = "/var/cache", nil
	}
	if err != nil {
		return "", fmt.Errorf("no folder to keep the data in: name one with --dir (%w)", err)
	}
	return filepath.Join(cache, "gem", "dev"), nil
}

// dev runs the server and the worker until ctx ends. The data stay in the folder dir; empty: they go.
func (p *Program) dev(ctx context.Context, cfg *config.Config, dir string, out, progress io.Writer) (err error) {
	if cfg.DatabaseURL != "" {
		fmt.Fprintln(progress, "DATABASE_URL is set, and is not used: gem dev has a database of its own. For the one of DATABASE_URL: gem worker")
	}
	cfg.LogFormat = "console" // a person watches
	log := cfg.Logger()
	defer func() { _ = log.Sync() }()
	s := &setup{program: p, config: cfg, log: log, console: out, patience: time.Minute}
	if err := s.prepare(ctx); err != nil {
		return err
	}
	server, err := pgserver.Start(ctx, pgserver.Options{
		DataDir: dir, Durable: dir != "",
		Log: func(line string) { fmt.Fprintln(progress, line) },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	databaseURL := server.URL("postgres")
	if _, err := p.migrate(ctx, databaseURL, migrations.Options{}, s.registry); err != nil {
		return err
	}
	defer s.close()
	usePrivate(cfg, databaseURL)
	sql := s.runToolsFile(ctx, databaseURL, nil)
	w, err := s.connect(ctx)
	if err != nil {
		return err
	}
	if err := s.forgetEarlierRegistries(ctx); err != nil {
		return err
	}

	data := "Its data are gone at the end; --keep keeps them."
	if dir != "" {
		data = "Its data stay in " + dir + "."
	}
	door, err := s.makeLogin(ctx, databaseURL, "mcp", "gem_door")
	if err != nil {
		return err
	}
	pages, stopPages, err := s.serveDashboard(ctx, databaseURL, out)
	if err != nil {
		return err
	}
	defer stopPages()
	sample := bestSample(s.registry)
	fmt.Fprintf(out, `A private Postgres and a worker run until Ctrl-C. %s
The tools: registry %s (%s); gem registry list shows them.

For other terminals:
  export DATABASE_URL='%s'

A call, in SQL:
  %s;
  select tool_name, status, result from core_tool_receipts order by created_at desc limit 10;

Or:
  %s

An MCP server for agents, which has the rights of a signed-in user:
  GEM_DASHBOARD_URL='%s' %sDATABASE_URL='%s' gem mcp

The dashboard, for one browser:
  %s

`, data, s.registry.Version, s.from, databaseURL, sample.insert(), sample.command(), strings.TrimSuffix(pages.url, "/"), s.registryFile(), door, pages.link)
	go s.watchQuestions(ctx, out)
	go s.watchToolsFile(ctx, databaseURL, sql)
	for {
		running, stop := context.WithCancel(ctx)
		changed := make(chan contracts, 1)
		go s.watchFiles(running, func(now contracts) {
			changed <- now
			stop()
		})
		err := w.Run(running)
		stop()
		select {
		case now := <-changed:
			s.registry, s.domains = now.registry, now.domains
		default:
			return refusal(err)
		}
		if err != nil || ctx.Err() != nil {
			return refusal(err)
		}
		if err := s.forgetEarlierRegistries(ctx); err != nil {
			return err
		}
		if _, err := p.migrate(ctx, databaseURL, migrations.Options{}, s.registry); err != nil { // it may have a tool of another domain
			return err
		}
		if w, err = s.newWorker(); err != nil {
			return err
		}
	}
}

// makeLogin makes a login of the private server, a member of some roles, and returns its connection string.
func (s *setup) makeLogin(ctx context.Context, databaseURL, name, roles string) (string, error) {
	password := rand.Text() // letters and digits
	_, err := s.pools[0].Exec(ctx, `do $$ begin if to_regrole('`+name+`') is null then create role `+name+` login; end if; end $$;
		grant `+roles+` to `+name+`;
		alter role `+name+` password '`+password+`'`)
	if err != nil {
		return "", fmt.Errorf("make the role %s: %w", name, err)
	}
	u, err := url.Parse(databaseURL)
	if err != nil {
		return "", err
	}
	u.User = url.UserPassword(name, password)
	return u.String(), nil
}

// operatorLogin is whose dashboard gem dev and gem demo serve.
const operatorLogin = "operator"

// serveDashboard serves the pages of the private server until stop is called.
func (s *setup) serveDashboard(ctx context.Context, databaseURL string, out io.Writer) (pages *site, stop func(), err error) {
	var o siteOptions
	if o.readURL, err = s.makeLogin(ctx, databaseURL, "monitor", "gem_monitor"); err != nil {
		return nil, nil, err
	}
	if o.actURL, err = s.makeLogin(ctx, databaseURL, operatorLogin, "gem_operator, gem_door"); err != nil {
		return nil, nil, err
	}
	return s.serveSite(ctx, o, out)
}

// serveSite serves pages with the logins of o until stop is called.
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

// watchQuestions prints each new question with the command that answers it. Whoever works on the private database has every role that a question
// names.
func (s *setup) watchQuestions(ctx context.Context, out io.Writer) {
	printed := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		err := store.TakeRoles(ctx, s.pools[0], operatorLogin)
		var open []client.Question
		if err == nil {
			open, err = client.OpenQuestions(ctx, s.pools[0], mostQuestions)
		}
		if err != nil && ctx.Err() == nil {
			s.log.Warn("cannot look for questions", zap.Error(err))
		}
		for _, q := range open {
			if !printed[q.ID] {
				printed[q.ID] = true
				fmt.Fprintf(out, "\nA call asks:\n%s\n\n", asked(q))
			}
		}
	}
}

// forgetEarlierRegistries lets the private database take the registry and the domains under a version that it knows with other contents, and keeps
// no call for a worker that knew a tool before.
func (s *setup) forgetEarlierRegistries(ctx context.Context) error {
	_, err := s.pools[0].Exec(ctx, "delete from core_registry_versions where version = $1 and sha256 <> $2", s.registry.Version, s.registry.SHA256())
	if err == nil && s.domains != nil {
		_, err = s.pools[0].Exec(ctx, "delete from gem.domains_versions where version = $1 and sha256 <> $2", s.domains.Version, s.domains.SHA256())
	}
	if err == nil {
		_, err = s.pools[0].Exec(ctx, "delete from core_workers where stopped_at is not null")
	}
	return err
}

// contracts are what a worker is made of, and gem dev reads again.
type contracts struct {
	registry *registry.Registry
	domains  *elsewhere.Domains
}

// registryFile sets TOOLS_REGISTRY for a command in another folder, if the registry is from a file.
func (s *setup) registryFile() string {
	path, err := filepath.Abs(s.from)
	if _, none := os.Stat(path); err != nil || none != nil {
		return ""
	}
	return "TOOLS_REGISTRY='" + path + "' "
}

// watchFiles reads the files of the registry and of the domains elsewhere again and again, and calls use once, with the first other contents that can
// be used.
func (s *setup) watchFiles(ctx context.Context, use func(contracts)) {
	files := slices.DeleteFunc([]string{s.from, s.domainsFrom}, func(name string) bool {
		_, err := os.Stat(name)
		return err != nil // it is not from a file
	})
	for last := []byte(nil); len(files) > 0; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(registryPoll):
		}
		var texts []byte
		var err error
		for _, name := range files {
			text, failed := os.ReadFile(name)
			texts, err = append(append(texts, text...), 0), errors.Join(err, failed)
		}
		if err != nil || bytes.Equal(texts, last) {
			continue // an editor may be replacing one
		}
		last = texts
		now := contracts{s.registry, s.domains}
		if slices.Contains(files, s.from) {
			now.registry, err = registry.ReadFile(s.from)
		}
		if err == nil && slices.Contains(files, s.domainsFrom) {
			now.domains, err = elsewhere.ReadFile(s.domainsFrom)
		}
		if err == nil {
			_, _, err = s.program.fit(now.registry, now.domains)
		}
		switch {
		case err != nil:
			s.log.Error("the changed file is refused: the worker goes on with the one before", zap.Error(err))
			continue
		case now.registry.SHA256() != s.registry.SHA256():
			s.log.Info("the registry has changed", zap.String("version", now.registry.Version), zap.Int("tools", len(now.registry.Tools())))
		case s.domains != nil && now.domains.SHA256() != s.domains.SHA256():
			s.log.Info("the domains elsewhere have changed", zap.String("version", now.domains.Version), zap.Strings("domains", now.domains.Names()))
		default:
			continue
		}
		use(now)
		return
	}
}

// registryPoll is how often gem dev looks at its files.
const registryPoll = 300 * time.Millisecond
