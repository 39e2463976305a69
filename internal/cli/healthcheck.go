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

// HealthDeadline limits a whole health check. It is shorter than the timeout of platforms, so that they show its
// reason.
const HealthDeadline = 3 * time.Second

var healthDeadline = HealthDeadline // longer in tests of other things

func healthcheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "healthcheck",
		Short: "Check by its heartbeat whether the worker of this container is alive",
		Long: `
Use it as the health check of a container that runs gem worker, with the same
environment. It finds the worker by its name, which is WORKER_ID or the default.
Within 3 s, the exit code is 0 if the worker is alive, and otherwise 1, with one
line that gives the reason.

If workers share a name, one of them makes the check succeed for all. If you run
several, do not set WORKER_ID: by default it is unique to the container.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			id, err := livingWorker(cmd.Context())
			if err != nil {
				// For a container's health check the exit code 2, wrong usage, has no meaning, and some platforms
				// keep only one line.
				return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is alive\n", id)
			return err
		},
	}
}

// livingWorker returns the id of a live worker with this one's name, or an error with the reason if there is none.
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
	// Unlike a pool, a connection fails as soon as its context ends, and its statements need no session state in a
	// pooler.
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
		return "", fmt.Errorf("no worker named %q is known to this database: it has not started yet, or has another "+
			"WORKER_ID",
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
