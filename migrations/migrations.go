// Package migrations holds GEM's tables and the functions that move a call, as plain SQL files, and applies them.
//
// The files have an Up part alone, so that they are also valid for psql and in Supabase's own migration folder. A file that
// was released is never changed: the next change is the next file, and it must let workers of the version before go on.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
)

// FS holds the files.
//
//go:embed *.sql
var FS embed.FS

// table is where goose keeps what was applied.
const table = "gem.migrations"

// lock is the advisory lock that lets one process migrate at a time; the number is arbitrary and stays.
const lock = 4716_0001

// Result says what [Apply] did.
type Result struct {
	From, To int64    // the schema's version before and after; 0 is an empty database
	Applied  []string // the files, in order
	Notes    []string // what a file left out, since this role may not do it
}

// Up brings the database at url to the newest version.
func Up(ctx context.Context, url string) error {
	_, err := Apply(ctx, url)
	return err
}

// Apply brings the database at url to the newest version and says what was done. Several processes may call it at once:
// one applies, the others wait and find nothing left to do. Each file is one transaction.
func Apply(ctx context.Context, url string) (Result, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return Result{}, errors.New("the connection string is not valid: it has the form postgres://user:password@host:5432/database")
	}
	// Works through a transaction pooler too: nothing is prepared and nothing outlives its transaction.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	var notes []string
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.Routine == "exec_stmt_raise" { // said by a file, and not by Postgres
			notes = append(notes, n.Message)
		}
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()

	// goose's own lock belongs to a session, which a pooler does not keep. This one belongs to a transaction that stays
	// open beside goose's.
	guard, err := db.BeginTx(ctx, nil)
	if err != nil {
		return Result{}, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = guard.Rollback() }()
	if _, err := guard.ExecContext(ctx, "select pg_advisory_xact_lock($1)", int64(lock)); err != nil {
		return Result{}, fmt.Errorf("wait for the migration lock: %w", err)
	}
	if err := secondConnection(ctx, db); err != nil {
		return Result{}, err
	}
	done, err := apply(ctx, db)
	done.Notes = notes
	return done, err
}

// secondPatience is how long the connection beside the lock's may take.
const secondPatience = 10 * time.Second

// secondConnection makes sure that there is one beside the lock's. Where a pooler has one alone, goose would wait for it for ever.
func secondConnection(ctx context.Context, db *sql.DB) error {
	asking, cancel := context.WithTimeout(ctx, secondPatience)
	defer cancel()
	err := db.PingContext(asking)
	switch {
	case err == nil:
		return nil
	case asking.Err() != nil && ctx.Err() == nil:
		return fmt.Errorf("no second connection within %s: migrations need two at a time, one of them for the lock. "+
			"Let the pooler's pool hold at least two, or set DIRECT_URL to Postgres itself", secondPatience)
	}
	return fmt.Errorf("connect a second time: %w", err)
}

func apply(ctx context.Context, db *sql.DB) (Result, error) {
	if _, err := db.ExecContext(ctx, "create schema if not exists gem"); err != nil {
		return Result{}, fmt.Errorf("create the schema gem (the role must own the database or have CREATE on it): %w", err)
	}
	store, err := database.NewStore(database.DialectPostgres, table)
	if err != nil {
		return Result{}, err
	}
	provider, err := goose.NewProvider("", db, FS, goose.WithStore(store), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return Result{}, err
	}
	var done Result
	if done.From, err = provider.GetDBVersion(ctx); err != nil {
		return done, fmt.Errorf("read the schema's version: %w", err)
	}
	done.To = done.From
	began := time.Now()
	for try := 1; ; try++ {
		if err = done.up(ctx, provider); !passing(err, try, time.Since(began)) {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	if isCode(err, lockTimeout) {
		err = fmt.Errorf("%w: a transaction has been open for more than %s that used this table, such as that of a dump; "+
			"pg_stat_activity shows it. Migrate again when it has ended", err, lockPatience)
	}
	if err != nil {
		return done, fmt.Errorf("apply the migrations: %w", err)
	}
	return done, nil
}

func (r *Result) up(ctx context.Context, provider *goose.Provider) error {
	applied, err := provider.Up(ctx)
	var partial *goose.PartialError
	if errors.As(err, &partial) {
		applied = partial.Applied
	}
	for _, a := range applied {
		r.Applied = append(r.Applied, a.Source.Path)
		r.To = a.Source.Version
	}
	return err
}

// lockPatience is how long a migration is tried that gets no lock.
const lockPatience = time.Minute

// The SQLSTATEs of what the next try may not meet.
const (
	lockTimeout     = "55P03"
	undefinedObject = "42704"
)

// passing reports whether a file that failed is to be tried again: it got no lock in time; or another database of this server
// was migrated at the same time and created a role, of which Postgres may not have heard yet in the transaction that was too
// late to create it.
func passing(err error, try int, since time.Duration) bool {
	return isCode(err, lockTimeout) && since < lockPatience || isCode(err, undefinedObject) && try == 1
}

func isCode(err error, code string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == code
}

// Newest is the version that this program needs.
func Newest() (int64, error) {
	files, err := FS.ReadDir(".")
	if err != nil {
		return 0, err
	}
	var newest int64
	for _, f := range files {
		version, err := goose.NumericComponent(f.Name())
		if err != nil {
			return 0, err
		}
		newest = max(newest, version)
	}
	return newest, nil
}
