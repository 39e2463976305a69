package hook

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// outcome is the outcome of a test run.
type outcome string

const (
	passed  outcome = "pass"
	failed  outcome = "fail"
	unknown outcome = "unknown" // the output does not show the outcome
)

// results is the content of a test run's output.
type results struct {
	failed []string // the names of the failed tests, unique and sorted
	fails  bool     // the output reports a failure
	passes bool     // the output reports a success
}

const (
	maxFailed     = 50  // kept names per run
	maxFailedName = 200 // bytes of a name
	maxLine       = 4096
)

var (
	colors = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)
	// The last line of pytest.
	pytestSum = regexp.MustCompile(`^=* ?(?:\d+ [a-z]+, )*\d+ (failed|passed|errors?)\b.* in [0-9.]+`)
	// The summary lines of jest and vitest.
	jestSum = regexp.MustCompile(`^\s*Tests:?\s+.*\d+ (failed|passed)\b`)
	// A failed test of cargo nextest.
	nextestFail = regexp.MustCompile(`^\s*FAIL \[ *[0-9.]+s\] (?:\([^)]*\) )?(.+)$`)
)

// readResults parses the output of go test, pytest, jest, vitest or cargo test. It detects which.
func readResults(output string) (r results) {
	var names, files []string
	for line := range strings.Lines(output) {
		if len(line) > maxLine {
			continue
		}
		line = strings.TrimRight(colors.ReplaceAllString(line, ""), "\r\n")
		trimmed := strings.TrimSpace(line)
		name := ""
		switch {
		case strings.HasPrefix(line, "--- FAIL: "):
			name = firstWord(line[len("--- FAIL: "):])
		case line == "FAIL" || strings.HasPrefix(line, "FAIL\t"):
			r.fails = true
		case line == "PASS" || strings.HasPrefix(line, "ok  \t"):
			r.passes = true
		case strings.HasPrefix(line, "FAILED ") || strings.HasPrefix(line, "ERROR "): // pytest
			if first := firstWord(line[strings.IndexByte(line, ' ')+1:]); strings.Contains(first, "::") ||
				strings.HasSuffix(first, ".py") {
				name = first
			}
		case strings.Contains(line, "::") && pytestVerbose.MatchString(line):
			name = firstWord(line)
		case strings.HasPrefix(line, "test ") && strings.HasSuffix(line, " ... FAILED"): // cargo
			name = strings.TrimSuffix(strings.TrimPrefix(line, "test "), " ... FAILED")
		case strings.HasPrefix(line, "test result: "):
			r.fails = r.fails || strings.HasPrefix(line, "test result: FAILED")
			r.passes = r.passes || strings.HasPrefix(line, "test result: ok")
		case strings.HasPrefix(trimmed, "● ") && strings.Contains(trimmed, " › "): // jest
			name = strings.TrimPrefix(trimmed, "● ")
		case nextestFail.MatchString(line):
			name = nextestFail.FindStringSubmatch(line)[1]
		case strings.HasPrefix(trimmed, "FAIL "): // jest names a file, vitest also a test
			r.fails = true
			if of := strings.TrimSpace(trimmed[len("FAIL "):]); strings.Contains(of, " > ") {
				name = of
			} else if strings.Contains(firstWord(of), ".") {
				files = append(files, firstWord(of))
			}
		default:
			for _, sum := range []*regexp.Regexp{pytestSum, jestSum} {
				if found := sum.FindStringSubmatch(line); found != nil {
					bad := strings.Contains(line, " failed") || strings.Contains(line, " error")
					r.fails = r.fails || bad
					r.passes = r.passes || !bad
				}
			}
		}
		if name != "" {
			r.fails = true
			if len(names) < maxFailed*20 {
				names = append(names, short(name, maxFailedName))
			}
		}
	}
	if len(names) == 0 {
		names = files
	}
	slices.Sort(names)
	names = slices.Compact(names)
	r.failed = names[:min(len(names), maxFailed)]
	return r
}

var pytestVerbose = regexp.MustCompile(`^\S+::.* (?:FAILED|ERROR)(?: +\[ *\d+%\])?$`)

func firstWord(s string) string {
	word, _, _ := strings.Cut(s, " ")
	return word
}

// short shortens a text to n bytes without splitting a character, and replaces bytes that Postgres cannot store.
func short(s string, n int) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "�"), "�")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// endOf returns the outcome of a run from the end of the shell text and from the output. The end of the text decides
// only if nothing but the tests can have caused it.
func endOf(run testRun, end outcome, r results) (outcome, []string) {
	switch {
	case end == unknown:
		return unknown, nil
	case run.alone && end == passed:
		return passed, nil
	case run.alone && (r.fails || !r.passes): // otherwise a command after the tests failed
		return failed, r.failed
	case r.fails:
		return failed, r.failed
	case r.passes:
		return passed, nil
	}
	return unknown, nil
}
