//go:build !windows

package plainfile

import (
	"errors"
	"os"
	"syscall"
)

// TryLock locks a file, exclusively or shared, until it is closed here and in every process that inherits it. It
// reports false if a conflicting lock is held. The lock does not prevent other reads and writes.
func TryLock(f *os.File, exclusive bool) (bool, error) {
	how := syscall.LOCK_SH
	if exclusive {
		how = syscall.LOCK_EX
	}
	err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
