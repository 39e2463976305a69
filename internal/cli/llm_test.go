package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

const oneTarget = `{"version": "1.0.0",
	"providers": {"here": {"dialect": "openai", "base_url": "https://models.example/v1", "key_env": "HERE_API_KEY"}},
	"targets": {"quick": {"provider": "here", "model": "quick-1", "context": 8000, "max_output": 2000, "capabilities": ["structured", "tools"],
		"usd_per_mtok": [{"input": "0.1", "output": "0.3"}, {"above_input": 4000, "input": "0.2", "output": "0.6"}]}},
	"routes": {"default": {"targets": ["quick"]}}}`

func TestLLMCheckPrintsEveryFault(t *testing.T) {
	t.Parallel()
	invalid := writeFile(t, strings.NewReplacer(`https://`, `http://`, `"targets": ["quick"]`,
		`"targets": ["quik"], "order": "cheap"`).Replace(oneTarget))
	got := gemWith(t, nil, "llm", "check", invalid)
	got.wantCode(t, exitFailed)
	wants(t, got.stderr, invalid, "providers.here.base_url: is http",
		"routes.default.targets[0]: there is no target quik: did you mean quick?", "routes.default.order: must be one of")
	if got.stdout != "" {
		t.Errorf("stdout: got %q", got.stdout)
	}
}

func TestLLMCheckOfAGoodFile(t *testing.T) {
	t.Parallel()
	for _, chosen := range []string{writeFile(t, oneTarget), oneTarget} {
		got := gemWith(t, []string{"LLM_ROUTES=" + chosen}, "llm", "check")
		got.wantCode(t, exitDone)
		wants(t, got.stdout, "ok: 1 route, 1 target, 0 budgets, version 1.0.0 (")
	}
	noted := gemWith(t, nil, "llm", "check", writeFile(t, strings.Replace(oneTarget, `"default"`, `"main"`, 1)))
	noted.wantCode(t, exitDone)
	wants(t, noted.stderr, "note: no route is named default")

	none := gemWith(t, nil, "llm", "check")
	none.wantCode(t, exitFailed)
	wants(t, none.stderr, "there are no routes here: name a FILE, set LLM_ROUTES, or write them into llm.routes.json")
}

