// Package migrations creates and updates the tables and functions of GEM, of domains and of programs.
//
// tables/ has GEM's tables as numbered files, which never change after a release. functions/ has its functions,
// triggers, views and rights; functions/states.sql is the place to begin reading. Functions are applied as a whole,
// under a number that increases with every change. Domains and programs bring numbered files of their own: see
// [Source].
//
// The table gem.migrations records the applied files and the objects that they created. GEM does not change any other
// object of a database. Everything is plain SQL: [Print] writes it as one file for psql, or for the migrations folder
// of Supabase.
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

// createLedger creates the table of applied files. It is not in a file because the first file needs it.
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

// record writes the row of a file that was applied.
const record = `insert into gem.migrations as m (source, version, file, sha256, objects)
	values ('%s', %d, '%s', '%s', %s)
on conflict (source, version) do update set file = excluded.file, sha256 = excluded.sha256,
	applied_at = excluded.applied_at,
  objects = (select coalesce(array_agg(distinct o order by o), '{}') from unnest(m.objects || excluded.objects) o)`

// lock is an advisory lock, so that one process migrates at a time. The number is arbitrary and must not change.
const lock = 4716_0001

// lockPatience is for a file that gets no lock, and for the lock of migrations.
var lockPatience = time.Minute

const (
	lockTimeout     = "55P03" // a SQLSTATE, like the following
	deadlock        = "40P01"
	queryCanceled   = "57014"
	undefinedObject = "42704"
)

// Options are a person's decisions about a migration. The zero value is the usual case.
type Options struct {
	// Adopt names tables of an earlier GEM, such as notes or public.notes, that become GEM's. Default: none.
	Adopt []string
	// AdoptRoles names roles of GEM, such as gem_worker, that someone else created for it. Default: none.
	AdoptRoles []string
	// API reports whether GEM adds to objects that are not its own: see api.sql. Default: the value of the last run, at
	// first true.
	API *bool
	// DryRun rolls everything back at the end.
	DryRun bool
}

// adopted returns the tables to adopt, by their names in the ledger.
func (o Options) adopted() []string {
	all := []string{}
	for _, t := range o.Adopt {
		all = append(all, "table public."+strings.TrimPrefix(t, "public."))
	}
	return all
}

// Result describes a run of [Apply].
type Result struct {
	Created bool     // the database had no objects of GEM before
	Applied []string // the files, as source/name, in order
	Changes Changes  // the objects that they created and changed
	Notes   []string // omissions, such as a role that this role may not create
}

// Up calls [Apply] and returns only its error.
func Up(ctx context.Context, url string, sources ...Source) error {
	_, err := Apply(ctx, url, Options{}, sources...)
	return err
}

// Apply migrates the database at url to the version that this program needs: GEM's own tables and functions first, then
// the sources. It returns what was done. Each file is one transaction. In a database without GEM, and with tables to
// adopt, all files are one transaction, which locks these tables until it ends. Several processes may call it at once:
// they take turns, and each file is applied once. It needs one connection, which may be through a transaction pooler.
//
// It never changes an object that GEM did not create: if a name that it needs is taken, it changes nothing and returns
// a [TakenError]. It also returns an error if the database records a version that this program does not know, if a file
// was changed after it was applied, or if the functions differ under the same number. Functions with a higher number
// stay, and the result has a note.
func Apply(ctx context.Context, url string, o Options, sources ...Source) (Result, error) {
	run := migration{Options: o}
	return run.apply(ctx, url, sources)
}

