package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/internal/pgpool"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/registry"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
)

func migrateCommand(p *Program) *cobra.Command {
	var (
		patience time.Duration
		print    bool
	)
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create the tables, or bring them to the version of this program",
		Long: `
Applies the migrations that the database lacks: GEM's own, those of each domain
with a tool in the registry (TOOLS_REGISTRY, tools.registry.json here, or the
built-in one), and those of the program. A domain that leaves the registry keeps
its tables. It connects through DIRECT_URL if that is set, and otherwise through
DATABASE_URL.

Run it in every deploy, before the new workers start. Workers of the version
before keep running meanwhile. It can be run again, and several times at once:
each migration is applied once. Tables of an earlier GEM are kept, with their
rows. A database that a newer program has migrated is not changed; the command
fails if it has migrations that this program does not know.`,
		Example: "  DATABASE_URL=postgres://user:password@host:5432/postgres gem migrate",
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, _, err := p.chosenRegistry(nil)
			if err != nil {
				return err
			}
			if print {
				return migrations.Print(cmd.OutOrStdout(), p.sources(r)...)
			}
			cfg, err := databaseConfig()
			if err != nil {
				return err
			}
			url, from := migrateThrough(cfg)
			err = pgpool.Wait(cmd.Context(), func(ctx context.Context) error {
				_, err := pgpool.Probe(ctx, url, pgpool.Direct) // whatever it is
				return err
			}, patience, func(reason string) {
				fmt.Fprintf(cmd.ErrOrStderr(), "Postgres cannot be reached yet, trying again for at most %s: %s\n", patience, reason)
			})
			if err != nil {
				return fmt.Errorf("%s: %w", from, err)
			}
			done, err := p.migrate(cmd.Context(), url, r)
			for _, file := range done.Applied {
				fmt.Fprintf(cmd.OutOrStdout(), "applied %s\n", file)
			}
			for _, note := range done.Notes {
				fmt.Fprintf(cmd.ErrOrStderr(), "note: %s\n", note)
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), migrated(done))
			return err
		},
	}
	patienceFlag(cmd, &patience)
	cmd.Flags().BoolVar(&print, "print", false, "print the SQL instead of running it, as one file for psql or the migrations folder of Supabase")
	return cmd
}

// migrateThrough is the connection string for migrations, and its variable.
func migrateThrough(cfg *config.Config) (url, variable string) {
	if cfg.DirectURL != "" {
		return cfg.DirectURL.Reveal(), "DIRECT_URL"
	}
	return cfg.DatabaseURL.Reveal(), "DATABASE_URL"
}

// migrate brings the database to what a worker with the registry r needs. The result also holds what was done before an error.
func (p *Program) migrate(ctx context.Context, url string, r *registry.Registry) (migrations.Result, error) {
	done, err := migrations.Apply(ctx, url, p.sources(r)...)
	var (
		pgErr      *pgconn.PgError
		connectErr *pgconn.ConnectError
	)
	switch {
	case errors.As(err, &connectErr):
		return done, refusal(err)
	case errors.As(err, &pgErr): // with the file and the SQLSTATE, which help whoever looks into it
		return done, fmt.Errorf("%w%s\nNothing of that file stays; the ones before it do", err, advice(pgErr))
	}
	return done, err
}

// checkSchema refuses a database that lacks GEM's own tables or functions. Commands that work on all calls need no domain's tables.
func checkSchema(ctx context.Context, db migrations.DB) error {
	return refusal(migrations.Check(ctx, db))
}

func migrated(done migrations.Result) string {
	switch {
	case len(done.Applied) == 0:
		return "the schema is up to date"
	case done.Created:
		return "the schema was created"
	}
	return "the schema was brought up to date"
}

// patienceFlag adds the flag of a command that is started together with its database.
func patienceFlag(cmd *cobra.Command, patience *time.Duration) {
	cmd.Flags().DurationVar(patience, "patience", time.Minute, "how long to wait for a database that cannot be reached, is starting, or takes no writes")
}
