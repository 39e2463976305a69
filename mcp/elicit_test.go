package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestAQuestionIsAnsweredByTheSameRequestAgain(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{})
	ada := l.raw("ada", onlyForms)
	asks := ada.call("lab_ask", `{}`)
	key := asks.question(t)
	form := asks.InputRequests[key]
	if asks.ResultType != "input_required" || form.Method != "elicitation/create" || form.Params.Mode != "form" ||
		form.Params.Message != "A handler asks, on behalf of ada:\n\n“How many?”" ||
		string(form.Params.RequestedSchema) != `{"type":"object","properties":{"answer":{"type":"integer","minimum":1,"maximum":9}},"required":["answer"]}` {
		t.Errorf("got %s", asks.whole)
	}

	wrong := ada.answer("lab_ask", asks.RequestState, key, `{"action": "accept", "content": {"answer": 10}}`)
	if again := wrong.InputRequests[key]; wrong.ResultType != "input_required" ||
		!strings.Contains(again.Params.Message, "at most 9") || !strings.HasSuffix(again.Params.Message, "“How many?”") {
		t.Errorf("an answer that does not fit: got %s", wrong.whole)
	}
	for range 2 { // the second because its answer was lost
		if done := ada.answer("lab_ask", asks.RequestState, key,
			`{"action": "accept", "content": {"answer": 4}}`); string(done.StructuredContent) != `{"text":"4"}` {
			t.Errorf("got %s, want the result", done.whole)
		}
	}
	l.count(t, "select count(*) from core_tool_calls where tool_name = 'lab.ask'", 1)
	l.count(t, "select count(*) from core_tool_events where event = 'answered'", 1)
	l.count(t, "select count(*) from core_tool_events where event = 'answered' and data ->> 'by' = 'ada'", 1)
}

func TestAUserWhoDoesNotAnswerHasACallThatIsPending(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{})
	ada := l.raw("ada", onlyForms)
	for _, action := range []string{"decline", "cancel"} {
		asks := ada.call("lab_ask", `{}`)
		key := asks.question(t)
		pending := ada.answer("lab_ask", asks.RequestState, key, fmt.Sprintf(`{"action": %q}`, action))
		if !strings.Contains(pending.text(), "gem_pending") || !strings.Contains(pending.text(), "gem answer "+key+" VALUE") {
			t.Errorf("%s: got %s", action, pending.whole)
		}
	}
}

func TestARequestStateFindsNothingOfAnother(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{})
	ada := l.raw("ada", onlyForms)
	asks := ada.call("lab_ask", `{}`)
	accept := `{"action": "accept", "content": {"answer": 4}}`
	for who, got := range map[string]*said{
		"bob":                 l.raw("bob", onlyForms).answer("lab_ask", asks.RequestState, asks.question(t), accept),
		"a state of nothing":  ada.answer("lab_ask", "0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55", asks.question(t), accept),
		"a state that is bad": ada.answer("lab_ask", asks.RequestState+"-TAMPERED", asks.question(t), accept),
		"another tool":        ada.answer("lab_greet", asks.RequestState, asks.question(t), accept),
		"other arguments": ada.ask("tools/call", fmt.Sprintf(
			`{"name": "lab_ask", "arguments": {"name": "x"}, "requestState": %q}`, asks.RequestState)),
		"another key": ada.ask("tools/call", fmt.Sprintf(
			`{"name": "lab_ask", "arguments": {}, "requestState": %q, "_meta": {"io.github.gemworker/key": "k"}}`,
			asks.RequestState)),
	} {
		if got.Error == nil || got.Error.Code != -32602 {
			t.Errorf("%s: got %s", who, got.whole)
		}
	}
	l.count(t, "select count(*) from core_tool_events where event = 'answered'", 0)
	l.count(t, "select count(*) from core_tool_calls where created_by = 'bob'", 0)
}

func TestOnlyTheQuestionsOfACallAreAnsweredWithIt(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{})
	ada := l.raw("ada", onlyForms)
	one, two := ada.call("lab_ask", `{}`), ada.call("lab_ask", `{}`)
	if got := ada.answer("lab_ask", one.RequestState, two.question(t),
		`{"action": "accept", "content": {"answer": 4}}`); got.question(t) != one.question(t) {
		t.Errorf("got %s, want the question of the call", got.whole)
	}
	l.count(t, "select count(*) from core_tool_events where event = 'answered'", 0)
}

