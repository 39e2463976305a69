// Package archive has the files that old calls are moved to: [Prune] removes calls from the database after writing them
// to a [File], and a [Loader] reads such files into temporary tables, where an audit checks them.
//
// An archive is a JSONL file that only grows. Each line is a call as gem.prune returns it, with every column of its
// rows in core_tool_calls, core_tool_receipts and core_tool_events:
//
//	{"gem_archive": 1, "call": {…}, "receipt": {…}, "events": [{…}, …]}
//
// If the file's name ends in .gz, it is a sequence of gzip members, one for each batch. In a bucket, each batch is one
// object or more: see [Objects].
package archive

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/gemworker/gem/internal/plainfile"
)

// File is an archive that is open for appending.
type File struct {
	file *os.File
	out  *bufio.Writer
	zip  *gzip.Writer // nil: the lines are not compressed
	open bool         // whether zip has an unfinished member with lines
}

// bufferSize is how many bytes are collected before they are written. Only a longer line is split over two writes.
const bufferSize = 1 << 20

// Open opens the archive at path for appending, or creates it. Only this user of the machine may read it: Open removes
// wider rights, and refuses a file of another user. If an interrupted run left an incomplete last line, Open removes
// it: that line's call is still in the database. It refuses a file that is not an archive, a link, and an archive that
// another process has open for appending, without changing them.
func Open(path string) (*File, error) {
	file, err := plainfile.Open(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	zipped := isZipped(path)
	err = lock(file)
	switch {
	case err != nil:
	case zipped:
		err = repairZipped(file)
	default:
		err = repair(file)
	}
	if err == nil {
		err = closeToOthers(file)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	// A new file must still be in its folder after a crash. Some systems cannot sync a folder, and need not.
	if dir, err := os.Open(filepath.Dir(path)); err == nil {
		_ = dir.Sync()
		_ = dir.Close()
	}
	f := &File{file: file, out: bufio.NewWriterSize(file, bufferSize)}
	if zipped {
		f.zip = newZip(f.out)
	}
	return f, nil
}

// lock makes this process the only one that writes to the file until it closes it. Otherwise repair would take a line
// that another one is writing for an incomplete one. Audits read the file without a lock.
func lock(file *os.File) error {
	locked, err := plainfile.TryLock(file, true)
	if err != nil {
		return fmt.Errorf("the file cannot be locked: choose another file system: %w", err)
	}
	if !locked {
		return errors.New("another gem prune writes to the file: wait until it ends")
	}
	return nil
}

var errNotOurs = errors.New("the file exists and is not an archive of pruned calls")

// repair checks that the file is an archive, and removes an incomplete last line. Before it removes anything, it checks
// every line.
func repair(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	end, err := endOfLines(file, size)
	if err != nil {
		return err
	}
	if err := checkLines(io.NewSectionReader(file, 0, end), end < size); err != nil {
		return err
	}
	if end == size {
		return nil
	}
	if !beginsRow(io.NewSectionReader(file, end, size-end)) {
		return errNotOurs
	}
	return file.Truncate(end)
}

// checkLines checks that the first line of an archive is a row, or that every line is.
func checkLines(r io.Reader, all bool) error {
	lines := bufio.NewReader(r)
	for n := 0; n == 0 || all; n++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var row struct {
			Version int `json:"gem_archive"`
		}
		if json.Unmarshal(line, &row) != nil || row.Version != 1 {
			return errNotOurs
		}
	}
	return nil
}

// members are those of a row, in the order in which Postgres writes them.
var members = []string{"call", "events", "receipt", "gem_archive", "llm_requests", "second_receipts"}

// rowStart is the beginning of each row, as Postgres writes it.
const rowStart = `{"call": {"id": "`

// beginsRow reports whether a text is the beginning of a row, or a whole one.
func beginsRow(text io.ReadSeeker) bool {
	if !begins(text, rowStart) {
		return false
	}
	if _, err := text.Seek(0, io.SeekStart); err != nil {
		return false
	}
	read, expected := json.NewDecoder(text), members
	var value json.RawMessage
	_, err := read.Token()
	for err == nil && read.More() {
		var name json.Token
		if name, err = read.Token(); err != nil {
			break
		}
		at := slices.IndexFunc(expected, func(member string) bool { return member == name })
		if at < 0 {
			return false
		}
		expected = expected[at+1:]
		err = read.Decode(&value)
	}
	if err == nil {
		_, err = read.Token() // the end of the object, where it has one
	}
	if err == nil && len(expected) < 3 { // its version was seen
		_, err = read.Token()
		return errors.Is(err, io.EOF)
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// endOfLines returns the offset after the last line break of a file of that size.
func endOfLines(file *os.File, size int64) (int64, error) {
	buffer := make([]byte, 64<<10)
	for end := size; end > 0; {
		part := buffer[:min(end, int64(len(buffer)))]
		start := end - int64(len(part))
		if _, err := file.ReadAt(part, start); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			return start + int64(i) + 1, nil
		}
		end = start
	}
	return 0, nil
}

// Add appends a line, given without its line break. The line is safe after the next [File.Sync].
func (f *File) Add(_ context.Context, line string) error {
	if f.zip != nil {
		f.open = true
		_, err := io.WriteString(f.zip, line+"\n")
		return err
	}
	if f.out.Buffered() > 0 && f.out.Available() <= len(line) {
		if err := f.out.Flush(); err != nil {
			return err
		}
	}
	_, err := f.out.WriteString(line + "\n")
	return err
}

// Sync returns when all lines so far are on the disk, in the file that [Open] was given. If someone has deleted or
// replaced that file since, it returns an error.
func (f *File) Sync(context.Context) error {
	if f.open {
		if err := f.zip.Close(); err != nil {
			return err
		}
		f.zip.Reset(f.out)
		f.open = false
	}
	if err := f.out.Flush(); err != nil {
		return err
	}
	if err := f.file.Sync(); err != nil {
		return err
	}
	open, err := f.file.Stat()
	if err != nil {
		return err
	}
	if named, err := os.Lstat(f.file.Name()); err != nil || !os.SameFile(open, named) {
		return fmt.Errorf("%s was deleted or moved while it was open: prune again", f.file.Name())
	}
	return nil
}

// Close closes the file. Lines that were not synced may be lost.
func (f *File) Close() error { return f.file.Close() }
