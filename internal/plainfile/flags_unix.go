//go:build !windows

package plainfile

import (
	"os"
	"syscall"
)

const (
	// noBlock makes the open of a pipe return at once.
	noBlock = syscall.O_NONBLOCK
	// noFollow makes the open of a link fail.
	noFollow = syscall.O_NOFOLLOW | noBlock
)

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
