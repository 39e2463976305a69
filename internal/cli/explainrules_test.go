package cli

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// judged starts the worker w-1 with rules, makes a call that it claims, and asks gem.gate about it.
func (s scene) judged(want string, checks ...string) (id string) {
	s.Helper()
	testdb.Exec(s.T, s.db, `select gem.start_worker('w-1', 9, 'test', '7', '1 hour', '{steps}', '1.2.0')
		where not exists (select from core_workers where worker_id = 'w-1')`)
	id = s.insert()
	s.claim("w-1")
	got := testdb.Value[string](s.T, s.db, "select outcome from gem.gate($1, 1, 'w-1', null, $2, '1.2.0', false, null)",
		id,
		"["+strings.Join(checks, ",")+"]")
	if got != want {
		s.Fatalf("the gate says %s, want %s", got, want)
	}
	return id
}

const (
	paceCheck = `{"rule": "pace", "action": "wait", "kind": "count", "counter": "pace/starts per  []", "max": 1, "within_ms": 3600000, "at_most_ms": 36000000}`
	bigCheck  = `{"rule": "big", "action": "ask", "kind": "call", "digest": "` + digest + `", "ask_ms": 3600000,
		"question": {"tool": "leads.create", "input": {}, "text": "A big one.", "by": ["role:finance"], "digest": "` + digest + `"}}`
)

func TestExplainSaysWhatRulesDo(t *testing.T) {
	t.Parallel()
	ruled := func(code, message, details string) func(s scene) string {
		return func(s scene) string { return s.failed(code, message, details) }
	}
	later := `{"rule": "pace", "rules_version": "1.2.0", "free_at": "` +
		time.Now().Add(90*time.Minute).UTC().Format(time.RFC3339) + `"}`
	for name, test := range map[string]struct {
		set  func(s scene) (id string)
		want []string
		not  string
	}{
		"a turn": {func(s scene) string {
			s.judged("run", paceCheck)
			return s.judged("delayed", paceCheck)
		}, []string{"It is scheduled by the rule pace (rules 1.2.0). It runs in ", ", at 2"}, "attempt"},
		"a turn that has come": {func(s scene) string {
			s.judged("run", paceCheck)
			id := s.judged("delayed", paceCheck)
			testdb.Exec(s.T, s.db, "update core_tool_calls set run_at = now() - interval '1 second' where id = $1", id)
			return id
		}, []string{"It was scheduled by the rule pace (rules 1.2.0), and its time has come. It is queued next in line"}, ""},
		"people are asked": {func(s scene) string { return s.judged("asked", bigCheck) },
			[]string{"It waits for an approval, as the rule big (rules 1.2.0) requires.", `The question: “A big one.” Only`,
				"Only someone with the role finance may approve it, until 2", ": gem approve ", ", or gem deny ", "gem roles list"},
			"handler"},
		"people decided": {func(s scene) string {
			id := s.judged("asked", bigCheck)
			testdb.Exec(s.T, s.db,
				"set session_replication_role = replica; update core_tool_calls set status = 'succeeded' where "+
					"parent_call_id = '"+id+"'; reset session_replication_role")
			return id
		}, []string{"It waited for an approval, as the rule big (rules 1.2.0) requires. Everything is decided: a worker " +
			"claims it within seconds."}, ""},
		"blocked": {ruled("rule_blocked", "This is a policy: the rule few (rules 1.2.0) blocks this call. List the leads "+
			"first.", `{"rule": "few", "rules_version": "1.2.0"}`),
			[]string{"the rule few (rules 1.2.0) blocks this call. List the leads first. Make a call that the rule allows, or " +
				"change the rule"}, "own code"},
		"a limit": {ruled("limit_reached", "The rule pace (rules 1.2.0) blocks this call. It can be made again at 12:00.",
			later),
			[]string{"It can be made again at 12:00. It is 1 h ", " until then."}, ""},
		"a limit with room": {ruled("limit_reached", "The rule pace (rules 1.2.0) blocks this call.",
			`{"free_at": "2020-01-01T00:00:00Z"}`),
			[]string{"blocks this call. That time has come: make a new call."}, ""},
		"denied": {ruled("approval_denied", "The rule big (rules 1.2.0) asks. The answer was no", "{}"),
			[]string{"The answer was no. The decision is final for this call. gem trace "}, ""},
		"expired": {ruled("approval_expired", "Nobody answered within 1h", "{}"),
			[]string{"Nobody answered within 1h. Make a new call to ask again."}, ""},
		"a wrong rule": {ruled("rule_error", "The rule big could not be judged", "{}"),
			[]string{"could not be judged. Correct that rule", "gem rules check"}, ""},
		"a warning, and an approval": {func(s scene) string {
			s.worker("w-1", 4)
			id := s.insert()
			s.claim("w-1")
			testdb.Exec(s.T, s.db, `select gem.finish($1, 1, 'w-1', 'succeeded', '{}', '{"rules": {"version": "1.2.0",
				"verdicts": [{"rule": "pace", "action": "warn", "message": "Not so fast"}, {"rule": "big", "action": "ask",
					"message": "May it?"}],
				"approvals": [{"rule": "big", "by": "grace", "id": "1", "at": "2026-01-01T00:00:00Z", "digest": "x"}]}}', '7')`, id)
			return id
		}, []string{"A warning: Not so fast. grace approved it, as the rule big requires. The result:"}, "May it?"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := newDatabase(t)
			id := test.set(scene{t, testdb.Pool(t, url)})
			got := gemWith(t, []string{"DATABASE_URL=" + url}, "explain", id)
			got.wantCode(t, exitDone)
			wants(t, got.stdout, test.want...)
			if test.not != "" && strings.Contains(got.stdout, test.not) || strings.Count(got.stdout, "\n") != 1 ||
				strings.Contains(got.stdout, "  ") {
				t.Errorf("it is not one plain line without %q: %q", test.not, got.stdout)
			}
		})
	}
}

