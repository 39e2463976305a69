package builtin_test

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/comms"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/handlers/os"
)

func start(t *testing.T) *handlertest.Env {
	t.Helper()
	return handlertest.Start(t, handlertest.Options{Domains: builtin.Domains(), Registry: gem.BuiltInRegistry})
}

func TestWithoutTheDomainThatOwnsARowItIsNotConfigured(t *testing.T) {
	t.Parallel()
	env := handlertest.Start(t, handlertest.Options{Domains: []any{comms.Domain()}, Registry: gem.BuiltInRegistry})
	for tool, c := range map[string]struct{ input, want string }{
		"comms.log_call_outcome": {`{"entity_id": "` + anID + `", "outcome": "busy"}`,
			"no tables of the domain entity, which keeps interactions"},
		"comms.create_followup_task_from_message": {`{"title": "t", "context_ref": {}}`,
			"no tables of the domain os, which keeps tasks"},
	} {
		receipt := env.Run(handlertest.Call{Tool: tool, Input: c.input})
		if receipt.Status != "not_configured" || !strings.Contains(string(receipt.Result), c.want) {
			t.Errorf("%s: got %s %s", tool, receipt.Status, receipt.Result)
		}
	}
}

func TestAFollowupTaskIsBusinessUnlessItsContextIsPersonal(t *testing.T) {
	t.Parallel()
	env := start(t)
	for ref, want := range map[string]string{`{"type": "lead", "id": "7"}`: "business", `{"type": "personal"}`: "personal",
		`{}`: "business"} {
		title := "about " + want
		handlertest.Do[os.TaskRef](env, "comms.create_followup_task_from_message",
			`{"title": "`+title+`", "context_ref": `+ref+`, "due_at": "2026-01-01T00:00:00Z"}`)
	}
	listed, _ := handlertest.Do[os.TasksListed](env, "os.list_tasks", `{}`)
	for _, task := range listed.Tasks {
		if task.Title != "about "+task.Domain || task.DueAt == nil || len(task.ContextRef) == 0 || task.Priority != "normal" {
			t.Errorf("got %+v", task)
		}
	}
}

// The tools with effects outside, through a worker whose environment says nothing of them.
func TestToolsThatAreNotSetUpSayWhatIsMissing(t *testing.T) {
	t.Parallel()
	env := start(t)
	for tool, c := range map[string]struct{ input, want string }{
		"comms.send_email": {`{"to": "jo@client.example", "subject": "s", "body": "b", "context_ref": {}}`,
			`"required_env": ["SMTP_HOST", "SMTP_FROM"]`},
		"comms.send_sms": {`{"to": "+1", "message": "m", "context_ref": {"type": "lead", "id": "7"}}`,
			`"required_env": ["TWILIO_ACCOUNT_SID", "TWILIO_AUTH_TOKEN", "TWILIO_FROM"]`},
		"http.request": {`{"method": "GET", "url": "https://api.example.com"}`,
			`"required_env": ["HTTP_ALLOWED_HOSTS"]`},
		"calendar.create_event":            {`{"title": "t", "start_at": "2026-01-01T00:00:00Z", "end_at": "2026-01-01T01:00:00Z", "color": "red"}`, `"next_steps": [`},
		"quote.generate_pdf":               {`{"quote_id": "7"}`, `"next_steps": [`},
		"integrations.google_drive.search": {`{"query": "q"}`, `"next_steps": [`},
	} {
		receipt := env.Run(handlertest.Call{Tool: tool, Input: c.input})
		if receipt.Status != "not_configured" || !strings.Contains(string(receipt.Result), c.want) {
			t.Errorf("%s: got %s %s", tool, receipt.Status, receipt.Result)
		}
	}
}

const anID = "0d9f7c1e-52b8-4a55-9c35-8c5f6a3d2b10"

