package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// served are the answers that models give in the sections of docs/llm.md, in their order.
var served = map[string]map[string][]llmtest.Script{
	"With Ollama": {"qwen3:8b": {said("Canberra.", 21, 4)}},
	"With a key":  {"claude-sonnet-4-6": {said("Canberra.", 16, 6)}},
	"llm.chat": {"claude-sonnet-4-6": {
		used(llmtest.Call("toolu_1", "leads_list_by_stage", `{"stage": "new"}`), 420, 58),
		said("There are two new leads: Ada and Grace.", 510, 14)}},
	"llm.structured": {"claude-sonnet-4-6": {
		said(`{"name": "Ada", "stage": "hot"}`, 120, 12),
		said(`{"name": "Ada", "stage": "quoted"}`, 190, 13)}},
	"When a model does not answer": {
		"claude-sonnet-4-6": {{Fault: llmtest.Limited(10*time.Minute, llmtest.InSeconds)}},
		"gpt-5":             {said("Canberra.", 15, 70), said("Wellington.", 12, 66)}},
	"llm.ensemble": {
		"claude-haiku-4-5":      {said("A tiled roof lasts fifty years or more.", 30, 12)},
		"mistral-medium-latest": {said("Some twenty years.", 28, 6)},
		"gemini-2.5-flash":      {said("Fifty to a hundred years, if tiles that break are replaced.", 29, 18)}},
}

// judges is the answer of the model that judges: for the third member, whatever its letter is.
func judges(r *llmtest.Request) llmtest.Script {
	shown := ""
	for _, m := range r.Asked.Messages {
		for _, p := range m.Content {
			shown += p.Text
		}
	}
	letter := regexp.MustCompile(`--- answer (.) ---\nFifty to a hundred`).FindStringSubmatch(shown)
	if letter == nil {
		return llmtest.Say("")
	}
	return said(`{"winner": "`+letter[1]+`", "reason": "It says what the time depends on."}`, 180, 25)
}

func said(text string, input, output int64) llmtest.Script {
	return used(llmtest.Say(text), input, output)
}

func used(s llmtest.Script, input, output int64) llmtest.Script {
	s.Usage = &provider.Usage{Input: input, Output: output, Known: true}
	return s
}

// The commands of docs/llm.md are run from its top, as a newcomer would run them, and give what it shows. Only the
// providers are played.
func TestTheGuideToModelsIsFollowed(t *testing.T) {
	testdb.Long(t, "TestTheTutorialIsFollowed")
	t.Parallel()
	f := &follower{root: fromRoot(t, "."), dir: reachableFolder(t), env: map[string]string{}}
	f.server = llmtest.Start(t, llmtest.Options{Answer: func(r *llmtest.Request) llmtest.Script {
		if r.Asked.Model == "gemini-2.5-pro" {
			return judges(r)
		}
		t.Errorf("nothing is said for %s", r.Asked.Model)
		return llmtest.Say("")
	}})
	f.follow(t, "docs/llm.md", "The routes file", served) // whose blocks are parts of the examples
	if f.calls < 8 || f.shown < 10 {
		t.Errorf("%d calls are made, and %d results shown", f.calls, f.shown)
	}
}

// follow does what a page of the documents says up to a heading. served are the answers that models give in its
// sections, in their order.
func (f *follower) follow(t *testing.T, page, end string, served map[string]map[string][]llmtest.Script) {
	t.Helper()
	f.page = page
	guide, err := os.ReadFile(fromRoot(t, page))
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile("(?ms)^#+ ([^\n]*)$|^```([a-z]*)\n(.*?)^```$").
		FindAllStringSubmatch(string(guide), -1) {
		switch heading, language, block := found[1], found[2], found[3]; {
		case heading == end:
			f.stop(t)
			return
		case heading != "":
			f.section = heading
			for model, scripts := range served[heading] {
				f.server.Script(model, scripts...)
			}
		case language == "sh":
			f.run(t, block)
		case language == "json":
			f.wantsJSON(t, block)
		case language == "sql":
			f.said = f.query(t, block)
		case language == "":
			f.wantsText(t, block)
		}
	}
	t.Errorf("there is no heading: %s", end)
}

// query runs a block of SQL, and returns the rows of its last statement as psql -At -F ' | ' prints them.
func (f *follower) query(t *testing.T, block string) string {
	t.Helper()
	conn, err := testdb.Pool(t, f.env["DATABASE_URL"]).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	results, err := conn.Conn().PgConn().Exec(t.Context(), block).ReadAll()
	if err != nil {
		t.Errorf("%s: %v", f.section, err)
		return ""
	}
	var lines []string
	for _, row := range results[len(results)-1].Rows {
		lines = append(lines, string(bytes.Join(row, []byte(" | "))))
	}
	return strings.Join(lines, "\n")
}

