//go:build !windows

package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// folder is where a server's files lie: data, the superuser's password, and, when it is kept, the log and the lock.
// A temporary one is created and removed by the keeper. Its log is a file without a name, which can be read to the end.
type folder struct {
	path    string
	lock    *os.File // nil for a temporary folder
	durable bool
}

const lockName = "lock"

// openFolder gets hold of the DataDir, or chooses a name for a temporary folder when there is none.
func openFolder(ctx context.Context, o Options, as *account) (folder, error) {
	if o.DataDir == "" {
		parent, err := temporaryParent(as)
		return folder{path: filepath.Join(parent, "gem-postgres-"+rand.Text()), durable: o.Durable}, err
	}
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return folder{}, err
	}
	if err := createKept(dir, as); err != nil {
		return folder{}, err
	}
	lock, err := lockFolder(ctx, dir)
	if err != nil {
		return folder{}, err
	}
	return folder{path: dir, lock: lock, durable: o.Durable}, nil
}

func temporaryParent(as *account) (string, error) {
	var candidates []string
	if dir := memoryDir(); dir != "" {
		candidates = append(candidates, dir)
	}
	candidates = append(candidates, os.TempDir(), "/tmp")
	for _, dir := range candidates {
		if as.canWrite(dir) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no folder for temporary files that %s can write to, of %s: set TMPDIR to one",
		as, strings.Join(candidates, ", "))
}

// createKept creates dir for the server's user. A folder with other things in it is refused and left as it is.
func createKept(dir string, as *account) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the data folder: %w", err)
	}
	inside, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("open the data folder: %w", err)
	}
	if len(inside) > 0 {
		if _, err := os.Stat(filepath.Join(dir, lockName)); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is not empty and was not made by gem: choose another data folder", dir)
		}
	} else {
		if err := as.own(dir); err != nil {
			return fmt.Errorf("hand the data folder to %s: %w", as, err)
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("protect the data folder: %w", err)
		}
	}
	if !as.canWrite(dir) {
		return fmt.Errorf("%s, as which the server has to run, can not write to %s: "+
			"choose a data folder that it can reach, outside the home folder of root", as, dir)
	}
	return nil
}

// lockFolder takes the lock on a kept folder. The server inherits it, so it is free only when nothing runs there. After
// its program was killed, a server takes a moment to stop: that is waited for, a program that lives is not.
func lockFolder(ctx context.Context, dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	deadline := time.Now().Add(stopLimit)
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock the data folder %s: %w", dir, err), f.Close())
		}
		holder, _ := io.ReadAll(io.NewSectionReader(f, 0, 20))
		if pid, err := strconv.Atoi(strings.TrimSpace(string(holder))); err == nil && running(pid) || time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("%s is in use by the server of another gem, process %s: "+
				"stop that one first, or choose another data folder", dir, strings.TrimSpace(string(holder))), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), f.Close())
		case <-time.After(20 * time.Millisecond):
		}
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func running(pid int) bool {
	return pid > 0 && !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

func (f folder) kept() bool { return f.lock != nil }

// password is the one that the kept data were created with, or a new one.
func (f folder) password() (string, error) {
	if !f.kept() {
		return rand.Text(), nil
	}
	text, err := os.ReadFile(filepath.Join(f.path, "password"))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(f.data()); err == nil {
			return "", fmt.Errorf("the file %s is missing, and nobody else knows the password: "+
				"put it back, or delete the folder to start afresh", filepath.Join(f.path, "password"))
		}
		return rand.Text(), nil
	}
	return strings.TrimSpace(string(text)), err
}

// fits says whether the binaries can open the kept data.
func (f folder) fits(bin binaries) error {
	text, err := os.ReadFile(filepath.Join(f.data(), "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if has := strings.TrimSpace(string(text)); has != strconv.Itoa(bin.major) {
		return fmt.Errorf("%s was created by Postgres %s and the server in %s is version %d: set GEM_POSTGRES_BIN to the "+
			"bin folder of a Postgres %s, or delete the data folder to start afresh", f.path, has, bin.dir, bin.major, has)
	}
	return nil
}

func (f folder) data() string { return filepath.Join(f.path, "data") }

// openLog opens the log, empty. It is inherited by the server, so it does not matter who owns it.
func (f folder) openLog() (*os.File, error) {
	if f.kept() {
		return os.OpenFile(filepath.Join(f.path, "log"), os.O_RDWR|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	}
	log, err := os.CreateTemp("", "gem-postgres-log-")
	if err != nil {
		return nil, err
	}
	return log, os.Remove(log.Name())
}

// remove removes what the keeper, when it was killed, could not.
func (f folder) remove() error {
	if f.kept() {
		return nil
	}
	return os.RemoveAll(f.path)
}

// close gives the folder up to others.
func (f folder) close() error {
	if f.lock == nil {
		return nil
	}
	return f.lock.Close()
}
