package agent_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker"
)

const (
	note  = `{"domain": "business", "title": "Roof", "content": "Two broken tiles."}`
	lead  = `{"name": "Sam Carter", "phone": "+61 400 000 001", "suburb": "Fitzroy", "source": "referral"}`
	asked = `{"text": "Which color?"}`
)

func TestAnAgentWorksWithToolsUntilItAnswers(t *testing.T) {
	s := newScene(t)
	s.says(wants("leads_create", lead), wants("os_create_note", note), llmtest.Say("The lead and the note are there."))
	id := s.Insert(run(object{"task": "Keep Sam.", "instructions": "Be brief.",
		"tools": []string{"leads.create", "os.*"}}))
	got := s.answered(s.Await(id))
	if got.Answer != "The lead and the note are there." || got.Turns != 3 || got.ToolCalls != 2 ||
		strings.Join(got.Models, " ") != "model-a" || got.NotOffered != nil {
		t.Errorf("%+v", got)
	}
	if got, want := s.children(id),
		"turn 1 call 1 leads.create succeeded, turn 2 call 1 os.create_note succeeded"; got != want {
		t.Errorf("it called %s, want %s", got, want)
	}
	if n := s.value("select count(*) from core_tool_calls where parent_call_id = $1 and created_by = 'ada' and "+
		"session_id = 's-1'", id); n != "2" {
		t.Errorf("%s children have the session and the user of their parent", n)
	}
	requests := s.server.Requests()
	first, last := requests[0].Asked, requests[2].Asked
	contains(t, first.System, "data from outside", "Be brief.")
	if len(first.Messages) != 1 || first.Messages[0].Content[0].Text != "Keep Sam." || len(first.Tools) != 13 ||
		len(last.Messages) != 5 {
		t.Errorf("first %+v, and in the end %d messages", first.Messages, len(last.Messages))
	}
	for _, tool := range first.Tools {
		if tool.Name == "leads_create" {
			contains(t, string(tool.Parameters), `"phone"`, `"required"`)
			contains(t, tool.Description, "lead")
		}
	}
	contains(t, s.observed()[0].text, `"status":"succeeded"`, s.value("select id from notes"))
	s.replays(id)
}

func TestAModelReadsThatItsInputTookNoEffect(t *testing.T) {
	s := newScene(t)
	other := strings.Replace(lead, "Sam", "Kim", 1) // of the same phone, which is the key
	for i, input := range []string{lead, lead, other} {
		s.says(wants("leads_create", input), llmtest.Say("done"))
		id := s.Insert(agent("leads.create"))
		s.answered(s.Await(id))
		seen := s.observed()[0]
		noted := strings.Contains(seen.Message, "did nothing")
		if noted != (i == 2) || seen.Status != "succeeded" || !strings.Contains(seen.text, "lead_id") {
			t.Errorf("the model reads %s", seen.text)
		}
		s.replays(id)
	}
}

func TestAConversationWithToolsFitsEachDialect(t *testing.T) {
	s := newScene(t)
	for _, d := range llmtest.Dialects {
		turn := wants("os_search_notes", `{"query": "roof"}`, "os_make_coffee", `{}`)
		turn.Parts = append([]provider.Part{{Type: provider.Thinking, Text: "I look.", Signature: "c2ln"},
			{Type: provider.Text, Text: "One moment."}}, turn.Parts...)
		// which Anthropic would not take back
		turn.Parts = append(turn.Parts, provider.Part{Type: provider.Text, Text: "\n\n"})
		s.says(turn, turn, llmtest.Say("done"))
		if got := s.answered(s.Run(run(object{"route": d, "tools": []string{"os.*"}}))); got.Turns != 3 ||
			got.ToolCalls != 4 {
			t.Errorf("%s: %+v", d, got)
		}
		last := s.server.Last()
		if last.Err != nil || len(last.Asked.Tools) != 12 {
			t.Errorf("%s: %v, %d tools", d, last.Err, len(last.Asked.Tools))
		}
		results := 0
		for _, m := range last.Asked.Messages {
			for _, p := range m.Content {
				if p.Type == provider.Text && strings.TrimSpace(p.Text) == "" {
					t.Errorf("%s: a blank text went back", d)
				}
				if p.Type == provider.ToolResult && strings.Contains(p.Content, `"status":`) {
					results++
				}
			}
		}
		if results != 4 {
			t.Errorf("%s: %d results in %s", d, results, last.Body)
		}
	}
}

