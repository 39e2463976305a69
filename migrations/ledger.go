package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// DB reads: a pool, a connection or a transaction.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// ledger is what a database records: by source and version, the file and its hash. It is empty before the first file.
type ledger map[version]recorded

type version struct {
	source string
	number int
}

type recorded struct{ file, sha256 string }

func readLedger(ctx context.Context, db DB) (ledger, error) {
	had := ledger{}
	rows, err := db.Query(ctx, "select to_regclass('gem.migrations') is not null")
	if err != nil {
		return nil, fmt.Errorf("read the schema's version: %w", err)
	}
	if there, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool]); err != nil || !there {
		return had, err
	}
	rows, err = db.Query(ctx, "select source, version, file, sha256 from gem.migrations")
	if err != nil {
		return nil, fmt.Errorf("read the schema's version: %w", err)
	}
	var (
		v version
		r recorded
	)
	_, err = pgx.ForEachRow(rows, []any{&v.source, &v.number, &r.file, &r.sha256}, func() error {
		had[v] = r
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the schema's version: %w", err)
	}
	return had, nil
}

// next is the first of the files that the database lacks, or nil.
func (had ledger) next(files []file) (*file, error) {
	if err := had.refuses(files); err != nil {
		return nil, err
	}
	for _, f := range files {
		if had.lacks(f) {
			return &f, nil
		}
	}
	return nil, nil
}

// lacks reports whether f is to be applied.
func (had ledger) lacks(f file) bool {
	switch was, there := had[version{f.source, f.version}]; {
	case f.source == functions:
		return had.functionsVersion() < f.version
	case f.version == grantsVersion:
		return was.sha256 != f.sha256()
	default:
		return !there
	}
}

// refuses says why these files cannot be applied to the database.
func (had ledger) refuses(files []file) error {
	known := map[version]file{}
	sources := map[string]bool{}
	for _, f := range files {
		known[version{f.source, f.version}] = f
		sources[f.source] = true
	}
	for v, was := range had {
		f, there := known[v]
		switch {
		case !sources[v.source] || v.number == grantsVersion:
			// Another program's, or what changes freely.
		case v.source == functions && v.number != functionsNumber:
			// Older ones were replaced; newer ones stay.
		case !there:
			return fmt.Errorf("the database records the migration %s/%s, which this program does not have: "+
				"it was migrated by a newer program, or by another one under the same name. Migrate with that program", v.source, was.file)
		case was.sha256 != f.sha256() && v.source == functions:
			return fmt.Errorf("the database has other functions under the same number %d: raise functionsNumber in migrations/source.go", v.number)
		case was.sha256 != f.sha256():
			return fmt.Errorf("the migration %s was changed after it was applied to this database: "+
				"put it back as it was, and put the change into the next file", f)
		}
	}
	return nil
}

// functionsVersion is the highest number under which functions were applied; 0 before that.
func (had ledger) functionsVersion() int {
	highest := 0
	for v := range had {
		if v.source == functions {
			highest = max(highest, v.number)
		}
	}
	return highest
}

func (had ledger) functionsAreNewer() bool { return had.functionsVersion() > functionsNumber }

// Check returns nil when the database has all that this program needs, and otherwise an error that says to run
// `gem migrate`. A database that was migrated by a newer program is fine: migrations let older workers go on.
func Check(ctx context.Context, db DB, sources ...Source) error {
	files, err := plan(sources)
	if err != nil {
		return err
	}
	had, err := readLedger(ctx, db)
	if err != nil {
		return err
	}
	for _, f := range files {
		if f.version == grantsVersion {
			continue // a worker may work without them
		}
		if had.lacks(f) {
			if len(had) == 0 {
				return fmt.Errorf("the database has none of GEM's tables: run `gem migrate`")
			}
			return fmt.Errorf("the database lacks the migration %s: run `gem migrate`", f)
		}
	}
	return nil
}
