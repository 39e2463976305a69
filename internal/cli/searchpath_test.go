package cli

import (
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// A login may have another search path, with someone else's tables of the same names, and with overloads of
// Postgres's own functions and operators.
func TestEveryCommandUsesGEMsTablesWhateverTheSearchPath(t *testing.T) {
	testdb.Long(t, "TestAWorkersStatementsUseNothingOfTheSearchPath of package worker")
	t.Parallel()
	database := newDatabase(t)
	testdb.AddStranger(t, database)
	env := []string{"DATABASE_URL=" + database, "WORKER_ID=w"}
	for _, args := range []string{"migrate --dry-run", "migrate"} {
		gemWith(t, env, strings.Fields(args)...).wantCode(t, exitDone)
	}
	w := startGem(t, env, "worker")
	called := gemWith(t, env, "call", "os.create_note", `{"domain": "business", "title": "t", "content": "c"}`, "--wait")
	id := callIn(t, called)
	mcp := startMCP(t, append(env, "GEM_MCP_PREFER=sync"))
	wants(t, mcp.ask("note", "tools/call", aNote), `note_id`)
	gemWith(t, env, "healthcheck").wantCode(t, exitDone)
	w.cmd.Process.Signal(syscall.SIGTERM)
	w.wait(t)
	queued := gemWith(t, env, "call", "leads.list_by_stage", `{}`)
	waits := callIn(t, queued)
	archive := filepath.Join(t.TempDir(), "calls.jsonl")
	for _, args := range []string{"migrate", "migrate --dry-run", "status", "workers", "list", "list --failed",
		"trace " + id, "explain " + id, "receipt " + id, "explain " + waits, "questions",
		"again " + id + " --confirm os.create_note",
		"cancel " + waits, "audit", "prune --older-than 1s --archive " + archive, "audit --archive " + archive} {
		ran := gemWith(t, env, strings.Fields(args)...)
		if ran.code != exitDone || strings.Contains(ran.stdout+ran.stderr, "stranger") {
			t.Errorf("gem %s: exit code %d\n%s%s", args, ran.code, ran.stdout, ran.stderr)
		}
	}
	d := startGem(t, append(env, "GEM_DASHBOARD_ACT_URL="+database), "dashboard", "--listen", "127.0.0.1:0")
	link, browser := dashboardLink(t, d), newBrowser(t)
	visit(t, browser, link)
	origin, _, _ := strings.Cut(link, "/login")
	for _, page := range []string{"/", "/calls", "/calls/" + id, "/questions", "/failures", "/tools",
		"/tools/os.create_note", "/workers"} {
		if status, body := visit(t, browser, origin+page); status != 200 || strings.Contains(body, "stranger") {
			t.Errorf("%s: %d %s", page, status, body)
		}
	}
}

// callIn returns the id that gem call printed.
func callIn(t *testing.T, called commandResult) string {
	t.Helper()
	called.wantCode(t, exitDone)
	id := regexp.MustCompile(`(?m)^(?:call )?([0-9a-f-]{36})$`).FindStringSubmatch(called.stderr + called.stdout)
	if id == nil {
		t.Fatalf("no id of a call: %s%s", called.stdout, called.stderr)
	}
	return id[1]
}
