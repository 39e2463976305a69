package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/registry"
)

// A command is tested as a user runs it: in a process of its own, with an environment of its own. The test binary plays
// the program gem when this variable has the registry that is built into it.
const playProgram = "GEM_TEST_PLAY_PROGRAM"

// playDeadline is the variable that sets the deadline of the program's health check.
const playDeadline = "GEM_TEST_HEALTH_DEADLINE"

// builtIn is the program of cmd/gem, whose tools may take long.
var builtIn Program

// sources are the tables of all its domains.
var sources []migrations.Source

func TestMain(m *testing.M) {
	if text := os.Getenv(playProgram); text != "" {
		if deadline, err := time.ParseDuration(os.Getenv(playDeadline)); err == nil {
			healthDeadline = deadline
		}
		domains := builtin.Domains()
		if os.Getenv("AGENT_VERSION") == "2" {
			domains = otherAgents()
		}
		Main(Program{Domains: append(domains, deltaDomain()), Registry: []byte(text)})
	}
	file, err := os.ReadFile("../../tools.registry.json")
	if err != nil {
		panic(err)
	}
	// No test waits for a tool's timeout, so none must occur, however slow the machine is.
	file = regexp.MustCompile(`"timeout_ms": \d+`).ReplaceAll(file, []byte(`"timeout_ms": 600000`))
	builtIn = Program{Domains: builtin.Domains(), Registry: bytes.Replace(file, []byte(`"tools": [`), patientOverrides(),
		1)}
	sources = migrations.Sources(builtIn.domains()...)
	testdb.Main(m)
}

// patientOverrides gives every included tool a long timeout. The tools of the file follow.
func patientOverrides() []byte {
	var all []string
	for _, t := range registry.Own().Tools() {
		all = append(all, `"`+t.Name+`": {"timeout_ms": 600000}`)
	}
	return []byte(`"overrides": {` + strings.Join(all, ", ") + `}, "tools": [`)
}

// newDatabase returns the URL of a database with the tables of the program.
func newDatabase(t *testing.T) string {
	t.Helper()
	return testdb.New(t, sources...)
}

// patience bounds every wait of the tests. Nothing takes that long unless it is broken, even next to the other tests.
const patience = 3 * time.Minute

// commandResult is the result of a command.
type commandResult struct {
	code           int
	stdout, stderr string
}

// gemWith runs a command to its end, in a folder without a registry file. env is all that it finds set up.
func gemWith(t *testing.T, env []string, args ...string) commandResult {
	t.Helper()
	return gemReading(t, env, "", args...)
}

// gemReading is gemWith, with text on stdin.
func gemReading(t *testing.T, env []string, stdin string, args ...string) commandResult {
	t.Helper()
	p := prepare(t, env, args...)
	p.cmd.Stdin = strings.NewReader(stdin)
	p.start(t)
	code := p.wait(t)
	return commandResult{code, p.stdout.String(), p.stderr.String()}
}

// process is a command that runs.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr watched
}

// startGem starts a command that runs until it is stopped.
func startGem(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := prepare(t, env, args...)
	p.start(t)
	return p
}

func prepare(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(self, args...)} // outlives the test's context, so that a cleanup can stop it in order
	p.cmd.Dir = t.TempDir()
	if len(args) > 0 && args[0] == "dev" {
		p.cmd.Dir = reachableFolder(t) // so that its data are gone with it
	}
	p.cmd.Env = append(bareEnvironment(), playProgram+"="+string(builtIn.Registry), playDeadline+"="+patience.String())
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.WaitDelay = patience
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	return p
}

// bareEnvironment is the minimal environment of a process.
func bareEnvironment() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "USER", "GEM_POSTGRES_BIN", "XDG_CACHE_HOME", "GOCOVERDIR"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

func (p *process) start(t *testing.T) {
	t.Helper()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("gem %s\nstdout:\n%s\nstderr:\n%s", strings.Join(p.cmd.Args[1:], " "), &p.stdout, &p.stderr)
		}
	})
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// wait returns the exit code.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	select {
	case err := <-done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatalf("gem %s did not end", strings.Join(p.cmd.Args[1:], " "))
		return 0
	}
}

// stop ends the process as a platform does, and expects that it ends in order.
func (p *process) stop(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit code after SIGTERM: got %d, want 0", code)
	}
}

// startWorker runs a worker on a database until the end of the test.
func startWorker(t *testing.T, url string, env ...string) *process {
	t.Helper()
	p := startGem(t, append([]string{"DATABASE_URL=" + url, "LOG_FORMAT=json"}, env...), "worker")
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			p.stop(t)
		}
	})
	p.stderr.waitFor(t, "worker started")
	return p
}

// watched is the output of a running process.
type watched struct {
	mu      sync.Mutex
	text    bytes.Buffer
	waiting []chan struct{}
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.waiting {
		close(c)
	}
	w.waiting = nil
	return w.text.Write(p)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// waitFor returns what was written as soon as it has the text in it.
func (w *watched) waitFor(t *testing.T, text string) string {
	t.Helper()
	late := time.After(patience)
	for {
		w.mu.Lock()
		now, more := w.text.String(), make(chan struct{})
		w.waiting = append(w.waiting, more)
		w.mu.Unlock()
		if strings.Contains(now, text) {
			return now
		}
		select {
		case <-more:
		case <-late:
			t.Fatalf("%q was not written; what was:\n%s", text, now)
		}
	}
}

// wants fails the test for each of the texts that is not in got.
func wants(t *testing.T, got string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(got, text) {
			t.Errorf("%q is not in:\n%s", text, got)
		}
	}
}

// wantCode fails the test for another exit code.
func (e commandResult) wantCode(t *testing.T, code int) {
	t.Helper()
	if e.code != code {
		t.Errorf("exit code: got %d, want %d\nstdout:\n%s\nstderr:\n%s", e.code, code, e.stdout, e.stderr)
	}
}

// inProcess runs a command that needs no environment in this process.
func inProcess(ctx context.Context, args ...string) commandResult {
	var stdout, stderr bytes.Buffer
	code := run(ctx, &builtIn, args, strings.NewReader(""), &stdout, &stderr)
	return commandResult{code, stdout.String(), stderr.String()}
}

// leftovers returns the processes whose environment contains the mark.
func leftovers(t *testing.T, mark string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		env, err := os.ReadFile(file)
		if err == nil && bytes.Contains(env, []byte(mark)) {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
			found = append(found, fmt.Sprintf("%s: %s", filepath.Dir(file), bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return found
}
