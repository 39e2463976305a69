package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/registry"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
)

func migrateCommand(p *Program) *cobra.Command {
	var (
		patience          time.Duration
		print, yes, noAPI bool
		o                 migrations.Options
	)
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create the tables, or bring them to the version of this program",
		Long: `
It applies the migrations that the database lacks: the migrations of GEM, of
each domain with a tool in the registry (TOOLS_REGISTRY, tools.registry.json
here, or the built-in one), and of the program. It prints the objects that it
created and changed. If a domain is removed from the registry, its tables
remain. It connects through DIRECT_URL or, without DIRECT_URL, through
DATABASE_URL.

It changes nothing that GEM did not create. If something else in the database
has a name that GEM needs, it lists all such names, changes nothing, and fails.
--adopt takes over the tables of an earlier GEM: it lists what it will change,
and asks for confirmation. Until then, others can read and write the tables. The
adoption itself locks them until it has changed all their rows. If a table is in
use, it waits 3 seconds for the lock, lets the others continue, and tries again
for a minute.

It makes three additions to objects that are not GEM's: gem_mcp and
gem_scheduler become members of authenticated, GEM's roles may use the schema
public, and the receipts join the publication supabase_realtime. --no-api omits
these, in this and all later runs until --no-api=false.

Run it in every deploy, before the new workers start. Workers of the previous
version keep running. Repeated and concurrent runs are safe: each migration is
applied once. If a newer program has migrated the database, the command changes
nothing, and fails if it does not know some of the migrations.

Each file runs in a separate transaction, which blocks running workers only
briefly. If a file fails, the earlier files stay applied, and the next run
continues after them. With --dry-run or --adopt, all files are one transaction.
A dry run of an adoption lists the changes to the tables, and does not lock
them.`,
		Example: `  DATABASE_URL=postgres://user:password@host:5432/postgres gem migrate
  gem migrate --dry-run`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, from, err := p.chosenRegistry(nil)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("no-api") {
				api := !noAPI
				o.API = &api
			}
			if print {
				return migrations.Print(cmd.OutOrStdout(), fmt.Sprintf(", and the tables that the registry %s (%s) needs",
					r.Version, from), o, p.sources(r)...)
			}
			cfg, err := configFromEnv()
			if err != nil {
				return err
			}
			url, from := migrateThrough(cfg)
			err = pgpool.Wait(cmd.Context(), func(ctx context.Context) error {
				_, err := pgpool.Probe(ctx, url, pgpool.Direct) // whatever its mode
				return err
			}, patience, func(reason string) {
				fmt.Fprintf(cmd.ErrOrStderr(), "Postgres cannot be reached yet, trying again for at most %s: %s\n", patience,
					reason)
			})
			if err != nil {
				return fmt.Errorf("%s: %w", from, err)
			}
			if len(o.Adopt) > 0 && (o.DryRun || !yes) {
				if done, err := p.confirmAdoption(cmd, url, o, r); err != nil || done {
					return err
				}
			}
			done, err := p.migrate(cmd.Context(), url, o, r)
			for _, file := range done.Applied {
				fmt.Fprintf(cmd.OutOrStdout(), "applied %s\n", file)
			}
			for _, line := range done.Changes.Lines() {
				fmt.Fprintf(cmd.OutOrStdout(), "%s\n", printable(line))
			}
			for _, note := range done.Notes {
				fmt.Fprintf(cmd.ErrOrStderr(), "note: %s\n", note)
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), migrated(done, o.DryRun))
			return err
		},
	}
	patienceFlag(cmd, &patience)
	f := cmd.Flags()
	f.BoolVar(&print, "print", false, "print the SQL instead of running it, as one file for psql or the migrations "+
		"folder of Supabase")
	f.BoolVar(&o.DryRun, "dry-run", false, "print what would be created or changed: everything runs in one transaction, "+
		"which is rolled back")
	f.StringSliceVar(&o.Adopt, "adopt", nil, "`tables` of an earlier GEM to take over with their rows, such as "+
		"tasks,notes")
	f.StringSliceVar(&o.AdoptRoles, "adopt-role", nil, "`roles`, such as gem_worker, that someone created for GEM")
	f.BoolVar(&yes, "yes", false, "with --adopt: do not ask")
	f.BoolVar(&noAPI, "no-api", false, "add nothing to objects that are not GEM's")
	return cmd
}

