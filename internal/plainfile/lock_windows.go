package plainfile

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// TryLock locks a file, exclusively or shared, until it is closed. It reports false if a conflicting lock is held. The
// lock does not prevent other reads and writes: it is on one byte, far behind the end of any file.
func TryLock(f *os.File, exclusive bool) (bool, error) {
	how := uint32(windows.LOCKFILE_FAIL_IMMEDIATELY)
	if exclusive {
		how |= windows.LOCKFILE_EXCLUSIVE_LOCK
	}
	err := windows.LockFileEx(windows.Handle(f.Fd()), how, 0, 1, 0, &windows.Overlapped{OffsetHigh: 1 << 30})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return false, nil
	}
	return err == nil, err
}