func (run *migration) apply(ctx context.Context, url string, sources []Source) (Result, error) {
	files, err := plan(sources)
	if err == nil {
		err = run.check(files)
	}
	if err != nil {
		return run.Result, err
	}
	conn, err := connect(ctx, url, func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.Routine == "exec_stmt_raise" { // raised by a file, not by Postgres
			run.note(n.Message)
		}
	})
	if err != nil {
		return run.Result, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()

	began := time.Now()
	for try := 1; ; try++ {
		more, err := run.next(ctx, conn, files)
		pgErr := &pgconn.PgError{} // its code is empty if err is not from Postgres
		errors.As(err, &pgErr)
		switch {
		case err == nil && !more:
			return run.Result, nil
		case err == nil:
			try = 0
			continue
		case pgErr.Code == undefinedObject && try == 1:
			// A migration of another database on this server has created a role that this one could not see yet.
		case (pgErr.Code == lockTimeout || pgErr.Code == deadlock) && time.Since(began) < lockPatience:
		case pgErr.Code == lockTimeout:
			return run.Result, fmt.Errorf("apply the migrations: %w: another transaction, such as a dump or the migration "+
				"of another database on this server, has been open for more than %s; pg_stat_activity shows it. Migrate "+
				"again when it has ended", err, lockPatience)
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

func connect(ctx context.Context, url string, notice pgconn.NoticeHandler) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, errors.New("the connection string is not valid: it has the form " +
			"postgres://user:password@host:5432/database")
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // no prepared statements, which a transaction pooler would lose
	config.OnNotice = notice
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// migration is a run of [Apply].
type migration struct {
	Options
	Result
	again bool // the functions and all grants are applied again, because roles were missing
}

// note adds a note to the result, once.
func (m *migration) note(text string) {
	if !slices.Contains(m.Notes, text) {
		m.Notes = append(m.Notes, text)
	}
}

// errUndo rolls back the transaction of a dry run.
var errUndo = errors.New("a dry run")

// whole reports whether all files are one transaction. A dry run is rolled back as a whole. An adoption, which other
// users' tables may prevent, happens as a whole or not at all. So does the first migration: no call waits for its
// locks, and it takes half the time.
func (m *migration) whole(had ledger) bool { return m.DryRun || len(m.Adopt) > 0 || len(had) == 0 }

// next applies the next missing file in a transaction, or all of them if the run is [migration.whole]. It reports
// whether there may be more.
func (m *migration) next(ctx context.Context, conn *pgx.Conn, files []file) (more bool, err error) {
	before := m.Result
	err = inTx(ctx, conn, func(tx pgx.Tx) error {
		if err := takeLock(ctx, tx); err != nil {
			return err
		}
		had, missing, err := m.missing(ctx, tx, files)
		if err != nil || len(missing) == 0 {
			return err
		}
		if more = !m.whole(had); more {
			missing = missing[:1]
		}
		if err := m.applyFiles(ctx, tx, missing, len(had) == 0); err != nil {
			return err
		}
		if m.DryRun {
			return errUndo
		}
		return nil
	})
	switch {
	case errors.Is(err, errUndo):
		return false, nil
	case err != nil:
		notes := m.Notes // raised in the meantime
		m.Result = before
		m.Notes = notes
	}
	return more, err
}

// takeLock waits for its turn to migrate. Any login can hold the lock, so the error names the session that does.
func takeLock(ctx context.Context, tx pgx.Tx) error {
	err := pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
		patience := fmt.Sprintf("set local lock_timeout = '%dms'", lockPatience.Milliseconds())
		if _, err := inner.Exec(ctx, patience); err != nil {
			return err
		}
		_, err := inner.Exec(ctx, "select pg_advisory_xact_lock($1)", int64(lock))
		return err
	})
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != lockTimeout {
		if err != nil {
			return fmt.Errorf("wait for the migration lock: %w", err)
		}
		return nil
	}
	var holder string
	err = tx.QueryRow(ctx, `select format('process %s, user %s, application %s', l.pid, a.usename,
			coalesce(nullif(a.application_name, ''), 'unnamed'))
		from pg_locks l left join pg_stat_activity a on a.pid = l.pid
		where l.locktype = 'advisory' and l.granted and l.objsubid = 1
			and l.database = (select oid from pg_database where datname = current_database())
			and (l.classid::bigint << 32) + l.objid::bigint = $1`, int64(lock)).Scan(&holder)
	if err != nil {
		holder = "which has just ended"
	}
	return fmt.Errorf("another session has held the migration lock for more than %s: %s. If it is another gem migrate, "+
		"wait for it. Otherwise end it with pg_terminate_backend. Then migrate again", lockPatience, holder)
}

// missing returns the ledger and the files that it lacks. It returns an error if they cannot be applied.
func (m *migration) missing(ctx context.Context, tx pgx.Tx, files []file) (had ledger, missing []file, err error) {
	had, err = readLedger(ctx, tx)
	if err == nil {
		err = had.refuses(files)
	}
	if err == nil {
		err = m.adoptRoles(ctx, tx)
	}
	if err == nil && !m.again {
		m.again, err = rightsAreMissing(ctx, tx, had)
	}
	if err != nil {
		return nil, nil, err
	}
	api := had.wantsAPI(m.API)
	for _, f := range files {
		if f.source == apiSource {
			f = f.only(api)
		}
		if had.lacks(f) || m.again && f.repeats() && had.has(f) && !slices.Contains(m.Applied, f.String()) {
			missing = append(missing, f)
		}
	}
	if newest := had.functions(); newest > functionsNumber {
		m.note(fmt.Sprintf("the database keeps its functions with the number %d: this program has %d", newest,
			functionsNumber))
	}
	if len(missing) == 0 {
		return had, nil, nil
	}
	switch found, err := findTaken(ctx, tx, missing, had, m.adopted()); {
	case err != nil:
		return nil, nil, err
	case len(found) > 0:
		return nil, nil, &TakenError{found, len(m.Applied) > 0}
	}
	return had, missing, nil
}

// applyFiles applies the files. first means that the database has no ledger yet.
func (m *migration) applyFiles(ctx context.Context, tx pgx.Tx, files []file, first bool) error {
	was, err := look(ctx, tx)
	if err != nil {
		return err
	}
	m.Created = m.Created || first
	for _, f := range files {
		sql := f.applied()
		if first {
			sql, first = createLedger+sql, false
		}
		// A statement that waits for a table behind a long transaction blocks all others, so it times out and is retried.
		sql = "set local lock_timeout = '3s';\n" + withoutDefaults + sql
		if _, err = tx.Conn().PgConn().Exec(ctx, sql).ReadAll(); err != nil {
			pgErr := &pgconn.PgError{}
			if errors.As(err, &pgErr); pgErr.Where != "" { // it may be an event trigger of others
				within, _, _ := strings.Cut(pgErr.Where, "\n")
				return fmt.Errorf("%s: %w, in %s", f, err, within)
			}
			return fmt.Errorf("%s: %w", f, err)
		}
		m.Applied = append(m.Applied, f.String())
	}
	is, err := look(ctx, tx)
	if err == nil {
		m.Changes = m.Changes.plus(was, is)
	}
	return err
}

// Print writes everything that [Apply] would run on an empty database as one plain SQL file: one transaction, which
// begins by checking for names that are taken. It can be run repeatedly. The first line describes its purpose, forWhat.
func Print(w io.Writer, forWhat string, o Options, sources ...Source) error {
	files, err := plan(sources)
	if err == nil {
		err = o.check(files)
	}
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "-- GEM's tables and functions%s. Made by gem migrate --print; safe to run again.\n\nbegin;\n\n%s\n",
		forWhat, firstAsGEM)
	for _, role := range o.AdoptRoles {
		b.WriteString(adoptRole(role))
	}
	b.WriteString(checkBlock(files, o) + "\n" + withoutDefaults + createLedger)
	for _, f := range files {
		if f.source == apiSource {
			f = f.only(o.API == nil || *o.API)
		}
		fmt.Fprintf(&b, "\n-- %s\n\n%s;\n", f, f.applied())
	}
	b.WriteString("\ncommit;\n")
	_, err = io.WriteString(w, b.String())
	return err
}
