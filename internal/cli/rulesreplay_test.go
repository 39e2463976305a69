package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/rulesreplay"
	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestRulesReplayExitsWith1WhereADecisionComesOutOtherwise(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := scene{t, testdb.Pool(t, url)}
	env := []string{"DATABASE_URL=" + url}
	const few = `{"version": "1.2.0", "rules": [{"name": "few", "tools": ["leads.*"], "action": "block", "limit": {"max": 1, "within": "1h"}}]}`
	testdb.Exec(t, s.db, "select gem.record_registry('7', repeat('0', 64), $1)",
		`{"version": "7", "tools": [{"name": "leads.create", "input_schema": {"type": "object"},
		"output_schema": {"type": "object"}, "idempotency": {"mode": "none"}, "timeout_ms": 1000}]}`)
	testdb.Exec(t, s.db, "select gem.record_rules('1.2.0', repeat('1', 64), $1, '1 hour')", few)
	s.finish(s.judged("run",
		`{"rule": "few", "action": "block", "kind": "count", "counter": "few/calls per all []", "max": 1, "within_ms": 3600000}`), "w-1", "succeeded", "{}")

	sound := gemWith(t, env, "rules", "replay")
	sound.wantCode(t, exitDone)
	wants(t, sound.stdout, "1 call, 2 decisions computed again: none differs\n")

	draft := gemWith(t, env, "rules", "replay", "--since", "1d", "--rules",
		writeFile(t, strings.NewReplacer("1.2.0", "2.0.0", `"max": 1`, `"max": 0`).Replace(few)))
	draft.wantCode(t, exitDone)
	wants(t, draft.stdout, "few   block   1    0       1        0      0                      1  ",
		"1 call judged by rules 2.0.0, with the tools of registry 7: 1 would have been stopped\n")

	testdb.Exec(t, s.db, "update gem.rule_runs set counter = 'few/calls per all [1]'")
	forged := gemWith(t, env, "rules", "replay", "--json")
	forged.wantCode(t, exitFailed)
	var report rulesreplay.Report
	if err := json.Unmarshal([]byte(forged.stdout), &report); err != nil || len(report.Differences) != 2 {
		t.Errorf("%v: %s", err, forged.stdout)
	}
	text := gemWith(t, env, "rules", "replay")
	text.wantCode(t, exitFailed)
	wants(t, text.stdout, "differs: ", " leads.create, rules 1.2.0, as of ", "\n  recorded:   counted in few/calls per "+
		"all [1]\n  recomputed: counted in few/calls per all []\n", ": 2 differ\n")

	testdb.Exec(t, s.db, "delete from gem.rule_runs; delete from core_workers")
	unknown := gemWith(t, env, "rules", "replay")
	unknown.wantCode(t, exitDone)
	wants(t, unknown.stdout, "not computed again: 1 call: the rules or registry that judged it are not recorded\n")
}

func TestRulesReplayUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--since", "soon"}, {"more"}} {
		gemWith(t, nil, append([]string{"rules", "replay"}, args...)...).wantCode(t, exitUsage)
	}
	gemWith(t, nil, "rules", "replay", "--rules", writeFile(t, `{}`)).wantCode(t, exitFailed)
}
