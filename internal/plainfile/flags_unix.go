//go:build !windows

package plainfile

import (
	"os"
	"syscall"
)

// noFollow makes the open fail at a link, and return at once at a pipe.
const noFollow = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// block makes the file as it would be without O_NONBLOCK, since a child may inherit it.
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
