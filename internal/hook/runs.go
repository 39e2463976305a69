package hook

import (
	"path/filepath"
	"slices"
	"strings"
)

// testRun is the tests that a shell text runs. Several test commands in one text are one run.
type testRun struct {
	command string // without its context, quoted where necessary
	dir     string // the folder of the first command
	alone   bool   // the end of the text is the end of the tests
	parts   []part // of the command
}

// part is one command of a test run.
type part struct {
	runner string   // empty if the command runs no tests
	words  []string // of the runner, without options that change only the output
	all    bool     // the words do not restrict the tests
}

func partOf(c command) part {
	name, words, _ := runner(c.words)
	return part{name, withoutLoudness(words), all(words)}
}

// testsOf returns the test run in the commands of a text.
func testsOf(commands []command) (run testRun, ok bool) {
	for _, c := range commands {
		if _, _, is := runner(c.words); !is {
			continue
		}
		if !ok {
			run.dir, run.alone, ok = c.dir, true, true
		} else {
			run.command += " && "
		}
		run.alone = run.alone && c.alone
		run.command += quoteWords(c.words)
		run.parts = append(run.parts, partOf(c))
	}
	return run, ok
}

// quoteWords quotes words so that parseShell parses them again.
func quoteWords(words []string) string {
	var b strings.Builder
	for i, word := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		if word == "" || strings.ContainsAny(word, " \t\r\n;&|()<>'\"\\$`#") {
			word = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		b.WriteString(word)
	}
	return b.String()
}

// leading are the options of test runners that take a value and may come before the word test.
var leading = map[string][]string{
	"go": {"-C"}, "cargo": {"-C", "-Z", "--config", "--color"},
	"npm": {"--prefix", "-w", "--workspace"}, "pnpm": {"-C", "--dir", "-F", "--filter"},
	"yarn": {"--cwd"}, "bun": {"--cwd", "--filter", "--env-file"},
}

// runner returns the test runner that a command calls, and its words.
func runner(words []string) (name string, rest []string, ok bool) {
	skipped := 0
	if values, ok := leading[words[0]]; ok {
		behind := words[1:]
		if words[0] == "cargo" && len(behind) > 0 && strings.HasPrefix(behind[0], "+") { // a toolchain
			behind = behind[1:]
		}
		skipped = len(words) - 1 - len(behindOptions(behind, values))
	} else if strings.HasPrefix(words[0], "python") {
		skipped = len(words) - 1 - len(behindOptions(words[1:], []string{"-X", "-W"}, "-m"))
	}
	if skipped == 0 {
		return runnerOf(words)
	}
	// These options may select tests, so they count as words of the runner.
	name, rest, ok = runnerOf(slices.Concat(words[:1], words[1+skipped:]))
	return name, slices.Concat(words[1:1+skipped], rest), ok
}

// runnerOf is runner for a command without its leading options.
func runnerOf(words []string) (name string, rest []string, ok bool) {
	var second, third string
	if len(words) > 1 {
		second = words[1]
	}
	if len(words) > 2 {
		third = words[2]
	}
	switch first := words[0]; first {
	case "go":
		if second == "test" {
			return "go", words[2:], true
		}
	case "gotestsum":
		return "go", words[1:], true
	case "pytest", "py.test":
		return "pytest", words[1:], true
	case "jest", "vitest", "mocha", "ava", "rspec", "phpunit", "ctest", "tox", "nox", "nosetests":
		return first, words[1:], true
	case "cargo":
		if second == "test" || second == "t" {
			return "cargo", words[2:], true
		}
		if second == "nextest" && third == "run" {
			return "cargo", words[3:], true
		}
	case "npm", "pnpm", "yarn", "bun", "deno":
		switch {
		case slices.Contains([]string{"jest", "vitest", "mocha", "ava"}, second):
			return second, words[2:], true
		case strings.HasPrefix(second, "test") || second == "t" && first != "yarn":
			return first + " " + second, words[2:], true
		case (second == "run" || second == "run-script") && strings.HasPrefix(third, "test"):
			return first + " " + third, words[3:], true
		}
	case "make", "gmake", "just", "task", "ninja", "meson", "mvn", "mvnw", "gradle", "gradlew", "dotnet", "mix", "swift",
		"rake", "bazel", "sbt", "zig", "composer", "lein", "cabal", "stack":
		for i, word := range words[1:] {
			if strings.HasPrefix(word, "test") || word == "check" || word == "verify" || word == "spec" {
				return first + " " + word, slices.Concat(words[1:1+i], words[2+i:]), true
			}
		}
	default:
		if strings.HasPrefix(first, "python") && second == "-m" && (third == "pytest" || third == "unittest") {
			return third, words[3:], true
		}
	}
	return "", nil, false
}