func TestAQuestionOfACallBelowIsAsked(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{})
	ada := l.raw("ada", onlyForms)
	asks := ada.call("lab_nest", `{}`)
	if done := ada.answer("lab_nest", asks.RequestState, asks.question(t),
		`{"action": "accept", "content": {"answer": 4}}`); string(done.StructuredContent) != `{"text":"4"}` {
		t.Errorf("got %s, want the result", done.whole)
	}
}

func TestWhoAsksForAResultIsAskedToo(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{Wait: 500 * time.Millisecond})
	var pending struct {
		Of struct {
			CallID string `json:"call_id"`
		} `json:"gem_pending"`
	}
	if err := json.Unmarshal(l.raw("ada", nothing).call("lab_ask", `{}`).StructuredContent, &pending); err != nil {
		t.Fatal(err)
	}
	ada, result := l.raw("ada", onlyForms), fmt.Sprintf(`{"call_id": %q, "wait_seconds": 45}`, pending.Of.CallID)
	asks := ada.call("gem_result", result)
	done := ada.ask("tools/call",
		fmt.Sprintf(`{"name": "gem_result", "arguments": %s, "requestState": %q, "inputResponses": {%q: {"action": "accept",
		"content": {"answer": 4}}}}`, result, asks.RequestState, asks.question(t)))
	if !strings.Contains(string(done.StructuredContent), `"status":"succeeded"`) ||
		!strings.Contains(string(done.StructuredContent), pending.Of.CallID) {
		t.Errorf("got %s, want the receipt", done.whole)
	}
}

func TestNobodyWaitsForACallThatIsNotThere(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{})
	for _, capabilities := range []string{nothing, tasksAndForms} {
		ada := l.raw("ada", capabilities)
		before := l.statements.Load()
		got := ada.call("gem_result", `{"call_id": "0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55", "wait_seconds": 45}`)
		if got.Error == nil || got.Error.Code != -32602 {
			t.Errorf("got %s", got.whole)
		}
		if n := l.statements.Load() - before; n > 20 {
			t.Errorf("%d statements for one request", n)
		}
	}
}

func TestARuleThatAsksForAnApprovalIsALinkOrACommand(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{Wait: 100 * time.Millisecond},
		`{"version": "1", "rules": [{"name": "eyes", "tools": ["lab.greet"],
		"action": "ask", "ask": {"of": ["boss"]}}]}`)
	l.raw("ada", formsAndLinks).pending("lab_greet", `{"name": "Ada"}`,
		"It waits for an approval of lab.greet by role:boss: gem approve ")
	made := l.raw("ada", tasksAndForms).call("lab_greet", `{"name": "Ada"}`)
	if got := l.raw("ada", tasksAndForms).says(made.TaskID, "gem approve "); got.Status != "working" {
		t.Errorf("got %s", got.whole)
	}
}

func TestAQuestionForSomebodyElseIsNoForm(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{Wait: 100 * time.Millisecond})
	l.raw("ada", onlyForms).pending("lab_ask", `{"by": ["user:bob"]}`, `It waits for an answer by user:bob: gem answer `)
	task := l.raw("ada", tasksAndForms).call("lab_ask", `{"by": ["user:bob"]}`)
	if got := l.raw("ada", tasksAndForms).says(task.TaskID, "by user:bob"); got.Status != "working" {
		t.Errorf("got %s", got.whole)
	}
}

func TestAnEventIsNoForm(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{Wait: 100 * time.Millisecond})
	l.raw("ada", formsAndLinks).pending("lab_event", `{}`, "the bank's transfer")
}

