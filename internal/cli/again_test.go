package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestAgainMakesANewCallOnceItWasConfirmed(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := scene{t, testdb.Pool(t, url)}
	env := []string{"DATABASE_URL=" + url}
	testdb.Exec(t, s.db, `select gem.record_registry('7', repeat('a', 64), '{"version": "7", "tools": [
		{"name": "leads.create", "idempotency": {"mode": "none"}, "timeout_ms": 1000}, {"name": "leads.find",
			"idempotency": {"mode": "safe-retry"}, "timeout_ms": 1000}]}')`)
	risky := s.failed("execution_error", "no", "{}")
	testdb.Exec(t, s.db, "insert into core_tool_calls (tool_name) values ('leads.find')")
	safe := testdb.Value[string](t, s.db, "select id::text from core_tool_calls where tool_name = 'leads.find'")
	testdb.Exec(t, s.db, "select * from gem.operator_cancel(array[$1]::uuid[], 'ada', 'not today')", safe)

	for _, c := range []struct {
		args, stdin string
		code        int
		stderr      string
	}{
		{risky, "", exitUsage, "its effects may happen twice"},
		{risky, "yes\n", exitUsage, "Type the name of the tool, leads.create, to repeat it: "},
		{risky + " --yes", "", exitUsage, "In a script: --confirm leads.create"},
		{risky + " --confirm leads.crate", "", exitUsage, `--confirm is "leads.crate", and the call's tool is leads.create`},
		{risky, "leads.create\n", exitDone, "may happen twice"},
		{risky + " --confirm leads.create", "", exitDone, "may happen twice"},
		{safe, "", exitUsage, "To skip the confirmation: --yes"},
		{safe, "n\n", exitUsage, "Repeat it? [y/N]"},
		{safe, "y", exitDone, "It ended as failed (cancelled). The new call will run, if the rules let it."},
		{safe + " --yes", "", exitDone, "The new call will run, if the rules let it."},
		{"0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55", "", exitUsage, "there is no call"},
		{safe + " --timeout 1s", "", exitUsage, "--watch"},
	} {
		before := testdb.Value[int](t, s.db, "select count(*)::int from core_tool_calls")
		got := gemReading(t, env, c.stdin, append([]string{"again"}, strings.Fields(c.args)...)...)
		got.wantCode(t, c.code)
		wants(t, got.stderr, c.stderr)
		made := testdb.Value[int](t, s.db, "select count(*)::int from core_tool_calls") - before
		if want := map[bool]int{true: 1}[c.code == exitDone]; made != want || want == 1 &&
			len(strings.TrimSpace(got.stdout)) != 36 {
			t.Errorf("gem again %s made %d calls, and printed %q", c.args, made, got.stdout)
		}
	}

	again := gemWith(t, env, "again", safe, "--yes", "--json", "--reason", "it is Monday")
	again.wantCode(t, exitDone)
	var made struct {
		ID      string
		AgainOf struct{ ID, Tool, Mode string } `json:"again_of"`
	}
	if err := json.Unmarshal([]byte(again.stdout), &made); err != nil || made.AgainOf.ID != safe ||
		made.AgainOf.Mode != "safe-retry" {
		t.Fatalf("%v: %s", err, again.stdout)
	}
	wants(t, gemWith(t, env, "trace", made.ID).stdout, "postgres repeated the call "+safe+" (it is Monday)")
	wants(t, gemWith(t, env, "explain", made.ID).stdout, "postgres repeated the call "+safe+" with this one (it is "+
		"Monday). It is queued")
	wants(t, gemWith(t, env, "trace", safe).stdout, "cancelled by ada (by the login postgres) (not today)")
	wants(t, gemWith(t, env, "explain", safe).stdout, "Cancelled by ada (by the login postgres) (not today).")
	refused := gemWith(t, env, "again", made.ID, "--yes")
	refused.wantCode(t, exitUsage)
	wants(t, refused.stderr, "has not ended: it is queued")
}

func TestAgainWaitsForTheNewCallsReceipt(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	startWorker(t, url)
	env := []string{"DATABASE_URL=" + url}
	first := gemWith(t, env, "call", "os.health_check", "--wait")
	first.wantCode(t, exitDone)
	var receipt struct {
		CallID string `json:"call_id"`
	}
	if err := json.Unmarshal([]byte(first.stdout), &receipt); err != nil {
		t.Fatal(err)
	}
	again := gemWith(t, env, "again", receipt.CallID, "--yes", "--watch", "--timeout", "1m")
	again.wantCode(t, exitDone)
	wants(t, again.stdout, `"succeeded"`)
	if strings.Contains(again.stdout, receipt.CallID) {
		t.Errorf("this is the old receipt: %s", again.stdout)
	}
}
