package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gemworker/gem/internal/pgpool"
	"github.com/gemworker/gem/migrations"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
)

func migrateCommand() *cobra.Command {
	var patience time.Duration
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create GEM's tables, or bring them to the version of this program",
		Long: describe("Create GEM's tables, or bring them to the version of this program", `
Needs DATABASE_URL; DIRECT_URL is used instead where it is set. Tables of an
earlier GEM are taken over with their rows. A second run finds nothing to do,
and several at once do it once, so run it in every deploy, before the workers
start: those of the version before go on meanwhile.`),
		Example: "  DATABASE_URL=postgres://user:password@host:5432/postgres gem migrate",
		Args:    takes("no arguments", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadDatabaseConfig()
			if err != nil {
				return err
			}
			url, from := cfg.DatabaseURL.Reveal(), "DATABASE_URL"
			if cfg.DirectURL != "" {
				url, from = cfg.DirectURL.Reveal(), "DIRECT_URL"
			}
			if err := waitFor(cmd.Context(), url, patience, cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("%s: %w", from, err)
			}
			done, err := migrate(cmd.Context(), url)
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
	return cmd
}

// migrate brings the database to the newest version. What it did before an error is in the result.
func migrate(ctx context.Context, url string) (migrations.Result, error) {
	done, err := migrations.Apply(ctx, url, migrations.Domains())
	var (
		pgErr      *pgconn.PgError
		connectErr *pgconn.ConnectError
	)
	switch {
	case errors.As(err, &connectErr):
		return done, refusal(err)
	case errors.As(err, &pgErr):
		// Here the file and the SQLSTATE help whoever looks into it.
		for _, more := range []string{pgErr.Detail, pgErr.Hint} {
			if more != "" {
				err = fmt.Errorf("%w\n%s", err, sentence(more))
			}
		}
		return done, fmt.Errorf("%w\nNothing of that file stays; the ones before it do", err)
	}
	return done, err
}

// migrated says what was done.
func migrated(done migrations.Result) string {
	switch {
	case len(done.Applied) == 0:
		return fmt.Sprintf("the schema is up to date, at version %d", done.To)
	case done.From == 0:
		return fmt.Sprintf("the schema was created, at version %d", done.To)
	}
	return fmt.Sprintf("the schema went from version %d to version %d", done.From, done.To)
}

// patienceFlag adds the flag of a command that is started together with its database.
func patienceFlag(cmd *cobra.Command, patience *time.Duration) {
	cmd.Flags().DurationVar(patience, "patience", time.Minute, "how long to wait for a database that can not be reached")
}

// waitFor waits until the database at url can be reached.
func waitFor(ctx context.Context, url string, patience time.Duration, progress io.Writer) error {
	pool, err := pgpool.Open(ctx, url, pgpool.Options{MaxConns: 1})
	if err != nil {
		return usageError{err}
	}
	defer pool.Close()
	return pgpool.Wait(ctx, pool.Ping, patience, func(reason string) {
		fmt.Fprintf(progress, "Postgres can not be reached yet, trying again for at most %s: %s\n", patience, reason)
	})
}
