package cli

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
)

// devURL is the connection string that gem dev prints.
func devURL(t *testing.T, p *process) string {
	t.Helper()
	found := regexp.MustCompile(`export (DATABASE_URL)='([^']+)'`).FindStringSubmatch(p.stdout.waitFor(t, "--wait"))
	if found == nil {
		t.Fatalf("no line to export DATABASE_URL in:\n%s", &p.stdout)
	}
	return found[2]
}

// avoided returns a URL to which nobody may connect until the test ends.
func avoided(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Error("someone connected to DATABASE_URL")
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-closed })
	return "postgres://gem@" + listener.Addr().String() + "/gem"
}

func TestDevRunsUntilCtrlC(t *testing.T) {
	testdb.Long(t, "TestDevIsTheSameAtEachStart")
	t.Parallel()
	env, mark := marked()
	p := startGem(t, append(env, "DATABASE_URL="+avoided(t)), "dev")
	url := devURL(t, p)
	wants(t, p.stdout.String(), "insert into core_tool_calls (tool_name, input) values", "The data is in "+p.cmd.Dir)
	wants(t, p.stdout.String(), "') returning id;\n", "where call_id = '…';  -- the id that the insert returned")
	wants(t, p.stderr.String(), "DATABASE_URL is set, but ignored")

	// The INSERT is there to paste.
	insert := regexp.MustCompile(`(?s)insert into core_tool_calls.*?;`).FindString(p.stdout.String())
	db, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), insert); err != nil {
		t.Errorf("paste the INSERT: %v", err)
	}
	if err := db.Close(t.Context()); err != nil {
		t.Error(err)
	}
	got := gemWith(t, []string{"DATABASE_URL=" + url}, "call", "os.search_notes", `{"query": "Roof"}`, "--wait",
		"--timeout", "1m")
	got.wantCode(t, 0)

	link, browser := dashboardLink(t, p), newBrowser(t)
	if status, body := visit(t, browser, link); status != 200 || !strings.Contains(body, "<h1>Overview</h1>") ||
		strings.Contains(body, "Read-only") {
		t.Errorf("the dashboard: %d %s", status, body)
	}

	mcp := regexp.MustCompile(`DATABASE_URL='([^']+)' gem mcp`).FindStringSubmatch(p.stdout.String())
	if mcp == nil {
		t.Fatalf("no line for gem mcp in:\n%s", &p.stdout)
	}
	if db, err = pgx.Connect(t.Context(), mcp[1]); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		sql     string
		refused bool
	}{{"select id from core_tool_calls", true}, {"set role gem_frontend", false},
		{"select id from core_tool_calls", false}} {
		if _, err := db.Exec(t.Context(), step.sql); (err != nil) != step.refused {
			t.Errorf("the role of gem mcp: %s: %v", step.sql, err)
		}
	}
	if err := db.Close(t.Context()); err != nil {
		t.Error(err)
	}

	p.signal(t, syscall.SIGINT)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit code after Ctrl-C: got %d, want 0", code)
	}
	wants(t, p.stderr.String(), "call ended", "worker stopped")
	wantNothingLeft(t, mark)
}

func TestTheLogOfDevComesAfterItsText(t *testing.T) {
	testdb.Long(t, "TestDevPrintsWhatIsAsked")
	t.Parallel()
	p := prepare(t, nil, "dev")
	p.cmd.Stderr = &p.stdout // as on a terminal
	p.start(t)
	said := p.stdout.waitFor(t, "worker started")
	logged, link := strings.Index(said, "INFO"), strings.Index(said, "/login?token=")
	if link < 0 || logged < link || !strings.Contains(said, "DATABASE_URL leads to Postgres directly") {
		t.Errorf("got:\n%s", said)
	}
	p.stop(t)
}

