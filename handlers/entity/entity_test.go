package entity_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
)

func TestAnEntityIsPatchedKeyByKey(t *testing.T) {
	t.Parallel()
	gem := handlertest.Start(t, handlertest.Setup{})
	created, receipt := run[handlers.EntityCreated](t, gem, "entity.create",
		`{"entity_type": "client", "name": "Acme", "contact": {"phone": "1", "email": "a@b.example", "ids": [1, null], "big": 12345678901234567890}, "notes": "n"}`)
	if got := effectsOf(t, receipt); got != "insert entities" {
		t.Errorf("effects: %s", got)
	}
	get := func() handlers.EntityRecord {
		t.Helper()
		return do[handlers.EntityGot](t, gem, "entity.get", `{"entity_id": "`+created.EntityID+`"}`).Entity
	}
	for _, c := range []struct{ patch, contact, rest string }{
		{`{"contact": {"phone": "2", "email": null, "web": "x"}}`, `{"big":12345678901234567890,"ids":[1,null],"web":"x","phone":"2"}`, "client Acme n"},
		{`{"name": "Acme Pty", "notes": null}`, `{"big":12345678901234567890,"ids":[1,null],"web":"x","phone":"2"}`, "client Acme Pty "},
		{`{"entity_type": "supplier", "contact": {"big": null, "ids": null, "web": null}}`, `{"phone":"2"}`, "supplier Acme Pty "},
		{`{}`, `{"phone":"2"}`, "supplier Acme Pty "},
	} {
		do[handlers.EntityChanged](t, gem, "entity.update", `{"entity_id": "`+created.EntityID+`", "patch": `+c.patch+`}`)
		got := get()
		contact, _ := json.Marshal(got.Contact)
		if string(contact) != c.contact {
			t.Errorf("%s: contact %s, want %s", c.patch, contact, c.contact)
		}
		if rest := got.EntityType + " " + got.Name + " " + text(got.Notes); rest != c.rest {
			t.Errorf("%s: got %s, want %s", c.patch, rest, c.rest)
		}
	}
	receipt = gem.Run(handlertest.Call{Tool: "entity.update", Input: `{"entity_id": "` + created.EntityID + `", "patch": {"contact": null, "phone": "3"}}`})
	if failed := handlertest.ErrorOf(t, receipt); failed.Code != "validation_error" || !strings.Contains(failed.Message, "contact must be an object") {
		t.Errorf("got %+v", failed)
	}
	failsAsNotFound(t, gem, map[string]string{
		"entity.get":             `{"entity_id": "ID"}`,
		"entity.update":          `{"entity_id": "ID", "patch": {"name": "x"}}`,
		"entity.add_interaction": `{"entity_id": "ID", "interaction_type": "call", "summary": "x"}`,
		"comms.log_call_outcome": `{"entity_id": "ID", "outcome": "busy"}`,
	})
}

