package cli

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// The blocks of README.md and docs that show output are compared with the output of the program. A comment above each
// names its scene and the block:
//
//	<!-- sample: render/again -->
//	```
//	the schema is up to date
//	```
//
// The pages that a test follows from top to bottom need no comments. `make samples` writes all of these blocks.
var update = flag.Bool("update", false, "write the output of the program into README.md and docs")

// followed are the pages that a test follows, with the heading at which it stops.
var followed = map[string]string{
	"docs/agents.md": "", "docs/extract.md": "", "docs/llm.md": "The routes file", "docs/tools.md": "",
	"docs/tutorial.md": "Change something",
}

var sampleBlock = regexp.MustCompile("(?ms)^<!-- sample: ([a-z]+)/([a-z-]+) -->\n```\n(.*?)^```$")

// scenes run commands in a known database, and return the samples that they give, by name.
var scenes = map[string]func(*testing.T) map[string]string{
	"docker": dockerScene, "operations": operationsScene, "pooler": poolerScene,
	"render": renderScene, "rules": rulesScene, "trace": traceScene,
}

func TestSamplesOfOutputAreWhatTheProgramPrints(t *testing.T) {
	t.Parallel()
	type block struct{ page, text string }
	shown := map[string]map[string]block{}
	for _, page := range pagesWithSamples(t) {
		for _, found := range sampleBlock.FindAllStringSubmatch(readPage(t, page), -1) {
			scene, name := found[1], found[2]
			if scenes[scene] == nil {
				t.Errorf("%s: there is no scene %q", page, scene)
			}
			if shown[scene] == nil {
				shown[scene] = map[string]block{}
			}
			shown[scene][name] = block{page, found[3]}
		}
	}
	for scene, play := range scenes {
		t.Run(scene, func(t *testing.T) {
			t.Parallel()
			printed := play(t)
			for name, text := range printed {
				printed[name] = strings.TrimRight(steady(text), "\n") + "\n"
			}
			for _, name := range slices.Sorted(maps.Keys(shown[scene])) {
				got, want := printed[name], shown[scene][name]
				if got == "" {
					t.Errorf("%s shows %s/%s, which the scene does not print", want.page, scene, name)
				} else if flat(got) != flat(want.text) && !rewritten(t, want.page, want.text, got) {
					t.Errorf("%s: %s/%s shows\n%s\nand the program prints\n%s", want.page, scene, name, want.text, got)
				}
			}
			for name := range printed {
				if _, ok := shown[scene][name]; !ok {
					t.Errorf("no page shows %s/%s", scene, name)
				}
			}
		})
	}
}

// A block without a language is output. Diagrams and templates are blocks of text.
func TestEveryBlockOfOutputIsTested(t *testing.T) {
	t.Parallel()
	for _, page := range pagesWithSamples(t) {
		text := readPage(t, page)
		if end, ok := followed[page]; ok {
			if _, text, ok = strings.Cut(text, "\n## "+end+"\n"); !ok {
				continue // the test that follows the page reads all of it
			}
		}
		inBlock, above := false, ""
		for line := range strings.Lines(text) {
			fence := strings.TrimSpace(line)
			switch {
			case !inBlock:
				inBlock = strings.HasPrefix(fence, "```")
				if fence == "```" && !strings.HasPrefix(above, "<!-- sample: ") {
					t.Errorf("%s: the block below %q has no sample comment. If it is not output, name a language, such as text",
						page, above)
				}
			case fence == "```":
				inBlock = false
			case strings.HasPrefix(line, "$ "):
				t.Errorf("%s: show a command and its output in two blocks: %s", page, line)
			}
			if fence != "" {
				above = fence
			}
		}
	}
}

