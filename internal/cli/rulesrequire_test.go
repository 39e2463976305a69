package cli

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestRulesAreRequiredUntilSomeoneSaysOtherwise(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := scene{t, testdb.Pool(t, url)}
	s.worker("w-1", 1)
	testdb.Exec(t, s.db, "select gem.start_worker('w-2', 1, 'test', '7', '1 hour', '{}', '1.0.0')")
	env := []string{"DATABASE_URL=" + url}
	for _, step := range []struct {
		args     []string
		says     string
		not      string
		required bool
	}{
		{[]string{"--off"}, "rules are not required, as before", "w-1", false},
		{nil, "rules are required\nthese run without rules, and claim nothing until they start with rules: w-1\n", "w-2",
			true},
		{nil, "rules are required, as before", "w-2", true},
		{[]string{"--off"}, "rules are not required\n", "w-1", false},
	} {
		got := gemWith(t, env, append([]string{"rules", "require"}, step.args...)...)
		got.wantCode(t, exitDone)
		wants(t, got.stdout, step.says)
		if strings.Contains(got.stdout, step.not) {
			t.Errorf("%q: %s", step.args, got.stdout)
		}
		if required := testdb.Value[bool](t, s.db, "select rules_required from gem.limits"); required != step.required {
			t.Errorf("%q: rules are required: %t", step.args, required)
		}
	}
	other := gemWith(t, []string{"DATABASE_URL=" + url + "&options=-c%20role%3Dgem_worker"}, "rules", "require", "--off")
	other.wantCode(t, exitFailed)
	wants(t, other.stderr, "permission denied")
}
