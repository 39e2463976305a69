package mcp

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// eyes lets people decide about lab.greet.
const eyes = `{"version": "1", "rules": [{"name": "eyes", "tools": ["lab.greet"], "action": "ask", "ask": {"of": ["boss"], "question": "Greet her?", "within": "2h"}}]}`

// The requests here may wait for an hour: they return sooner only if people have to act.
func TestACallThatOnlyPeopleCanMoveIsPendingAtOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{Wait: time.Hour}, eyes)
	for _, c := range []struct {
		name, capabilities, tool, arguments string
		want                                []string
	}{
		{"a rule asks", nothing, "lab_greet", `{"name": "Ada"}`, []string{"It waits for an approval of lab.greet by " +
			"role:boss: gem approve ", "A rule asks about a call of ada. It asks “Greet her?”",
			"It can be answered until "}},
		{"a rule asks, and the client shows forms", formsAndLinks, "lab_greet", `{"name": "Ada"}`,
			[]string{"It waits for an approval of lab.greet by role:boss: gem approve "}},
		{"a handler asks", nothing, "lab_ask", `{}`, []string{"It waits for an answer by user:ada: gem answer ",
			"A handler asks, on behalf of ada. It asks “How many?”"}},
		{"a handler asks another", onlyForms, "lab_ask", `{"by": ["user:bob"]}`,
			[]string{"It waits for an answer by user:bob: gem answer ", "It asks “How many?”"}},
		{"a call below asks", nothing, "lab_nest", `{}`,
			[]string{"It waits for an answer by user:ada: gem answer ",
				"A handler asks, on behalf of ada. It asks “How many?”"}},
		{"a handler wants an approval", nothing, "lab_approve", `{"by": ["user:ada"]}`,
			[]string{"It waits for an approval of lab.greet by user:ada: gem approve "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := l.raw("ada", c.capabilities).call(c.tool, c.arguments)
			var of struct {
				Pending struct {
					CallID string `json:"call_id"`
					State  string
				} `json:"gem_pending"`
			}
			if err := json.Unmarshal(got.StructuredContent, &of); err != nil || got.IsError || of.Pending.State != "waiting" {
				t.Fatalf("got %s, %v", got.whole, err)
			}
			for _, want := range append(c.want, "Tell your user this, and do not answer or approve it yourself",
				"Do not call the tool again", "call gem_result with call_id "+of.Pending.CallID) {
				if !strings.Contains(got.text(), want) {
					t.Errorf("got %s, want %s", got.text(), want)
				}
			}
			if strings.Contains(got.text(), "calls that it made") {
				t.Errorf("got %s", got.text())
			}
		})
	}
}

func TestTheSameCallAgainIsPendingUntilAPersonHasAnswered(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{Wait: time.Hour, DashboardURL: "https://gem.example"})
	ada := l.raw("ada", nothing)
	again := func() *said {
		return ada.ask("tools/call", `{"name": "lab_ask", "arguments": {}, "_meta": {"io.github.gemworker/key": "k"}}`)
	}
	for range 2 {
		if got := again(); !strings.Contains(got.text(), "at https://gem.example/questions/") ||
			!strings.Contains(got.text(), "(or: gem answer ") {
			t.Errorf("got %s", got.whole)
		}
	}
	l.answer(rowID("ada", "lab.ask", "k"), 4)
	if got := again(); string(got.StructuredContent) != `{"text":"4"}` {
		t.Errorf("got %s, want the result", got.whole)
	}
}

func TestAClientWithTasksHasATaskAsSoonAsOnlyPeopleCanMoveTheCall(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{Wait: time.Hour, TaskAfter: time.Hour}, eyes)
	if got := l.raw("ada", onlyTasks).call("lab_greet", `{"name": "Ada"}`); got.ResultType != "task" ||
		got.Status != "working" || !strings.Contains(got.StatusMessage, "gem approve ") {
		t.Errorf("got %s, want a task", got.whole)
	}
}

// looks waits until the server has read its calls a few more times.
func (l *labEnv) looks() {
	l.t.Helper()
	before := l.statements.Load()
	l.Until("the server looks", func() bool { return l.statements.Load() > before+40 })
}

