package cli

import (
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/testdb"
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
	t.Parallel()
	env, mark := marked()
	p := startGem(t, append(env, "DATABASE_URL="+avoided(t)), "dev")
	url := devURL(t, p)
	wants(t, p.stdout.String(), "insert into core_tool_calls (tool_name, input) values", "--keep keeps them")
	wants(t, p.stderr.String(), "DATABASE_URL is set, and is not used")

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
	got := gemWith(t, []string{"DATABASE_URL=" + url}, "call", "os.search_notes", `{"query": "Roof"}`, "--wait", "--timeout", "1m")
	got.wantCode(t, 0)

	link, browser := dashboardLink(t, p), newBrowser(t)
	if status, body := visit(t, browser, link); status != 200 || !strings.Contains(body, "<h1>Overview</h1>") || strings.Contains(body, "Read-only") {
		t.Errorf("the dashboard: %d %s", status, body)
	}

	door := regexp.MustCompile(`DATABASE_URL='([^']+)' gem mcp`).FindStringSubmatch(p.stdout.String())
	if door == nil {
		t.Fatalf("no line for gem mcp in:\n%s", &p.stdout)
	}
	if db, err = pgx.Connect(t.Context(), door[1]); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		sql     string
		refused bool
	}{{"select id from core_tool_calls", true}, {"set role gem_frontend", false}, {"select id from core_tool_calls", false}} {
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

func TestDevKeepsItsData(t *testing.T) {
	t.Parallel()
	env, mark := marked()
	folder := reachableFolder(t)
	const title = `{"domain": "both", "title": "keep me", "content": "x"}`
	for _, call := range [][]string{{"os.create_note", title}, {"os.search_notes", `{"query": "keep me"}`}} {
		p := startGem(t, env, "dev", "--dir", folder+"/data")
		url := devURL(t, p)
		wants(t, p.stdout.String(), "stay in "+folder)
		got := gemWith(t, []string{"DATABASE_URL=" + url}, append([]string{"call", "--wait", "--timeout", "1m"}, call...)...)
		got.wantCode(t, 0)
		if call[0] == "os.search_notes" && !strings.Contains(got.stdout, "keep me") {
			t.Errorf("the note of the first time is gone:\n%s", got.stdout)
		}
		p.stop(t)
	}
	wantNothingLeft(t, mark)
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
	for range 2 {
		if err := store.TakeRoles(t.Context(), db, operatorLogin); err != nil {
			t.Fatal(err)
		}
	}
	const roles = "select string_agg(subject || ' ' || role, ', ' order by subject = 'operator', role) from gem.roles"
	owner := query[string](t, db, "select session_user::text")
	if got, want := query[string](t, db, roles), owner+" boss, "+owner+" clerk, operator boss, operator clerk"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