func TestDevIsTheSameAtEachStart(t *testing.T) {
	t.Parallel()
	env, mark := marked()
	folder, other := reachableFolder(t), reachableFolder(t)
	start := func(args ...string) (p *process, url string) {
		t.Helper()
		p = prepare(t, env, append([]string{"dev"}, args...)...)
		p.cmd.Dir = folder
		p.start(t)
		return p, devURL(t, p)
	}
	first, url := start()
	first.stderr.waitFor(t, "worker started")
	mcp := regexp.MustCompile(`DATABASE_URL='[^']+' gem mcp`).FindString(first.stdout.String())
	wants(t, first.stdout.String(), "The data is in "+folder+"/.gem/data; gem dev --fresh drops it.")
	const note = `{"domain": "both", "title": "keep me", "content": "x"}`
	made := inFolder(t, folder, "call", "os.create_note", note, "--wait", "--timeout", "1m")
	made.wantCode(t, exitDone)
	if !regexp.MustCompile(`^call [-0-9a-f]{36}\n$`).MatchString(made.stderr) { // what gem dev printed needs no repetition
		t.Errorf("the standard error of a call:\n%s", made.stderr)
	}
	for name, mode := range map[string]os.FileMode{"dev.json": 0o600, ".gitignore": 0o644} {
		if info, err := os.Stat(folder + "/.gem/" + name); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	second := inFolder(t, folder, "dev")
	second.wantCode(t, exitUsage)
	wants(t, second.stderr, fmt.Sprintf("gem dev: it is already running in this folder (process %d)",
		first.cmd.Process.Pid))
	if second.stdout != "" {
		t.Errorf("a second one printed:\n%s", second.stdout)
	}
	elsewhere := inFolder(t, other, "status")
	elsewhere.wantCode(t, exitUsage)
	wants(t, elsewhere.stderr, "DATABASE_URL is not set")
	first.signal(t, syscall.SIGKILL)
	first.wait(t)
	stopped := inFolder(t, folder, "status")
	stopped.wantCode(t, exitUsage)
	wants(t, stopped.stderr, "DATABASE_URL is not set")

	search := []string{"call", "os.search_notes", `{"query": "keep me"}`, "--wait", "--timeout", "1m"}
	for _, next := range []struct {
		flags []string
		kept  bool
	}{{nil, true}, {[]string{"--fresh"}, false}} {
		p, again := start(next.flags...)
		if mcp == "" || !strings.Contains(p.stdout.String(), mcp) {
			t.Errorf("%s: the line for gem mcp is another", next.flags)
		}
		if again != url {
			t.Errorf("%s: got %s, want %s", next.flags, again, url)
		}
		got := inFolder(t, folder, search...)
		if got.code != exitDone || strings.Contains(got.stdout, "keep me") != next.kept {
			t.Errorf("%s: %d\n%s\n%s", next.flags, got.code, got.stdout, got.stderr)
		}
		p.stop(t)
		wants(t, p.stderr.String(), "The data is kept in "+folder+"/.gem/data")
	}
	wantNothingLeft(t, mark)
}

func TestDevKeepsItsDataInTheCacheIfItsServerCannotReachTheFolder(t *testing.T) {
	testdb.Long(t, "TestDevIsTheSameAtEachStart")
	t.Parallel()
	cache, folder := reachableFolder(t), t.TempDir()
	p := prepare(t, []string{"XDG_CACHE_HOME=" + cache}, "dev")
	p.cmd.Dir = folder
	if os.Geteuid() == 0 {
		if err := os.Chmod(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	} else {
		cache = folder // the server runs as this user, who can reach it
	}
	p.start(t)
	devURL(t, p)
	wants(t, p.stdout.String(), "The data is in "+cache+"/")
	p.stop(t)
}

func TestDevRefusesATakenPort(t *testing.T) {
	testdb.Long(t, "TestDevIsTheSameAtEachStart")
	t.Parallel()
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	p := prepare(t, nil, "dev")
	port := taken.Addr().(*net.TCPAddr).Port
	writeIn(t, p.cmd.Dir, ".gem/dev.json", fmt.Sprintf(`{"port": %d}`, port))
	if err := os.Chmod(filepath.Join(p.cmd.Dir, devFile), 0o600); err != nil {
		t.Fatal(err)
	}
	p.start(t)
	if code := p.wait(t); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	wants(t, p.stderr.String(),
		fmt.Sprintf("another program has port %d, which .gem/dev.json keeps for this folder", port))
}

// writeIn writes a file of a folder.
func writeIn(t *testing.T, folder, name, text string) {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // nothing secret
		t.Fatal(err)
	}
}

// reachableFolder is a temporary folder that other users can reach: as root, the server runs as another one.
func reachableFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gem-dev-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestWhoeverUsesAPrivateDatabaseMayAnswerWhateverIsAsked(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	startWorker(t, url)
	askedIn(t, db, "wait.answer", `{"text": "?", "by": ["role:boss", "role:clerk", "owner"]}`)
	if err := store.PrepareTakeRoles(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{4, 0} {
		if granted, err := store.TakeRoles(t.Context(), db, operatorLogin); err != nil || len(granted) != want {
			t.Fatalf("granted: %v, %v, want %d", granted, err, want)
		}
	}
	const roles = "select string_agg(subject || ' ' || role, ', ' order by subject = 'operator', role) from gem.roles"
	owner := testdb.Value[string](t, db, "select session_user::text")
	if got, want := testdb.Value[string](t, db, roles), owner+" boss, "+owner+
		" clerk, operator boss, operator clerk"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}

	// It is not granted again after someone took it back.
	testdb.Exec(t, db, "delete from gem.roles where role = 'boss' and subject = 'operator'")
	if granted, err := store.TakeRoles(t.Context(), db, operatorLogin); err != nil || len(granted) > 0 {
		t.Errorf("granted again: %v, %v", granted, err)
	}
	if got := testdb.Value[int](t, db, "select count(*)::int from gem.roles"); got != 3 {
		t.Errorf("got %d roles, want 3", got)
	}
}
