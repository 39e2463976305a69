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
