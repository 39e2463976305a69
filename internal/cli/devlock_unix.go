//go:build !windows

package cli

import (
	"errors"
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

// isOurs reports whether a file belongs to the user of this process.
func isOurs(f *os.File) bool {
	info, err := f.Stat()
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Uid == uint32(os.Geteuid()) //nolint:gosec // it is never negative here
}
