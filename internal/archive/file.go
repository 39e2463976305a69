// Package archive has the files that old calls are moved to: [Prune] removes calls from the database after writing them to a
// [File], and a [Loader] reads such files into temporary tables, where an audit checks them.
//
// An archive is a JSONL file that only grows. Each line is a call as gem.prune returns it, with every column of its rows in
// core_tool_calls, core_tool_receipts and core_tool_events:
//
//	{"gem_archive": 1, "call": {…}, "receipt": {…}, "events": [{…}, …]}
package archive

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gemworker/gem/internal/plainfile"
)

// File is an archive that is open for appending.
type File struct {
	file *os.File
	out  *bufio.Writer
}

// bufferSize is how many bytes are collected before they are written. Only a longer line is split over two writes.
const bufferSize = 1 << 20

// Open opens the archive at path for appending, or creates it. Only this user of the machine may read it: Open removes wider rights,
// and refuses a file of another user. If an interrupted run left an incomplete last line, Open removes it: that line's call is still in the
// database. It refuses a file that is not an archive, and a link, without changing them.
func Open(path string) (*File, error) {
	file, err := plainfile.Open(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	err = repair(file)
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
	return &File{file: file, out: bufio.NewWriterSize(file, bufferSize)}, nil
}

// repair checks that the file is an archive, and removes an incomplete last line.
func repair(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Size() == 0 {
		return nil
	}
	var first struct {
		Version int `json:"gem_archive"`
	}
	head, err := bufio.NewReader(file).ReadBytes('\n')
	complete := err == nil
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if complete && (json.Unmarshal(head, &first) != nil || first.Version != 1) || !complete && !bytes.HasPrefix(head, []byte(`{"call": `)) {
		return errors.New("the file exists and is not an archive of pruned calls")
	}
	end, err := endOfLines(file, info.Size())
	if err != nil || end == info.Size() {
		return err
	}
	return file.Truncate(end)
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
func (f *File) Add(line string) error {
	if f.out.Buffered() > 0 && f.out.Available() <= len(line) {
		if err := f.out.Flush(); err != nil {
			return err
		}
	}
	_, err := f.out.WriteString(line + "\n")
	return err
}

// Sync returns when all lines so far are on the disk.
func (f *File) Sync() error {
	if err := f.out.Flush(); err != nil {
		return err
	}
	return f.file.Sync()
}

// Close closes the file. Lines that were not synced may be lost.
func (f *File) Close() error { return f.file.Close() }
