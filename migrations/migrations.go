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
	for try := 1; ; {
		applied, err := done.step(ctx, conn, files)
		switch {
		case err == nil && !applied:
			return done, nil
		case err == nil:
			try = 1
			continue
		case !passing(err, try, time.Since(began)):
			if isCode(err, lockTimeout) {
				err = fmt.Errorf("%w: a transaction has been open for more than %s that used this table, such as that of a dump; "+
					"pg_stat_activity shows it. Migrate again when it has ended", err, lockPatience)
			}
			return done, fmt.Errorf("apply the migrations: %w", err)
		}
		try++
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// step applies the next file that is missing, in a transaction of its own, and reports whether there was one.
func (r *Result) step(ctx context.Context, conn *pgx.Conn, files []file) (applied bool, err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", int64(lock)); err != nil {
		return false, fmt.Errorf("wait for the migration lock: %w", err)
	}
	had, err := readLedger(ctx, tx)
	if err != nil {
		return false, err
	}
	next, err := had.next(files)
	if err != nil || next == nil {
		if err == nil && had.functionsAreNewer() {
			r.Notes = append(r.Notes, fmt.Sprintf("the functions of the database have the number %d and stay: this program's have %d",
				had.functionsVersion(), functionsNumber))
		}
		return false, err
	}
	r.Created = r.Created || len(had) == 0
	// A statement that waits for a table behind a long transaction keeps all others waiting: it gives up, and is tried again.
	sql := "set local lock_timeout = '3s';\n" + next.sql + "\n;\n" + fmt.Sprintf(record, next.source, next.version, next.name, next.sha256())
	if len(had) == 0 {
		sql = createLedger + sql
	}
	if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
		return false, fmt.Errorf("%s: %w", next, err)
	}
	if err := tx.Commit(ctx); err != nil {
		return false, fmt.Errorf("%s: %w", next, err)
	}
	r.Applied = append(r.Applied, next.String())
	return true, nil
}

// lockPatience is how long a file is tried again that gets no lock.
const lockPatience = time.Minute

// SQLSTATEs.
const (
	lockTimeout     = "55P03"
	undefinedObject = "42704"
)

// passing reports whether a file that failed is to be tried again: it got no lock in time; or another database of this server
// was migrated at the same time and created a role that this transaction cannot see yet.
func passing(err error, try int, since time.Duration) bool {
	return isCode(err, lockTimeout) && since < lockPatience || isCode(err, undefinedObject) && try == 1
}

func isCode(err error, code string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == code
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
