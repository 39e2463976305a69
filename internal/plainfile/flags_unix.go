//go:build !windows

package plainfile

import (
	"os"
	"syscall"
)

// noFollow makes the open fail for a link, and return at once for a pipe.
const noFollow = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// block removes O_NONBLOCK from the file, since a child may inherit it.
func block(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = syscall.SetNonblock(int(fd), false) })
	if err == nil {
		err = failed
	}
	return err
}
