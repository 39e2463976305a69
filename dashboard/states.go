package dashboard

import (
	"cmp"
	"strings"

	"github.com/gemworker/gem/internal/prose"
	"github.com/gemworker/gem/internal/watch"
)

// words returns a status in plain words, such as Not configured.
func words(status string) string {
	if status == "" {
		return ""
	}
	status = strings.ReplaceAll(status, "_", " ")
	return strings.ToUpper(status[:1]) + status[1:]
}

// stateWord is a call's status, or scheduled, refused or cancelled. It is the class of its badge too.
func stateWord(c watch.Call) string {
	if c.Scheduled {
		return "scheduled"
	}
	return cmp.Or(c.Outcome, c.Status)
}

// stateText is the state of a call in words.
func stateText(c watch.Call) string {
	if c.Status != "waiting" {
		return words(stateWord(c))
	}
	return words(prose.Waiting(c.Tool, c.WaitsFor, c.Approval))
}

// waitingFor names the thing that a question of a tool waits for.
func waitingFor(asking string) string {
	return words(prose.Waiting(asking, "answer", false))
}
