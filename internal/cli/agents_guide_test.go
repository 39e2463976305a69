package cli

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// The commands of docs/agents.md are run from its top, as a newcomer would run them, and give what it shows. Only the
// model is played.
func TestTheGuideToAgentsIsFollowed(t *testing.T) {
	testdb.Long(t, "TestTheTutorialIsFollowed")
	t.Parallel()
	f := &follower{root: fromRoot(t, "."), dir: reachableFolder(t), env: map[string]string{}, page: "docs/agents.md",
		section: "docs/agents.md", server: llmtest.Start(t, llmtest.Options{})}
	f.server.Script("qwen3:8b",
		used(llmtest.Call("call_1", "os_search_notes", `{"query": "Sam Carter"}`), 620, 18),
		used(llmtest.Call("call_2", "wait_answer", `{"text": "On which day should the roof be repaired?"}`), 710, 32),
		used(llmtest.Call("call_3", "os_create_task",
			`{"domain": "business", "title": "Repair the roof of Sam Carter", "due_at": "2027-02-02T09:00:00+11:00"}`), 800, 60),
		said("The repair is planned for Tuesday.", 890, 12))
	guide, err := os.ReadFile(fromRoot(t, "docs/agents.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$").FindAllStringSubmatch(string(guide), -1) {
		switch language, block := found[1], found[2]; language {
		case "sh":
			f.run(t, block)
		case "json":
			f.wantsJSON(t, block)
		default:
			f.wantsLines(t, block)
		}
	}
	if f.calls != 2 || f.shown != 3 {
		t.Errorf("%d calls are made, and %d results shown", f.calls, f.shown)
	}
	f.stop(t)
}

// Without a model, the page is followed with gem demo --stay, by copying its lines.
func TestTheGuideToAgentsIsFollowedWithTheDemo(t *testing.T) {
	testdb.Long(t, "TestDemoWithNothingSetUp")
	t.Parallel()
	f := &follower{root: fromRoot(t, "."), dir: reachableFolder(t), env: map[string]string{}, section: "docs/agents.md",
		demo: true}
	var said []string
	for _, found := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").
		FindAllStringSubmatch(readPage(t, "docs/agents.md"), -1) {
		f.run(t, found[1])
		said = append(said, f.said)
	}
	all := strings.Join(said, "\n")
	wants(t, all, "On which day should the roof be repaired?",
		`"answer": "There is a task for the repair on the day that you chose."`,
		`os_search_notes {"query": "Sam Carter"}`, "the same: succeeded")
	if f.calls != 2 {
		t.Errorf("%d calls are made, want 2", f.calls)
	}
	f.stop(t)
}

// wantsLines checks that the last commands said these lines, one after the other, and others between them.
func (f *follower) wantsLines(t *testing.T, block string) {
	t.Helper()
	f.shown++
	rest := strings.Join(strings.Fields(steady(f.said)), " ")
	for line := range strings.Lines(block) {
		_, after, ok := strings.Cut(rest, strings.Join(strings.Fields(steady(line)), " "))
		if !ok {
			if rewritten(t, f.page, block, withLines(block, f.said)) {
				return
			}
			t.Errorf("%s shows %q, and it is not there:\n%s", f.section, line, f.said)
			return
		}
		rest = after
	}
}
