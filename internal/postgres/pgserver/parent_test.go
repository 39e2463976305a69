//go:build !windows

package pgserver_test

import (
	"bufio"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/postgres/pgserver"
)

func itoa(n int) string { return strconv.Itoa(n) }

// startParent starts this test binary as a program with a server. It prints the server's URL on one line.
func startParent(t *testing.T, data string, env ...string) (*osexec.Cmd, *bufio.Reader) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := osexec.Command(self)
	cmd.Env = append(append(os.Environ(), parentMode+"="+data), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill9(cmd) })
	return cmd, bufio.NewReader(out)
}

func kill9(cmd *osexec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func readURL(t *testing.T, out *bufio.Reader) string {
	t.Helper()
	line, err := out.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "postgres://") {
		t.Fatalf("the other program printed %q, %v", line, err)
	}
	return strings.TrimSpace(line)
}

func TestAKilledParentLeavesNothing(t *testing.T) {
	t.Parallel()
	parent, out := startParent(t, "")
	tr := tracesOf(t, readURL(t, out))
	kill9(parent)
	wantGone(t, tr)
}

func TestAParentKilledDuringStartLeavesNothing(t *testing.T) {
	t.Parallel()
	for program, body := range map[string][2]string{
		"initdb":   {"sleep 1000", ""},
		"postgres": {"", deaf},
	} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			w := wrap(t, body[0], body[1])
			parent, _ := startParent(t, "", "GEM_POSTGRES_BIN="+w.dir)
			tr := w.waitFor(t, program)
			kill9(parent)
			wantGone(t, tr)
		})
	}
}

func TestAKilledParentKeepsTheDataDir(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(sharedDir(t), "data")
	parent, out := startParent(t, dir)
	u := readURL(t, out)
	tr := tracesOf(t, u)
	exec(t, u, "create table kept as select 42 as answer")
	kill9(parent)

	// The old server may still be stopping.
	s := start(t, pgserver.Options{DataDir: dir})
	exec(t, s.URL("postgres"), "insert into kept values (43)")
	wantStopped(t, traces{group: tr.group})
}

func TestADataDirInUseIsRefused(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(sharedDir(t), "data")
	parent, out := startParent(t, dir)
	u := readURL(t, out)

	_, err := pgserver.Start(t.Context(), pgserver.Options{DataDir: dir})
	if err == nil {
		t.Fatal("two servers started on one folder")
	}
	for _, want := range []string{dir, "in use by the server of another gem, process " + itoa(parent.Process.Pid)} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	exec(t, u, "select 1") // the first server still works
}
