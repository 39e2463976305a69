package prose

import (
	"cmp"
	"strings"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/oneline"
)

// Waiting returns the state of a tool's waiting call in words: "waiting for " and [Awaited], or "sleeping".
func Waiting(tool, waitsFor string, approval bool) string {
	if waitsFor == "time" {
		return "sleeping"
	}
	return "waiting for " + Awaited(tool, waitsFor, approval)
}

// Ended returns the outcome of a tool's call in words. An approval succeeds whatever the decision is, so its outcome
// is the decision.
func Ended(tool, outcome, decision string) string {
	if tool != "wait.approval" || outcome != "succeeded" {
		return outcome
	}
	return cmp.Or(decision, "ended")
}

// Awaited names the thing that a tool's call waits for. waitsFor is its column waits_for, and approval means that the
// call waits for approvals that rules ask for, since these questions are calls.
func Awaited(tool, waitsFor string, approval bool) string {
	switch {
	case approval, waitsFor == "answer" && tool == "wait.approval":
		return "an approval"
	case waitsFor == "answer" && tool == "wait.event":
		return "an event"
	case waitsFor == "answer":
		return "an answer"
	case waitsFor == "call":
		return "calls that it made"
	case waitsFor == "key":
		return "another call with its key"
	case waitsFor == "time":
		return "a time"
	case waitsFor == "place":
		return "a place of a rule"
	case waitsFor == "code":
		return "a program that has its code"
	}
	return waitsFor
}

// AskedFor describes in one line the answer that a call waits for, who may give it, where or how, and who asks.
// dashboard is the address of the pages, or empty.
func AskedFor(q client.WaitingCall, dashboard string) string {
	said, how := "It waits for an answer", "gem answer "+q.ID+" VALUE"
	switch {
	case q.Tool == "wait.approval":
		said, how = "It waits for an approval of "+oneline.Value(q.About), "gem approve "+q.ID+", or gem deny"
	case !IsQuestion(q.Tool) && len(q.Names) > 0 && q.Names[0] != "answer":
		how += " --name " + Argument(q.Names[0])
	}
	if len(q.By) > 0 {
		said += " by " + Cut(Printable(strings.Join(q.By, ", ")), 200)
	}
	if link := QuestionLink(dashboard, q.ID); link != "" && IsQuestion(q.Tool) {
		said += ", at " + link + " (or: " + how + ")"
	} else {
		said += ": " + how
	}
	if IsQuestion(q.Tool) && q.AskedFor != "" {
		said += ". " + Asker(q.AskedFor, q.AskedBy, q.Inside)
	}
	if q.Text != "" {
		said += ". It asks " + Said(q.Text, 300)
	}
	return said
}

// QuestionLink returns the page where people answer a question. It returns "" without a dashboard that has an
// address.
func QuestionLink(dashboard, id string) string {
	if !strings.HasPrefix(dashboard, "http") {
		return ""
	}
	return strings.TrimRight(dashboard, "/") + "/questions/" + id
}
