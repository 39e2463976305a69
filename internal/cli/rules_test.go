package cli

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers"
)

const oneRule = `{"version": "1.0.0", "rules": [{"name": "slow", "tools": ["demo.*"], "action": "wait", "limit": {"max": 5, "within": "1m", "per": ["caller"]}}]}`

func TestRulesCheckPrintsEveryFault(t *testing.T) {
	t.Parallel()
	env := []string{"TOOLS_REGISTRY=" + writeFile(t, oneTool)}
	invalid := writeFile(t,
		`{"rules": [{"name": "Slow", "tools": ["demo.*"], "action": "wait"}, {"name": "a", "tools": ["demo.echo"], "action": "ask"}]}`)
	got := gemWith(t, env, "rules", "check", invalid)
	got.wantCode(t, exitFailed)
	wants(t, got.stderr, invalid, "version: is missing", "Slow: name: ", "Slow: action: is wait", "a: ask: is missing")

	misfit := gemWith(t, env, "rules", "check", writeFile(t, `{"version": "1", "rules": [
		{"name": "a", "tools": ["demo.ecko"], "action": "block"},
		{"name": "c", "tools": ["demo.echo"], "action": "block", "after": {"tools": ["demo.*"]}}]}`))
	misfit.wantCode(t, exitFailed)
	wants(t, misfit.stderr, "a: tools[0]: the registry 1.0.0 has no tool demo.ecko: did you mean demo.echo?",
		"note: c: it looks at one session")
	if invalid, misfit := got.stdout, misfit.stdout; invalid+misfit != "" {
		t.Errorf("stdout: got %q and %q, want nothing", invalid, misfit)
	}
}

func TestRulesCheckOfGoodOnes(t *testing.T) {
	t.Parallel()
	env := []string{"TOOLS_REGISTRY=" + writeFile(t, oneTool)}
	got := gemWith(t, env, "rules", "check", writeFile(t, oneRule))
	got.wantCode(t, 0)
	wants(t, got.stdout, "ok: 1 rule, version 1.0.0")

	for _, chosen := range []string{writeFile(t, oneRule), oneRule} {
		named := gemWith(t, append(env, "TOOLS_RULES="+chosen), "rules", "check")
		named.wantCode(t, 0)
		wants(t, named.stdout, "ok: 1 rule")
	}

	none := gemWith(t, env, "rules", "check")
	none.wantCode(t, exitFailed)
	wants(t, none.stderr, "there are no rules here", "TOOLS_RULES", "rules.json")
}

func TestRulesCheckAgainstEarlierOnes(t *testing.T) {
	t.Parallel()
	env := []string{"TOOLS_REGISTRY=" + writeFile(t, oneTool)}
	old := writeFile(t, oneRule)
	slower := strings.ReplaceAll(oneRule, `"max": 5`, `"max": 4`)

	same := gemWith(t, env, "rules", "check", writeFile(t, oneRule), "--against", old)
	same.wantCode(t, 0)
	wants(t, same.stdout, "no rule changed")

	sameVersion := gemWith(t, env, "rules", "check", writeFile(t, slower), "--against", old)
	sameVersion.wantCode(t, exitFailed)
	wants(t, sameVersion.stderr, "slow was changed (limit)", `raise "version"`)

	raised := gemWith(t, env, "rules", "check", writeFile(t, strings.ReplaceAll(slower, "1.0.0", "1.1.0")), "--against",
		old)
	raised.wantCode(t, 0)
	wants(t, raised.stdout, "ok: 1 rule, version 1.1.0", "slow was changed (limit)\n")
}

func TestRulesListShowsTheRulesOfEachTool(t *testing.T) {
	t.Parallel()
	env := []string{"TOOLS_REGISTRY=" + writeFile(t, oneTool), "TOOLS_RULES=" + oneRule}
	got := gemWith(t, env, "rules", "list")
	got.wantCode(t, 0)
	for _, line := range []string{`(?m)^TOOL +RULE +ACTION +LOOKS AT$`,
		`(?m)^demo\.echo +slow +wait +5 calls in 1m per caller$`} {
		if !regexp.MustCompile(line).MatchString(got.stdout) {
			t.Errorf("no line is like %s:\n%s", line, got.stdout)
		}
	}
}

// Clerk is a domain whose handlers differ in what can be taken back.
type Clerk struct{}

