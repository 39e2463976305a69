package cli

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// marked is an environment by which everything that a command starts can be found.
func marked() (env []string, mark string) {
	mark = "PATH=" + os.Getenv("PATH") + ":/" + rand.Text() // Postgres inherits few variables
	return []string{mark}, mark
}

func wantNothingLeft(t *testing.T, mark string) {
	t.Helper()
	if left := leftovers(t, mark); len(left) > 0 {
		t.Errorf("processes are left:\n%s", strings.Join(left, "\n"))
	}
}

func TestDemoWithNothingSetUp(t *testing.T) {
	t.Parallel()
	env, mark := marked()
	got := gemWith(t, env, "demo")
	got.wantCode(t, 0)
	wants(t, got.stderr, "a private Postgres runs", "insert into core_tool_calls (tool_name, input) values "+
		"('os.create_note', ", "leads.create         succeeded",
		"turn 1 call 1: os.search_notes succeeded", "turn 2 call 1: os.create_task succeeded")
	wants(t, got.stdout, "TOOL ", "validation_error", "unknown_tool", "execution_error", "needs TWILIO_ACCOUNT_SID",
		"but this worker has no handler", "results 1 entry", " hit ", "gem dev")
	receipts, _, _ := strings.Cut(got.stdout, "\n\n")
	if lines := strings.Count(receipts, "\n"); lines != 14 { // below the head
		t.Errorf("receipts in the table: got %d, want 14:\n%s", lines, got.stdout)
	}
	if strings.Contains(got.stderr, "call ended") {
		t.Errorf("the worker's log is shown without --verbose:\n%s", got.stderr)
	}
	wantNothingLeft(t, mark)
}

func TestDemoLeavesTheDatabaseOfTheEnvironmentAlone(t *testing.T) {
	testdb.Long(t, "TestDemoWithNothingSetUp")
	t.Parallel()
	url := testdb.NewEmpty(t)
	env, _ := marked()
	got := gemWith(t, append(env, "DATABASE_URL="+url), "demo")
	got.wantCode(t, 0)
	wants(t, got.stderr, "DATABASE_URL is set and ignored", "a private Postgres runs")
	if all := relations(t, testdb.Pool(t, url)); all != "" {
		t.Errorf("the demo made %s", all)
	}
	gemWith(t, nil, "demo", "--use-database").wantCode(t, exitUsage)
}

func TestDemoOnADatabaseThatHasData(t *testing.T) {
	testdb.Long(t, "TestDemoWithNothingSetUp")
	t.Parallel()
	url := testdb.NewEmpty(t)
	for _, args := range [][]string{{"demo", "--use-database"}, {"demo", "--use-database", "--verbose"}} {
		got := gemWith(t, []string{"DATABASE_URL=" + url}, args...)
		got.wantCode(t, 0)
		wants(t, got.stderr, "uses the database of DATABASE_URL")
		wants(t, got.stdout, " hit ", "results 1 entry")
		if len(args) == 3 {
			wants(t, got.stderr, "call ended")
		}
	}
	db := testdb.Pool(t, url)
	if leads := testdb.Value[int](t, db, "select count(*)::int from leads"); leads != 2 {
		t.Errorf("leads after two demos: got %d, want 2", leads)
	}
	if working := testdb.Value[int](t, db,
		"select count(*)::int from core_workers where stopped_at is null"); working != 0 {
		t.Errorf("workers that did not say goodbye: got %d, want none", working)
	}
}

func TestDemoLeavesTheCallsOfOthersAlone(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	for _, test := range []struct{ sql, want string }{
		{"insert into core_tool_calls (tool_name, run_at) values ('x.y', now() + '1 hour')", "has calls that have not ended"},
		{"select gem.start_worker('w-1', 1, 'test', '1', '1 minute')", "has a worker"},
	} {
		testdb.Exec(t, db, test.sql)
		got := gemWith(t, []string{"DATABASE_URL=" + url}, "demo", "--use-database")
		got.wantCode(t, exitFailed)
		wants(t, got.stderr, test.want, "without --use-database")
	}
	if calls := testdb.Value[int](t, db, "select count(*)::int from core_tool_calls"); calls != 1 {
		t.Errorf("calls: got %d, want the one that was there", calls)
	}
}

func TestDemoSaysWhenSomethingIsNotAsPromised(t *testing.T) {
	testdb.Long(t, "TestDemoWithNothingSetUp")
	t.Parallel()
	url := newDatabase(t)
	testdb.Exec(t, testdb.Pool(t, url), `
		create function refuse() returns trigger language plpgsql as $$ begin raise 'no leads today'; end $$;
		create trigger refuse before insert on leads for each row execute function refuse();`)
	got := gemWith(t, []string{"DATABASE_URL=" + url}, "demo", "--use-database")
	got.wantCode(t, exitFailed)
	wants(t, got.stderr, "the demo failed",
		"leads.create should end as succeeded, and ended as failed (execution_error)", "one should repeat")
	wants(t, got.stdout, "Postgres refused a statement")
}

func TestDemoStopsEverythingOnCtrlC(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"exactly one receipt", "a private Postgres runs", "a worker runs"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			env, mark := marked()
			p := startGem(t, env, "demo")
			p.stderr.waitFor(t, at)
			p.signal(t, syscall.SIGINT)
			// It may have been just done.
			if code := p.wait(t); code != 130 && code != 0 {
				t.Errorf("exit code: got %d, want 130", code)
			}
			wantNothingLeft(t, mark)
		})
	}
}

// A reader of the tutorial starts it in the folder of gem init.
func TestDemoStaysWithADashboard(t *testing.T) {
	testdb.Long(t, "TestDemoWithNothingSetUp")
	t.Parallel()
	env, mark := marked()
	p := prepare(t, env, "demo", "--stay")
	for _, name := range []string{"shared/tools.registry.json", "shared/rules.json", "sql/tools.sql"} {
		writeIn(t, p.cmd.Dir, filepath.Base(name), readPage(t, "internal/cli/first/"+name))
	}
	p.start(t)
	p.stderr.waitFor(t, "for the tools of this folder or of TOOLS_REGISTRY, use gem dev")
	if status, body := visit(t, newBrowser(t), dashboardLink(t, p)); status != 200 ||
		!strings.Contains(body, "<h1>Overview</h1>") {
		t.Errorf("%d %s", status, body)
	}

	// Another terminal uses the database and the script by copying lines.
	p.stdout.waitFor(t, "export LLM_ROUTES='")
	other := []string{"DATABASE_URL=" + regexp.MustCompile(`export DATABASE_URL='([^']+)'`).
		FindStringSubmatch(p.stdout.String())[1]}
	line := regexp.MustCompile(`(?m)^  gem (call agent.run .*)$`).FindStringSubmatch(p.stdout.String())
	if line == nil {
		t.Fatalf("no line makes an agent run:\n%s", &p.stdout)
	}
	agent := gemWith(t, other, append(commands(t, line[1]+"\n")[0], "--timeout", "1m")...)
	agent.wantCode(t, exitDone)
	wants(t, agent.stdout, "there is a task to look at them", `"a-script"`)

	p.signal(t, syscall.SIGINT)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit code after Ctrl-C: got %d, want 0", code)
	}
	wantNothingLeft(t, mark)
}