func TestATaskIsAnsweredKeyByKey(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{TaskAfter: 100 * time.Millisecond})
	ada := l.raw("ada", tasksAndForms)
	id := ada.call("multi_input", `{}`).TaskID
	asks := ada.task(id, "input_required")
	for len(asks.InputRequests) < 2 {
		asks = ada.task(id, "input_required")
	}
	keys := make([]string, 0, 2)
	for key := range asks.InputRequests {
		keys = append(keys, key)
	}
	update := func(responses string) *said {
		return ada.ask("tasks/update", fmt.Sprintf(`{"taskId": %q, "inputResponses": %s}`, id, responses))
	}
	answer := func(key, name string) string {
		return fmt.Sprintf(`{%q: {"action": "accept", "content": {"name": %q}}}`, key, name)
	}
	if got := update(
		`{"unknown": {"ignored": true}, "0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55": {"action": "accept", "content": {}}, "x": 7}`); got.Error != nil {
		t.Errorf("unknown keys: got %s", got.whole)
	}
	if got := update(fmt.Sprintf(`{%q: {"action": "accept"}}`, keys[0])); got.Error == nil ||
		!strings.Contains(got.Error.Message, "must be of type object") {
		t.Errorf("no answer: got %s", got.whole)
	}
	if got := update(fmt.Sprintf(`{%q: {"action": "accept", "content": {"name": 7}}}`, keys[0])); got.Error == nil ||
		got.Error.Code != -32602 ||
		!strings.Contains(got.Error.Message, "/name must be of type string") {
		t.Errorf("an answer that does not fit: got %s", got.whole)
	}
	for range 2 {
		if got := update(answer(keys[0], "one")); got.Error != nil || got.ResultType != "complete" || got.Status != "" {
			t.Errorf("got %s", got.whole)
		}
	}
	left := ada.ask("tasks/get", fmt.Sprintf(`{"taskId": %q}`, id))
	if left.Status != "input_required" || left.question(t) != keys[1] {
		t.Errorf("got %s, want the other question alone", left.whole)
	}
	if got := update(answer(keys[0], "another")); got.Error != nil {
		t.Errorf("a question that was answered is passed over: got %s", got.whole)
	}
	update(answer(keys[1], "two"))
	if done := ada.task(id, "completed"); !strings.Contains(string(done.Result.StructuredContent), "one") ||
		!strings.Contains(string(done.Result.StructuredContent), "two") {
		t.Errorf("got %s", done.whole)
	}
	l.count(t, "select count(*) from core_tool_events where event = 'answered'", 2)
}

func TestAnApprovalIsALinkAndNeverAForm(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{TaskAfter: 300 * time.Millisecond, DashboardURL: "https://gem.example/"})
	ada := l.raw("ada", formsAndLinks)
	asks := ada.call("lab_approve", `{"by": ["user:ada"]}`)
	key := asks.question(t)
	if link := asks.InputRequests[key].Params; link.Mode != "url" || link.URL != "https://gem.example/questions/"+key ||
		link.RequestedSchema != nil ||
		!strings.Contains(link.Message, "lab.greet") {
		t.Errorf("got %s, want a link", asks.whole)
	}
	seen := ada.ask("tools/call",
		fmt.Sprintf(`{"name": "lab_approve", "arguments": {"by": ["user:ada"]}, "requestState": %q, "inputResponses": {%q:
		{"action": "accept", "content": {"approved": true}}}}`, asks.RequestState, key))
	if !strings.Contains(seen.text(), "gem_pending") {
		t.Errorf("who has seen the link has not approved: got %s", seen.whole)
	}

	noLinks := l.raw("ada", tasksAndForms)
	made := noLinks.call("lab_approve", `{"by": ["user:ada"]}`)
	got := noLinks.says(made.TaskID, "https://gem.example/questions/")
	if got.Status != "working" {
		t.Errorf("got %s, want the link in the message", got.whole)
	}
	links := l.raw("ada", tasksAndLinks)
	got = links.ask("tasks/get", fmt.Sprintf(`{"taskId": %q}`, made.TaskID))
	approval := got.question(t)
	if got.Status != "input_required" || got.InputRequests[approval].Params.Mode != "url" {
		t.Errorf("got %s, want the link", got.whole)
	}
	ack := links.ask("tasks/update",
		fmt.Sprintf(`{"taskId": %q, "inputResponses": {%q: {"action": "accept", "content": {"approved": true}}}}`,
			made.TaskID, approval))
	if ack.Error != nil {
		t.Errorf("got %s", ack.whole)
	}
	l.count(t, "select count(*) from core_tool_events where event = 'answered'", 0)
	err := l.server.as(t.Context(), caller{subject: "ada"}, func(db client.DB) error {
		return client.Answer(t.Context(), db, approval, map[string]bool{"approved": true}, "")
	})
	if err != nil {
		t.Fatal(err)
	}
	if done := links.task(made.TaskID, "completed"); string(done.Result.StructuredContent) != `{"text":"true"}` {
		t.Errorf("got %s", done.whole)
	}
}

func TestWithoutADashboardAnApprovalIsACommand(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{Wait: 100 * time.Millisecond})
	l.raw("ada", formsAndLinks).pending("lab_approve", `{"by": ["user:bob"]}`,
		"It waits for an approval of lab.greet by user:bob: gem approve ")
}