// follower follows a guide: in one folder, with its exports and the output of the last commands.
type follower struct {
	root, dir, page, section string
	env                      map[string]string
	server                   *llmtest.Server
	dev                      *process
	demo                     bool // uses gem demo --stay where the guide offers it, instead of gem dev
	said                     string
	call                     string // the id of the last one that was not waited for
	calls, shown             int
}

// fillIn puts ids in place of their names. A question is waited for, and so is a receipt.
func (f *follower) fillIn(t *testing.T, words []string) []string {
	t.Helper()
	words = slices.Clone(words)
	for i, word := range words {
		switch word {
		case "CALL_ID":
			words[i] = f.call
			if words[1] == "receipt" {
				if _, err := client.Await(t.Context(), testdb.Pool(t, f.env["DATABASE_URL"]), f.call); err != nil {
					t.Error(err)
				}
			}
		case "QUESTION_ID":
			d := delta{T: t, db: testdb.Pool(t, f.env["DATABASE_URL"])}
			words[i] = d.question(f.call)
			if !f.demo {
				f.dev.stdout.waitFor(t, words[i]) // then its roles are granted
			}
		}
	}
	return words
}

func (f *follower) run(t *testing.T, block string) {
	t.Helper()
	f.said = ""
	for _, words := range commands(t, unrolled(block)) {
		switch {
		case words[0] == "gem" && words[1] == "demo":
			if f.demo {
				f.startDemo(t)
			}
		case f.demo && (words[0] == "cp" || words[0] == "gem" && words[1] == "dev"):
		case words[0] == "cp":
			text, err := os.ReadFile(filepath.Join(f.root, words[1]))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(f.dir, words[2]), text, 0o644); err != nil { //nolint:gosec // nothing secret
				t.Fatal(err)
			}
		case words[0] == "export":
			name, value, _ := strings.Cut(words[1], "=")
			if name != "DATABASE_URL" { // it is what gem dev printed
				f.env[name] = value
			}
		case words[0] == "ollama":
		case words[0] == "mkdir": // the follower has a folder
		case words[0] == "gem" && words[1] == "dev":
			f.start(t, words[2:]...)
		case words[0] == "gem":
			from := ""
			if n := len(words); words[n-2] == "<" {
				words, from = words[:n-2], filepath.Join(f.root, words[n-1])
			}
			words = f.fillIn(t, words)
			p := f.prepare(t, words[1:])
			if from != "" {
				file, err := os.Open(from)
				if err != nil {
					t.Fatal(err)
				}
				defer file.Close()
				p.cmd.Stdin = file
			}
			p.start(t)
			code := p.wait(t)
			if words[1] == "call" {
				f.calls++
				if words[len(words)-1] != "--wait" {
					f.call = strings.TrimSpace(p.stdout.String())
				}
			} else if code != 0 {
				t.Errorf("%s: exit code %d: %s", words, code, p.stderr.String())
			}
			f.said += p.stdout.String()
		default:
			t.Errorf("%s: nobody follows %q", f.section, words)
		}
	}
}

var loop = regexp.MustCompile(`(?m)^for (\w+) in ([^;]+); do (.*); done$`)

// unrolled writes each loop of a block as the commands that it runs.
func unrolled(block string) string {
	return loop.ReplaceAllStringFunc(block, func(line string) string {
		parts := loop.FindStringSubmatch(line)
		var lines []string
		for _, value := range strings.Fields(parts[2]) {
			lines = append(lines, strings.ReplaceAll(parts[3], "$"+parts[1], value))
		}
		return strings.Join(lines, "\n")
	})
}

// startDemo starts gem demo --stay, and exports what it prints.
func (f *follower) startDemo(t *testing.T) {
	t.Helper()
	f.dev = f.prepare(t, []string{"demo", "--stay"})
	f.dev.start(t)
	for _, found := range regexp.MustCompile(`export (\w+)='([^']+)'`).
		FindAllStringSubmatch(f.dev.stdout.waitFor(t, "export LLM_ROUTES='{"), -1) {
		f.env[found[1]] = found[2]
	}
}

func (f *follower) prepare(t *testing.T, words []string) *process {
	t.Helper()
	var env []string
	for name, value := range f.env {
		env = append(env, name+"="+value)
	}
	p := prepare(t, env, words...)
	p.cmd.Dir = f.dir
	return p
}

