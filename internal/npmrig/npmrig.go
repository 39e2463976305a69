// Package npmrig finds the folders of test rigs whose programs come from npm.
package npmrig

import (
	"os"
	"path/filepath"
	"testing"
)

// Folder returns a rig's folder, such as internal/mcpclients, wherever in the repository the test runs.
func Folder(t testing.TB, rig string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		here := filepath.Join(dir, filepath.FromSlash(rig))
		if _, err := os.Stat(filepath.Join(here, "package.json")); err == nil {
			return here
		}
		if dir == filepath.Dir(dir) {
			t.Fatalf("%s was not found above the working directory", rig)
		}
		dir = filepath.Dir(dir)
	}
}

// Missing ends a test that lacks something. The test is skipped, or fails if GEM_TEST_REQUIRE is set, as in CI.
func Missing(t testing.TB, text string) {
	t.Helper()
	if os.Getenv("GEM_TEST_REQUIRE") != "" {
		t.Fatal(text)
	}
	t.Skip(text)
}
