package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
)

// toolsFile is the file in the working directory that gem dev runs in its database: tools in SQL, and their tables.
const toolsFile = "tools.sql"

// runToolsFile runs the file if it has other contents than last, and returns its contents. A failure is logged: its author is about to correct it.
func (s *setup) runToolsFile(ctx context.Context, url string, last []byte) []byte {
	text, err := os.ReadFile(toolsFile)
	if err != nil || bytes.Equal(text, last) {
		return last // an editor may be replacing it
	}
	db, err := pgx.Connect(ctx, url)
	if err == nil {
		_, err = db.PgConn().Exec(ctx, string(text)).ReadAll()
		_, _ = db.Exec(ctx, "notify pgrst, 'reload schema'") // the REST server may not know a new table yet
		_ = db.Close(context.WithoutCancel(ctx))
	}
	switch pgErr := (*pgconn.PgError)(nil); {
	case err == nil:
		s.log.Info(toolsFile + " was run")
	case ctx.Err() != nil:
	case errors.As(err, &pgErr) && pgErr.Position > 0: // counts characters, from 1
		line := 1 + strings.Count(string([]rune(string(text))[:pgErr.Position-1]), "\n")
		s.log.Error(toolsFile+" failed, and nothing of it was done", zap.Int("line", line), zap.String("error", refusal(err).Error()))
	default:
		s.log.Error(toolsFile+" failed", zap.Error(refusal(err)))
	}
	return text
}

// watchToolsFile runs the file whenever it has changed.
func (s *setup) watchToolsFile(ctx context.Context, url string, last []byte) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(registryPoll):
			last = s.runToolsFile(ctx, url, last)
		}
	}
}