// start restarts gem dev, with the providers of the routes file played, if there is one.
func (f *follower) start(t *testing.T, flags ...string) {
	t.Helper()
	f.stop(t)
	delete(f.env, "DATABASE_URL")
	if text, err := os.ReadFile(filepath.Join(f.dir, "llm.routes.json")); err == nil {
		f.env["LLM_ROUTES"] = f.played(t, text)
	}
	f.dev = f.prepare(t, append([]string{"dev"}, flags...))
	f.dev.start(t)
	delete(f.env, "LLM_ROUTES")
	f.env["DATABASE_URL"] = devURL(t, f.dev)
}

func (f *follower) played(t *testing.T, routes []byte) string {
	t.Helper()
	var file map[string]any
	if err := json.Unmarshal(routes, &file); err != nil {
		t.Fatal(err)
	}
	for _, p := range file["providers"].(map[string]any) {
		provider := p.(map[string]any)
		provider["base_url"], provider["local"] = f.server.BaseURL(llmtest.Dialect(provider["dialect"].(string))), true
	}
	played, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(played)
}

func (f *follower) stop(t *testing.T) {
	t.Helper()
	if f.dev == nil {
		return
	}
	f.dev.signal(t, syscall.SIGINT)
	if code := f.dev.wait(t); code != 0 {
		t.Errorf("gem dev: exit code %d", code)
	}
	f.dev = nil
}

func (f *follower) wantsText(t *testing.T, block string) {
	t.Helper()
	f.shown++
	if flat(f.said) != flat(block) && !rewritten(t, f.page, block, f.said) {
		t.Errorf("%s: the guide shows\n%s\nand it is\n%s", f.section, block, f.said)
	}
}

// wantsJSON checks that the last command said at least this. Ids, times and durations are always others.
func (f *follower) wantsJSON(t *testing.T, block string) {
	t.Helper()
	f.shown++
	var got, want any
	last := f.said[max(0, strings.LastIndex(f.said, "\n{\n")):]
	if err := json.Unmarshal([]byte(block), &want); err != nil {
		t.Errorf("%s: %v: %s", f.section, err, block)
		return
	}
	if err := json.Unmarshal([]byte(last), &got); err != nil {
		t.Errorf("%s: %v: %q", f.section, err, f.said)
		return
	}
	if at := differs(got, want, ""); at != "" && !rewritten(t, f.page, block, withValues(block, last)) {
		var indented bytes.Buffer
		_ = json.Indent(&indented, []byte(last), "", "  ")
		t.Errorf("%s: it differs at %s:\n%s", f.section, at, indented.String())
	}
}

var alwaysOthers = []string{"id", "call_id", "ms", "first_content_ms", "duration_ms", "created_at", "started_at",
	"finished_at", "until", "day"}

// differs returns the path at which got lacks what is wanted.
func differs(got, want any, path string) string {
	switch want := want.(type) {
	case map[string]any:
		have, ok := got.(map[string]any)
		if !ok {
			return path
		}
		for name, wanted := range want {
			inner := path + "/" + name
			value, ok := have[name]
			if !ok {
				return inner
			}
			if slices.Contains(alwaysOthers, name) && reflect.TypeOf(value) == reflect.TypeOf(wanted) &&
				!strings.HasPrefix(fmt.Sprint(wanted), "toolu_") {
				continue
			}
			if at := differs(value, wanted, inner); at != "" {
				return at
			}
		}
		return ""
	case []any:
		have, ok := got.([]any)
		if !ok || len(have) != len(want) {
			return path
		}
		for i := range want {
			if at := differs(have[i], want[i], fmt.Sprintf("%s/%d", path, i)); at != "" {
				return at
			}
		}
		return ""
	}
	if !reflect.DeepEqual(got, want) {
		return path
	}
	return ""
}

// commands splits a block of shell into commands and their words. Single quotes go over lines.
func commands(t *testing.T, block string) (all [][]string) {
	t.Helper()
	var words []string
	word, in, quoted, comment := "", false, false, false
	end := func() {
		if in {
			words, word, in = append(words, word), "", false
		}
	}
	for _, letter := range block {
		switch {
		case comment && letter != '\n':
		case letter == '\'':
			quoted, in = !quoted, true
		case quoted:
			word += string(letter)
		case letter == '\n':
			end()
			if len(words) > 0 {
				all = append(all, words)
			}
			words, comment = nil, false
		case letter == ' ':
			end()
		case letter == '#' && !in:
			comment = true
		default:
			word, in = word+string(letter), true
		}
	}
	if quoted || in {
		t.Errorf("an unfinished command: %s", block)
	}
	return all
}
