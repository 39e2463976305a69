package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"github.com/spf13/cobra"
)

// HealthDeadline bounds a health check as a whole. It is less than platforms wait for one, so that they show its reason.
const HealthDeadline = 3 * time.Second

var healthDeadline = HealthDeadline // longer where a test is not about it

func healthcheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "healthcheck",
		Short: "Check by its heartbeat whether the worker of this container is alive",
		Long: `
For the health check of a container that runs gem worker, with the same
environment: it looks for the worker by its name, WORKER_ID or the default. The
exit code is 0 if it is alive, otherwise 1, within 3 s and with one line that
says why.

Workers that share a name answer for each other: where several run, leave
WORKER_ID to its default, which is the container's own.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			id, err := livingWorker(cmd.Context())
			if err != nil {
				// To a container's health check the exit code 2, of wrong usage, has no meaning, and some platforms keep one line.
				return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is alive\n", id)
			return err
		},
	}
}

// livingWorker returns the id of a worker with the name of this one that is alive, or why there is none.
func livingWorker(ctx context.Context) (id string, err error) {
	cfg, err := configFromEnv()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, healthDeadline)
	defer cancel()
	defer func() {
		if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			err = fmt.Errorf("Postgres did not answer within %s", healthDeadline) //nolint:staticcheck // a name begins it
		}
	}()
	config, err := pgx.ParseConfig(cfg.DatabaseURL.Reveal())
	if err != nil {
		return "", errors.New("DATABASE_URL is not a connection string") // pgx's own error may quote it
	}
	// Unlike a pool, such a connection gives up as soon as its context ends, and its statements need nothing of a pooler.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.RuntimeParams["application_name"] = cmp.Or(config.RuntimeParams["application_name"], "gem healthcheck")
	conn, err := pgx.ConnectConfig(ctx, config)
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
		limit 1`, cfg.WorkerID).Scan(&id, &alive, (*zeronull.Timestamptz)(&stopped), &silent)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", fmt.Errorf("no worker named %q is known to this database: it has not started yet, or has another WORKER_ID",
			cfg.WorkerID)
	case err != nil:
		return "", refusal(err)
	case alive:
		return id, nil
	case !stopped.IsZero():
		return "", fmt.Errorf("%s stopped at %s", id, moment(stopped))
	}
	return "", fmt.Errorf("%s is silent: its last heartbeat was %s ago", id, span(silent))
}
