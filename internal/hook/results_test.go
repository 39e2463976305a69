package hook

import (
	"slices"
	"strings"
	"testing"
)

func TestTheTestsThatFailedAreReadFromTheOutput(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ output, want string }{
		"go": {"--- FAIL: TestA (0.00s)\n    a_test.go:5: no\n    --- FAIL: TestA/sub " +
			"(0.00s)\nFAIL\nFAIL\texample.com/a\t0.003s\nok  \texample.com/b\t0.002s\nFAIL\n", "TestA fails passes"},
		"go, no build": {"# example.com/a\n./a.go:3:1: syntax error\nFAIL\texample.com/a [build failed]\nFAIL\n", "fails"},
		"go passes":    {"ok  \texample.com/a\t0.003s\n?   \texample.com/b\t[no test files]\n", "passes"},
		"go, cut":      {"\t0.003s\nFAIL\n", "fails"},
		"pytest": {"F.\n=== short test summary info ===\nFAILED tests/test_a.py::test_x - assert 1 == 2\nFAILED " +
			"tests/test_a.py::test_y[1-a] - ...\nERROR tests/test_b.py\n=== 2 failed, 1 passed, 1 error in 0.05s ===\n",
			"tests/test_a.py::test_x tests/test_a.py::test_y[1-a] tests/test_b.py fails"},
		"pytest -q": {"1 failed, 2 passed in 0.03s\n", "fails"},
		"pytest -v": {"tests/test_a.py::test_x FAILED   [ 50%]\ntests/test_a.py::test_y PASSED   [100%]\n",
			"tests/test_a.py::test_x fails"},
		"pytest passes": {"..\n============ 2 passed, 1 warning in 0.03s ============\n", "passes"},
		"jest": {"FAIL src/a.test.js\n  ● math › adds\n\n    expect(received)\n\n  ● Console\n\nTests:       1 " +
			"failed, 2 passed, 3 total\n", "math › adds fails"},
		"jest, no build": {"FAIL src/a.test.js\n  ● Test suite failed to run\nTests:       0 total\n", "src/a.test.js fails"},
		"jest passes":    {"PASS src/a.test.js\nTests:       3 passed, 3 total\n", "passes"},
		"vitest": {" FAIL  src/a.test.ts > math > adds\nAssertionError: no\n Test Files  1 failed (1)\n      Tests " +
			" 1 failed | 2 passed (3)\n", "src/a.test.ts > math > adds fails"},
		"vitest passes":  {" Test Files  1 passed (1)\n      Tests  3 passed (3)\n", "passes"},
		"vitest, colors": {"\x1b[41m FAIL \x1b[49m src/a.test.ts > adds\n", "src/a.test.ts > adds fails"},
		"cargo": {"test tests::works ... FAILED\ntest tests::other ... ok\n\nfailures:\n    tests::works\n\ntest " +
			"result: FAILED. 1 passed; 1 failed;\n", "tests::works fails"},
		"cargo passes": {"test tests::works ... ok\ntest result: ok. 1 passed; 0 failed;\n", "passes"},
		"nextest":      {"        FAIL [   0.005s] mycrate tests::works\n", "mycrate tests::works fails"},
		"nothing":      {"hello\nFAILED to start the server\nERROR something\n", ""},
		"crlf":         {"--- FAIL: TestA (0.00s)\r\nFAIL\r\n", "TestA fails"},
		"a long line":  {strings.Repeat("x", 1<<20) + "\nok  \ta\t0s\n", "passes"},
	} {
		r := readResults(c.output)
		got := strings.Join(r.failed, " ")
		if r.fails {
			got += " fails"
		}
		if r.passes {
			got += " passes"
		}
		if got = strings.TrimSpace(got); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// The options before the word test are skipped in one pass. One pass for each of its words took minutes and gigabytes.
func TestTheOptionsOfARunnerAreSkippedOnce(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"cargo +nightly", "go --", "python --"} {
		name, option, _ := strings.Cut(first, " ")
		for _, again := range []int{0, 1, 1000} {
			words := append([]string{name}, slices.Repeat([]string{option}, again+1)...)
			words = append(words, map[string][]string{"python": {"-m", "pytest"}}[name]...)
			if name != "python" {
				words = append(words, "test")
			}
			if _, _, ok := runner(words); ok != (again == 0) {
				t.Errorf("%s, %d times again: runs tests is %t", first, again, ok)
			}
		}
	}
}