var (
	// loudness has the options that change the output of a run but not its tests.
	loudness = []string{"-v", "-vv", "-q", "-qq", "-s", "--verbose", "--quiet", "--silent", "--nocapture", "-count=1",
		"-json", "--no-header", "--color=never", "--no-color"}
	// settings has the options that take a value and do not restrict the tests.
	settings = []string{"-timeout", "--timeout", "-count", "-parallel", "-cpu", "-tags", "-j", "--jobs", "--maxfail",
		"--tb", "--reporter", "-c", "--config"}
	// selections has the options that select tests.
	selections = []string{"-run", "-skip", "-k", "-m", "-t", "-g", "-x", "-p", "-failfast", "-short", "--testNamePattern",
		"--testPathPattern", "--lf", "--last-failed", "--ff", "--sw", "--exitfirst",
		"--package", "--test", "--lib", "--bin", "--bins", "--doc", "--example", "--exclude", "--grep", "--filter", "--bail",
		"--onlyFailures", "--onlyChanged", "--changed", "-o", "--related", "--shard", "--deselect", "--ignore"}
)

// covers reports whether a run includes all tests of another one: it is the same, or runs all tests of a folder that
// contains it.
func covers(by, other testRun) bool {
	if by.dir == other.dir && by.command == other.command {
		return true
	}
	for _, p := range other.parts {
		if !slices.ContainsFunc(by.parts, func(b part) bool { return b.covers(by.dir, p, other.dir) }) {
			return false
		}
	}
	return other.command != ""
}

// whole reports whether a run includes all tests of its folder.
func (r testRun) whole() bool {
	return !slices.ContainsFunc(r.parts, func(p part) bool { return p.runner != "" && !p.all })
}

// around reports whether a folder is or contains another one.
func around(dir, other string) bool {
	return dir == other || strings.HasPrefix(other, strings.TrimSuffix(dir, "/")+"/")
}

func (p part) covers(dir string, other part, otherDir string) bool {
	if p.runner != other.runner || p.runner == "" {
		return false
	}
	return dir == otherDir && slices.Equal(p.words, other.words) || p.all && around(dir, otherDir)
}

func withoutLoudness(words []string) []string {
	return slices.DeleteFunc(slices.Clone(words), func(w string) bool { return slices.Contains(loudness, w) })
}

// all reports whether the words of a runner do not restrict the tests.
func all(words []string) bool {
	for i := 0; i < len(words); i++ {
		word, _, _ := strings.Cut(words[i], "=")
		switch {
		case slices.Contains(settings, words[i]):
			i++ // its value
		case slices.Contains(selections, word) || !strings.HasPrefix(word, "-") &&
			!slices.Contains([]string{"./...", "...", ".", "run"}, word):
			return false
		}
	}
	return true
}

// isTest reports whether the name of a file is that of a test file.
func isTest(path string) bool {
	base := strings.ToLower(filepath.Base(path))
	for _, part := range []string{"_test.", ".test.", ".spec.", "_spec.", "conftest.py"} {
		if strings.Contains(base, part) {
			return true
		}
	}
	if strings.HasPrefix(base, "test_") {
		return true
	}
	return slices.ContainsFunc(strings.Split(filepath.ToSlash(filepath.Dir(path)), "/"), func(dir string) bool {
		return dir == "test" || dir == "tests" || dir == "__tests__" || dir == "spec" || dir == "testdata"
	})
}
