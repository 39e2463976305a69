// Package plainfile opens, locks and reads files at paths that a person or a folder chooses.
package plainfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Open is [os.OpenFile] for a regular file. It refuses symbolic links, which may come with a clone or lie in a folder
// that others can write to, and pipes and devices, which could block the program. It follows links in the path of the
// folder.
func Open(path string, flag int, mode os.FileMode) (*os.File, error) {
	info, err := os.Lstat(path)
	if err == nil {
		err = refuse(path, info.Mode())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	truncate := flag&os.O_TRUNC != 0 // only after the checks
	f, err := os.OpenFile(path, flag&^os.O_TRUNC|noFollow, mode)
	if err != nil {
		if info, seen := os.Lstat(path); seen == nil && refuse(path, info.Mode()) != nil { // it was put there meanwhile
			err = refuse(path, info.Mode())
		}
		return nil, err
	}
	if err = check(path, f); err == nil && truncate {
		err = f.Truncate(0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// check refuses a file that was replaced before it was opened.
func check(path string, f *os.File) error {
	opened, err := f.Stat()
	if err != nil {
		return err
	}
	if err := refuse(path, opened.Mode()); err != nil {
		return err
	}
	named, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !os.SameFile(opened, named) {
		return fmt.Errorf("%s was replaced while it was opened", path)
	}
	return block(f)
}

func refuse(path string, mode os.FileMode) error {
	switch {
	case mode.IsRegular():
		return nil
	case mode&os.ModeSymlink != 0:
		return fmt.Errorf("%s is a symbolic link, and GEM does not follow it: name the file that it leads to, or delete it",
			path)
	case mode.IsDir():
		return fmt.Errorf("%s is a folder: name a file", path)
	}
	return fmt.Errorf("%s is not a regular file, such as a pipe or a device: name another file", path)
}

// Most is how many bytes of a file Read returns.
const Most = 16 << 20

// Read is [os.ReadFile] for a regular file of at most Most bytes. It follows links, and refuses what could block the
// program or take its memory: a pipe, a device such as /dev/zero, and a larger file.
func Read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|noBlock, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		err = refuse(path, info.Mode())
	}
	if err != nil {
		return nil, err
	}
	return ReadFrom(f)
}

// ReadFrom reads an open file to its end, if that is at most Most bytes.
func ReadFrom(f *os.File) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(f, Most+1))
	if err == nil && len(text) > Most {
		return nil, fmt.Errorf("%s has more than %d MB, and GEM reads no larger file", f.Name(), Most>>20)
	}
	return text, err
}

// Write writes a file as [os.WriteFile] does, but only where [Open] would open it.
func Write(path string, text []byte, mode os.FileMode) error {
	f, err := Open(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}
