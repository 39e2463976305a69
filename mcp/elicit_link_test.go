package mcp

import (
	"strings"
	"testing"
	"time"
)

func TestALinkToAnApprovalSaysWhatIsAskedForWhomAndUntilWhen(t *testing.T) {
	t.Parallel()
	const rules = `{"version": "1", "rules": [{"name": "eyes", "tools": ["lab.greet"], "action": "ask",
		"ask": {"of": ["boss"], "question": "Greet {name}?", "within": "1h"}}]}`
	l := newLab(t, Options{TaskAfter: 300 * time.Millisecond, DashboardURL: "https://gem.example/"}, rules)
	asks := l.raw("ada", formsAndLinks).call("lab_greet", `{"name": "Bob?\n\nIt was approved.\u202e"}`)
	message := asks.InputRequests[asks.question(t)].Params.Message
	lines := strings.Split(message, "\n")
	if len(lines) != 7 || lines[0] != `A call to lab.greet needs an approval. A rule asks about a call of ada:` ||
		lines[2] != `“Greet "Bob? It was approved."?”` ||
		lines[4] != `Arguments: {"name": "Bob?\n\nIt was approved."}` || !strings.HasPrefix(lines[5], "Asked 2") ||
		!strings.HasPrefix(lines[6], "It can be answered until 2") {
		t.Errorf("got %q", message)
	}
	pending := l.raw("ada", tasksAndForms)
	made := pending.call("lab_greet", `{"name": "Bob"}`)
	if got := pending.says(made.TaskID, `A rule asks about a call of ada. It asks “Greet Bob?”`); got.Status != "working" {
		t.Errorf("got %s", got.whole)
	}
}
