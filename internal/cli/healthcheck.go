package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"github.com/spf13/cobra"
)

// HealthDeadline bounds a health check as a whole. It is less than platforms wait for one, so that they show its reason.
const HealthDeadline = 3 * time.Second

func healthcheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "healthcheck",
		Short: "Check by its heartbeat whether the worker of this container is alive",
		Long: `
For the health check of a container that runs gem worker, with the same
environment. The worker is looked for by its name, WORKER_ID or what stands for
it, and is alive if its last heartbeat says so by Postgres's clock. The exit
code is 0 then, otherwise 1, within 3 s and with one line that says why.

Workers that share a name answer for each other: where several run, leave
WORKER_ID to its default, which is the container's own.`,
		Example: "  gem healthcheck",
		Args:    takes("no arguments", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := databaseConfig()
			if err != nil {
				// Not the exit code of wrong usage: to a container's health check 2 has no meaning.
				return errors.New(err.Error())
			}
			id, err := livingWorker(cmd.Context(), cfg.DatabaseURL, cfg.WorkerID)
			if err != nil {
				return errors.New(strings.ReplaceAll(err.Error(), "\n", "; ")) // some platforms keep one line
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is alive\n", id)
			return err
		},
	}
}

// livingWorker returns the id of a worker of that name that is alive, or why there is none.
func livingWorker(ctx context.Context, database handlers.Secret, name string) (id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, HealthDeadline)
	defer cancel()
	defer func() {
		if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			err = fmt.Errorf("Postgres did not answer within %s", HealthDeadline) //nolint:staticcheck // a name begins it
		}
	}()
	conn, err := healthConn(ctx, database)
	if err != nil {
		return "", refusal(err)
	}
	defer func() { _ = conn.Close(ctx) }()

	var (
		alive   bool
		stopped time.Time
		silent  time.Duration
	)
	err = conn.QueryRow(ctx, `
		select worker_id, stopped_at is null and alive_until > clock_timestamp(), stopped_at, clock_timestamp() - heartbeat_at
		from public.core_workers
		where left(worker_id, -9) = $1 and right(worker_id, 9) ~ '^-[0-9a-f]{8}$'
		order by 2 desc, heartbeat_at desc
		limit 1`, name).Scan(&id, &alive, (*zeronull.Timestamptz)(&stopped), &silent)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", fmt.Errorf("no worker named %q is known to this database: it has not started yet, or has another WORKER_ID", name)
	case err != nil:
		return "", refusal(err)
	case alive:
		return id, nil
	case !stopped.IsZero():
		return "", fmt.Errorf("%s stopped at %s", id, moment(stopped))
	}
	return "", fmt.Errorf("%s is silent: its last heartbeat was %s ago", id, span(silent))
}

// healthConn is one connection that gives up as soon as its context ends, and whose statements need nothing of a pooler.
func healthConn(ctx context.Context, database handlers.Secret) (*pgx.Conn, error) {
	c, err := pgx.ParseConfig(database.Reveal())
	if err != nil {
		return nil, errors.New("DATABASE_URL is not a connection string") // pgx's own error may quote it
	}
	c.DefaultQueryExecMode = pgx.QueryExecModeExec
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "gem healthcheck"
	}
	return pgx.ConnectConfig(ctx, c)
}
