package dashboard

import (
	"cmp"
	"strings"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/prose"
)

// words returns a status in plain words, such as Not configured.
func words(status string) string {
	if status == "" {
		return ""
	}
	status = strings.ReplaceAll(status, "_", " ")
	return strings.ToUpper(status[:1]) + status[1:]
}

// stateWord returns a call's status, or scheduled, refused or cancelled. It is also the class of the badge.
func stateWord(c view.Call) string {
	switch {
	case c.Scheduled:
		return "scheduled"
	case c.Decision == "denied":
		return "refused"
	}
	return cmp.Or(c.Outcome, c.Status)
}

// stateText returns the state of a call in words.
func stateText(c view.Call) string {
	if c.Asks != "" {
		return waitingFor(c.Asks)
	}
	if c.Status != "waiting" {
		return words(prose.Ended(c.Tool, cmp.Or(c.Outcome, stateWord(c)), c.Decision))
	}
	return words(prose.Waiting(c.Tool, c.WaitsFor, c.Approval))
}

// waitingFor names the thing that a question of a tool waits for.
func waitingFor(asking string) string {
	return words(prose.Waiting(asking, "answer", false))
}
