package archive

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
)

const (
	// maxLine is how long a line may be in bytes: no jsonb value is longer.
	maxLine = 256 << 20
	// A batch is sent when it has so many lines or bytes.
	batchLines = 1000
	batchBytes = 4 << 20
)

//go:embed load.sql
var loadSQL string

// Loader loads archives into temporary tables, which last until the transaction ends: core_tool_calls,
// core_tool_receipts and core_tool_events have the columns of the tables in public, and archive_lines has a row for
// each line.
type Loader struct {
	tx    pgx.Tx
	lines int64 // of all files so far
	whole bool  // an incomplete end of the present file is a fault
	batch [][]byte
	bytes int
}

// NewLoader creates the temporary tables. The database must have GEM's tables; the role needs no right on them, only
// TEMP.
func NewLoader(ctx context.Context, tx pgx.Tx) (*Loader, error) {
	if _, err := tx.Exec(ctx, loadSQL, pgx.QueryExecModeSimpleProtocol); err != nil {
		return nil, fmt.Errorf("create temporary tables: %w", err)
	}
	return &Loader{tx: tx}, nil
}

// Load reads an archive to its end. A line that cannot be read is noted in archive_lines and is not an error. Memory
// holds one batch of lines, or one longer line.
func (l *Loader) Load(ctx context.Context, name string, r io.Reader) error {
	l.whole = false
	if source, ok := r.(*Source); ok {
		l.whole = source.whole
	}
	in := bufio.NewReaderSize(r, 1<<20)
	for number := int64(1); ; number++ {
		line, size, err := readLine(in, maxLine)
		if errors.Is(err, io.EOF) {
			if size == 0 && number == 1 && l.whole {
				return l.stop(ctx, name, number, "the object is empty", true)
			} else if size == 0 {
				return l.flush(ctx, name, number)
			}
			return l.stop(ctx, name, number, fmt.Sprintf("the line ends after %d bytes without a line break", size), true)
		}
		if errors.Is(err, io.ErrUnexpectedEOF) || isDamage(err) { // only reading a compressed file returns these
			return l.stop(ctx, name, number, fmt.Sprintf("the compressed data cannot be read from here on: %s", err),
				errors.Is(err, io.ErrUnexpectedEOF))
		}
		if err != nil {
			return err
		}
		l.batch, l.bytes = append(l.batch, line), l.bytes+len(line)
		if len(l.batch) >= batchLines || l.bytes >= batchBytes {
			if err := l.flush(ctx, name, number+1); err != nil {
				return err
			}
		}
	}
}

// stop loads the batch, and records why reading stops at the line of that number. torn means that an interrupted run
// may be the cause.
func (l *Loader) stop(ctx context.Context, name string, number int64, fault string, torn bool) error {
	if err := l.flush(ctx, name, number); err != nil {
		return err
	}
	l.lines++
	_, err := l.tx.Exec(ctx, "insert into pg_temp.archive_lines (line, place, fault, torn) values ($1, $2, $3, $4)",
		l.lines, fmt.Sprintf("%s:%d", name, number), fault, torn && !l.whole)
	return err
}

// flush loads the batch, which ends before the line of that number.
func (l *Loader) flush(ctx context.Context, name string, next int64) error {
	n := int64(len(l.batch))
	if n == 0 {
		return nil
	}
	_, err := l.tx.Exec(ctx, "select pg_temp.load_lines($1, $2, $3, $4)", l.lines+1, name, next-n, l.batch)
	l.lines, l.batch, l.bytes = l.lines+n, nil, 0
	return err
}

// readLine returns the next line without its line break, and its size with it. The line is nil if that is above the
// limit. The error is io.EOF if the file ends before a line break.
func readLine(in *bufio.Reader, limit int) (line []byte, size int, err error) {
	line = []byte{}
	for {
		part, err := in.ReadSlice('\n')
		if size += len(part); size <= limit {
			line = append(line, part...)
		} else {
			line = nil
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil || line == nil:
			return line, size, err
		default:
			return line[:len(line)-1], size, nil
		}
	}
}
