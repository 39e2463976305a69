// Package migrations makes GEM's tables and functions, and those of domains and programs, and keeps them current.
//
// tables/ holds GEM's tables as numbered files, which only grow once they are released. functions/ holds its functions,
// triggers, views and rights, each once: functions/states.sql is the place to begin. They are applied whole, under a number
// that rises with every change. Domains and programs bring files of their own, with numbers of their own: see [Source].
//
// The table gem.migrations records what was applied. All of it is plain SQL: [Print] gives it as one file for psql, or for
// the migrations folder of Supabase.
package migrations

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// createLedger makes the table of what was applied. It stands here, since it must be there before the first file.
const createLedger = `create schema if not exists gem;
create table if not exists gem.migrations (
  source     text        not null, -- core and functions are GEM's; a domain's name; program
  version    integer     not null, -- of a file, or of all functions; 0 for the grants of a source
  file       text        not null,
  sha256     text        not null,
  applied_at timestamptz not null default clock_timestamp(),
  primary key (source, version)
);
`

// record writes the line of a file that was applied.
const record = `insert into gem.migrations (source, version, file, sha256) values ('%s', %d, '%s', '%s')
on conflict (source, version) do update set sha256 = excluded.sha256, applied_at = excluded.applied_at`

// lock is the advisory lock that lets one process migrate at a time; the number is arbitrary and stays.
const lock = 4716_0001

const (
	lockPatience    = time.Minute // for a file that gets no lock
	lockTimeout     = "55P03"     // SQLSTATE, as the two below
	deadlock        = "40P01"
	undefinedObject = "42704"
)

// Result says what [Apply] did.
type Result struct {
	Created bool     // the database had nothing of GEM before
	Applied []string // the files, as source/name, in order
	Notes   []string // what was left out, such as a role that this role may not create
}

// Up is [Apply] for callers that do not need its result.
func Up(ctx context.Context, url string, sources ...Source) error {
	_, err := Apply(ctx, url, sources...)
	return err
}

// Apply brings the database at url to what this program needs: GEM's own tables and functions, and then the sources, and
// says what was done. Each file is one transaction. Several processes may call it at once: they take turns, and each file is
// applied by one of them. It needs one connection and works through a transaction pooler.
//
// It refuses a database that records a version which this program does not know, a file that was changed after it was
// applied, and other functions under the same number. Functions of a higher number stay, with a note.
func Apply(ctx context.Context, url string, sources ...Source) (Result, error) {
	var done Result
	files, err := plan(sources)
	if err != nil {
		return done, err
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return done, errors.New("the connection string is not valid: it has the form postgres://user:password@host:5432/database")
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // nothing is prepared, which a transaction pooler would not keep
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.Routine == "exec_stmt_raise" && !slices.Contains(done.Notes, n.Message) { // raised by a file, and not by Postgres
			done.Notes = append(done.Notes, n.Message)
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return done, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()

	began := time.Now()
	for try := 1; ; try++ {
		applied, err := done.step(ctx, conn, files)
		pgErr := &pgconn.PgError{} // without a code if err is not Postgres's
		errors.As(err, &pgErr)
		switch {
		case err == nil && !applied:
			return done, nil
		case err == nil:
			try = 0
			continue
		case pgErr.Code == undefinedObject && try == 1:
			// Another database of this server was migrated at the same time and created a role that this one could not see yet.
		case (pgErr.Code == lockTimeout || pgErr.Code == deadlock) && time.Since(began) < lockPatience:
		case pgErr.Code == lockTimeout:
			return done, fmt.Errorf("apply the migrations: %w: a transaction has been open for more than %s that used this table, "+
				"such as that of a dump; pg_stat_activity shows it. Migrate again when it has ended", err, lockPatience)
		default:
			return done, fmt.Errorf("apply the migrations: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// step applies the next file that is missing, in a transaction of its own, and reports whether there was one.
func (r *Result) step(ctx context.Context, conn *pgx.Conn, files []file) (applied bool, err error) {
	var next *file
	// Whatever the server's default is: who waited for the lock must see what the holder did.
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", int64(lock)); err != nil {
			return fmt.Errorf("wait for the migration lock: %w", err)
		}
		had, err := readLedger(ctx, tx)
		if err == nil {
			err = had.refuses(files)
		}
		if err != nil {
			return err
		}
		i := slices.IndexFunc(files, had.lacks)
		if i < 0 {
			f := slices.IndexFunc(had, func(r recorded) bool { return r.Source == functions })
			if newest := had[f].Version; newest > functionsNumber {
				r.Notes = append(r.Notes, fmt.Sprintf("the functions of the database have the number %d and stay: this program's have %d",
					newest, functionsNumber))
			}
			return nil
		}
		next = &files[i]
		r.Created = r.Created || len(had) == 0
		// A statement that waits for a table behind a long transaction keeps all others waiting: it gives up, and is tried again.
		sql := "set local lock_timeout = '3s';\n" + next.sql + "\n;\n" + fmt.Sprintf(record, next.source, next.version, next.name, next.sha256())
		if len(had) == 0 {
			sql = createLedger + sql
		}
		_, err = conn.PgConn().Exec(ctx, sql).ReadAll()
		return err
	})
	switch {
	case next == nil:
		return false, err
	case err != nil:
		return false, fmt.Errorf("%s: %w", next, err)
	}
	r.Applied = append(r.Applied, next.String())
	return true, nil
}

// Print writes everything that [Apply] would run on an empty database as one plain SQL file. It can be run again.
func Print(w io.Writer, sources ...Source) error {
	files, err := plan(sources)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, "-- GEM's tables and functions. Made by gem migrate --print; safe to run again.\n\n"+createLedger); err != nil {
		return err
	}
	for _, f := range files {
		if _, err := fmt.Fprintf(w, "\n-- %s\n\n%s\n;\n"+record+";\n", f, f.sql, f.source, f.version, f.name, f.sha256()); err != nil {
			return err
		}
	}
	return nil
}
