package dashboard

import (
	"cmp"
	"strings"

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
	switch c.WaitsFor {
	case "key":
		return "Waiting for its key"
	case "call":
		if c.Approval {
			return "Waiting for approval"
		}
		return "Waiting for calls"
	case "answer":
		return waitingFor(c.Tool)
	case "time":
		return "Sleeping"
	case "code":
		return "Waiting for a program"
	}
	return "Waiting"
}

// waitingFor names the thing that a question of a tool waits for.
func waitingFor(asking string) string {
	switch asking {
	case approvalTool:
		return "Waiting for approval"
	case "wait.event":
		return "Waiting for an event"
	}
	return "Waiting for an answer"
}
