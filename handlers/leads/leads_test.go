package leads_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/handlers/leads"
	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func start(t *testing.T) *handlertest.Env {
	t.Helper()
	return handlertest.Start(t, handlertest.Options{Domains: []any{leads.Domain()}, Registry: gem.BuiltInRegistry})
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

func onlyLead(t *testing.T, env *handlertest.Env) leads.Lead {
	t.Helper()
	listed := do[leads.Listed](env, "leads.list_by_stage", `{}`).Leads
	if len(listed) != 1 {
		t.Fatalf("got %d leads, want 1", len(listed))
	}
	return listed[0]
}

func TestOnePhoneIsOneLead(t *testing.T) {
	t.Parallel()
	env := start(t)
	first, receipt := handlertest.Do[leads.Ref](env, "leads.create",
		`{"name": "Jo", "phone": "+61 400 000 000", "suburb": "Soho", "email": "jo@client.example"}`)
	if got := handlertest.Effects(t, receipt); got != "insert leads" {
		t.Errorf("effects: %s", got)
	}
	second := do[leads.Ref](env, "leads.create",
		`{"name": "Joanna", "phone": "+61 400 000 000", "suburb": "Newtown", "source": "gmb"}`)
	if first != second {
		t.Errorf("got %v, then %v", first, second)
	}
	lead := onlyLead(t, env)
	if lead.Name != "Jo" || lead.Phone != "+61 400 000 000" || lead.Stage != "new" || lead.Source != "other" ||
		*lead.Email != "jo@client.example" || lead.Notes != nil {
		t.Errorf("got %+v", lead)
	}
	if got, _ := json.Marshal(lead); !strings.Contains(string(got), `"sources":[],"photo_links":[],"history":[]`) {
		t.Errorf("got %s", got)
	}
}

func TestALeadKeepsItsHistory(t *testing.T) {
	t.Parallel()
	env := start(t)
	id := do[leads.Ref](env, "leads.create", `{"name": "Jo", "phone": "1", "suburb": "Soho", "source": "gmb"}`).LeadID

	for _, c := range []struct{ tool, input, effects string }{
		{"leads.update_stage", `{"lead_id": "ID", "stage": "contacted", "notes": "keen"}`,
			"update leads, insert lead_stage_changes"},
		{"leads.update_stage", `{"lead_id": "ID", "stage": "contacted"}`, "update leads"}, // nothing new
		{"leads.update_stage", `{"lead_id": "ID", "stage": "contacted", "notes": "called again"}`,
			"update leads, insert lead_stage_changes"},
		{"leads.mark_lost", `{"lead_id": "ID", "reason": "price", "notes": "too high"}`,
			"update leads, insert lead_stage_changes"},
		{"leads.mark_lost", `{"lead_id": "ID", "reason": "price"}`, "update leads"},
		{"leads.add_source", `{"lead_id": "ID", "source": "meta", "campaign": {"name": "May"}}`, "insert lead_sources"},
		{"leads.add_source", `{"lead_id": "ID", "source": "meta", "campaign": {"name": "May"}}`, "read 1 lead_sources"},
		{"leads.add_source", `{"lead_id": "ID", "source": "meta"}`, "insert lead_sources"},
		{"leads.add_source", `{"lead_id": "ID", "source": "meta"}`, "read 1 lead_sources"},
		{"leads.add_photos_link", `{"lead_id": "ID", "links": ["https://a/2", "https://a/1"]}`,
			"insert lead_photo_links, insert lead_photo_links"},
		{"leads.add_photos_link", `{"lead_id": "ID", "links": []}`, ""},
		{"leads.add_photos_link", `{"lead_id": "ID", "links": ["https://a/0"]}`, "insert lead_photo_links"},
	} {
		out, receipt := handlertest.Do[leads.Ref](env, c.tool, strings.ReplaceAll(c.input, "ID", id))
		if out.LeadID != id {
			t.Errorf("%s %s: got %s", c.tool, c.input, out.LeadID)
		}
		if got := handlertest.Effects(t, receipt); got != c.effects {
			t.Errorf("%s %s: effects %q, want %q", c.tool, c.input, got, c.effects)
		}
	}

	lead := onlyLead(t, env)
	var history, sources []string
	for _, h := range lead.History {
		history = append(history, strings.Join([]string{h.FromStage, h.ToStage, text(h.Reason), text(h.Notes)}, "|"))
	}
	for _, s := range lead.Sources {
		sources = append(sources, s.Source+string(s.Campaign))
	}
	if diff := cmp.Diff([]string{"contacted|lost|price|too high", "contacted|contacted||called again",
		"new|contacted||keen"}, history); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{`meta{"name": "May"}`, "meta"}, sources); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"https://a/2", "https://a/1", "https://a/0"}, lead.PhotoLinks); diff != "" {
		t.Errorf("photos (-want +got):\n%s", diff)
	}
	if lead.Source != "gmb" || lead.Stage != "lost" || text(lead.LostReason) != "price" {
		t.Errorf("got %+v", lead)
	}

	do[leads.Ref](env, "leads.update_stage", `{"lead_id": "`+id+`", "stage": "won"}`)
	if lead := onlyLead(t, env); lead.Stage != "won" || lead.LostReason != nil {
		t.Errorf("won after all: %+v", lead)
	}
	failsAsNotFound(t, env, map[string]string{
		"leads.update_stage":    `{"lead_id": "ID", "stage": "won"}`,
		"leads.mark_lost":       `{"lead_id": "ID", "reason": "x"}`,
		"leads.add_source":      `{"lead_id": "ID", "source": "gmb"}`,
		"leads.add_photos_link": `{"lead_id": "ID", "links": ["x"]}`,
	})
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func TestLeadsAreListedByStageSuburbAndSource(t *testing.T) {
	t.Parallel()
	env := start(t)
	ids := map[string]string{}
	for _, lead := range []string{"ada|Soho|gmb", "bob|soho|meta", "cy|Newtown|gmb"} {
		part := strings.Split(lead, "|")
		ids[part[0]] = do[leads.Ref](env, "leads.create",
			`{"name": "`+part[0]+`", "phone": "`+part[0]+`", "suburb": "`+part[1]+`", "source": "`+part[2]+`"}`).LeadID
	}
	do[leads.Ref](env, "leads.update_stage", `{"lead_id": "`+ids["bob"]+`", "stage": "quoted"}`)
	do[leads.Ref](env, "leads.add_source", `{"lead_id": "`+ids["bob"]+`", "source": "gmb"}`)
	for input, want := range map[string][]string{
		`{}`:                  {"cy", "bob", "ada"},
		`{"limit": 2}`:        {"cy", "bob"},
		`{"stage": "new"}`:    {"cy", "ada"},
		`{"stage": "quoted"}`: {"bob"},
		`{"stage": "won"}`:    nil,
		`{"suburb": "SOHO"}`:  {"bob", "ada"},
		`{"suburb": "So%"}`:   nil,
		`{"source": "gmb"}`:   {"cy", "bob", "ada"},
		`{"source": "meta"}`:  {"bob"},
		`{"stage": "new", "suburb": "soho", "source": "gmb"}`: {"ada"},
	} {
		var got []string
		for _, lead := range do[leads.Listed](env, "leads.list_by_stage", input).Leads {
			got = append(got, lead.Name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", input, diff)
		}
	}
}
