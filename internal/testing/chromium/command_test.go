package chromium

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/login"
)

// playProgram is the environment variable that makes the test binary the gem program.
const playProgram = "GEM_TEST_PLAY_PROGRAM"

// process is a running gem command.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	out watched // stdout and stderr
}

// watched collects the output of a process.
type watched struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// startGem starts a command with these environment variables and no others of GEM.
func startGem(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := newProcess(t, env, args...)
	p.start()
	return p
}

// newProcess is startGem without the start.
func newProcess(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	theBrowser(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(self, args...)}
	p.cmd.Dir = t.TempDir()
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "USER", "GEM_POSTGRES_BIN", "XDG_CACHE_HOME"} {
		if value, ok := os.LookupEnv(name); ok {
			p.cmd.Env = append(p.cmd.Env, name+"="+value)
		}
	}
	p.cmd.Env = append(append(p.cmd.Env, playProgram+"=yes"), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.WaitDelay = patience
	return p
}

func (p *process) start() {
	p.t.Helper()
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		if p.t.Failed() {
			p.t.Logf("gem %s wrote:\n%s", strings.Join(p.cmd.Args[1:], " "), &p.out)
		}
	})
}

// writes waits until the output matches a pattern, and returns the match.
func (p *process) writes(pattern string) []string {
	p.t.Helper()
	wanted := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if found := wanted.FindStringSubmatch(p.out.String()); found != nil {
			return found
		}
	}
	p.t.Fatalf("gem does not write %s", pattern)
	return nil
}

// ends waits for the exit and returns the exit code.
func (p *process) ends() int {
	p.t.Helper()
	var exit *exec.ExitError
	if err := p.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// stop sends SIGTERM and returns the exit code.
func (p *process) stop() int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	return p.ends()
}

const link = `(http://127\.0\.0\.1:\d+)(/\S*token=\S+)`

// Scenario 1.
func TestTheLinkOfGemDevIsGoodForOneBrowser(t *testing.T) {
	t.Parallel()
	p := startGem(t, []string{"GEM_DASHBOARD_LISTEN=127.0.0.1:0"}, "dev")
	found := p.writes(link)
	b := openTab(t, found[1])
	b.visit(found[2])
	b.has("Overview")
	if at := eval[string](b, "location.href"); strings.Contains(at, "token") {
		t.Errorf("the token stays in the address: %s", at)
	}
	b.visit("/calls")
	b.has("Calls")

	other := openTab(t, found[1])
	other.expects("status of 4")
	for _, path := range []string{found[2], "/", "/calls", "/calls.json"} {
		other.visit(path)
		if text := other.text("body"); strings.Contains(text, "os.create_note") || strings.Contains(text, "Workers") &&
			other.count("main .panels") > 0 {
			t.Errorf("somebody else sees %s:\n%s", path, text)
		}
	}
	other.visit("/")
	other.barrierFree("the login page")
	if got := other.where(); !strings.HasPrefix(got, "/login") {
		t.Errorf("the bare address leads to %s", got)
	}
	// The tools of gem dev run, so that the pages have content.
	b.visit("/tools")
	b.has("os.create_note")
	if code := p.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// Scenarios 10 and 14.
func TestGemDashboardAsksForAPasswordAndEndsWithOpenStreams(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.Await(s.Insert(of("os.create_note", note)))
	const password = "correct horse battery staple"
	hash, err := login.HashPassword([]byte(password))
	if err != nil {
		t.Fatal(err)
	}
	p := startGem(t, []string{"DATABASE_URL=" + s.monitor, "GEM_DASHBOARD_ACT_URL=" + s.operate,
		"GEM_DASHBOARD_LISTEN=127.0.0.1:0", "GEM_DASHBOARD_AUTH=password",
		"GEM_DASHBOARD_PASSWORD_HASH=" + hash}, "dashboard")
	origin := p.writes(`(http://127\.0\.0\.1:\d+)`)[1]
	b := openTab(t, origin)
	b.expects("status of 4", "status of 5", "net::ERR")
	b.visit("/calls?state=succeeded")
	b.barrierFree("the login page")
	b.fill("[name=password]", "wrong")
	b.follow("main form button")
	b.barrierFree("a wrong password")
	b.fill("[name=password]", password)
	b.follow("main form button")
	if got := b.where(); got != "/calls?state=succeeded" {
		t.Errorf("the login leads to %s", got)
	}
	s.Until("a live page", func() bool {
		return slices.ContainsFunc(b.requested(), func(r string) bool { return strings.Contains(r, "/live?") })
	})
	if code := p.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	b.until("it to be said", `!document.querySelector("#away").hidden`)
}

// Scenario 10.
func TestAnAddressForAllNeedsALogin(t *testing.T) {
	t.Parallel()
	s := newScene(t, withoutWorker)
	for _, auth := range []string{"", "none"} {
		p := startGem(t, []string{"DATABASE_URL=" + s.monitor, "GEM_DASHBOARD_AUTH=" + auth}, "dashboard", "--listen",
			"0.0.0.0:0")
		if code := p.ends(); code != 2 {
			t.Errorf("with GEM_DASHBOARD_AUTH=%s the exit code is %d", auth, code)
		}
	}
}
