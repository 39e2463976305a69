//go:build !windows

package testdb

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/postgres/pgserver"
)

// Private starts a server for one test, and stops it at the end of the test. Use it for everything that the databases
// of a server share: roles, settings, crashes.
func Private(t testing.TB, o pgserver.Options) *pgserver.Server {
	t.Helper()
	made, err := madeBefore(t.Context(), "", func(*server) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	o.Template = made
	s, err := pgserver.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// madeBefore returns a data folder that was filled by the SQL. An earlier test binary may have created it. Creating one
// costs 1.5 s of CPU, and copying it a tenth of that.
func madeBefore(ctx context.Context, sql string, fill func(*server) error) (string, error) {
	parent := filepath.Join(os.TempDir(), fmt.Sprintf("gem-test-data-%d", os.Getuid()))
	if err := os.Mkdir(parent, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	info, err := os.Lstat(parent)
	if err != nil {
		return "", err
	}
	if stat := info.Sys().(*syscall.Stat_t); !info.IsDir() || int(stat.Uid) != os.Getuid() ||
		info.Mode().Perm()&0o022 != 0 {
		return "", fmt.Errorf("%s belongs to another user, or others can write to it: remove it", parent)
	}
	lock, err := os.OpenFile(filepath.Join(parent, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	major, err := pgserver.Major(ctx, pgserver.Options{})
	if err != nil {
		return "", err
	}
	hash := fmt.Sprintf("%x", sha256.Sum256([]byte(os.Getenv("GEM_POSTGRES_BIN")+"\n"+sql)))[:16]
	folder := filepath.Join(parent, fmt.Sprintf("postgres%d-%s", major, hash))
	ready := folder + ".ready"
	if _, err := os.Stat(ready); err == nil {
		now := time.Now()
		return folder, os.Chtimes(ready, now, now)
	}
	if err := errors.Join(removeUnused(parent), os.RemoveAll(folder)); err != nil {
		return "", err
	}
	private, err := pgserver.Start(ctx, pgserver.Options{DataDir: folder})
	if err != nil {
		return "", err
	}
	admin, err := url.Parse(private.URL("postgres"))
	if err == nil {
		s := newServer(admin, private)
		err = fill(s)
		s.closeIdle(ctx)
	}
	if err := errors.Join(err, private.Stop()); err != nil {
		return "", err
	}
	return folder, os.WriteFile(ready, nil, 0o600)
}

// removeUnused removes the folders that no test has used for a day.
func removeUnused(parent string) error {
	all, err := filepath.Glob(filepath.Join(parent, "*.ready"))
	for _, ready := range all {
		if info, err := os.Stat(ready); err == nil && time.Since(info.ModTime()) > 24*time.Hour {
			err = errors.Join(os.Remove(ready), os.RemoveAll(ready[:len(ready)-len(".ready")]))
			if err != nil {
				return err
			}
		}
	}
	return err
}
