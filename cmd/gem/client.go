package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/pgpool"
	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// What the commands share that insert a call or look at one: they are clients of the tables, as any frontend is.

// connect opens the database for a command that a person waits for: a database that is not there is an error at once.
func connect(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := loadDatabaseConfig()
	if err != nil {
		return nil, err
	}
	// A few statements alone: what url leads to need not be found out.
	pool, err := pgpool.Open(ctx, cfg.DatabaseURL.Reveal(), pgpool.Options{MaxConns: 1})
	if err != nil {
		return nil, usage("DATABASE_URL: %w", err)
	}
	if err := pgpool.Wait(ctx, pool.Ping, 0, func(string) {}); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// refusal says why a statement failed in the words of whoever refused it: Postgres's message, detail and hint, without
// what only programs read. The connection string, which holds a password, is in none of them.
func refusal(err error) error {
	var (
		pgErr      *pgconn.PgError
		connectErr *pgconn.ConnectError
	)
	switch {
	case err == nil || errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &connectErr):
		return fmt.Errorf("Postgres can not be reached: %s", pgpool.Reason(err)) //nolint:staticcheck // a name begins it
	case !errors.As(err, &pgErr):
		return err
	}
	if lacksSchema(err) {
		return fmt.Errorf("the database lacks GEM's tables, or has those of an older version (%s): run `gem migrate`", pgErr.Message)
	}
	said := sentence(pgErr.Message)
	for _, more := range []string{pgErr.Detail, pgErr.Hint} {
		if more != "" {
			said += "\n" + sentence(more)
		}
	}
	return errors.New(strings.TrimSuffix(said, "."))
}

// lacksSchema reports whether a table, column, function or schema is not there.
func lacksSchema(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && slices.Contains([]string{"42P01", "42703", "42883", "3F000"}, pgErr.Code)
}

var uuidForm = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// callID checks the argument of a command that takes a call's id.
func callID(arg string) (string, error) {
	if !uuidForm.MatchString(arg) {
		return "", usage("%q is no call id: it is a uuid such as 0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55, which `gem call` prints and core_tool_calls.id holds", arg)
	}
	return strings.ToLower(arg), nil
}

// call is a row of core_tool_calls, as far as the commands look at it.
type call struct {
	ID, Tool, Status string
	Attempt          int
	ClaimedBy        string
	ClaimedAt        *time.Time
	RunAt            time.Time
	Priority         int
	Seq              int64
	Key              string // that it holds or waits for
	Losses           int    // attempts whose worker died
	Cancel           bool   // someone asked for its end
	Now              time.Time
}

// readCall returns the call of an id.
func readCall(ctx context.Context, db store.DB, id string) (*call, error) {
	c := &call{ID: id}
	err := db.QueryRow(ctx, `
		select coalesce(tool_name, ''), status, attempt, coalesce(claimed_by, ''), claimed_at, run_at, priority, seq,
		       coalesce(computed_key, ''), losses, cancel_requested_at is not null, clock_timestamp()
		from public.core_tool_calls where id = $1`, id).
		Scan(&c.Tool, &c.Status, &c.Attempt, &c.ClaimedBy, &c.ClaimedAt, &c.RunAt, &c.Priority, &c.Seq, &c.Key, &c.Losses, &c.Cancel, &c.Now)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, noCall(ctx, db, id)
	}
	return c, refusal(err)
}

// noCall says that there is no such call. The id of a receipt, which is easily taken for its call's, is recognised.
func noCall(ctx context.Context, db store.DB, id string) error {
	var of string
	if db.QueryRow(ctx, `select call_id::text from public.core_tool_receipts where id = $1`, id).Scan(&of) == nil {
		return fmt.Errorf("there is no call %s: it is the id of a receipt, and the receipt's call is %s", id, of)
	}
	return fmt.Errorf("there is no call %s in this database", id)
}

// living is the condition on a row of core_workers whose process is alive, by Postgres's clock: each of its heartbeats says
// until when it counts as alive.
const living = `stopped_at is null and alive_until > clock_timestamp()`

// workerLives reports whether any worker is alive.
func workerLives(ctx context.Context, db store.DB) (bool, error) {
	var lives bool
	err := db.QueryRow(ctx, `select exists (select from public.core_workers where `+living+`)`).Scan(&lives)
	return lives, refusal(err)
}