func TestEntitiesAreFoundByNameNotesAndContact(t *testing.T) {
	t.Parallel()
	gem := handlertest.Start(t, handlertest.Setup{})
	for _, input := range []string{
		`{"entity_type": "client", "name": "Zoe Roof"}`,
		`{"entity_type": "supplier", "name": "Acme", "notes": "roof tiles", "contact": {"phone": "0400 123", "address": {"street": "Low_Road"}}}`,
		`{"entity_type": "friend", "name": "Al", "contact": {"email": "al@roof.example"}}`,
	} {
		do[handlers.EntityCreated](t, gem, "entity.create", input)
	}
	for input, want := range map[string][]string{
		`{"query": ""}`:                                {"Acme", "Al", "Zoe Roof"},
		`{"query": "ROOF"}`:                            {"Zoe Roof", "Acme", "Al"}, // the name counts most
		`{"query": "tiles acme"}`:                      {"Acme"},
		`{"query": "0400"}`:                            {"Acme"},
		`{"query": "low_r"}`:                           {"Acme"},
		`{"query": "w%r"}`:                             nil,
		`{"query": "email"}`:                           nil, // a key and no value
		`{"query": "roof", "entity_type": "friend"}`:   {"Al"},
		`{"query": "roof", "limit": 1}`:                {"Zoe Roof"},
		`{"query": "roof", "entity_type": "supplier"}`: {"Acme"},
	} {
		var got []string
		for _, e := range do[handlers.EntitiesFound](t, gem, "entity.search", input).Results {
			got = append(got, e.Name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", input, diff)
		}
	}
}

func TestWhatPassedIsShownWithTheEntity(t *testing.T) {
	t.Parallel()
	gem := handlertest.Start(t, handlertest.Setup{})
	id := do[handlers.EntityCreated](t, gem, "entity.create", `{"entity_type": "client", "name": "Jo"}`).EntityID
	do[handlers.InteractionAdded](t, gem, "entity.add_interaction",
		`{"entity_id": "`+id+`", "interaction_type": "meeting", "summary": "tea", "details": {"at": "home"}, "occurred_at": "2026-01-01T09:00:00+01:00"}`)
	_, receipt := run[handlers.InteractionAdded](t, gem, "comms.log_call_outcome",
		`{"entity_id": "`+id+`", "outcome": "left_message", "notes": "call back", "context_ref": {"type": "lead", "id": "7"}}`)
	if got := effectsOf(t, receipt); got != "insert interactions" {
		t.Errorf("effects: %s", got)
	}
	do[handlers.InteractionAdded](t, gem, "comms.log_call_outcome", `{"entity_id": "`+id+`", "outcome": "busy"}`)

	got, receipt := run[handlers.EntityGot](t, gem, "entity.get", `{"entity_id": "`+id+`"}`)
	var shown []string
	for _, i := range got.Entity.Interactions {
		details, _ := json.Marshal(i.Details)
		shown = append(shown, i.InteractionType+" "+i.Summary+" "+string(details))
	}
	want := []string{
		`call Call: busy {"outcome":"busy"}`,
		`call Call: left message {"notes":"call back","outcome":"left_message","context_ref":{"id":"7","type":"lead"}}`,
		`meeting tea {"at":"home"}`,
	}
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if at, _ := json.Marshal(got.Entity.Interactions[2].OccurredAt); string(at) != `"2026-01-01T08:00:00Z"` {
		t.Errorf("occurred_at: %s", at)
	}
	if got := effectsOf(t, receipt); got != "read 1 entities, read 3 interactions" {
		t.Errorf("effects: %s", got)
	}
}

func TestAFollowupTaskIsBusinessUnlessItsContextIsPersonal(t *testing.T) {
	t.Parallel()
	gem := handlertest.Start(t, handlertest.Setup{})
	for ref, want := range map[string]string{`{"type": "lead", "id": "7"}`: "business", `{"type": "personal"}`: "personal", `{}`: "business"} {
		title := "about " + want
		do[handlers.TaskCreated](t, gem, "comms.create_followup_task_from_message",
			`{"title": "`+title+`", "context_ref": `+ref+`, "due_at": "2026-01-01T00:00:00Z"}`)
	}
	for _, task := range do[handlers.TasksListed](t, gem, "os.list_tasks", `{}`).Tasks {
		if task.Title != "about "+task.Domain || task.DueAt == nil || len(task.ContextRef) == 0 || task.Priority != "normal" {
			t.Errorf("got %+v", task)
		}
	}
}

// The tools with effects outside, through a worker whose environment says nothing of them.
func TestToolsThatAreNotSetUpSayWhatIsMissing(t *testing.T) {
	t.Parallel()
	gem := handlertest.Start(t, handlertest.Setup{})
	for tool, c := range map[string]struct{ input, want string }{
		"comms.send_email":                 {`{"to": "jo@client.example", "subject": "s", "body": "b", "context_ref": {}}`, `"required_env": ["SMTP_HOST", "SMTP_FROM"]`},
		"comms.send_sms":                   {`{"to": "+1", "message": "m", "context_ref": {"type": "lead", "id": "7"}}`, `"required_env": ["TWILIO_ACCOUNT_SID", "TWILIO_AUTH_TOKEN", "TWILIO_FROM"]`},
		"http.request":                     {`{"method": "GET", "url": "https://api.example.com"}`, `"required_env": ["HTTP_ALLOWED_HOSTS"]`},
		"calendar.create_event":            {`{"title": "t", "start_at": "2026-01-01T00:00:00Z", "end_at": "2026-01-01T01:00:00Z", "color": "red"}`, `"next_steps": [`},
		"quote.generate_pdf":               {`{"quote_id": "7"}`, `"next_steps": [`},
		"integrations.google_drive.search": {`{"query": "q"}`, `"next_steps": [`},
	} {
		receipt := gem.Run(handlertest.Call{Tool: tool, Input: c.input})
		if receipt.Status != "not_configured" || !strings.Contains(string(receipt.Result), c.want) {
			t.Errorf("%s: got %s %s", tool, receipt.Status, receipt.Result)
		}
	}
}
