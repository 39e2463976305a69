package audit

import (
	"context"
	"fmt"
	"io"

	"github.com/gemworker/gem/internal/archive"
	"github.com/jackc/pgx/v5"
)

// File is an archive that gem prune wrote; an [os.File] is one. The findings about its lines contain its name.
type File interface {
	io.Reader
	Name() string
}

// Archives checks archives of pruned calls, all of them together, by the statements that check a database.
//
// It loads them into temporary tables, in a transaction that writes nothing else and is rolled back at the end. It can
// use any database with GEM's tables, even through a transaction pooler, and the role needs only the right TEMP.
// Parents and repeated receipts may be missing: another archive or a database has them. A line that cannot be read is a
// finding, not an error. A million calls take a few minutes, mostly for loading, and as much temporary disk space as
// the archives.
func Archives(ctx context.Context, db Beginner, files []File, o Options) (*Report, error) {
	return run(ctx, db, archives, files, o)
}

// load loads archives into temporary tables.
func load(ctx context.Context, tx pgx.Tx, files []File) error {
	loader, err := archive.NewLoader(ctx, tx)
	err = explained(err, insufficientPrivilege, "an archive is checked in temporary tables, and this role cannot create "+
		"them (%s)")
	err = explained(err, undefinedObject, "an archive is checked in temporary tables like GEM's own, which this "+
		"database lacks (%s): "+
		"run `gem migrate`")
	if err != nil {
		return err
	}
	// From here on Postgres refuses to write anything but temporary tables.
	if _, err := tx.Exec(ctx, "set local transaction_read_only = on"); err != nil {
		return err
	}
	for _, file := range files {
		if err := loader.Load(ctx, file.Name(), file); err != nil {
			return fmt.Errorf("load the archive %s: %w", file.Name(), err)
		}
	}
	_, err = tx.Exec(ctx, "analyze pg_temp.core_tool_calls, pg_temp.core_tool_receipts, pg_temp.core_tool_events, "+
		"pg_temp.archive_lines")
	return err
}