func (Clerk) File(context.Context, handlers.Tx, *handlers.Call, struct{}) (struct{}, error) {
	return struct{}{}, nil
}

func (Clerk) Send(context.Context, *handlers.Call, struct{}) (struct{}, error) {
	return struct{}{}, nil
}

func TestOnlyWhatCanBeTakenBackIsBlockedByItsResult(t *testing.T) {
	t.Parallel()
	entry := `{"name": "clerk.file", "input_schema": {"type": "object"}, "output_schema": {"type": "object"}, "idempotency": {"mode": "none"}, "timeout_ms": 1000}`
	p := Program{Domains: []any{Clerk{}}, Registry: []byte(`{"version": "1", "tools": [` + entry + `, ` +
		strings.ReplaceAll(entry, "file", "send") + `]}`)}
	for tool, want := range map[string]string{
		"clerk.file": "",
		"clerk.send": "few: action: is block, but the effects of clerk.send cannot be rolled back, because its handler " +
			"Clerk.Send is not transactional",
		"clerk.*": "few: action: is block, but the effects of clerk.send",
	} {
		for action, want := range map[string]string{"block": want, "warn": ""} {
			file := writeFile(t, `{"version": "1", "rules": [{"name": "few", "tools": ["`+tool+`"], "action": "`+action+
				`", "when": {"effects": {"db_writes": {"minItems": 2}}}}]}`)
			var stdout, stderr strings.Builder
			code := run(t.Context(), &p, []string{"rules", "check", file}, strings.NewReader(""), &stdout, &stderr)
			if (code != 0) != (want != "") || !strings.Contains(stderr.String(), want) {
				t.Errorf("%s, %s: got %d, %s", tool, action, code, &stderr)
			}
		}
	}
}

func TestAProgramsRulesAreTheLastThatAreTaken(t *testing.T) {
	t.Chdir(t.TempDir())
	version := func(v string) []byte { return []byte(strings.ReplaceAll(oneRule, "1.0.0", v)) }
	p := Program{Rules: version("own")}
	load := func(chosen, want, wantFrom string) {
		t.Helper()
		set, from, err := p.loadRules(chosen)
		if err != nil || set.Version != want || from != wantFrom {
			t.Errorf("got %v from %s, %v; want %s from %s", set, from, err, want, wantFrom)
		}
	}
	load(" ", "own", "built in")
	if err := os.WriteFile("rules.json", version("here"), 0o600); err != nil {
		t.Fatal(err)
	}
	load("", "here", "rules.json")
	other := filepath.Join(t.TempDir(), "other.json")
	if err := os.WriteFile(other, version("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	load(other, "other", other)
	load(string(version("text")), "text", "the JSON of TOOLS_RULES")
	for chosen, want := range map[string]string{"nowhere.json": "there are no rules at nowhere.json: create the file, " +
		"or set TOOLS_RULES", `{"version": 1}`: "the rules (the JSON of TOOLS_RULES) are invalid:\n"} {
		if _, _, err := p.loadRules(chosen); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestTheLogAndGemVersionNameTheRules(t *testing.T) {
	t.Parallel()
	env := []string{"TOOLS_REGISTRY=" + writeFile(t, oneTool), "DATABASE_URL=postgres://127.0.0.1:1/none"}
	for rules, want := range map[string]string{oneRule: "rules 1.0.0, 1 rule (the JSON of TOOLS_RULES)\n",
		"": "no rules\n"} {
		got := gemWith(t, append(env, "TOOLS_RULES="+rules), "version")
		got.wantCode(t, 0)
		wants(t, got.stdout, want)
	}
	misfit := strings.ReplaceAll(oneRule, "demo.*", "demon.*")
	refused := gemWith(t, append(env, "TOOLS_RULES="+misfit), "worker")
	refused.wantCode(t, exitUsage)
	wants(t, refused.stderr, `"rules loaded"`, "slow: tools[0]: the registry 1.0.0 has no tool demon.*: did you mean "+
		"demo.*?")
	for line := range strings.Lines(refused.stderr) {
		var entry struct {
			Msg, From, Version, SHA256 string
			Rules                      int
		}
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "rules loaded" &&
			(entry.From != "the JSON of TOOLS_RULES" || entry.Version != "1.0.0" || entry.Rules != 1 ||
				len(entry.SHA256) != 64) {
			t.Errorf("got %s", line)
		}
	}
}
