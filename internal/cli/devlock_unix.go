//go:build !windows

package cli

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// tryLock locks a file until it is closed, exclusively or shared. It reports false if another process holds a
// conflicting lock.
func tryLock(f *os.File, alone bool) (bool, error) {
	how := syscall.LOCK_SH
	if alone {
		how = syscall.LOCK_EX
	}
	err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// knownToOthers returns why other users may know the contents of a file, or an empty text if the file is private.
func knownToOthers(f *os.File) string {
	info, err := f.Stat()
	if err != nil {
		return "cannot be examined"
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid != uint32(os.Geteuid()) { //nolint:gosec // it is never negative here
		return ofAnother
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Sprintf("is open to other users (mode %#o)", mode)
	}
	return ""
}
