package receipts

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// ArchiveFile is a JSONL file that pruned calls are appended to: a line a call, as gem.prune of migrations/00005_prune.sql
// writes it.
type ArchiveFile struct {
	file *os.File
	out  *bufio.Writer
}

// archiveBuffer is how much is written to the file at once. Lines are never torn between two writes, unless one is longer.
const archiveBuffer = 1 << 20

// OpenArchive opens the archive at path, or creates it, for its owner's eyes alone. What an interrupted run left of a line
// at its end is cut off: the line's call was not removed. A file that is no archive is refused.
func OpenArchive(path string) (*ArchiveFile, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	if err := prepareArchive(file); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	// A file that is new must still be in its folder after a crash. Some systems can not sync a folder, and need not.
	if dir, err := os.Open(filepath.Dir(path)); err == nil {
		_ = dir.Sync()
		_ = dir.Close()
	}
	return &ArchiveFile{file: file, out: bufio.NewWriterSize(file, archiveBuffer)}, nil
}

func prepareArchive(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("an archive must be a file on a disk")
	}
	if info.Size() == 0 {
		return nil
	}
	var first struct {
		Version int `json:"gem_archive"`
	}
	head, err := bufio.NewReader(file).ReadBytes('\n')
	whole := err == nil
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	// A file that begins with a line that an interrupted run left unfinished holds nothing but that.
	if whole && (json.Unmarshal(head, &first) != nil || first.Version != 1) || !whole && !bytes.HasPrefix(head, []byte(`{"call": `)) {
		return errors.New("the file is there, and is no archive of pruned calls")
	}
	end, err := endOfLines(file, info.Size())
	if err != nil || end == info.Size() {
		return err
	}
	return file.Truncate(end)
}

// endOfLines returns where the last whole line of a file ends.
func endOfLines(file *os.File, size int64) (int64, error) {
	buffer := make([]byte, 64<<10)
	for end := size; end > 0; {
		part := buffer[:min(end, int64(len(buffer)))]
		if _, err := file.ReadAt(part, end-int64(len(part))); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			return end - int64(len(part)) + int64(i) + 1, nil
		}
		end -= int64(len(part))
	}
	return 0, nil
}

// Add appends a line, which is safe after the next [ArchiveFile.Sync].
func (a *ArchiveFile) Add(line string) error {
	if a.out.Buffered() > 0 && a.out.Available() <= len(line) {
		if err := a.out.Flush(); err != nil {
			return err
		}
	}
	_, err := a.out.WriteString(line + "\n")
	return err
}

// Sync returns when all lines so far are on the disk.
func (a *ArchiveFile) Sync() error {
	if err := a.out.Flush(); err != nil {
		return err
	}
	return a.file.Sync()
}

// Close closes the file. What was not synced may be lost.
func (a *ArchiveFile) Close() error { return a.file.Close() }
