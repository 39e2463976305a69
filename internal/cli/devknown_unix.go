//go:build !windows

package cli

import (
	"fmt"
	"os"
	"syscall"
)

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
