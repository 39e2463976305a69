package entity_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/comms"
	"github.com/gemworker/gem/handlers/entity"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func start(t *testing.T) *handlertest.Env {
	t.Helper()
	return handlertest.Start(t, handlertest.Options{Domains: []any{entity.Domain(), comms.Domain()},
		Registry: gem.BuiltInRegistry})
}

func do[T any](env *handlertest.Env, tool, input string) T {
	out, _ := handlertest.Do[T](env, tool, input)
	return out
}

// noRow is an id that no row has.
const noRow = "0d9f7c1e-52b8-4a55-9c35-8c5f6a3d2b10"

// failsAsNotFound makes calls that name a row which does not exist.
func failsAsNotFound(t *testing.T, env *handlertest.Env, calls map[string]string) {
	t.Helper()
	for tool, input := range calls {
		receipt := env.Run(handlertest.Call{Tool: tool, Input: strings.ReplaceAll(input, "ID", noRow)})
		if failed := handlertest.ErrorOf(t, receipt); failed.Code != "execution_error" ||
			!strings.Contains(string(failed.Details), `"not_found"`) {
			t.Errorf("%s: got %+v", tool, failed)
		}
	}
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func TestAnEntityIsPatchedKeyByKey(t *testing.T) {
	t.Parallel()
	env := start(t)
	created, receipt := handlertest.Do[entity.Ref](env, "entity.create",
		`{"entity_type": "client", "name": "Acme", "contact": {"phone": "1", "email": "a@b.example", "ids": [1, null], "big": 12345678901234567890}, "notes": "n"}`)
	if got := handlertest.Effects(t, receipt); got != "insert entities" {
		t.Errorf("effects: %s", got)
	}
	get := func() entity.Record {
		t.Helper()
		return do[entity.Got](env, "entity.get", `{"entity_id": "`+created.EntityID+`"}`).Entity
	}
	for _, c := range []struct{ patch, contact, rest string }{
		{`{"contact": {"phone": "2", "email": null, "web": "x"}}`,
			`{"big":12345678901234567890,"ids":[1,null],"web":"x","phone":"2"}`, "client Acme n"},
		{`{"name": "Acme Pty", "notes": null}`, `{"big":12345678901234567890,"ids":[1,null],"web":"x","phone":"2"}`,
			"client Acme Pty "},
		{`{"entity_type": "supplier", "contact": {"big": null, "ids": null, "web": null}}`, `{"phone":"2"}`,
			"supplier Acme Pty "},
		{`{}`, `{"phone":"2"}`, "supplier Acme Pty "},
	} {
		do[entity.Ref](env, "entity.update", `{"entity_id": "`+created.EntityID+`", "patch": `+c.patch+`}`)
		got := get()
		contact, _ := json.Marshal(got.Contact)
		if string(contact) != c.contact {
			t.Errorf("%s: contact %s, want %s", c.patch, contact, c.contact)
		}
		if rest := got.EntityType + " " + got.Name + " " + text(got.Notes); rest != c.rest {
			t.Errorf("%s: got %s, want %s", c.patch, rest, c.rest)
		}
	}
	receipt = env.Run(handlertest.Call{Tool: "entity.update",
		Input: `{"entity_id": "` + created.EntityID + `", "patch": {"contact": null, "phone": "3"}}`})
	if failed := handlertest.ErrorOf(t, receipt); failed.Code != "validation_error" ||
		!strings.Contains(failed.Message, "contact must be an object") {
		t.Errorf("got %+v", failed)
	}
	failsAsNotFound(t, env, map[string]string{
		"entity.get":             `{"entity_id": "ID"}`,
		"entity.update":          `{"entity_id": "ID", "patch": {"name": "x"}}`,
		"entity.add_interaction": `{"entity_id": "ID", "interaction_type": "call", "summary": "x"}`,
	})
}

func TestEntitiesAreFoundByNameNotesAndContact(t *testing.T) {
	t.Parallel()
	env := start(t)
	for _, input := range []string{
		`{"entity_type": "client", "name": "Zoe Roof"}`,
		`{"entity_type": "supplier", "name": "Acme", "notes": "roof tiles", "contact": {"phone": "0400 123", "address": {"street": "Low_Road"}}}`,
		`{"entity_type": "friend", "name": "Al", "contact": {"email": "al@roof.example"}}`,
	} {
		do[entity.Ref](env, "entity.create", input)
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
		for _, e := range do[entity.SearchResult](env, "entity.search", input).Results {
			got = append(got, e.Name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", input, diff)
		}
	}
}

func TestWhatPassedIsShownWithTheEntity(t *testing.T) {
	t.Parallel()
	env := start(t)
	id := do[entity.Ref](env, "entity.create", `{"entity_type": "client", "name": "Jo"}`).EntityID
	do[entity.InteractionRef](env, "entity.add_interaction",
		`{"entity_id": "`+id+
			`", "interaction_type": "meeting", "summary": "tea", "details": {"at": "home"}, "occurred_at": "2026-01-01T09:00:00+01:00"}`)
	_, receipt := handlertest.Do[comms.LoggedCall](env, "comms.log_call_outcome",
		`{"entity_id": "`+id+
			`", "outcome": "left_message", "notes": "call back", "context_ref": {"type": "lead", "id": "7"}}`)
	if got := handlertest.Effects(t, receipt); got != "insert interactions" {
		t.Errorf("effects: %s", got)
	}
	do[comms.LoggedCall](env, "comms.log_call_outcome", `{"entity_id": "`+id+`", "outcome": "busy"}`)

	got, receipt := handlertest.Do[entity.Got](env, "entity.get", `{"entity_id": "`+id+`"}`)
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
	if got := handlertest.Effects(t, receipt); got != "read 1 entities, read 3 interactions" {
		t.Errorf("effects: %s", got)
	}
}

func TestAnUnknownKeyOfAPatchNamesTheKnownOnes(t *testing.T) {
	t.Parallel()
	_, err := entity.Entity{}.Update(t.Context(), nil, &handlers.Call{ID: noRow},
		entity.UpdateEntity{EntityID: noRow, Patch: json.RawMessage(`{"phone": "1"}`)})
	if err == nil || !strings.Contains(err.Error(), "contact, entity_type, name, notes") {
		t.Errorf("got %v, want the keys that can be patched", err)
	}
}