// confirmAdoption lists the changes to the tables to adopt, and asks for confirmation. A dry run is done with the list:
// applied to the tables themselves, it would lock them until it is rolled back.
func (p *Program) confirmAdoption(cmd *cobra.Command, url string, o migrations.Options,
	r *registry.Registry) (done bool, err error) {
	changes, err := migrations.Adoption(cmd.Context(), url, o, p.sources(r)...)
	if err != nil || len(changes) == 0 {
		return false, err
	}
	if o.DryRun {
		for _, line := range changes {
			fmt.Fprintln(cmd.OutOrStdout(), printable(line))
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), "nothing was changed: this was a dry run, on empty copies of the tables")
		return true, err
	}
	for _, line := range changes {
		fmt.Fprintln(cmd.ErrOrStderr(), printable(line))
	}
	fmt.Fprint(cmd.ErrOrStderr(), "Adopt them? [y/N] ")
	answer, err := readLine(cmd.Context(), cmd.InOrStdin())
	if answer = strings.ToLower(answer); err != nil || answer != "y" && answer != "yes" {
		return false, fmt.Errorf("nothing was changed. To adopt them without being asked: gem migrate --adopt %s --yes",
			strings.Join(o.Adopt, ","))
	}
	return false, nil
}

// migrateThrough returns the connection string for migrations, and its variable.
func migrateThrough(cfg *config.Config) (url, variable string) {
	if cfg.DirectURL != "" {
		return cfg.DirectURL.Reveal(), "DIRECT_URL"
	}
	return cfg.DatabaseURL.Reveal(), "DATABASE_URL"
}

// migrate applies the migrations that a worker with the registry r needs. After an error, the result holds the work
// done before it.
func (p *Program) migrate(ctx context.Context, url string, o migrations.Options,
	r *registry.Registry) (migrations.Result, error) {
	done, err := migrations.Apply(ctx, url, o, p.sources(r)...)
	var (
		pgErr      *pgconn.PgError
		connectErr *pgconn.ConnectError
	)
	switch {
	case errors.As(err, &connectErr):
		return done, refusal(err)
	case errors.As(err, &pgErr): // with the file and the SQLSTATE, which help to find the cause
		return done, fmt.Errorf("%w%s\n%s", err, advice(pgErr), left(done, o.DryRun))
	}
	return done, err
}

// left describes the state in which a failed migration leaves the database.
func left(done migrations.Result, dryRun bool) string {
	switch {
	case dryRun:
		return "Nothing was changed: this was a dry run"
	case len(done.Applied) == 0:
		return "Nothing was changed"
	}
	return fmt.Sprintf("That file was rolled back. The files up to %s stay applied: the next gem migrate continues "+
		"after them",
		done.Applied[len(done.Applied)-1])
}

// checkSchema returns an error if the database lacks GEM's own tables or functions. Commands that work on all calls
// do not need a domain's tables.
func checkSchema(ctx context.Context, db migrations.DB) error {
	return refusal(migrations.Check(ctx, db))
}

func migrated(done migrations.Result, dryRun bool) string {
	switch {
	case dryRun && len(done.Applied) > 0:
		return "nothing was changed: this was a dry run"
	case len(done.Applied) == 0:
		return "the schema is up to date"
	case done.Created:
		return "the schema was created"
	}
	return "the schema was brought up to date"
}

// patienceFlag adds the flag of a command that starts together with its database.
func patienceFlag(cmd *cobra.Command, patience *time.Duration) {
	cmd.Flags().DurationVar(patience, "patience", time.Minute,
		"how long to wait for a database that is unreachable, starting or read-only")
}
