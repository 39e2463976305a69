package mcp

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestACallThatTakesLongIsATask(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{TaskAfter: 100 * time.Millisecond})
	client := l.raw("ada", onlyTasks)

	made := client.call("lab_ask", `{}`)
	if made.ResultType != "task" || made.Status != "working" || made.StatusMessage == "" || string(made.TTLMs) != "null" ||
		made.PollIntervalMs != 500 ||
		made.CreatedAt == "" || made.LastUpdatedAt == "" || made.Result != nil || strings.Contains(made.whole, "content") {
		t.Errorf("got %s, want a task", made.whole)
	}
	var tool string
	if err := l.DB.QueryRow(t.Context(), "select tool_name from core_tool_calls where id = $1",
		made.TaskID).Scan(&tool); err != nil || tool != "lab.ask" {
		t.Errorf("got a row of %q, %v; want the task's own", tool, err)
	}
	l.answer(made.TaskID, 4)
	done := client.task(made.TaskID, "completed")
	if done.ResultType != "complete" || done.Result == nil || string(done.Result.StructuredContent) != `{"text":"4"}` ||
		done.Result.text() != `{"text": "4"}` {
		t.Errorf("got %s, want the result", done.whole)
	}
}

func TestACallThatEndsSoonIsNoTask(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{TaskAfter: time.Minute})
	if got := l.raw("ada", onlyTasks).call("lab_greet", `{"name": "Ada"}`); got.ResultType != "complete" ||
		got.TaskID != "" || got.text() != `{"text": "Hello, Ada!"}` {
		t.Errorf("got %s, want the result", got.whole)
	}
}

func TestATaskEndsAsItsCall(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{}) // a task at once
	client := l.raw("ada", onlyTasks)

	failed := client.task(client.call("failing_job", `{}`).TaskID, "completed")
	if failed.Result == nil || !failed.Result.IsError || !strings.Contains(failed.Result.text(), "It always fails.") ||
		failed.Result.StructuredContent != nil {
		t.Errorf("a tool that failed: got %s", failed.whole)
	}
	refused := client.task(client.call("protocol_error_job", `{}`).TaskID, "failed")
	if refused.Result != nil || refused.Error == nil || refused.Error.Code != -32602 {
		t.Errorf("a tool that the worker does not know: got %s", refused.whole)
	}

	id := client.call("slow_compute", `{"seconds": 100}`).TaskID
	for range 2 {
		if ack := client.ask("tasks/cancel", fmt.Sprintf(`{"taskId": %q}`, id)); ack.Error != nil ||
			ack.ResultType != "complete" || ack.Status != "" {
			t.Errorf("tasks/cancel: got %s", ack.whole)
		}
	}
	if ended := client.task(id, "cancelled"); ended.Result != nil {
		t.Errorf("got %s, want no result", ended.whole)
	}
	if ack := client.ask("tasks/cancel", fmt.Sprintf(`{"taskId": %q}`, id)); ack.Error != nil ||
		ack.ResultType != "complete" {
		t.Errorf("tasks/cancel of one that has ended: got %s", ack.whole)
	}
}

func TestATaskOutlivesItsClient(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{CancelOnDisconnect: true})
	first := l.raw("ada", onlyTasks)
	id := first.call("lab_ask", `{}`).TaskID
	first.close()
	l.answer(id, 4)
	if done := l.raw("ada", onlyTasks).task(id, "completed"); done.Result.text() != `{"text": "4"}` {
		t.Errorf("got %s", done.whole)
	}
}

func TestTasksOfOthersAndOfNobodyAreTheSame(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{})
	id := l.raw("ada", onlyTasks).call("lab_ask", `{}`).TaskID
	bob := l.raw("bob", tasksAndForms)
	const none = "0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55"
	for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
		for _, task := range []string{id, none, "no id", ""} {
			got := bob.ask(method, fmt.Sprintf(`{"taskId": %q, "inputResponses": {}}`, task))
			if got.Error == nil || got.Error.Code != -32602 ||
				got.Error.Message != fmt.Sprintf("you have no call %s", task) {
				t.Errorf("%s %q: got %s", method, task, got.whole)
			}
		}
	}
	if got := l.raw("ada", onlyTasks).ask("tasks/get", fmt.Sprintf(`{"taskId": %q}`, id)); got.Status != "working" {
		t.Errorf("ada's own: got %s", got.whole)
	}
}

func TestTasksNeedTheExtension(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{Wait: 50 * time.Millisecond})
	client := l.raw("ada", onlyForms)
	pending := client.call("slow_compute", `{"seconds": 100}`)
	if pending.ResultType != "complete" || pending.TaskID != "" || !strings.Contains(pending.text(), "gem_pending") {
		t.Errorf("got %s, want a call that is pending", pending.whole)
	}
	for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
		got := client.ask(method, `{"taskId": "x"}`)
		if got.Error == nil || got.Error.Code != -32021 ||
			string(got.Error.Data) != `{"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}` {
			t.Errorf("%s: got %s", method, got.whole)
		}
	}
	for _, method := range []string{"tasks/list", "tasks/result"} {
		client.capabilities = onlyTasks
		if got := client.ask(method, `{"taskId": "x"}`); got.Error == nil || got.Error.Code != -32601 {
			t.Errorf("%s: got %s", method, got.whole)
		}
	}
}

func TestATaskThatIsAskedForTooOftenIsAnsweredFromMemory(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{})
	client := l.raw("ada", onlyTasks)
	id := client.call("slow_compute", `{"seconds": 100}`).TaskID
	first := client.ask("tasks/get", fmt.Sprintf(`{"taskId": %q}`, id))
	asked, began := l.statements.Load(), time.Now()
	for range 50 {
		if again := client.ask("tasks/get", fmt.Sprintf(`{"taskId": %q}`, id)); again.Status != first.Status {
			t.Errorf("got %s", again.whole)
		}
	}
	looks := 2 + int64(time.Since(began)/(shortestPoll/2)) // of a few statements each
	if more := l.statements.Load() - asked; more > 8*looks {
		t.Errorf("the database was asked %d times, in a time for %d looks", more, looks)
	}
	client.ask("tasks/cancel", fmt.Sprintf(`{"taskId": %q}`, id))
	client.task(id, "cancelled")
}

func TestTheIntervalOfPollsGrowsWithTheAge(t *testing.T) {
	t.Parallel()
	for age, want := range map[time.Duration]time.Duration{
		-time.Hour: 500 * time.Millisecond, 0: 500 * time.Millisecond, 20 * time.Second: time.Second,
		time.Minute: 3 * time.Second, time.Hour: 5 * time.Second,
	} {
		if got := pollInterval(age); got != want {
			t.Errorf("at the age of %s: %s, want %s", age, got, want)
		}
	}
}

// answer answers the question of a call.
func (l *labEnv) answer(id string, value any) {
	l.t.Helper()
	l.Answer(l.Question(id).ID, value)
}
