//go:build !windows

package archive

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// closeToOthers takes the rights of the group and of others away: an archive holds what all users sent.
func closeToOthers(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Geteuid() {
		return errors.New("the file belongs to another user, who could read it: choose another file, or run as that user")
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	if err := file.Chmod(info.Mode().Perm() &^ 0o077); err != nil {
		return fmt.Errorf("others may read the file, and its mode cannot be changed: choose another file: %w", err)
	}
	return nil
}
