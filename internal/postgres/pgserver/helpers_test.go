//go:build !windows

package pgserver_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/gemworker/gem/internal/postgres/pgserver"
)

// parentMode makes the test binary a program that starts a server, prints its URL, and waits to be killed.
const parentMode = "GEM_TEST_PARENT_DATA"

func TestMain(m *testing.M) {
	if data, ok := os.LookupEnv(parentMode); ok {
		beParent(data)
		return
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func beParent(data string) {
	s, err := pgserver.Start(context.Background(), pgserver.Options{DataDir: data})
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	fmt.Println(s.URL("postgres"))
	select {}
}

// traces are the folder and the processes of a server, which must be gone after it has stopped.
type traces struct {
	folder string
	server int // process id
	group  int // process group, which is the keeper's process id
}

// tracesOf queries the server for its folder and reads the rest there.
func tracesOf(t *testing.T, url string) traces {
	t.Helper()
	conn := connect(t, url)
	defer conn.Close(t.Context())
	var data string
	if err := conn.QueryRow(t.Context(), "show data_directory").Scan(&data); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	group, err := syscall.Getpgid(pid)
	if err != nil {
		t.Fatal(err)
	}
	return traces{folder: filepath.Dir(data), server: pid, group: group}
}

// wantGone fails unless the processes and the folder disappear.
func wantGone(t *testing.T, tr traces) {
	t.Helper()
	wantStopped(t, tr)
	eventually(t, tr.folder+" is removed", func() bool { return !exists(tr.folder) })
}

func wantStopped(t *testing.T, tr traces) {
	t.Helper()
	eventually(t, "no process is left", func() bool { return len(processes(t, tr)) == 0 })
}

// processes returns the processes that are in the keeper's group or in the server's folder, such as its children.
func processes(t *testing.T, tr traces) (alive []string) {
	t.Helper()
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	if len(stats) == 0 { // not Linux
		if !errors.Is(syscall.Kill(-tr.group, 0), syscall.ESRCH) {
			alive = append(alive, fmt.Sprintf("group %d", tr.group))
		}
		return alive
	}
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // it has just ended
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		state, group := fields[0], fields[2]
		if state == "Z" {
			continue // it has ended, and its parent has not reaped it yet
		}
		cwd, _ := os.Readlink(filepath.Join(filepath.Dir(stat), "cwd"))
		if group == strconv.Itoa(tr.group) || tr.folder != "" && strings.HasPrefix(cwd, tr.folder+"/") {
			alive = append(alive, string(text))
		}
	}
	return alive
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("a minute has passed without this: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func start(t *testing.T, o pgserver.Options) *pgserver.Server {
	t.Helper()
	s, err := pgserver.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func exec(t *testing.T, url, sql string) {
	t.Helper()
	conn := connect(t, url)
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// sharedDir returns a temporary folder that the server's user can read. It cannot read t.TempDir() if root runs the
// tests.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "gem-pgserver-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// wrapped is a folder of binaries that record the server's folder and then run a script of the test.
type wrapped struct{ dir, notes string }

// wrap creates wrapped binaries. The scripts replace the real programs, whose path is $real. An empty script runs the
// real program.
func wrap(t *testing.T, initdb, postgres string) wrapped {
	t.Helper()
	real, err := pgserver.Installed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := wrapped{dir: sharedDir(t)}
	w.notes = filepath.Join(w.dir, "notes")
	if err := os.Mkdir(w.notes, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := pgserver.Own(w.notes); err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]string{"initdb": initdb, "postgres": postgres} {
		if body == "" {
			body = `exec "$real" "$@"`
		}
		note := filepath.Join(w.notes, name)
		writeScript(t, filepath.Join(w.dir, name), fmt.Sprintf(`real='%s'
[ "$1" != --version ] || exec "$real" --version
echo "${2%%/*} $(ps -o pgid= -p $$ || cut -d' ' -f5 /proc/$$/stat)" >'%s.new'
mv '%[2]s.new' '%[2]s'
%[3]s
`, filepath.Join(real, name), note, body))
	}
	return w
}

// deaf runs the real server but rejects all clients.
const deaf = `echo "host all all all reject" >"$2/hba"; exec "$real" "$@" -c hba_file="$2/hba"`

// waitFor waits until the program runs, and returns the traces that it recorded.
func (w wrapped) waitFor(t *testing.T, name string) (tr traces) {
	t.Helper()
	note := filepath.Join(w.notes, name)
	eventually(t, name+" runs", func() bool { return exists(note) })
	text, err := os.ReadFile(note)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(text), &tr.folder, &tr.group); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return tr
}

func writeScript(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
}