func TestACallThatMoreThanAPersonCanMoveIsAwaited(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{Wait: time.Hour})
	answer := make(chan *said)
	go func() { answer <- l.raw("ada", nothing).call("lab_both", `{}`) }()
	event := ""
	l.Until("both are asked", func() bool {
		err := l.DB.QueryRow(t.Context(), `select max(id::text) filter (where tool_name = 'wait.event') from core_tool_calls
			where waits_for = 'answer' having count(*) = 2`).Scan(&event)
		return err == nil
	})
	l.looks()
	select {
	case got := <-answer:
		t.Fatalf("an event can continue it, but the answer is %s", got.whole)
	default:
	}
	l.Answer(event, 1)
	if got := <-answer; !strings.Contains(got.text(), "It asks “How many?”") ||
		strings.Count(got.text(), "It waits for") != 1 {
		t.Errorf("once only a person can move it: %s", got.whole)
	}
}

func TestACallThatSoonGoesOnByItselfIsAwaited(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{Wait: time.Hour, TaskAfter: 2 * time.Hour})
	for _, capabilities := range []string{nothing, onlyTasks} {
		for name, arguments := range map[string]string{
			"its handler waits for a second": `{"seconds": 1}`,
			"the question is open for three": fmt.Sprintf(`{"until": %q}`,
				time.Now().Add(3*time.Second).UTC().Format(time.RFC3339Nano)),
		} {
			if got := l.raw("ada", capabilities).call("lab_soon",
				arguments); string(got.StructuredContent) != `{"text":"without"}` {
				t.Errorf("%s: got %s, want the result", name, got.whole)
			}
		}
	}
	if got := l.raw("ada", nothing).call("lab_soon", `{"seconds": 7200}`); !strings.Contains(got.text(),
		"It waits for an answer") {
		t.Errorf("it goes on by itself after the request: got %s, want a pending call", got.whole)
	}
}

func TestAQuestionThatIsLookedAtSaysItAsItsCallDoes(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{})
	const asks = "It waits for an approval of lab.greet by user:bob: gem approve "
	l.raw("ada", nothing).pending("lab_approve", `{"by": ["user:bob"]}`, asks)
	var id string
	err := l.DB.QueryRow(t.Context(), "select id::text from core_tool_calls where tool_name = 'wait.approval'").Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	got := l.raw("ada", nothing).call("gem_result", fmt.Sprintf(`{"call_id": %q}`, id))
	if !strings.Contains(got.text(), asks+id) {
		t.Errorf("got %s, want %s%s", got.whole, asks, id)
	}
}

func TestANameThatIsQuotedBackIsOnePlainLine(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{})
	got := l.raw("ada", nothing).call("gem_result", `{"call_id": "\u001b[2J\u202e\nx"}`)
	if !strings.Contains(got.whole, "you have no call [2J x") {
		t.Errorf("got %s", got.whole)
	}
}

func TestACallThatWaitsForASystemIsAwaited(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{Wait: time.Hour})
	answer := make(chan *said)
	go func() { answer <- l.raw("ada", nothing).call("lab_receive", `{}`) }()
	id := ""
	l.Until("it waits", func() bool {
		return l.DB.QueryRow(t.Context(), `select id::text from core_tool_calls where waits_for = 'answer'`).Scan(&id) == nil
	})
	l.looks()
	select {
	case got := <-answer:
		t.Fatalf("a system can continue it, but the answer is %s", got.whole)
	default:
	}
	l.Answer(id, "news", "sent")
	if got := <-answer; string(got.StructuredContent) != `{"text":"news"}` {
		t.Errorf("got %s, want the result", got.whole)
	}
}

func TestAResultThatIsAwaitedIsReturnedWhenItIsThere(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{Wait: time.Hour})
	ada := l.raw("ada", nothing)
	ada.ask("tools/call", `{"name": "lab_ask", "arguments": {}, "_meta": {"io.github.gemworker/key": "k"}}`)
	id := rowID("ada", "lab.ask", "k")
	answer := make(chan *said)
	go func() { answer <- ada.call("gem_result", fmt.Sprintf(`{"call_id": %q, "wait_seconds": 45}`, id)) }()
	l.looks()
	l.answer(id, 4)
	if got := <-answer; !strings.Contains(string(got.StructuredContent), `"status":"succeeded"`) {
		t.Errorf("got %s, want the receipt", got.whole)
	}
}
