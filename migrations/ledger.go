package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// DB reads: it is a pool, a connection or a transaction.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// ledger lists the files that a database records, the highest versions first. It is empty before the first file.
type ledger []ledgerEntry

type ledgerEntry struct {
	Source       string
	Version      int
	File, SHA256 string
	Objects      []string // the objects that the file created, such as "table public.notes"
}

// ledgerIsThere is true if gem.migrations is GEM's: the schema gem may be someone else's. [Check] runs it with any
// search path, so it must not find overloads of pg_catalog's functions and operators.
const ledgerIsThere = `coalesce((
    select pg_catalog.string_agg(attname::text, ' '::text
      order by attnum) = 'source version file sha256 objects applied_at'
    from pg_catalog.pg_attribute
    where attrelid = pg_catalog.to_regclass('gem.migrations')::oid and attnum > 0 and not attisdropped), false)`

// objects returns all objects that the files created.
func (had ledger) objects() []string {
	all := []string{}
	for _, r := range had {
		all = append(all, r.Objects...)
	}
	return all
}

func readLedger(ctx context.Context, db DB) (had ledger, err error) {
	rows, _ := db.Query(ctx, "select "+ledgerIsThere) // the rows have its error
	there, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool])
	if there {
		rows, _ = db.Query(ctx, "select source, version, file, sha256, objects from gem.migrations order by version desc")
		had, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ledgerEntry])
	}
	if err != nil {
		return nil, fmt.Errorf("read the schema's version: %w", err)
	}
	return had, nil
}

// lacks reports whether f is to be applied. Functions with a higher number stay. Grants may change at any time.
func (had ledger) lacks(f file) bool {
	return !slices.ContainsFunc(had, func(r ledgerEntry) bool {
		return r.Source == f.source &&
			(r.Version == f.version || r.Version > f.version && f.source == functions) &&
			(r.SHA256 == f.sha256() || f.version != grantsVersion)
	})
}

// has reports whether f was applied with these contents.
func (had ledger) has(f file) bool {
	return slices.ContainsFunc(had, func(r ledgerEntry) bool {
		return r.Source == f.source && r.Version == f.version && r.SHA256 == f.sha256()
	})
}

// functions returns the highest recorded number of the functions.
func (had ledger) functions() int {
	highest := 0
	for _, r := range had {
		if r.Source == functions {
			highest = max(highest, r.Version)
		}
	}
	return highest
}

// wantsAPI reports whether GEM adds to objects that are not its own: as the option says, or as in the last run.
func (had ledger) wantsAPI(said *bool) bool {
	if said != nil {
		return *said
	}
	return !slices.ContainsFunc(had, func(r ledgerEntry) bool { return r.Source == apiSource && r.File == noAPI })
}

// refuses returns an error if these files cannot be applied to the database.
func (had ledger) refuses(files []file) error {
	known := map[string]bool{}
	for _, f := range files {
		known[f.source] = true
	}
	for _, r := range had {
		if !known[r.Source] || r.Version == grantsVersion {
			continue // another program's file, or one that may change at any time
		}
		i := slices.IndexFunc(files, func(f file) bool { return f.source == r.Source && f.version == r.Version })
		switch {
		case i < 0 && r.Source == functions:
			// Newer functions replace older ones, and stay if the program's are older.
		case i < 0:
			return fmt.Errorf("the database records the migration %s/%s, which this program does not have: "+
				"it was migrated by a newer program, or by another one under the same name. Migrate with that program", r.Source,
				r.File)
		case r.SHA256 != files[i].sha256() && r.Source == functions:
			return fmt.Errorf("the database has other functions under the same number %d: raise functionsNumber in "+
				"migrations/source.go", r.Version)
		case r.SHA256 != files[i].sha256():
			return fmt.Errorf("the migration %s was changed after it was applied to this database: "+
				"restore it, and put the change into the next file", files[i])
		}
	}
	return nil
}

// Check returns nil if the database has everything that this program needs. Otherwise its error says to run `gem
// migrate`. A database that a newer program has migrated passes, because older workers can continue after a migration.
func Check(ctx context.Context, db DB, sources ...Source) error {
	files, err := plan(sources)
	if err != nil {
		return err
	}
	had, err := readLedger(ctx, db)
	if err != nil {
		return err
	}
	// A worker may run without the grants.
	missing := slices.IndexFunc(files, func(f file) bool { return f.version != grantsVersion && had.lacks(f) })
	switch {
	case missing < 0:
		return nil
	case len(had) == 0:
		return errors.New("the database has none of GEM's tables: run `gem migrate`")
	}
	return fmt.Errorf("the database lacks the migration %s: run `gem migrate`", files[missing])
}