func TestWhichCommandsRunTests(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"go test ./...": "go test ./...", "cd a && go test ./... 2>&1 | tail -5": "a: go test ./...",
		"TOKEN=secret go test": "go test", "go build ./...": "",
		"go test ./a && go test ./b": "go test ./a && go test ./b", "pytest -q": "pytest -q",
		"python3 -m pytest tests": "python3 -m pytest tests", "python x.py": "",
		"npx vitest run": "vitest run", "npm test": "npm test", "npm run test:unit -- a": "npm run test:unit -- a",
		"npm run build": "", "yarn jest a": "yarn jest a",
		"cargo test": "cargo test", "cargo nextest run": "cargo nextest run", "cargo build": "", "make test": "make test",
		"make": "", "./gradlew test": "gradlew test",
		"echo 'go test'": "", "bash -c 'go test -run \"TestA|TestB\"'": "go test -run 'TestA|TestB'",
		"grep 'go test' Makefile": "", "uv run pytest": "pytest",
		"uv run --with pytest-cov pytest -q": "pytest -q", "python -X dev -m pytest": "python -X dev -m pytest",
		"python3 -W error -m unittest": "python3 -W error -m unittest", "python -m venv pytest": "",
		"coverage run -m pytest a": "python -m pytest a", "coverage run --source x -m pytest": "python -m pytest",
		"coverage report": "", "go -C d test": "go -C d test", "go -C d build": "",
		"cargo +nightly test": "cargo +nightly test", "npm --prefix d test": "npm --prefix d test",
		"pnpm -r test": "pnpm -r test", "pnpm --filter a run test": "pnpm --filter a run test", "npm --prefix d ci": "",
		"timeout 5 -- go test ./...": "go test ./...",
		"timeout 60 bun test":        "bun test", "go vet && go test": "go test",
	} {
		run, ok := testsOf(parseShell(text))
		got := run.command
		if ok && run.dir != "" {
			got = run.dir + ": " + got
		}
		if got != want || ok != (want != "") {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
		if again, _ := testsOf(parseShell(run.command)); again.command != run.command {
			t.Errorf("%s: read again it is %q", run.command, again.command)
		}
	}
}

// The options before the word test may select tests.
func TestARunWithSelectingOptionsDoesNotCoverAll(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"go -C d test ./...", "npm --prefix d test", "pnpm --filter a test"} {
		if run, ok := testsOf(parseShell(text)); !ok || run.whole() {
			t.Errorf("%s: %+v runs all tests", text, run)
		}
	}
}

// The end of a shell text is that of its tests only if nothing else can have caused it. Otherwise the output decides.
func TestHowATestRunEnded(t *testing.T) {
	t.Parallel()
	const fails, passes = "--- FAIL: T (0s)\nFAIL\n", "ok  \ta\t0s\n"
	for _, c := range []struct {
		text   string
		end    outcome
		output string
		want   string
	}{
		{"go test", passed, "", "pass"},
		{"go test", passed, fails, "pass"}, // the output of a test that prints this itself
		{"go test", failed, fails, "fail T"},
		{"go test", failed, "", "fail"},
		{"go test", unknown, fails, "unknown"},
		{"go test | tail -3", passed, fails, "fail T"},
		{"go test | tail -3", passed, passes, "pass"},
		{"go test | grep x", passed, "", "unknown"},
		{"go test || true", passed, fails, "fail T"},
		{"go test; echo done", passed, passes, "pass"},
		{"go test && git push", failed, passes, "pass"},
		{"go test && git push", failed, fails, "fail T"},
		{"go test ./a && go test ./b", passed, "", "pass"},
		{"go test ./a && go test ./b", failed, passes + fails, "fail T"},
	} {
		run, _ := testsOf(parseShell(c.text))
		end, names := endOf(run, c.end, readResults(c.output))
		if got := strings.TrimSpace(string(end) + " " + strings.Join(names, " ")); got != c.want {
			t.Errorf("%s, which ended as %s with %q: got %s, want %s", c.text, c.end, c.output, got, c.want)
		}
	}
}
