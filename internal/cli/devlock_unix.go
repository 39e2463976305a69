//go:build !windows

package cli

import (
	"errors"
	"os"
	"syscall"
)

// tryLock locks a file until it is closed, alone or with others that do not want it alone. It reports false if that
// cannot be.
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
