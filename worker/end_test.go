package worker_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
	"github.com/google/go-cmp/cmp"
)

func TestACallGetsItsReceiptItsRowAndItsJournal(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write"})
	w := env.StartWorker()

	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "hello"})})
	r := env.Await(id)

	if r.Status != receipts.Succeeded || string(r.Result) != `{"text": "hello"}` {
		t.Errorf("receipt: %s %s", r.Status, r.Result)
	}
	if r.ToolName != "lab.write" || r.Attempt != 1 || r.WorkerID != w.ID() || r.RegistryVersion != "1.0.0" ||
		r.DurationMS <= 0 {
		t.Errorf("receipt: %+v", r)
	}
	if got, want := string(r.Effects),
		`{"db_writes": [{"id": "1", "table": "lab_rows", "action": "insert"}], "idempotency": {"hit": false, "mode": "none"}}`; got != want {
		t.Errorf("effects\n got %s\nwant %s", got, want)
	}
	if diff := cmp.Diff([]string{"queued", "claimed", "succeeded"}, env.Journal(id)); diff != "" {
		t.Error(diff)
	}
	var status string
	var errorField *string
	if err := env.DB.QueryRow(t.Context(), "select status, error::text from core_tool_calls where id = $1",
		id).Scan(&status, &errorField); err != nil {
		t.Fatal(err)
	}
	if status != "succeeded" || errorField != nil {
		t.Errorf("row: %s %v", status, errorField)
	}
	if n := rowsWith(t, env, "hello"); n != 1 {
		t.Errorf("%d rows", n)
	}
}

func TestAFailedCallSaysWhyOnReceiptAndRow(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write"})
	env.StartWorker()

	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x", Then: "fail with details"})})
	r := env.Await(id)
	want := `{"error": {"details": {"trays": 2}, "message": "There is no paper.", "error_code": "out_of_paper"}}`
	if r.Status != receipts.Failed || string(r.Result) != want {
		t.Errorf("receipt: %s %s", r.Status, r.Result)
	}
	var same bool
	err := env.DB.QueryRow(t.Context(), "select c.error = r.result -> 'error' from core_tool_calls c join "+
		"core_tool_receipts r on r.call_id = c.id where c.id = $1", id).Scan(&same)
	if err != nil || !same {
		t.Errorf("the call's error is not the receipt's: %v", err)
	}
}

// Whatever a handler does, its call ends with a receipt that says so, and what it wrote is gone with its transaction.
func TestWhateverAHandlerDoesItsCallEnds(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.write"}, tool{name: "lab.star", timeout: 2 * time.Second, attempts: 20})
	env.StartWorker()
	cases := []struct {
		then string
		code receipts.Code
		says string
	}{
		{"fail", receipts.ExecutionError, "it failed"},
		{"commit", receipts.ExecutionError, "Lab.Write failed: it ended the transaction that it shares with its receipt"},
		{"rollback", receipts.ExecutionError, "Lab.Write failed: it ended the transaction that it shares with its receipt"},
		{"swallow", receipts.ExecutionError, "continued after a statement had failed: Postgres refused a statement"},
		{"leave rows open", receipts.ExecutionError, "left the rows of a query open"},
		{"deferred constraint", receipts.ExecutionError, "Postgres refused a statement. Its operators"},
		{"give the call back", receipts.ExecutionError, "Lab.Write failed: its transaction moved its own call"},
		{"panic", receipts.Panic, "the handler has a bug"},
		{"panic with poison", receipts.Panic, "nul \uFFFD and \uFFFD"},
		{"poison error", "c\uFFFD", "nul \uFFFD and \uFFFD"},
		{"nil failure", receipts.Panic, "nil pointer"},
		{"wrapped nil", receipts.Panic, "nil pointer"},
		{"error that panics", receipts.Panic, "the error has a bug"},
		{"error that panics later", receipts.ExecutionError, "odd"},
		{"details that panic", receipts.Panic, "the details have a bug"},
		{"panic with a cycle", receipts.Panic, "a value of type map[string]interface {}"},
		{"panic with panic", receipts.Panic, "panics when it is printed"},
		{"Is panics", receipts.Panic, "the error has a bug"},
		{"Is never returns", receipts.Timeout, "took longer than its 2s"},
		{"As never returns", receipts.Timeout, "took longer than its 2s"},
		{"Unwrap never returns", receipts.Timeout, "took longer than its 2s"},
		{"Error never returns", receipts.Timeout, "took longer than its 2s"},
		{"swallow an argument whose Is panics", receipts.ExecutionError,
			"continued after a statement had failed: a statement failed with an error that cannot be read"},
		{"read rows after the end", receipts.ExecutionError, "left the rows of a query open"},
		{"goexit", receipts.Panic, "ended its goroutine"},
		{"nan", receipts.OutputInvalid, "cannot be encoded as JSON"},
		{"nul", receipts.OutputInvalid, ""},
		{"huge number", receipts.OutputInvalid, ""},
		{"lone surrogate", receipts.OutputInvalid, ""},
		{"invalid utf-8", receipts.OutputInvalid, ""},
		{"broken json", receipts.OutputInvalid, ""},
		{"wrong type", receipts.OutputInvalid, "does not fit its schema"},
		{"ignore the context", receipts.Timeout, "took longer than its 2s"},
		{"ignore the context in a statement", receipts.Timeout, "took longer than its 2s"},
	}
	ids := map[string]string{}
	for _, c := range cases {
		tool := "lab.write"
		if c.code == receipts.Timeout {
			tool = "lab.star"
		}
		ids[c.then] = env.Insert(handlertest.Call{Tool: tool, Input: task(Task{Text: c.then, Then: c.then})})
	}
	for _, c := range cases {
		r := env.Await(ids[c.then])
		e := handlertest.ErrorOf(t, r)
		if e.Code != c.code || !strings.Contains(e.Message, c.says) {
			t.Errorf("%s: %s", c.then, r.Result)
		}
		if strings.Contains(string(r.Effects), "db_writes") {
			t.Errorf("%s: the receipt claims a row that was rolled back: %s", c.then, r.Effects)
		}
		if n := rowsWith(t, env, c.then); n != 0 && c.then != "commit" {
			t.Errorf("%s: left %d rows", c.then, n)
		}
	}
	// A goroutine of the handler reads on a connection that was taken from it, and harms only itself.
	lab.tell(t, "late", Order{})
	<-lab.gate("read")
	// The slots are free again, and no connection is lost.
	if r := env.Run(handlertest.Call{Tool: "lab.write",
		Input: task(Task{Text: "after"})}); r.Status != receipts.Succeeded {
		t.Errorf("after: %s", r.Result)
	}
}

