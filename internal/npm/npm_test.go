package npm_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/npm"
)

// gem dev sets the variables of a folder's .env, and node loads the code that OPENSSL_CONF names.
func TestTheClientGetsNoVariableThatWasSetLater(t *testing.T) {
	dir := t.TempDir()
	client, out := filepath.Join(dir, "npm"), filepath.Join(dir, "out")
	if err := os.WriteFile(client, []byte("#!/bin/sh\nexport > '"+out+"'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("OPENSSL_CONF", "evil.cnf")
	t.Setenv("HTTPS_PROXY", "http://evil.example.com")
	if err := npm.Install(t.Context(), client, dir, "name@1.2.3"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(out)
	if err != nil || !strings.Contains(string(got), "PATH=") || strings.Contains(string(got), "evil") {
		t.Errorf("%v: the client got %s", err, got)
	}
}
