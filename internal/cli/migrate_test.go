package cli

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testdb"
)

func TestMigrateSaysWhatItDid(t *testing.T) {
	t.Parallel()
	// DIRECT_URL is preferred: nobody listens at this DATABASE_URL.
	env := []string{"DATABASE_URL=postgres://gem@" + closedAddress(t) + "/gem", "DIRECT_URL=" + testdb.NewEmpty(t)}

	first := gemWith(t, env, "migrate")
	first.wantCode(t, 0)
	wants(t, first.stdout, "applied core/00001_calls.sql\n", "applied functions/functions\n", "the schema was created\n")

	second := gemWith(t, env, "migrate")
	second.wantCode(t, 0)
	if want := "the schema is up to date\n"; second.stdout != want {
		t.Errorf("stdout: got %q, want %q", second.stdout, want)
	}
}

func TestMigratePrintsWhatItWouldDo(t *testing.T) {
	t.Parallel()
	printed := gemWith(t, nil, "migrate", "--print")
	printed.wantCode(t, exitDone)
	url := testdb.NewEmpty(t)
	execute(t, testdb.Pool(t, url), printed.stdout)
	migrated := gemWith(t, []string{"DATABASE_URL=" + url}, "migrate")
	wants(t, migrated.stdout, "the schema is up to date\n")
}

func TestMigrateSaysWhatFailed(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	execute(t, testdb.Pool(t, url), "create view core_tool_calls as select 1 as x")
	got := gemWith(t, []string{"DATABASE_URL=" + url}, "migrate")
	got.wantCode(t, exitFailed)
	wants(t, got.stderr, "gem migrate: ", "core/00002_earlier_gem.sql", "core_tool_calls", "Nothing of that file stays")
	if strings.Contains(got.stderr, "run `gem migrate`") {
		t.Errorf("gem migrate says to run gem migrate:\n%s", got.stderr)
	}
}