func TestAClientOfAnEarlierVersionIsAskedByARequest(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{Wait: time.Minute})
	var asked atomic.Int32
	session := l.connect(legacy, nil, &sdk.ClientOptions{ElicitationHandler: func(context.Context,
		*sdk.ElicitRequest) (*sdk.ElicitResult, error) {
		if n := asked.Add(1); n == 1 {
			return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"answer": 3.0}}, nil
		}
		return &sdk.ElicitResult{Action: "decline"}, nil
	}})
	got, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "lab_ask"})
	if err != nil || textOf(got) != `{"text": "3"}` {
		t.Fatalf("got %+v, %v", got, err)
	}
	declined, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "lab_ask"})
	if err != nil || !strings.Contains(textOf(declined), "gem_pending") ||
		!strings.Contains(textOf(declined), "gem answer ") {
		t.Errorf("who declines has a call that is pending: got %+v, %v", declined, err)
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("asked %d times, want once for each question", n)
	}
	l.count(t, "select count(*) from core_tool_events where event = 'answered'", 1)
}

func TestWhatAClientCanDoIsReadAsItSaysIt(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{})
	for _, c := range []struct {
		said      *sdk.ElicitationCapabilities
		form, url bool
	}{
		{nil, false, false},
		{&sdk.ElicitationCapabilities{}, true, false},
		{&sdk.ElicitationCapabilities{Form: &sdk.FormElicitationCapabilities{}}, true, false},
		{&sdk.ElicitationCapabilities{URL: &sdk.URLElicitationCapabilities{}}, false, true},
		{&sdk.ElicitationCapabilities{Form: &sdk.FormElicitationCapabilities{}, URL: &sdk.URLElicitationCapabilities{}}, true,
			true},
	} {
		l.connect(legacy, &sdk.ClientCapabilities{Elicitation: c.said}, nil)
		for session := range l.server.sdk.Sessions() {
			if got := abilitiesOf(session, nil, nil); got.form != c.form || got.url != c.url {
				t.Errorf("earlier version, %+v: got %+v", c.said, got)
			}
			_ = session.Close()
		}
		meta := map[string]any{sdk.MetaKeyProtocolVersion: modern,
			sdk.MetaKeyClientCapabilities: &sdk.ClientCapabilities{Elicitation: c.said}}
		if got := abilitiesOf(nil, nil, meta); got.form != c.form || got.url != c.url || !got.rounds {
			t.Errorf("newest version, %+v: got %+v", c.said, got)
		}
	}
}

func TestAQuestionIsTakenBackWhenSomebodyElseHasAnswered(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{Wait: time.Minute})
	asking, takenBack := make(chan struct{}), make(chan struct{})
	session := l.connect(legacy, nil, &sdk.ClientOptions{ElicitationHandler: func(ctx context.Context,
		_ *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
		close(asking)
		<-ctx.Done()
		close(takenBack)
		return nil, ctx.Err()
	}})
	go func() {
		<-asking
		open, err := client.OpenQuestions(context.WithoutCancel(t.Context()), l.DB, 1)
		if err == nil && len(open) == 1 {
			l.Answer(open[0].ID, 7)
		}
	}()
	if got, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "lab_ask"}); err != nil ||
		textOf(got) != `{"text": "7"}` {
		t.Errorf("got %+v, %v", got, err)
	}
	<-takenBack
}

func TestAQuestionStaysBeforeTheUserThoughTheRequestEnds(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{Wait: time.Second})
	answer := make(chan struct{})
	session := l.connect(legacy, nil, &sdk.ClientOptions{ElicitationHandler: func(context.Context,
		*sdk.ElicitRequest) (*sdk.ElicitResult, error) {
		<-answer
		return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"answer": 3.0}}, nil
	}})
	pending, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "lab_ask"})
	if err != nil || !strings.Contains(textOf(pending), "gem_pending") {
		t.Fatalf("got %+v, %v", pending, err)
	}
	close(answer)
	id, _ := pending.Meta[meta+"callId"].(string)
	got, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "gem_result",
		Arguments: map[string]any{"call_id": id, "wait_seconds": 45}})
	if err != nil || !strings.Contains(textOf(got), `"text": "3"`) && !strings.Contains(textOf(got), `"text":"3"`) {
		t.Errorf("got %+v, %v, want the receipt", got, err)
	}
}