func TestDuplicateKeysInAnOutputEndInAReceipt(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write"})
	env.StartWorker()
	r := env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x", Then: "duplicate keys"})})
	if r.Status != receipts.Succeeded && r.Status != receipts.Failed {
		t.Errorf("%s", r.Result)
	}
}

func TestAHandlerWithoutStatementsNeedsNoTransaction(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.nothing"})
	env.StartWorker()
	if r := env.Run(handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "x"})}); r.Status != receipts.Succeeded {
		t.Errorf("%s", r.Result)
	}
}

func TestEffectsOutsideStayOnTheReceiptOfAFailure(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.send"})
	env.StartWorker()
	r := env.Run(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x", Then: "fail"})})
	var effects struct {
		MessagesSent []struct{ Recipient string } `json:"messages_sent"`
	}
	if err := json.Unmarshal(r.Effects, &effects); err != nil || len(effects.MessagesSent) != 1 {
		t.Errorf("effects: %s", r.Effects)
	}
}

func TestInputsAreCheckedBeforeAnythingRuns(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.send"}, tool{name: "lab.unbuilt"},
		tool{name: "lab.nothing", mode: "keyed", keyField: "key"})
	env.StartWorker()

	e := handlertest.ErrorOf(t, env.Run(handlertest.Call{Tool: "lab.send", Input: `{"then": 1, "other": true}`}))
	var faults []struct{ Path, Keyword, Message string }
	if err := json.Unmarshal(e.Details, &faults); err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{}
	for _, f := range faults {
		paths[f.Path] = f.Keyword
	}
	if diff := cmp.Diff(map[string]string{"/text": "required", "/then": "type", "/other": "additionalProperties"},
		paths); diff != "" || e.Code != receipts.ValidationError {
		t.Errorf("%s %s", e.Code, diff)
	}
	if !strings.Contains(e.Message, "text") {
		t.Errorf("the message does not name the field: %s", e.Message)
	}
	if len(lab.sentSoFar()) > 0 {
		t.Error("the handler ran")
	}

	unknown := env.Run(handlertest.Call{Tool: "no.such_tool"})
	if e := handlertest.ErrorOf(t, unknown); e.Code != receipts.UnknownTool || string(unknown.Effects) != "{}" {
		t.Errorf("%+v, with the effects %s", e, unknown.Effects)
	}
	if e := handlertest.ErrorOf(t, env.Run(handlertest.Call{Tool: "lab.nothing",
		Input: `{"text": "x", "key": ""}`})); e.Code != receipts.ValidationError {
		t.Errorf("an empty key: %+v", e)
	}
	if e := handlertest.ErrorOf(t, env.Run(handlertest.Call{Tool: "lab.unbuilt",
		Input: `{}`})); e.Code != receipts.ValidationError {
		t.Errorf("a tool without handler, with a wrong input: %+v", e)
	}
	r := env.Run(handlertest.Call{Tool: "lab.unbuilt", Input: `{"text": "x"}`})
	var result struct {
		Status, Reason string
		RequiredEnv    []string `json:"required_env"`
		NextSteps      []string `json:"next_steps"`
	}
	if err := json.Unmarshal(r.Result, &result); err != nil || r.Status != receipts.NotConfigured ||
		result.Status != "not_configured" ||
		result.RequiredEnv == nil || len(result.NextSteps) == 0 {
		t.Errorf("%s %s", r.Status, r.Result)
	}
}