func TestTraceShowsWhatRulesDid(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := scene{t, testdb.Pool(t, url)}
	s.judged("run", paceCheck)
	id := s.judged("delayed", paceCheck)
	testdb.Exec(t, s.db, "update core_tool_calls set run_at = now() where id = $1", id)
	s.claim("w-1")
	testdb.Exec(t, s.db, "select gem.gate($1, 2, 'w-1', null, $2, '1.2.0', true, null)", id, "["+bigCheck+"]")
	question := testdb.Value[string](t, s.db, "select id::text from core_tool_calls where parent_call_id = $1", id)
	testdb.Exec(t, s.db, "select cancel_tool_call($1)", question)
	testdb.Exec(t, s.db, "select gem.run_timers('w-1', 9)")
	s.claim("w-1")
	testdb.Exec(t, s.db, `select gem.note_ruling($1, 3, 'w-1',
		'{"version": "1.2.0", "verdicts": [{"rule": "pace", "action": "warn", "message": "m"}],
		"approvals": [{"rule": "big", "by": "grace"}]}')`, id)
	got := gemWith(t, []string{"DATABASE_URL=" + url}, "trace", id)
	got.wantCode(t, exitDone)
	wants(t, got.stdout, "scheduled by the rule pace, to run in ", "the question to people: "+question,
		"an approval is required by the rule big\n",
		"the question to people: withdrawn", "the rules 1.2.0 applied to it: pace (warn), grace approved what big asked",
		"\nRules asked people about it:\n", "a question  withdrawn  wait.approval  "+question)
	if regexp.MustCompile(`(?m) (returned|woken) .*w-1`).MatchString(got.stdout) {
		t.Errorf("a worker of another call stands next to the attempt:\n%s", got.stdout)
	}
	results := gemWith(t, []string{"DATABASE_URL=" + url}, "trace", "--results", id)
	wants(t, results.stdout, "\na question: wait.approval failed\n")
	if strings.Contains(got.stdout+results.stdout, "##") || strings.Contains(got.stdout, digest) {
		t.Error("it shows the name of a question")
	}
}