func TestLLMTakesTheFileOfTheWorkingDirectory(t *testing.T) {
	t.Parallel()
	p := prepare(t, nil, "llm", "check")
	if err := os.WriteFile(filepath.Join(p.cmd.Dir, "llm.routes.json"), []byte(oneTarget), 0o600); err != nil {
		t.Fatal(err)
	}
	p.start(t)
	if code := p.wait(t); code != exitDone {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
	wants(t, p.stdout.String(), "version 1.0.0 (llm.routes.json)")
}

func TestLLMCheckAgainstAnEarlierFile(t *testing.T) {
	t.Parallel()
	old := writeFile(t, oneTarget)
	same := gemWith(t, nil, "llm", "check", old, "--against", old)
	same.wantCode(t, exitDone)
	wants(t, same.stdout, "no change against "+old)

	changed := strings.Replace(oneTarget, `"0.3"`, `"0.4"`, 1)
	refused := gemWith(t, nil, "llm", "check", writeFile(t, changed), "--against", old)
	refused.wantCode(t, exitFailed)
	wants(t, refused.stderr, "version 1.0.0 of the routes has other contents than the recorded version 1.0.0: target "+
		"quick "+
		"was changed (usd_per_mtok)")

	raised := gemWith(t, nil, "llm", "check", writeFile(t, strings.Replace(changed, "1.0.0", "1.1.0", 1)), "--against",
		old)
	raised.wantCode(t, exitDone)
	wants(t, raised.stdout, "version 1.1.0", "target quick was changed (usd_per_mtok)\n")

	missing := gemWith(t, nil, "llm", "check", old, "--against", "nowhere.json")
	missing.wantCode(t, exitFailed)
	wants(t, missing.stderr, "--against: there are no routes at nowhere.json")
}

func TestLLMListNamesKeysAndShowsNone(t *testing.T) {
	t.Parallel()
	file := writeFile(t, oneTarget)
	const head = "ROUTE    ORDER   TARGET    PROVIDER  MODEL    CAPABILITIES      USD/MTOK  KEY\n" +
		"default  listed  quick  here      quick-1  tools structured  0.1 in, 0.3 out; 0.2 in, 0.6 out above 4000  " +
		"HERE_API_KEY "
	for value, want := range map[string]string{"hunter2": "is set", " ": "is not set"} {
		got := gemWith(t, []string{"HERE_API_KEY=" + value}, "llm", "list", file)
		got.wantCode(t, exitDone)
		if flat := regexp.MustCompile(` {2,}`); flat.ReplaceAllString(got.stdout,
			"  ") != flat.ReplaceAllString(head+want+"\n", "  ") {
			t.Errorf("got\n%s", got.stdout)
		}
	}
	local := gemWith(t, nil, "llm", "list", fromRoot(t, "docs/examples/llm/local.routes.json"))
	local.wantCode(t, exitDone)
	wants(t, local.stdout, "  none\n")
}

// The examples of docs/llm.md are taken without a note, and it shows what is in them.
func TestTheExamplesOfTheGuideToModelsAreSound(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile(fromRoot(t, "docs/llm.md"))
	if err != nil {
		t.Fatal(err)
	}
	examples, err := filepath.Glob(fromRoot(t, "docs/examples/llm/*.routes.json"))
	if err != nil || len(examples) < 3 {
		t.Fatalf("%d examples, %v", len(examples), err)
	}
	var texts []string
	for _, file := range examples {
		got := gemWith(t, nil, "llm", "check", file)
		got.wantCode(t, exitDone)
		if got.stderr != "" {
			t.Errorf("%s: %s", file, got.stderr)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
		wants(t, string(guide), "examples/llm/"+filepath.Base(file))
	}
	_, section, _ := strings.Cut(string(guide), "## The routes file\n")
	section, _, _ = strings.Cut(section, "\n## ")
	plain := func(text string) string { return strings.Join(strings.Fields(text), "") }
	blocks := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(section, -1)
	for _, block := range blocks {
		if !strings.Contains(plain(strings.Join(texts, "")), plain(block[1])) {
			t.Errorf("the examples do not have this:\n%s", block[1])
		}
	}
	if len(blocks) < 2 {
		t.Errorf("%d blocks are shown", len(blocks))
	}
}

func TestVersionNamesTheRoutesThatAWorkerWouldTake(t *testing.T) {
	t.Parallel()
	for chosen, want := range map[string]string{oneTarget: "routes of models 1.0.0, 1 route (the JSON of LLM_ROUTES)\n",
		"": "no routes of models\n"} {
		got := gemWith(t, []string{"LLM_ROUTES=" + chosen}, "version")
		got.wantCode(t, exitDone)
		wants(t, got.stdout, want)
	}
	got := gemWith(t, []string{"LLM_ROUTES=nowhere.json"}, "version")
	got.wantCode(t, exitUsage)
	wants(t, got.stderr, "there are no routes at nowhere.json: create the file, or set LLM_ROUTES")
}

func TestAWorkersLogNamesTheRoutesAndTheKeysThatTheyLack(t *testing.T) {
	t.Parallel()
	p := startGem(t, []string{"LLM_ROUTES=" + oneTarget, "DATABASE_URL=" + newDatabase(t)}, "worker")
	said := p.stderr.waitFor(t, "worker started")
	wants(t, said, `"routes of models loaded"`, `"the JSON of LLM_ROUTES"`, `"1.0.0"`, `"missing_keys":["HERE_API_KEY"]`)
	p.stop(t)
	p = startGem(t, []string{"DATABASE_URL=" + newDatabase(t)}, "worker")
	wants(t, p.stderr.waitFor(t, "worker started"), "no routes of models")
	p.stop(t)
}

// The demo reaches nothing outside: not even a model that needs no key, of a file that lies where it is started. Its
// own is a script.
func TestTheDemoDoesNotReadTheRoutesFile(t *testing.T) {
	testdb.Long(t, "TestDemoWithNothingSetUp")
	t.Parallel()
	p := prepare(t, []string{"LLM_ROUTES=" + oneTarget, "HERE_API_KEY=hunter2"}, "demo", "--verbose")
	if err := os.WriteFile(filepath.Join(p.cmd.Dir, "llm.routes.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.start(t)
	if code := p.wait(t); code != exitDone {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
	if said := p.stderr.String(); strings.Count(said, "routes of models loaded") != 1 ||
		!strings.Contains(said, `"version": "demo `) || strings.Contains(said, "HERE_API_KEY") {
		t.Errorf("it has other routes than its own: %s", said)
	}
}
