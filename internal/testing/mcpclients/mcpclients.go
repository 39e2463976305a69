// Package mcpclients has third-party programs that speak MCP: the official conformance suite, the Inspector, the
// TypeScript SDKs, LangChain's adapters and the OpenAI Agents SDK. The tests of `gem mcp` use them, because our own
// tests have the same SDK on both sides.
//
//	out := mcpclients.Run(t, nil, "conformance", "server", "--url", url, "--scenario", "tools-list")
//
// They come from npm, like the Node.js that some of them need: see [Install]. If they are missing, tests that need them
// are skipped, or fail if GEM_TEST_REQUIRE is set.
package mcpclients

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/npmrig"
)

// Install is the command that installs the packages. Run it at the top of the repository.
const Install = "npm ci --prefix internal/testing/mcpclients"

// patience limits the run time of a program before it is killed.
const patience = 2 * time.Minute

// ProgramResult is the result of a program that has ended.
type ProgramResult struct {
	Code           int
	Stdout, Stderr string
}

// Run runs a program from npm, or a script of this folder whose name ends in .mjs, until it exits. Its environment is
// PATH, HOME and env.
func Run(t testing.TB, env []string, program string, args ...string) ProgramResult {
	t.Helper()
	cmd := Command(t, env, program, args...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatalf("run %s: %v", program, err)
	}
	return ProgramResult{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// Command returns the command that [Run] runs.
func Command(t testing.TB, env []string, program string, args ...string) *exec.Cmd {
	t.Helper()
	node, dir := Node(t)
	bin := filepath.Join(dir, "node_modules", ".bin")
	file := filepath.Join(dir, program)
	if !strings.HasSuffix(program, ".mjs") {
		file = filepath.Join(bin, program)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, node, append([]string{file}, args...)...)
	cmd.Dir = dir
	cmd.Env = append([]string{"PATH=" + filepath.Dir(node) + ":" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// Node returns the path of Node.js, 22 or newer, and the folder with the packages.
func Node(t testing.TB) (program, dir string) {
	t.Helper()
	dir = npmrig.Folder(t, "internal/testing/mcpclients")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "@modelcontextprotocol")); err != nil {
		npmrig.Missing(t, "programs of npm are missing. Run at the top of the repository: "+Install)
	}
	program = filepath.Join(dir, "node_modules", ".bin", "node")
	if _, err := os.Stat(program); err != nil { // npm has one for Linux on x64
		if program, err = exec.LookPath("node"); err != nil {
			npmrig.Missing(t, "node is missing: install Node.js 22 or newer")
		}
	}
	return program, dir
}
