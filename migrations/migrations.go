// Package migrations makes GEM's tables and functions, and those of domains and programs, and keeps them current.
//
// tables/ holds GEM's tables as numbered files, which only grow once they are released. functions/ holds its functions,
// triggers, views and rights, each once: functions/states.sql is the place to begin. They are applied whole, under a number
// that rises with every change. Domains and programs bring files of their own, with numbers of their own: see [Source].
//
// The table gem.migrations records the files that were applied and the objects that they created. Everything else in a database is someone else's, and is not changed.
// All of it is plain SQL: [Print] gives it as one file for psql, or for
// the migrations folder of Supabase.
package migrations

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// createLedger makes the table of what was applied. It stands here, since it must be there before the first file.
const createLedger = `create table if not exists gem.migrations (
  source     text        not null, -- core and functions are GEM's; a domain's name; program
  version    integer     not null, -- of a file, or of all functions; 0 for the grants of a source
  file       text        not null,
  sha256     text        not null,
  objects    text[]      not null default '{}', -- what the file created, as 'table public.notes': these are GEM's
  applied_at timestamptz not null default clock_timestamp(),
  primary key (source, version)
);
`

// record writes the line of a file that was applied.
const record = `insert into gem.migrations as m (source, version, file, sha256, objects) values ('%s', %d, '%s', '%s', %s)
on conflict (source, version) do update set file = excluded.file, sha256 = excluded.sha256, applied_at = excluded.applied_at,
  objects = (select coalesce(array_agg(distinct o order by o), '{}') from unnest(m.objects || excluded.objects) o)`

// lock is the advisory lock that lets one process migrate at a time; the number is arbitrary and stays.
const lock = 4716_0001

const (
	lockPatience    = time.Minute // for a file that gets no lock
	lockTimeout     = "55P03"     // SQLSTATE, as the two below
	deadlock        = "40P01"
	undefinedObject = "42704"
)

// Options are a person's decisions about a migration. The zero value is the usual case.
type Options struct {
	// Adopt names tables of an earlier GEM, such as notes or public.notes, that become GEM's. Others are never changed.
	Adopt []string
	// AdoptRoles names roles of GEM, such as gem_worker, that someone else created for it.
	AdoptRoles []string
	// API says whether GEM adds to objects that are not its own: see api.sql. Nil means the value of the last run, at first true.
	API *bool
	// DryRun undoes everything at the end.
	DryRun bool
}

// adopted are the tables to adopt, as the ledger names them.
func (o Options) adopted() []string {
	all := []string{}
	for _, t := range o.Adopt {
		all = append(all, "table public."+strings.TrimPrefix(t, "public."))
	}
	return all
}

// Result says what [Apply] did.
type Result struct {
	Created bool     // the database had nothing of GEM before
	Applied []string // the files, as source/name, in order
	Changes Changes  // what they created and changed
	Notes   []string // what was left out, such as a role that this role may not create
}

// Up is [Apply] for callers that do not need its result.
func Up(ctx context.Context, url string, sources ...Source) error {
	_, err := Apply(ctx, url, Options{}, sources...)
	return err
}