func TestSamplesHideWhatDiffersFromRunToRun(t *testing.T) {
	t.Parallel()
	const printed = `01a214a6-57b9-7455-8b00-5ee70dc3b0c4 on web-1-433a6727 at 2031-05-06 07:08:09.123, +12.345 s  claimed
		{"at": "2031-05-06T07:08:09Z", "duration":"12.5ms", "grace":"45s", "url": "http://127.0.0.1:40123/x"} in 1.4 s`
	const want = `01a205c7-3263-733d-ae89-a4d9a4814e03 on web-1-e9738fcf at 2026-11-23 00:21:14.975, +0.004 s  claimed
		{"at": "2026-11-23T00:21:14.975Z", "duration":"8.7ms", "grace":"45s", "url": "http://127.0.0.1:54321/x"} in 8 ms`
	if got := steady(printed); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// unsteady are the parts of output that differ from run to run, with their replacement.
var unsteady = []struct {
	part *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`), "01a205c7-3263-733d-ae89-a4d9a4814e03"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "c1e0a6b5…"},
	{regexp.MustCompile(`-[0-9a-f]{8}\b`), "-e9738fcf"}, // the end of a worker's id
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "2026-11-23T00:21:14.975Z"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+`), "2026-11-23 00:21:14.975"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b`), "2026-11-23 00:21:14"},
	{regexp.MustCompile(`until 2026-11-23`), "until 2026-11-24"}, // a deadline comes after what is asked
	{regexp.MustCompile(`\+\d+\.\d+ s( +[^ q])`), "+0.004 s$1"},  // not the line queued, which is always at +0.000 s
	{regexp.MustCompile(`\b\d+h\d+m\d+(\.\d+)?s\b`), "24h0m0s"},
	{regexp.MustCompile(`\b\d+\.\d+(µs|ms|s)\b`), "8.7ms"},
	{regexp.MustCompile(`( )\d+(\.\d+)? (µs|ms|s)\b`), "${1}8 ms"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "127.0.0.1:54321"},
}

func steady(text string) string {
	for _, u := range unsteady {
		text = u.part.ReplaceAllString(text, u.with)
	}
	return text
}

// flat makes runs of spaces one, since the columns of a table are as wide as their values.
func flat(text string) string {
	return regexp.MustCompile(` +`).ReplaceAllString(strings.TrimSpace(text), " ")
}

func pagesWithSamples(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob(fromRoot(t, "docs/*.md"))
	if err != nil || len(pages) < 20 {
		t.Fatal(len(pages), err)
	}
	names := []string{"README.md"}
	for _, page := range pages {
		names = append(names, "docs/"+filepath.Base(page))
	}
	return names
}

func readPage(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(fromRoot(t, page))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var writing sync.Mutex // tests that run at the same time write into the same pages

// rewritten replaces a block of a page if the test runs with -update.
func rewritten(t *testing.T, page, block, with string) bool {
	t.Helper()
	if !*update {
		return false
	}
	writing.Lock()
	defer writing.Unlock()
	text := readPage(t, page)
	if strings.Count(text, "\n"+block+"```") != 1 {
		t.Errorf("%s: -update needs this block exactly once:\n%s", page, block)
		return true
	}
	text = strings.Replace(text, "\n"+block+"```", "\n"+strings.TrimRight(with, "\n")+"\n```", 1)
	if err := os.WriteFile(fromRoot(t, page), []byte(text), 0o644); err != nil { //nolint:gosec // nothing secret
		t.Fatal(err)
	}
	return true
}

// withLines returns the lines of a block as the program prints them now. A line that it no longer prints is replaced by
// the one that begins most like it.
func withLines(block, printed string) string {
	rest := strings.Split(strings.TrimRight(steady(printed), "\n"), "\n")
	var lines []string
	for line := range strings.Lines(block) {
		line = strings.TrimRight(line, "\n")
		best, alike := -1, 3
		for i, candidate := range rest {
			if strings.Contains(flat(candidate), flat(line)) {
				best = i
				break
			}
			if n := commonPrefix(candidate, line); n > alike {
				best, alike = i, n
			}
		}
		switch {
		case line == "":
			lines = append(lines, line)
			continue
		case best < 0:
			continue
		case strings.Contains(flat(rest[best]), flat(line)):
			lines = append(lines, line)
		default:
			lines = append(lines, rest[best])
		}
		rest = rest[best+1:]
	}
	return strings.Join(lines, "\n") + "\n"
}

func commonPrefix(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// withValues returns a block of JSON with the values that were printed. If they have another shape, it returns all of
// them.
func withValues(block, printed string) string {
	var got, shown any
	if err := json.Unmarshal([]byte(printed), &got); err != nil {
		return printed
	}
	text := block
	for json.Unmarshal([]byte(text), &shown) == nil {
		path := differs(got, shown, "")
		if path == "" {
			return text
		}
		old, value := valueAt(shown, path), valueAt(got, path)
		if name := path[strings.LastIndex(path, "/")+1:]; strings.Trim(name, "0123456789") != "" {
			old, value = `"`+name+`": `+old, `"`+name+`": `+value
		}
		if strings.Count(text, old) != 1 || strings.HasSuffix(value, "null") {
			break
		}
		text = strings.Replace(text, old, value, 1)
	}
	var all bytes.Buffer
	_ = json.Indent(&all, []byte(strings.TrimSpace(printed)), "", "  ")
	return all.String()
}

// valueAt returns the JSON of the value at a path of differs, or null.
func valueAt(document any, path string) string {
	for name := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		switch d := document.(type) {
		case map[string]any:
			document = d[name]
		case []any:
			document = nil
			if i, err := strconv.Atoi(name); err == nil && i < len(d) {
				document = d[i]
			}
		}
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(document)
	return strings.TrimSpace(text.String())
}
