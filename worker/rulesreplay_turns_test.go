package worker_test

import "testing"

// Of several turns a call books the latest, and the other when it comes again: until then others get places before it.
func TestTurnsOfSeveralPacesComeOutAgain(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "own", "tools": ["lab.write"], "action": "wait", "limit": {"max": 2, "within": "1s", "per": ["caller"]}}`,
			`{"name": "all", "tools": ["lab.write"], "action": "wait", "limit": {"max": 2, "within": "1s"}}`,
			`{"name": "count", "tools": ["lab.write"], "action": "warn", "limit": {"max": 2, "within": "1h"}}`))
	env.StartWorker()
	var ids []string
	for _, caller := range []string{"bob", "bob", "ada", "ada", "ada", "ada"} { // ada has room for two, and all have none
		call := inSession("s", "lab.write", "x")
		call.CreatedBy = caller
		ids = append(ids, env.Insert(call))
	}
	for _, id := range ids {
		env.Await(id)
	}
	if report := replayed(t, env); report.Decisions <= len(ids) || len(report.Differences)+len(report.Unknown) > 0 {
		t.Errorf("%+v", report)
	}
}
