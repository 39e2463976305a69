package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/migrations"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

func demoCommand(p *Program) *cobra.Command {
	var verbose, stay, useDatabase bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show everything in a few seconds: a database, a worker, some calls, their receipts",
		Long: `
It starts a private Postgres and removes it at the end. DATABASE_URL is ignored,
except with --use-database, which migrates that database and leaves the demo's
rows in it. The exit code is 0 if each call ended as expected, with one receipt.
With --stay the database, the worker, a dashboard and the model's script run
until Ctrl-C, and it prints how to use them from other terminals.

It uses the tools of the program. It ignores the registry, rules and tools.sql
of the folder, which gem dev uses. It sends nothing to other machines: the tools
get no configuration from the environment, and the agent's model is a script on
127.0.0.1. A program without the built-in tools shows its own tools that need
only read:db and write:db, if the input may be empty or its schema has examples,
defaults or an enum.`,
		Example: "  gem demo\n  gem demo --stay                   look at it in a browser",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load()
			if err != nil {
				return err
			}
			cfg.WorkerID, cfg.WorkerConcurrency, cfg.ShutdownGrace, cfg.LogFormat = "demo", 4, time.Second, "console"
			d := &demo{out: cmd.OutOrStdout(), progress: cmd.ErrOrStderr(), began: time.Now(),
				mark: fmt.Sprintf("%08d", rand.IntN(1e8)), stay: stay}
			if useDatabase {
				if err := cfg.RequireDatabase(); err != nil {
					return err
				}
			} else if cfg.DatabaseURL != "" {
				d.say("DATABASE_URL is set and ignored: --use-database uses that database")
				cfg.DatabaseURL, cfg.DirectURL = "", ""
			}
			d.setup = &setup{program: p, config: cfg, log: zap.NewNop(), isolated: true}
			if verbose {
				d.log = cfg.Logger()
				config.RouteStandardLog(d.log)
			}
			return d.run(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&stay, "stay", false, "keep everything running until Ctrl-C, with a dashboard")
	cmd.Flags().BoolVar(&useDatabase, "use-database", false,
		"migrate the database of DATABASE_URL and leave the demo's rows in it")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show the worker's log")
	return cmd
}

type demo struct {
	*setup
	out, progress io.Writer
	began         time.Time
	frontend      *pgxpool.Pool
	stay          bool      // until Ctrl-C, with a dashboard
	model         string    // the address of the script that plays a model; empty for none
	private       bool      // the database belongs to the demo
	mark          string    // of this demo: no existing row has it
	calls         []*sample // the finished calls
	script        []*sample // the calls of the agent's model
}

// run sets everything up, shows it, and removes it again, even if ctx ends early.
func (d *demo) run(ctx context.Context) error {
	fmt.Fprint(d.progress, "A frontend inserts calls into a table, a worker runs them, and each ends with exactly one "+
		"receipt.\n\n")
	if d.config.DatabaseURL != "" {
		d.say("the demo uses the database of DATABASE_URL, and its rows stay there")
		return d.onDatabase(ctx)
	}
	server, err := pgserver.Start(ctx, pgserver.Options{Log: func(line string) { d.say("%s", line) }})
	if err != nil {
		return err
	}
	d.say("a private Postgres runs, and is removed at the end")
	usePrivate(d.config, server.URL("postgres"))
	d.private = true
	return errors.Join(d.onDatabase(ctx), server.Stop())
}

// onDatabase migrates, starts a worker, and shows some calls.
func (d *demo) onDatabase(ctx context.Context) (err error) {
	if d.frontend, err = open(ctx, d.config.DatabaseURL.Reveal()); err != nil {
		return err
	}
	defer d.frontend.Close()
	// Refuse before the migration: a database in use must not change. The second check needs the tables of this
	// version.
	if err := d.refuseBusy(ctx); err != nil {
		return err
	}
	url, _ := migrateThrough(d.config)
	r, _, err := d.program.ownRegistry()
	if err != nil {
		return usageError{err}
	}
	done, err := d.program.migrate(ctx, url, migrations.Options{}, r)
	if err != nil {
		return err
	}
	d.say("%s", migrated(done, false))
	if err := d.refuseBusy(ctx); err != nil {
		return err
	}

	stopModel, err := d.playModel(ctx, d.mark)
	if err != nil {
		return err
	}
	defer stopModel()
	if err := d.prepare(ctx); err != nil {
		return err
	}
	defer d.close()
	w, err := d.connect(ctx)
	if err != nil {
		return err
	}
	if os.Getenv("TOOLS_REGISTRY") != "" || registryInFolder() {
		d.say("the demo has the tools of this program: for the tools of this folder or of TOOLS_REGISTRY, use gem dev")
	}
	d.say("a worker runs, with %s of registry %s (%s)", count(len(d.registry.Tools()), "tool"), d.registry.Version, d.from)
	working, stop := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		stop(fmt.Errorf("the demo's worker ended: %w", refusal(w.Run(working)))) // ends the waiting too
	})
	show := d.builtInTools
	if !d.hasBuiltInTools() {
		show = d.ownTools
	}
	err = show(working)
	if err == nil && d.stay {
		err = d.stayOpen(working)
	}
	if err != nil && ctx.Err() == nil && working.Err() != nil {
		err = context.Cause(working)
	}
	stop(nil)
	running.Wait()
	return err
}

