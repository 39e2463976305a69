package notify

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Message is the content of a delivery: the notices of a batch, with the times of the first and the last.
type Message struct {
	Count           int64
	FirstAt, LastAt time.Time
	// First is the stored description of the first notice.
	First json.RawMessage
	// Dashboard is the URL under which people see the dashboard; empty for no links.
	Dashboard string
}

// samples are messages that `gem notify check` compares with the tools' schemas: one with a link, and one without.
var samples = []Message{
	{Count: 2, FirstAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), LastAt: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC),
		Dashboard: "https://ops.example.com/gem", First: json.RawMessage(`{"kind": "failed", "tool": "leads.create",
			"code": "timeout", "subject": "00000000-0000-7000-8000-000000000000"}`)},
	{Count: 1, First: json.RawMessage(`{"kind": "question", "tool": "leads.create", "asker": "rule",
			"asks": "wait.approval", "subject": "00000000-0000-7000-8000-000000000000"}`)},
}

// TestMessage returns the message that `gem notify test` delivers.
func TestMessage(at time.Time) Message {
	return Message{Count: 1, FirstAt: at, LastAt: at, First: json.RawMessage(`{"kind": "test"}`)}
}

// Tool returns the tool of a channel, or an error if the file does not have the channel.
func (s *Set) Tool(channel string) (string, error) {
	c, known := s.channels[channel]
	if !known {
		return "", errors.New(noChannel(channel, s.Channels()))
	}
	return c.Tool, nil
}

// Input returns the input of the call that delivers a message through a channel.
func (s *Set) Input(channel string, m Message) json.RawMessage {
	c := s.channels[channel]
	fields := map[string]string{}
	escape := escapes[c.Escape]
	for name, value := range m.fields(c.Text) {
		fields[name] = escape(value)
	}
	var input any
	if c.Input != nil {
		input = filled(c.Input, fields)
	} else {
		object := map[string]any{}
		for name, value := range fields {
			object[name] = value
		}
		object["count"] = m.Count
		input = object
	}
	encoded, _ := json.Marshal(input) // of texts, numbers and values from the file
	return encoded
}

// fields returns the fields of a message, by name. withText includes the text of a question.
func (m Message) fields(withText bool) map[string]string {
	var n first
	_ = json.Unmarshal(m.First, &n) // this package wrote it
	title, text := n.words(max(m.Count, 1))
	switch {
	case withText && n.Question != "" && n.Asker == "user":
		text += " " + n.Question
	case withText && n.Question != "":
		text = n.Question
	}
	if n.Through != "" {
		text = strings.TrimSpace(text + " The channel " + n.Through + " did not deliver this.")
	}
	if m.Count > 1 && second(m.FirstAt) != second(m.LastAt) {
		text = strings.TrimSpace(fmt.Sprintf("%s Between %s and %s.", text, second(m.FirstAt), second(m.LastAt)))
	}
	return map[string]string{"title": title, "text": text, "link": n.link(m.Dashboard), "kind": n.Kind, "tool": n.Tool,
		"code": n.Code, "count": strconv.FormatInt(m.Count, 10), "at": m.FirstAt.UTC().Format(time.RFC3339)}
}

func second(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05 UTC") }

// words returns the title and the text for a number of notices.
func (n *first) words(count int64) (title, text string) {
	tool := cmp.Or(n.Tool, "A call")
	switch n.Kind {
	case Question:
		title = "Answer needed"
		if n.Asks == "wait.approval" {
			title = "Approval needed"
		}
		if n.Tool != n.Asks {
			title += ": " + tool
		}
		text = map[string]string{"rule": "A rule asks for it.", "handler": "The tool itself asks.",
			"user": "A user asks. Nobody has reviewed the request."}[n.Asker]
		if count > 1 {
			title = fmt.Sprintf("%d questions: %s", count, tool)
		}
	case Failed:
		text = "The first call is " + n.Subject + "."
		switch {
		case n.Code == "unknown_tool" && count == 1:
			title = "A call named an unknown tool"
		case n.Code == "unknown_tool":
			title = fmt.Sprintf("%d calls named unknown tools", count)
		case n.Code == "not_configured":
			title = fmt.Sprintf("%s is not configured (%s)", tool, calls(count))
		case count > 1:
			title = fmt.Sprintf("%s failed %d times: %s", tool, count, n.Code)
		default:
			title = fmt.Sprintf("%s failed: %s", tool, n.Code)
		}
	case Refused:
		text = "The first call is " + n.Subject + "."
		title = fmt.Sprintf("%s was refused: %s", tool, n.Code)
		if count > 1 {
			title = fmt.Sprintf("%s was refused %d times: %s", tool, count, n.Code)
		}
	case Failing:
		title = fmt.Sprintf("%s keeps failing: %d within %s", tool, n.Failed, n.Within)
		text = fmt.Sprintf("%s failed since the last notice.", calls(count))
	case Budget:
		title = fmt.Sprintf("%s %% of the budget %s is spent", n.Code, n.Subject)
		if count > 1 { // a budget for each user or session
			title = fmt.Sprintf("%s %% of the budget %s is spent, by %d", n.Code, n.Subject, count)
		}
	case Schedule:
		title = fmt.Sprintf("Schedule %s: %s", n.Subject, n.Code)
		if count > 1 {
			title += fmt.Sprintf(" (%d times)", count)
		}
		text = map[string]string{"refused": "GEM could not insert a call to " + tool + ".",
			"missed": "No worker ran when a call to " + tool + " was due.", "ended": "It makes no further calls.",
			"paused": "Its user has not saved or resumed it for a long time."}[n.Code]
	default:
		title, text = "Test", "This is a test of gem notify."
	}
	return title, text
}

func calls(count int64) string {
	if count == 1 {
		return "1 call"
	}
	return fmt.Sprintf("%d calls", count)
}

// link returns the page of the dashboard about a notice, or "" without a dashboard.
func (n *first) link(dashboard string) string {
	base := strings.TrimRight(dashboard, "/")
	switch {
	case base == "":
		return ""
	case n.Kind == Question:
		return base + "/questions/" + n.Subject
	case n.Kind == Failed || n.Kind == Refused || n.Kind == Failing:
		return base + "/calls/" + n.Subject
	case n.Kind == Schedule:
		return base + "/schedules"
	}
	return base + "/"
}