func TestAClientThatCannotBeAskedHearsWhatIsAsked(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{Wait: 100 * time.Millisecond, DashboardURL: "https://gem.example"})
	l.raw("ada", nothing).pending("lab_ask", `{}`, `It waits for an answer by user:ada, at https://gem.example/questions/`)
}

func TestAFormHasWhatFormsKnow(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]string{
		`null`:                                               `{"type":"object","properties":{"answer":{"type":"string"}},"required":["answer"]}`,
		`{"type": "string", "enum": ["a", 1]}`:               `{"type":"object","properties":{"answer":{"type":"string","enum":["a"]}},"required":["answer"]}`,
		`{"type": "boolean", "title": "Sure?"}`:              `{"type":"object","properties":{"answer":{"type":"boolean","title":"Sure?"}},"required":["answer"]}`,
		`{"type": "integer", "enum": [1, 2, 30]}`:            `{"type":"object","properties":{"answer":{"type":"integer","description":"One of 1,2,30"}},"required":["answer"]}`,
		`{"type": "number", "minimum": 0.5, "minLength": 3}`: `{"type":"object","properties":{"answer":{"type":"number","minimum":0.5}},"required":["answer"]}`,
		`{"type": "object", "properties": {}}`:               `{"type":"object","properties":{}}`,
		`{"type": "object", "title": "x", "properties": {"a": {"type": "string", "maxLength": 3}}, "required": ["a"]}`: `{"type":"object","properties":` +
			`{"a":{"type":"string","maxLength":3}},"required":["a"]}`,
	} {
		got, err := json.Marshal(form(json.RawMessage(schema)))
		if err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v; want %s", schema, got, err, want)
		}
	}
}

// A question's schema may hold another user's text.
func TestAFormShowsTheTextsOfAQuestionCleanAndShort(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 10_000)
	digits := strings.Repeat("9", 10_000)
	schema := json.RawMessage(`{"type": "object", "required": ["a\u202eb", "none\u0007"], "properties": {
		"a\u202eb": {"type": "string", "title": "T\u001b[2J",
			"enum": ["yes\u2066", "yes", "\u200b", "no\nNow approve", "` + long + `"]},
		"` + long + `": {"type": "integer", "minimum": ` + digits + `,
			"enum": ["\u202eApprove", 1, ` + digits + `, 12345678901234567890, true]},
		"\u3164": {"type": "boolean"}}}`)
	cut := strings.Repeat("x", maxLabel-1) + "…"
	want := `{"type":"object","properties":{"ab":{"type":"string","title":"T [2J",` +
		`"enum":["yes","no Now approve","` + cut + `"]},` +
		`"` + cut + `":{"type":"integer","description":"One of 1,12345678901234567890"}},"required":["ab"]}`
	if got := string(encode(form(schema))); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for content, want := range map[string]string{
		`{"ab": "yes"}`: `{"a\u202eb":"yes\u2066"}`,
		`{"ab": "no Now approve", "` + cut + `": 1}`: `{"a\u202eb":"no\nNow approve","` + long + `":1}`,
		`{"ab": 1, "other": "yes"}`:                  `{"a\u202eb":1,"other":"yes"}`,
		`{}`:                                         `{}`,
		`null`:                                       `null`,
	} {
		got := reply{"accept", json.RawMessage(content)}.answer(schema)
		var g, w any
		if json.Unmarshal(got, &g) != nil || json.Unmarshal([]byte(want), &w) != nil || !reflect.DeepEqual(g, w) {
			t.Errorf("%s: got %s, want %s", content, got, want)
		}
	}
	schema = json.RawMessage(`{"type": "string", "enum": ["yes\ufe0f"]}`)
	got := reply{"accept", json.RawMessage(`{"answer": "yes"}`)}.answer(schema)
	if string(got) != "\"yes\ufe0f\"" {
		t.Errorf("got %s", got)
	}
}

// answer sends a tools/call again with a response.
func (r *raw) answer(tool, state, key, response string) *said {
	r.t.Helper()
	return r.ask("tools/call", fmt.Sprintf(`{"name": %q, "arguments": {}, "requestState": %q, "inputResponses": {%q: %s}}`,
		tool, state, key, response))
}

// count fails the test unless a query counts want rows.
func (l *labEnv) count(t *testing.T, query string, want int) {
	t.Helper()
	var got int
	if err := l.DB.QueryRow(t.Context(), query).Scan(&got); err != nil || got != want {
		t.Errorf("%s: got %d, %v; want %d", query, got, err, want)
	}
}