// stayOpen serves a dashboard until Ctrl-C, or until the worker ends. It creates logins only in the demo's own
// database.
func (d *demo) stayOpen(ctx context.Context) error {
	database := d.config.DatabaseURL.Reveal()
	d.adminURL = database
	serve := func() (*site, func(), error) { return d.serveDashboard(ctx, database, d.out) }
	if !d.private {
		serve = func() (*site, func(), error) {
			return d.serveSite(ctx, siteOptions{readURL: database, actURL: database}, d.out)
		}
	}
	pages, stop, err := serve()
	if err != nil {
		return err
	}
	defer stop()
	fmt.Fprintf(d.out, "\nThe dashboard, for one browser, until Ctrl-C:\n  %s\n%s", pages.link, d.howToUse())
	<-ctx.Done()
	return nil
}

// refuseBusy keeps the demo's worker away from others' calls: its registry is different and it has no configuration.
func (d *demo) refuseBusy(ctx context.Context) error {
	workers, err := client.ReadWorkers(ctx, d.frontend)
	open := false
	if err == nil || lacksSchema(err) { // an earlier GEM has no table of workers
		err = d.frontend.QueryRow(ctx, `
			select exists (select from public.core_tool_calls where status = 'queued')
			    or exists (select from public.core_tool_calls where status = 'running')
			    or exists (select from public.core_tool_calls where status = 'waiting')`).Scan(&open)
	}
	const instead = "without --use-database the demo starts its own Postgres"
	switch {
	case err != nil && !lacksSchema(err):
		return refusal(err)
	case workers.Alive > 0:
		return fmt.Errorf("the database of DATABASE_URL has a worker, which would take the demo's calls: %s", instead)
	case open:
		return fmt.Errorf("the database of DATABASE_URL has calls that have not ended, and the demo's worker would take "+
			"them: %s", instead)
	}
	return nil
}

// round inserts calls and waits for their receipts, for the tools' timeouts plus 30 s.
func (d *demo) round(ctx context.Context, intro string, calls ...*sample) error {
	return d.roundWith(ctx, intro, func(context.Context, string) error { return nil }, calls...)
}

// roundWith calls do for each call before it waits for the receipt.
func (d *demo) roundWith(ctx context.Context, intro string, do func(ctx context.Context, id string) error,
	calls ...*sample) error {
	fmt.Fprintf(d.progress, "\n%s\n\n", intro)
	within := 30 * time.Second
	for _, c := range calls {
		if tool, ok := d.registry.Tool(c.tool); ok {
			within = max(within, 30*time.Second+tool.Timeout)
		}
	}
	waiting, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	ids := make([]string, len(calls))
	for i, c := range calls {
		var err error
		if ids[i], err = client.Enqueue(waiting, d.frontend, client.NewCall{Tool: c.tool, Input: c.input}); err != nil {
			return refusal(err)
		}
	}
	for i, c := range calls {
		var err error
		if err = do(waiting, ids[i]); err == nil {
			c.receipt, err = client.Await(waiting, d.frontend, ids[i])
		}
		switch {
		case err != nil && waiting.Err() != nil && ctx.Err() == nil:
			return fmt.Errorf("the demo failed: %s without a receipt after %s", count(len(calls)-i, "call"),
				within)
		case err != nil:
			return refusal(err)
		}
		d.say("%-20s %s", c.tool, c.receipt.Status)
	}
	d.calls = append(d.calls, calls...)
	return nil
}

func (d *demo) print() error {
	fmt.Fprintln(d.progress)
	rows := [][]string{{"TOOL", "OUTCOME", "HIT", "TOOK", "RESULT"}}
	for _, c := range d.calls {
		hit := ""
		if c.receipt.ReplayOf != "" {
			hit = "hit"
		}
		rows = append(rows, []string{c.tool, string(c.receipt.Status), hit, span(milliseconds(c.receipt.DurationMS)),
			cut(upshot(c.receipt), 90)})
	}
	return table(d.out, rows)
}

func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.progress, "%6.2f s  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}