// Apply brings the database at url to what this program needs: GEM's own tables and functions, and then the sources. It
// returns what was done. Each file is one transaction; with tables to adopt, all files are one. Several processes may call it at once: they take turns, and each file is
// applied by one of them. It needs one connection and works through a transaction pooler.
//
// It never changes an object that GEM did not create: if a name that it needs is taken, it changes nothing and returns a [TakenError].
// It refuses a database that records a version which this program does not know, a file that was changed after it was
// applied, and other functions under the same number. Functions of a higher number stay, with a note.
func Apply(ctx context.Context, url string, o Options, sources ...Source) (Result, error) {
	run := migration{Options: o}
	files, err := plan(sources)
	if err == nil {
		err = o.check(files)
	}
	if err != nil {
		return run.Result, err
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return run.Result, errors.New("the connection string is not valid: it has the form postgres://user:password@host:5432/database")
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // nothing is prepared, which a transaction pooler would not keep
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.Routine == "exec_stmt_raise" && !slices.Contains(run.Notes, n.Message) { // raised by a file, and not by Postgres
			run.Notes = append(run.Notes, n.Message)
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return run.Result, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()

	began := time.Now()
	for try := 1; ; try++ {
		more, err := run.next(ctx, conn, files)
		pgErr := &pgconn.PgError{} // without a code if err is not Postgres's
		errors.As(err, &pgErr)
		switch {
		case err == nil && !more:
			return run.Result, nil
		case err == nil:
			try = 0
			continue
		case pgErr.Code == undefinedObject && try == 1:
			// Another database of this server was migrated at the same time and created a role that this one could not see yet.
		case (pgErr.Code == lockTimeout || pgErr.Code == deadlock) && time.Since(began) < lockPatience:
		case pgErr.Code == lockTimeout:
			return run.Result, fmt.Errorf("apply the migrations: %w: a transaction has been open for more than %s that used this table, "+
				"such as that of a dump; pg_stat_activity shows it. Migrate again when it has ended", err, lockPatience)
		case pgErr.Code != "":
			return run.Result, fmt.Errorf("apply the migrations: %w", err)
		default:
			return run.Result, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// migration is a run of [Apply].
type migration struct {
	Options
	Result
	again bool // the functions and all grants are applied again, since roles were missing
}

// errUndo ends the transaction of a dry run.
var errUndo = errors.New("a dry run")

// whole reports whether all files are one transaction: a dry run is rolled back, and an adoption, which tables of others may prevent, is
// done as a whole or not at all.
func (m *migration) whole() bool { return m.DryRun || len(m.Adopt) > 0 }

// next applies the next missing file in a transaction of its own, and reports whether there may be more. If the run is [migration.whole], it
// applies all of them.
func (m *migration) next(ctx context.Context, conn *pgx.Conn, files []file) (more bool, err error) {
	before := m.Result
	// Whatever the server's default is: who waited for the lock must see what the holder did.
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", int64(lock)); err != nil {
			return fmt.Errorf("wait for the migration lock: %w", err)
		}
		more, err = m.step(ctx, tx, files)
		for m.whole() && more && err == nil {
			more, err = m.step(ctx, tx, files)
		}
		if err == nil && m.DryRun {
			return errUndo
		}
		return err
	})
	switch {
	case errors.Is(err, errUndo):
		return false, nil
	case err != nil:
		notes := m.Notes // that were raised meanwhile
		m.Result = before
		m.Notes = notes
	}
	return more, err
}

// step applies the next file that is missing, and reports whether there was one.
func (m *migration) step(ctx context.Context, tx pgx.Tx, files []file) (applied bool, err error) {
	had, err := readLedger(ctx, tx)
	if err == nil {
		err = had.refuses(files)
	}
	if err == nil {
		err = m.adoptRoles(ctx, tx)
	}
	if err != nil {
		return false, err
	}
	if !m.again {
		if m.again, err = rightsAreMissing(ctx, tx, had); err != nil {
			return false, err
		}
	}
	api := had.wantsAPI(m.API)
	var missing []file
	for _, f := range files {
		if f.source == apiSource {
			f = f.only(api)
		}
		if had.lacks(f) || m.again && f.repeats() && had.has(f) && !slices.Contains(m.Applied, f.String()) {
			missing = append(missing, f)
		}
	}
	if len(missing) == 0 {
		if newest := had.functions(); newest > functionsNumber {
			m.Notes = append(m.Notes, fmt.Sprintf("the functions of the database have the number %d and stay: this program's have %d",
				newest, functionsNumber))
		}
		return false, nil
	}
	switch found, err := findTaken(ctx, tx, missing, had, m.adopted()); {
	case err != nil:
		return false, err
	case len(found) > 0:
		return false, &TakenError{found, len(m.Applied) > 0 && !m.whole()}
	}
	next := missing[0]
	was, err := look(ctx, tx)
	if err != nil {
		return false, err
	}
	// A statement that waits for a table behind a long transaction blocks all others, so it times out and is retried.
	sql := next.closed() + next.record()
	if len(had) == 0 {
		sql = createLedger + sql
	}
	sql = "set local lock_timeout = '3s';\n" + withoutDefaults + sql
	if _, err = tx.Conn().PgConn().Exec(ctx, sql).ReadAll(); err != nil {
		return false, fmt.Errorf("%s: %w", next, err)
	}
	is, err := look(ctx, tx)
	if err != nil {
		return false, err
	}
	m.Created = m.Created || len(had) == 0
	m.Changes = m.Changes.plus(was, is)
	m.Applied = append(m.Applied, next.String())
	return true, nil
}

// Print writes everything that [Apply] would run on an empty database as one plain SQL file: one transaction, which begins with
// the check for names that are taken. It can be run again. The first line says what it is for.
func Print(w io.Writer, forWhat string, o Options, sources ...Source) error {
	files, err := plan(sources)
	if err == nil {
		err = o.check(files)
	}
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "-- GEM's tables and functions%s. Made by gem migrate --print; safe to run again.\n\nbegin;\n\n", forWhat)
	for _, role := range o.AdoptRoles {
		b.WriteString(adoptRole(role))
	}
	b.WriteString(checkBlock(files, o) + "\n" + withoutDefaults + createLedger)
	for _, f := range files {
		if f.source == apiSource {
			f = f.only(o.API == nil || *o.API)
		}
		fmt.Fprintf(&b, "\n-- %s\n\n%s%s;\n", f, f.closed(), f.record())
	}
	b.WriteString("\ncommit;\n")
	_, err = io.WriteString(w, b.String())
	return err
}
