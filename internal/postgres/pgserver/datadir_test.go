//go:build !windows

package pgserver_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/postgres/pgserver"
)

func TestADataDirSurvivesARestart(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]pgserver.Options{"fast": {}, "durable": {Durable: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.DataDir = filepath.Join(sharedDir(t), "deeper", "data")
			s := start(t, o)
			tr := tracesOf(t, s.URL("postgres"))
			exec(t, s.URL("postgres"), "create table kept as select 42 as answer")
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
			wantStopped(t, tr)

			s = start(t, o)
			exec(t, s.URL("postgres"), "insert into kept values (43)")
		})
	}
}

// After a crash the file has a process id that may now belong to another process.
func TestAStaleProcessFileIsIgnored(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(sharedDir(t), "data")
	s := start(t, pgserver.Options{DataDir: dir})
	tr := tracesOf(t, s.URL("postgres"))
	file := filepath.Join(tr.folder, "data", "postmaster.pid")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}

	other, end, err := pgserver.RunAs("/bin/sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	stale := strings.Replace(string(text), itoa(tr.server), itoa(other), 1)
	if err := os.WriteFile(file, []byte(stale), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := pgserver.Own(file); err != nil {
		t.Fatal(err)
	}
	start(t, pgserver.Options{DataDir: dir})
}

func TestAnInterruptedCreationIsRepeated(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(sharedDir(t), "data")
	w := wrap(t, `mkdir -p "$2/base"; echo 15 >"$2/PG_VERSION"; sleep 1000`, "")
	parent, _ := startParent(t, dir, "GEM_POSTGRES_BIN="+w.dir)
	tr := w.waitFor(t, "initdb")
	kill9(parent)
	wantStopped(t, tr)
	start(t, pgserver.Options{DataDir: dir})
}

func TestUnusableDataDirsAreRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, dir string)
		want    string
	}{
		"another program's": {
			prepare: func(t *testing.T, dir string) { write(t, filepath.Join(dir, "thesis.txt"), "") },
			want:    "is not empty and was not created by gem",
		},
		"another version's": {
			prepare: func(t *testing.T, dir string) {
				write(t, filepath.Join(dir, "lock"), "")
				write(t, filepath.Join(dir, "password"), "secret")
				write(t, filepath.Join(dir, "data", "PG_VERSION"), "9.6\n")
			},
			want: "was created by Postgres 9.6",
		},
		"without its password": {
			prepare: func(t *testing.T, dir string) {
				write(t, filepath.Join(dir, "lock"), "")
				write(t, filepath.Join(dir, "data", "PG_VERSION"), "15\n")
			},
			want: "password is missing",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(sharedDir(t), "data")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := pgserver.Own(dir); err != nil {
				t.Fatal(err)
			}
			tc.prepare(t, dir)
			before := list(t, dir)
			s, err := pgserver.Start(t.Context(), pgserver.Options{DataDir: dir})
			if err == nil {
				s.Stop()
				t.Fatal("it started")
			}
			if !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("got %v, want %q and the name of the folder", err, tc.want)
			}
			if after := list(t, dir); after != before {
				t.Errorf("the folder held %s and now %s", before, after)
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func list(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(entries)
}

func TestAFolderKeepsItsPasswordAndTakesAPort(t *testing.T) {
	t.Parallel()
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	o := pgserver.Options{DataDir: filepath.Join(sharedDir(t), "data"), Password: "chosen", Port: port}
	if _, err := pgserver.Start(t.Context(), o); !errors.Is(err, pgserver.ErrPortTaken) {
		t.Errorf("on a taken port: got %v", err)
	}
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("postgres://postgres:chosen@127.0.0.1:%d/postgres?sslmode=disable", o.Port)
	for _, password := range []string{"chosen", "another"} { // existing data keeps its password
		o.Password = password
		s := start(t, o)
		if got := s.URL("postgres"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		exec(t, s.URL("postgres"), "create table if not exists kept ()")
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	o.Fresh = true
	s := start(t, o)
	if got := s.URL("postgres"); !strings.Contains(got, ":another@") {
		t.Errorf("fresh data have the password of %s", got)
	}
	exec(t, s.URL("postgres"), "create table kept ()")
}
