//go:build !windows

package pgserver

import (
	"cmp"
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
	"time"

	"github.com/gemworker/gem/internal/plainfile"
)

// folder has a server's files: the data, the superuser's password and, if the folder is kept, the log and the lock. The
// keeper creates and removes a temporary folder. Its log is a deleted file, which stays readable while it is open.
type folder struct {
	path string
	lock *os.File // nil for a temporary folder
}

// openFolder locks dataDir. If it is empty, openFolder selects the name of a temporary folder.
func openFolder(ctx context.Context, dataDir string, as account) (folder, error) {
	if dataDir == "" {
		parent, err := temporaryParent(as)
		return folder{path: filepath.Join(parent, "gem-postgres-"+rand.Text())}, err
	}
	dir, err := filepath.Abs(dataDir)
	if err == nil {
		err = createDataDir(dir, as)
	}
	if err != nil {
		return folder{}, err
	}
	lock, err := lockDataDir(ctx, dir)
	return folder{dir, lock}, err
}

func temporaryParent(as account) (string, error) {
	for _, dir := range []string{memoryDir(), os.TempDir(), "/tmp"} {
		if dir != "" && as.canWrite(dir) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%s cannot write to %s or /tmp: set TMPDIR to another folder for temporary files", as.name,
		os.TempDir())
}

const lockName = "lock"

// createDataDir creates dir for the server's user. It refuses a folder that contains anything else, and does not change
// it.
func createDataDir(dir string, as account) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the data folder: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("open the data folder: %w", err)
	}
	if len(entries) == 0 {
		if err := errors.Join(as.own(dir), os.Chmod(dir, 0o700)); err != nil {
			return fmt.Errorf("give the data folder to %s: %w", as.name, err)
		}
	} else if _, err := os.Stat(filepath.Join(dir, lockName)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not empty and was not created by gem: choose another data folder", dir)
	}
	if !as.canWrite(dir) {
		return fmt.Errorf("%s has to run the server and cannot write to %s: "+
			"choose a data folder that this user can reach, outside the home folder of root", as.name, dir)
	}
	return nil
}

// lockDataDir locks a data folder. The server inherits the lock, so that it is free only when no server runs there.
// lockDataDir waits for a server that is stopping because its program was killed, but not for the server of a running
// program.
func lockDataDir(ctx context.Context, dir string) (*os.File, error) {
	deadline := time.Now().Add(stopLimit)
	lock, err := lockFile(ctx, filepath.Join(dir, lockName), func(f *os.File) error {
		text, _ := io.ReadAll(io.NewSectionReader(f, 0, 20))
		holder := strings.TrimSpace(string(text))
		if pid, err := strconv.Atoi(holder); err == nil && !gone(pid) || time.Now().After(deadline) {
			return fmt.Errorf("%s is in use by the server of another gem, process %s: "+
				"stop that one first, or choose another data folder", dir, holder)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	if _, err := lock.WriteAt(fmt.Appendf(nil, "%-19d\n", os.Getpid()), 0); err != nil { // overwrites an earlier id
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// lockFile creates a file and locks it. While another process holds the lock, it tries again until refuse returns an
// error. refuse may read the file.
func lockFile(ctx context.Context, path string, refuse func(*os.File) error) (*os.File, error) {
	f, err := plainfile.Open(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		locked, err := plainfile.TryLock(f, true)
		if locked {
			return f, nil
		}
		if err == nil {
			err = refuse(f)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), f.Close())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (f folder) kept() bool { return f.lock != nil }

// empty removes the data of a kept folder.
func (f folder) empty() error {
	var failed []error
	for _, name := range []string{"data", "new", "password", "superuser"} {
		failed = append(failed, os.RemoveAll(filepath.Join(f.path, name)))
	}
	return errors.Join(failed...)
}

// password returns the password of the kept data. For new data it returns the chosen password, or a random one by
// default. It returns an error if the binaries cannot open the data.
func (f folder) password(bin binaries, chosen string) (string, error) {
	data, file := filepath.Join(f.path, "data"), filepath.Join(f.path, "password")
	if _, err := os.Stat(data); errors.Is(err, fs.ErrNotExist) {
		return cmp.Or(chosen, rand.Text()), nil
	}
	password, err := plainfile.Read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the file %s is missing, and nothing else has the password: "+
			"put the file back, or delete the folder to start afresh", file)
	}
	text, err2 := plainfile.Read(filepath.Join(data, "PG_VERSION"))
	if err := errors.Join(err, err2); err != nil {
		return "", err
	}
	if version := strings.TrimSpace(string(text)); version != strconv.Itoa(bin.major) {
		return "", fmt.Errorf("%s was created by Postgres %s and the server in %s is version %d: set GEM_POSTGRES_BIN to "+
			"the "+
			"bin folder of a Postgres %s, or delete the data folder to start afresh", f.path, version, bin.dir, bin.major,
			version)
	}
	return strings.TrimSpace(string(password)), nil
}

// superuser returns the superuser of the kept data. For new data it returns the chosen one, by default postgres.
func (f folder) superuser(chosen string) (string, error) {
	if _, err := os.Stat(filepath.Join(f.path, "data")); errors.Is(err, fs.ErrNotExist) {
		return cmp.Or(chosen, "postgres"), nil
	}
	text, err := plainfile.Read(filepath.Join(f.path, "superuser"))
	if errors.Is(err, fs.ErrNotExist) {
		return "postgres", nil
	}
	return strings.TrimSpace(string(text)), err
}

// openLog opens an empty log. The server inherits the open file and needs no permission to open it.
func (f folder) openLog() (*os.File, error) {
	if f.kept() {
		return plainfile.Open(filepath.Join(f.path, "log"), os.O_RDWR|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	}
	log, err := os.CreateTemp("", "gem-postgres-log-")
	if err == nil {
		err = os.Remove(log.Name())
	}
	return log, err
}

// close unlocks a kept folder. It removes a temporary folder, which the keeper also does unless it was killed.
func (f folder) close() error {
	if f.kept() {
		return f.lock.Close()
	}
	return os.RemoveAll(f.path)
}
