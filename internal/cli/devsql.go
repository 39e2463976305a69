package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/plainfile"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
)

// toolsFile is the file in the working directory that gem dev runs in its database: tools in SQL, and their tables.
const toolsFile = "tools.sql"

// toolsSQL runs toolsFile when it changes.
type toolsSQL struct {
	url      string
	log      *zap.Logger
	progress io.Writer
	read     []byte // the contents that were last run
	faulty   bool   // they failed
}

// await runs the file, and returns when it has no fault or ctx ends.
func (f *toolsSQL) await(ctx context.Context) {
	f.run(ctx, startsOnceRepaired)
	for f.faulty && pause(ctx) {
		f.run(ctx, startsOnceRepaired)
	}
}

// watch runs the file each time it changes, until ctx ends.
func (f *toolsSQL) watch(ctx context.Context) {
	for pause(ctx) {
		f.run(ctx, continuesUntilRepaired)
	}
}

// pause waits for the next poll. It returns false if ctx ends first.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(registryPoll):
		return true
	}
}

// run runs the file if its contents have changed, and reports a fault or its repair. until is the sentence about the
// time until a repair.
func (f *toolsSQL) run(ctx context.Context, until string) {
	text, err := plainfile.Read(toolsFile)
	if errors.Is(err, fs.ErrNotExist) {
		f.faulty = false
		return
	}
	if err != nil {
		text = []byte(err.Error())
	}
	if f.read != nil && bytes.Equal(text, f.read) {
		return
	}
	if err != nil {
		fmt.Fprintf(f.progress, "cannot read %s: %v\n"+until+"\n", toolsFile, err, toolsFile)
		f.read, f.faulty = text, true
		return
	}
	f.read = append([]byte{}, text...)
	db, err := pgx.Connect(ctx, f.url)
	if err == nil {
		_, err = db.PgConn().Exec(ctx, string(text)).ReadAll()
		_, _ = db.Exec(ctx, "notify pgrst, 'reload schema'") // the REST server may not know a new table yet
		_ = db.Close(context.WithoutCancel(ctx))
	}
	if ctx.Err() != nil {
		return
	}
	pgErr, refused := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		if f.faulty {
			fmt.Fprintf(f.progress, "repaired: %s\n", toolsFile)
		}
		f.log.Info(toolsFile + " was run")
	case refused:
		place := toolsFile
		if pgErr.Position > 0 { // counts characters, from 1
			place += fmt.Sprintf(", line %d", 1+strings.Count(string([]rune(string(text))[:pgErr.Position-1]), "\n"))
		}
		fmt.Fprintf(f.progress, "%s failed, and its changes were rolled back: %v\n"+until+"\n", place, refusal(err),
			toolsFile)
	default:
		f.log.Error(toolsFile+" failed", zap.Error(refusal(err)))
	}
	f.faulty = refused
}
