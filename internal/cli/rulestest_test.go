package cli

import "testing"

func TestRulesTestPlaysSequences(t *testing.T) {
	t.Parallel()
	const rule = `{"rules": {"version": "1", "rules": [{"name": "once", "tools": ["demo.echo"], "action": "block", "limit": {"max": 1, "within": "1m"}}]}, "sequences": [`
	const call = `"call": {"tool": "demo.echo"}`
	registry := []string{"TOOLS_REGISTRY=" + writeFile(t, oneTool)}
	good := writeFile(t, rule+`{"name": "first", "steps": [{`+call+`, "expect": "run"}, {"at": "59s", `+call+`, "expect": "block once"}]}]}`)
	got := gemWith(t, registry, "rules", "test", good)
	got.wantCode(t, 0)
	if got.stdout != "ok: first\n" {
		t.Errorf("got %q", got.stdout)
	}

	bad := writeFile(t, rule+`{"name": "second", "steps": [{`+call+`}, {"at": "59s", `+call+`, "expect": "run"}]}]}`)
	got = gemWith(t, registry, "rules", "test", good, bad)
	got.wantCode(t, exitFailed)
	wants(t, got.stdout, "ok: "+good+": first\n", "differs: "+bad+`: second: step 2: expect is "run", and it came to "block once"`+"\n  This is a policy of the operator, not an error: the rule once (rules 1) ")

	wrong := writeFile(t, `{"rules": {"version": "1", "rules": [{"name": "a", "tools": ["demo.ecko"], "action": "block"}]}, "sequences": []}`)
	got = gemWith(t, registry, "rules", "test", wrong, good)
	got.wantCode(t, exitFailed)
	wants(t, got.stderr, wrong+": the rules do not fit the registry:\n", "did you mean demo.echo?")
	wants(t, got.stdout, "ok: "+good+": first\n")
	gemWith(t, nil, "rules", "test").wantCode(t, exitUsage)
}