// A call that happened is logged, and the receipt names what it was linked to.
func TestAPhoneCallIsLoggedWhomeverItWasWith(t *testing.T) {
	t.Parallel()
	env := start(t)
	lead := handlertest.Output[struct {
		LeadID string `json:"lead_id"`
	}](t, env.Run(handlertest.Call{Tool: "leads.create", Input: `{"name": "Ada", "phone": "1", "suburb": "s"}`})).LeadID
	entity := handlertest.Output[struct {
		EntityID string `json:"entity_id"`
	}](t, env.Run(handlertest.Call{Tool: "entity.create", Input: `{"entity_type": "client", "name": "n"}`})).EntityID
	for id, want := range map[string]string{entity: "entity", lead: "lead", anID: "nothing", "QUOTE-7": "nothing"} {
		receipt := env.Run(handlertest.Call{Tool: "comms.log_call_outcome",
			Input: `{"entity_id": "` + id + `", "outcome": "busy"}`})
		got := handlertest.Output[comms.LoggedCall](t, receipt)
		if got.LinkedTo != want {
			t.Errorf("%s: linked to %s, want %s", id, got.LinkedTo, want)
		}
		var linked bool
		var kept bool // which has a column if it is an entity's
		if err := env.DB.QueryRow(t.Context(), "select entity_id is not null, details ->> 'entity_id' is not distinct from "+
			"$2 from interactions where id = $1", got.InteractionID, id).
			Scan(&linked, &kept); err != nil || linked != (want == "entity") || kept == linked {
			t.Errorf("%s: linked %t, kept %t, %v", id, linked, kept, err)
		}
	}
}

// An id that is not a uuid never reaches Postgres, where its cast would end the transaction.
func TestAnIDThatIsNoUUIDIsNotFound(t *testing.T) {
	t.Parallel()
	h := bound(t)
	for tool, input := range map[string]string{
		"os.update_task":         `{"task_id": "ID", "patch": {"title": "x"}}`,
		"os.complete_task":       `{"task_id": "ID"}`,
		"os.defer_task":          `{"task_id": "ID", "due_at": "2026-01-01T00:00:00Z"}`,
		"os.audit_log_search":    `{"call_id": "ID"}`,
		"leads.update_stage":     `{"lead_id": "ID", "stage": "won"}`,
		"leads.mark_lost":        `{"lead_id": "ID", "reason": "x"}`,
		"leads.add_source":       `{"lead_id": "ID", "source": "gmb"}`,
		"leads.add_photos_link":  `{"lead_id": "ID", "links": ["x"]}`,
		"entity.update":          `{"entity_id": "ID", "patch": {"name": "x"}}`,
		"entity.get":             `{"entity_id": "ID"}`,
		"entity.add_interaction": `{"entity_id": "ID", "interaction_type": "call", "summary": "x"}`,
	} {
		for _, id := range []string{"42", "{" + anID + "}", strings.ReplaceAll(anID, "-", ""), anID[:35] + "g",
			strings.Repeat("x", 100_000)} {
			handler, _ := h.For(tool)
			call := &handlers.Call{ID: anID, Tool: tool, Input: json.RawMessage(strings.ReplaceAll(input, "ID", id))}
			_, err := handler.Run(t.Context(), call, nil, nil)
			failure := (*handlers.Failure)(nil)
			if !errors.As(err, &failure) {
				t.Errorf("%s %.40s: got %v, want a failure", tool, id, err)
				continue
			}
			if details, _ := failure.Details.(map[string]string); details["reason"] != "not_found" ||
				len(failure.Message) > 300 {
				t.Errorf("%s %.40s: got %.300v", tool, id, failure)
			}
		}
	}
}

// The tables' checks hold for rows that calls made: others may have put something else there.
func TestRowsOfOthersWithOtherJSONAreListed(t *testing.T) {
	t.Parallel()
	env := start(t)
	const id = "00000000-0000-7000-8000-000000000001"
	for i, odd := range []string{`"text"`, `1`, `true`, `null`, `[1]`, `{"a": 1}`} {
		if _, err := env.DB.Exec(t.Context(), `
			with note as (insert into notes (title, entity_refs) values ('odd', $1)),
				task as (insert into tasks (title, context_ref) values ('odd', $1)),
				entity as (insert into entities (id, name, contact) values ($2, 'odd', $1)),
				interaction as (insert into interactions (entity_id, details) values ($2, $1)),
				lead as (insert into leads (id, name, phone, suburb) values ($2, 'odd', '1', 's'))
			insert into lead_sources (lead_id, campaign) values ($2, $1)`, odd, id[:len(id)-1]+strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	for tool, input := range map[string]string{
		"os.search_notes": `{"query": "odd"}`, "os.list_tasks": `{}`, "entity.search": `{"query": "odd"}`,
		"leads.list_by_stage": `{}`,
	} {
		if r := env.Run(handlertest.Call{Tool: tool, Input: input}); r.Status != "succeeded" ||
			strings.Count(string(r.Result), `"odd"`) != 6 {
			t.Errorf("%s: got %s %s", tool, r.Status, r.Result)
		}
	}
	for i := range 6 {
		handlertest.Do[map[string]any](env, "entity.get", `{"entity_id": "`+id[:len(id)-1]+strconv.Itoa(i)+`"}`)
	}
}