func TestTheCallsOfATurnRunSideBySideAndAreObservedInItsOrder(t *testing.T) {
	s := newScene(t)
	s.says(wants("wait_answer", asked, "os_create_note", note, "wait_answer", `{"text": "And which size?"}`),
		llmtest.Say("done"))
	id := s.Insert(agent("wait.answer", "os.create_note"))
	questions := func() []client.Question {
		all, err := client.OpenQuestions(t.Context(), s.DB, 10)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	s.Until("both questions, and the note", func() bool {
		return len(questions()) == 2 && s.value("select count(*) from notes") == "1"
	})
	s.UntilItWaits(id, "call")
	for _, q := range questions() {
		s.Answer(q.ID, "to: "+q.Text)
	}
	s.answered(s.Await(id))
	seen := s.observed()
	if len(seen) != 3 || seen[0].id != "id_1" || seen[1].id != "id_2" || seen[2].id != "id_3" {
		t.Fatalf("%+v", seen)
	}
	contains(t, seen[0].text, "to: Which color?")
	contains(t, seen[1].text, "note_id")
	contains(t, seen[2].text, "to: And which size?")
	if n := s.value("select count(*) from core_tool_events where call_id = $1 and event = 'woken'", id); n != "1" {
		t.Errorf("it was woken %s times", n)
	}
	s.replays(id)
}

func TestWhatACallComesToIsObservedWhateverItIs(t *testing.T) {
	set, err := rules.Parse(
		[]byte(`{"version": "1.0.0", "rules": [{"name": "no_leads", "tools": ["leads.*"], "action": "block", "say": "Not today."}]}`))
	if err != nil {
		t.Fatal(err)
	}
	s := newScene(t, func(o *handlertest.Options) {
		change := o.Worker
		o.Worker = func(o *worker.Options) { change(o); o.Rules = set }
	})
	turn := wants("os_create_note", note, "os.create_note", note, "os_complete_task",
		`{"task_id": "00000000-0000-4000-8000-000000000000"}`, "leads_create", lead,
		"calendar_create_event", `{"title": "x", "start_at": "2026-01-01T10:00:00Z", "end_at": "2026-01-01T11:00:00Z"}`,
		"os_make_coffee", `{}`, "os_create_note", `{"title": "x"}`,
		"comms_send_sms", `{}`, "", `{}`, "wait_approval", `{}`)
	turn.Parts = append(turn.Parts, provider.Part{Type: provider.ToolCall, ID: "id_11", Name: "os_create_note",
		RawArguments: `["no object"]`})
	s.says(turn, llmtest.Say("I tried."))
	id := s.Insert(agent("os.*", "leads.create", "calendar.create_event", "wait.answer"))
	if got := s.answered(s.Await(id)); got.ToolCalls != 11 || got.Turns != 2 {
		t.Errorf("%+v", got)
	}
	want := []string{"succeeded", "succeeded", "execution_error", "rule_blocked", "not_configured", "unknown_tool",
		"validation_error", "unknown_tool", "unknown_tool", "unknown_tool", "validation_error"}
	seen := s.observed()
	if len(seen) != len(want) {
		t.Fatalf("%+v", seen)
	}
	for i, o := range seen {
		got := o.Status
		if got == "failed" {
			got = o.Code
		}
		if got != want[i] || o.isError != (o.Status != "succeeded") || o.isError && o.Message == "" {
			t.Errorf("observation %d: %s, want %s", i+1, o.text, want[i])
		}
	}
	contains(t, seen[3].text, "Not today.")
	contains(t, seen[5].text, "os_make_coffee", "os_create_note, ")
	contains(t, seen[10].text, "not a JSON object")
	if n := s.value("select count(*) from core_tool_calls where parent_call_id = $1", id); n != "6" {
		t.Errorf("it made %s calls: %s", n, s.children(id))
	}
	s.replays(id)
}

func TestAnAgentThatIsNotDoneInItsTurnsHasFailed(t *testing.T) {
	s := newScene(t)
	s.server.Always("", wants("os_create_note", note))
	id := s.Insert(run(object{"tools": []string{"os.create_note"}, "max_turns": 3}))
	got := s.failedWith(s.Await(id), "turn_limit")
	if got.Turns != 3 || got.ToolCalls != 3 || got.Usage.Requests != 3 || len(s.server.Requests()) != 3 ||
		s.value("select count(*) from notes") != "3" {
		t.Errorf("%+v", got)
	}
	s.replays(id)
}

func TestAModelThatGivesNoAnswerFailsTheAgent(t *testing.T) {
	s := newScene(t)
	said := func(text string, stop provider.Stop) llmtest.Script {
		script := llmtest.Say(text)
		script.Stop = stop
		return script
	}
	for _, c := range []struct {
		code string
		turn llmtest.Script
	}{
		{"refused", said("I cannot help with that.", provider.Refusal)},
		{"output_truncated", said("Once upon a", provider.MaxTokens)},
		{"no_answer", llmtest.Script{}},
		{"no_answer", llmtest.Say(" \n")},
		{"provider_refused", llmtest.Say("").With(llmtest.Status(400))},
	} {
		s.says(wants("os_health_check", "{}"), c.turn)
		id := s.Insert(agent("os.health_check"))
		got := s.failedWith(s.Await(id), c.code)
		if got.ToolCalls != 1 || got.Usage.Requests != 2 || got.Usage.Input == 0 || got.Usage.Cost == "" {
			t.Errorf("%s: %+v", c.code, got)
		}
		s.replays(id)
	}
}

func TestAnAgentWithoutRoutesIsNotConfigured(t *testing.T) {
	s := newScene(t, func(o *handlertest.Options) { o.Environment = nil })
	if r := s.Run(agent("os.*")); r.Status != "not_configured" {
		t.Errorf("%s: %s", r.Status, r.Result)
	}
}

func TestACancelledAgentEndsWithItsChildrenAndSaysWhatItCost(t *testing.T) {
	s := newScene(t)
	s.says(wants("os_create_note", note), wants("wait_answer", asked))
	id := s.Insert(agent("wait.answer", "os.create_note"))
	q := s.Question(id)
	s.UntilItWaits(id, "call")
	if _, err := client.Cancel(context.Background(), s.DB, id); err != nil {
		t.Fatal(err)
	}
	got := s.failedWith(s.Await(id), "cancelled")
	if got.Turns != 2 || got.ToolCalls != 2 || got.Usage.Requests != 2 || got.Usage.Cost == "" {
		t.Errorf("%+v", got)
	}
	s.failedWith(s.Await(q.ID), "cancelled")
	if len(s.server.Requests()) != 2 {
		t.Errorf("%d requests", len(s.server.Requests()))
	}
}

func TestAnAgentWhoseWorkerDiesGoesOnElsewhere(t *testing.T) {
	s := newScene(t, func(o *handlertest.Options) { o.NoWorker = true })
	arrived, free := make(chan bool, 1), make(chan bool)
	held := llmtest.Say("done")
	held.Before = func(ctx context.Context, delta int) {
		if delta < 0 {
			arrived <- true
			select {
			case <-free:
			case <-ctx.Done():
			}
		}
	}
	s.says(wants("os_create_note", note), held, wants("wait_answer", asked), llmtest.Say("done"))
	first := s.StartWorker()
	id := s.Insert(agent("os.create_note", "wait.answer"))
	<-arrived
	first.Kill() // in the middle of turn 2
	close(free)
	second := s.StartWorker()
	q := s.Question(id)
	s.UntilItWaits(id, "call")
	second.Stop()
	s.Answer(q.ID, "blue")
	s.StartWorker()
	got := s.answered(s.Await(id))
	if got.Turns != 3 || got.ToolCalls != 2 || len(s.server.Requests()) != 4 || got.Usage.Requests != 4 ||
		s.value("select count(*) from notes") != "1" {
		t.Errorf("%+v; %d requests", got, len(s.server.Requests()))
	}
	contains(t, s.observed()[0].text, `"blue"`)
	s.replays(id)
}

func TestTheReceiptSaysWhatAllTurnsCost(t *testing.T) {
	s := newScene(t)
	priced := func(script llmtest.Script, in, out int64) llmtest.Script {
		script.Usage = &provider.Usage{Input: in, Output: out, Known: true}
		return script
	}
	s.says(priced(wants("os_health_check", "{}"), 1000, 100), priced(wants("os_health_check", "{}"), 2000, 200),
		priced(llmtest.Say("done"), 3000, 300))
	r := s.Run(run(object{"tools": []string{"os.health_check"}, "max_cost_usd": "1"}))
	got := s.answered(r)
	if u := got.Usage; u.Input != 6000 || u.Output != 600 || u.Requests != 3 || u.Cost != "0.0072" || u.Unknown != 0 {
		t.Errorf("%+v", u)
	}
	var effects struct {
		External []json.RawMessage `json:"external_calls"`
	}
	if err := json.Unmarshal(r.Effects, &effects); err != nil || len(effects.External) != 3 {
		t.Errorf("%s", r.Effects)
	}
	s.says(priced(wants("os_health_check", "{}"), 1000, 100))
	if got := s.failedWith(s.Run(run(object{"tools": []string{"os.health_check"}, "max_cost_usd": "0.0095"})),
		"budget_exceeded"); got.Turns != 1 || got.Usage.Requests != 1 || got.Usage.Cost != "0.0012" {
		t.Errorf("%+v", got)
	}
}

func TestAnAgentThatIsCancelledWhileItThinksEnds(t *testing.T) {
	s := newScene(t)
	arrived := make(chan bool, 1)
	held := llmtest.Say("done")
	held.Before = func(ctx context.Context, _ int) {
		arrived <- true
		<-ctx.Done()
	}
	s.says(wants("os_create_note", note), held)
	id := s.Insert(agent("os.*"))
	<-arrived
	if _, err := client.Cancel(context.Background(), s.DB, id); err != nil {
		t.Fatal(err)
	}
	r := s.Await(id)
	if got := s.failedWith(r, "cancelled"); got.Turns != 1 || got.ToolCalls != 1 || got.Usage.Requests != 2 {
		t.Errorf("%+v", got)
	}
	contains(t, string(r.Effects), `"outcome": "cancelled"`, `"outcome": "done"`)
	s.replays(id)
}

func TestAnAgentThatIsCancelledAfterItsWorkerDiedSaysWhatWasLost(t *testing.T) {
	s := newScene(t, func(o *handlertest.Options) { o.NoWorker = true })
	arrived, free := make(chan bool, 1), make(chan bool)
	held := llmtest.Say("done")
	held.Before = func(_ context.Context, delta int) {
		if delta < 0 {
			arrived <- true
			<-free
		}
	}
	s.says(wants("os_create_note", note), held)
	first := s.StartWorker()
	id := s.Insert(agent("os.*"))
	<-arrived
	first.Kill()
	if _, err := client.Cancel(context.Background(), s.DB, id); err != nil {
		t.Fatal(err)
	}
	s.StartWorker()
	r := s.Await(id)
	close(free)
	if got := s.failedWith(r, "cancelled"); got.Turns != 1 || got.ToolCalls != 1 || got.Usage.Requests != 2 ||
		got.Usage.Unknown != 1 {
		t.Errorf("%+v", got)
	}
	contains(t, string(r.Effects), `"outcome": "lost"`, `"outcome": "done"`)
	s.replays(id)
}

func TestAModelThatDoesNotAnswerIsAskedAnewInTheSameTurn(t *testing.T) {
	s := newScene(t, func(o *handlertest.Options) {
		o.Registry = with(t, func(entry object) {
			if entry["name"] == "agent.run" {
				entry["retry"] = object{"max_attempts": 2, "backoff_ms": 1}
			}
		})
	})
	lost := llmtest.Say("").With(llmtest.Status(503))
	s.says(wants("os_create_note", note), lost, wants("os_create_note", note), lost, llmtest.Say("done"))
	id := s.Insert(agent("os.*"))
	if got := s.answered(s.Await(id)); got.Turns != 3 || got.ToolCalls != 2 || got.Usage.Requests != 5 ||
		s.value("select count(*) from notes") != "2" {
		t.Errorf("%+v", got)
	}
	s.replays(id)
	s.says(wants("os_create_note", note), lost, lost)
	if got := s.failedWith(s.Run(agent("os.*")), "provider_unavailable"); got.Turns != 1 || got.Usage.Requests != 3 {
		t.Errorf("%+v", got)
	}
}

func TestARuleThatAsksLetsAnAgentWaitAndADenialIsObserved(t *testing.T) {
	set, err := rules.Parse(
		[]byte(`{"version": "1.0.0", "rules": [{"name": "notes", "tools": ["os.create_note"], "action": "ask", "ask": {"of": ["boss"]}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	s := newScene(t, func(o *handlertest.Options) {
		change := o.Worker
		o.Worker = func(o *worker.Options) { change(o); o.Rules = set }
	})
	if _, err := s.DB.Exec(t.Context(), "insert into gem.roles values (session_user, 'boss')"); err != nil {
		t.Fatal(err)
	}
	s.says(wants("os_create_note", note), wants("os_create_note", note), llmtest.Say("done"))
	id := s.Insert(agent("os.*"))
	for _, approved := range []bool{false, true} {
		s.UntilItWaits(id, "call")
		s.Answer(s.Question(id).ID, object{"approved": approved})
		if !approved {
			s.Until("the next turn", func() bool { return len(s.server.Requests()) == 2 })
			if o := s.observed()[0]; o.Code != "approval_denied" {
				t.Errorf("%s", o.text)
			}
		}
	}
	s.answered(s.Await(id))
	if o := s.observed()[0]; o.Status != "succeeded" || s.value("select count(*) from notes") != "1" {
		t.Errorf("%s", o.text)
	}
	s.replays(id)
}

func TestAnAgentWaitsForDaysAndNotBeyondItsDeadline(t *testing.T) {
	s := newScene(t)
	s.says(wants("wait_answer", asked), wants("wait_answer", asked))
	id := s.Insert(agent("wait.answer"))
	q := s.Question(id)
	s.UntilItWaits(id, "call")
	s.Pass(20 * 24 * time.Hour)
	s.Answer(q.ID, "blue")
	s.Until("the next turn", func() bool { return len(s.server.Requests()) == 2 })
	s.UntilItWaits(id, "call")
	s.Pass(11 * 24 * time.Hour)
	r := s.Await(id)
	s.failedWith(r, "timeout")
	if n := strings.Count(string(r.Effects), `"outcome": "done"`); n != 2 {
		t.Errorf("%d requests on the receipt: %s", n, r.Effects)
	}
}

// A model's questions to others count for the user of its agent: a question beyond the user's limit is refused, and the
// model reads the reason.
func TestAModelsQuestionsCountAsItsUsers(t *testing.T) {
	s := newScene(t, func(o *handlertest.Options) {
		o.Registry = with(t, func(entry object) {
			if entry["name"] == "agent.run" {
				entry["frontends"] = true
			}
		})
	})
	if _, err := s.DB.Exec(t.Context(), "update gem.limits set max_open_questions = 1; insert into gem.role_settings "+
		"values ('closed', now(), 'me')"); err != nil {
		t.Fatal(err)
	}
	const boss, closed = `{"text": "May I?", "by": ["role:boss"]}`, `{"text": "May I?", "by": ["role:closed"]}`
	s.says(wants("wait_answer", boss, "wait_answer", boss, "wait_answer", closed, "wait_answer", `{"text": "You?"}`),
		llmtest.Say("done"))
	call := agent("wait.answer")
	call.SignedIn = true
	id := s.Insert(call)
	s.StartWorker()
	var open []client.Question
	s.Until("two questions", func() (both bool) {
		var err error
		if open, err = client.OpenQuestions(t.Context(), s.DB, 10); err != nil {
			t.Fatal(err)
		}
		return len(open) == 2
	})
	for _, q := range open {
		if q.AskedFor != client.AskerUser || q.AskedBy != "ada" || q.CallID != id {
			t.Errorf("got %+v", q)
		}
		if err := client.Answer(t.Context(), s.DB, q.ID, "yes", ""); err != nil {
			t.Fatal(err)
		}
	}
	s.answered(s.Await(id))
	var said []string
	for _, o := range s.observed() {
		said = append(said, o.Status+" "+o.Code)
		if o.Code != "" && !strings.Contains(o.text, "too many open questions to others: you may have 1") &&
			!strings.Contains(o.text, "the role closed is closed to questions from users") {
			t.Errorf("the model reads %s", o.text)
		}
	}
	want := []string{"succeeded ", "failed not_allowed", "failed not_allowed", "succeeded "}
	if !slices.Equal(want, said) {
		t.Errorf("the model reads %q, want %q", said, want)
	}
}
