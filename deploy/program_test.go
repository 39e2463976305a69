// Package deploy_test keeps the Dockerfile, docker-compose.yml and render.yaml in step with the program: it tests
// their commands and variables with the binary that the Dockerfile builds.
package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/registry"
)

// root is the folder of the repository.
const root = ".."

// afterGrace is how long a worker may need after its grace time: see docs/configuration.md.
const afterGrace = 13 * time.Second

// readFile returns a file of the repository.
func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var folder string // for the program

func TestMain(m *testing.M) {
	var err error
	if folder, err = os.MkdirTemp("", "gem-deploy-test-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// build builds gem once, as the Dockerfile does, with a version and a commit. Its error is the output.
var build = sync.OnceValues(func() (program, wrong string) {
	dockerfile, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	line := regexp.MustCompile(
		`(?m)^RUN CGO_ENABLED=0 go build -trimpath -tags=grpcnotrace -gcflags=google\.golang\.org/\.\.\.=-l -ldflags "(.*)" -o /gem \./cmd/gem$`).FindSubmatch(dockerfile)
	if err != nil || line == nil {
		return "", "the Dockerfile builds gem in another way: change these tests with it"
	}
	flags := strings.NewReplacer("${VERSION}", "v1.2.3", "${COMMIT}", "0123456789abcdef").Replace(string(line[1]))
	program = filepath.Join(folder, "gem")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-tags=grpcnotrace",
		"-gcflags=google.golang.org/...=-l", "-ldflags", flags, "-o", program, "./cmd/gem")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", err.Error() + ": " + string(out)
	}
	return program, ""
})

// gem runs a command of the program with only these variables.
func gem(t *testing.T, env []string, args ...string) (code int, output string) {
	t.Helper()
	program, wrong := build()
	if wrong != "" {
		t.Fatal(wrong)
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir, cmd.Env = t.TempDir(), env
	out, _ := cmd.CombinedOutput() // the exit code tells success from failure
	return cmd.ProcessState.ExitCode(), string(out)
}

// wantCommand checks that words, with the image's program as the first, run that command of gem with valid arguments.
func wantCommand(t *testing.T, where string, words []string, command string) {
	t.Helper()
	if len(words) == 0 || words[0] != "/gem" {
		t.Errorf("%s: is %q, want /gem %s", where, words, command)
		return
	}
	// Without DATABASE_URL, a valid command gets as far as this error.
	if _, out := gem(t, []string{"GEM_ARCHIVE=calls.jsonl"}, words[1:]...); !strings.HasPrefix(out,
		"gem "+command+": DATABASE_URL is not set") {
		t.Errorf("%s: %q does not run gem %s: %s", where, words, command, out)
	}
}

// secret matches the variables whose values do not belong in a file.
var secret = regexp.MustCompile(`^(DATABASE_URL|DIRECT_URL)$|_(USERNAME|PASSWORD|TOKEN|HEADERS)$`)

// variables returns the variables that a worker reads.
func variables(t *testing.T) []string {
	t.Helper()
	_, help := gem(t, nil, "worker", "--help")
	var names []string
	for _, found := range regexp.MustCompile(`(?m)^  ([A-Z][A-Z_]+) `).FindAllStringSubmatch(help, -1) {
		names = append(names, found[1])
	}
	if !slices.Contains(names, "WORKER_SHUTDOWN_GRACE") {
		t.Fatalf("gem worker --help lists no variables:\n%s", help)
	}
	return names
}

// checkWorker checks a worker's variables and their values, and that it has time to end every call before it is
// killed.
func checkWorker(t *testing.T, env map[string]string, killedAfter time.Duration) {
	t.Helper()
	known := append(variables(t), "GOMEMLIMIT", "GOGC")
	given := []string{"DATABASE_URL=postgres://gem@127.0.0.1:1/gem"} // where nobody listens
	for name, value := range env {
		if !slices.Contains(known, name) && !strings.HasPrefix(name, "OTEL_") {
			t.Errorf("%s: gem does not read it", name)
		}
		if name != "DATABASE_URL" && name != "DIRECT_URL" && value != "" {
			given = append(given, name+"="+value)
		}
	}
	if code, out := gem(t, given, "worker", "--patience", "0s"); code != 1 ||
		!strings.Contains(out, "connection refused") {
		t.Errorf("gem worker does not take the variables (exit code %d): %s", code, out)
	}

	grace, err := time.ParseDuration(env["WORKER_SHUTDOWN_GRACE"])
	if err != nil {
		t.Fatalf("WORKER_SHUTDOWN_GRACE: %v", err)
	}
	if killedAfter < grace+afterGrace {
		t.Errorf("the worker is killed after %s, and needs WORKER_SHUTDOWN_GRACE, %s, and up to %s more", killedAfter, grace,
			afterGrace)
	}
	r, err := registry.Parse([]byte(readFile(t, "tools.registry.json")))
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range r.Tools() {
		if domain, _, _ := strings.Cut(tool.Name, "."); slices.Contains([]string{"llm", "extract", "agent"}, domain) {
			continue // they ask models: another worker continues them, and docs/llm.md explains the cost
		}
		if tool.Timeout > grace {
			t.Errorf("WORKER_SHUTDOWN_GRACE is %s, and %s may take %s: a deploy would cut it off", grace, tool.Name,
				tool.Timeout)
		}
	}
}
