package value_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem/handlers"
)

func TestTimesAreReadAsTheFormatAllowsAndWrittenInUTC(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"2026-01-31T09:30:00Z":       "2026-01-31T09:30:00Z",
		"2026-01-31T09:30:00+10:00":  "2026-01-30T23:30:00Z",
		"2026-01-31t09:30:00.250z":   "2026-01-31T09:30:00.25Z",
		"2016-12-31T23:59:60Z":       "2017-01-01T00:00:00Z", // a leap second
		"0001-01-01T00:00:00Z":       "0001-01-01T00:00:00Z",
		"9999-12-31T23:59:59-00:00":  "9999-12-31T23:59:59Z",
		"9999-12-31T23:59:59-10:00":  "", // is in the year 10000
		"0000-06-01T00:00:00Z":       "",
		"2026-01-31":                 "",
		"2026-02-30T00:00:00Z":       "",
		"2026-01-31T+9:30:00Z":       "",
		"yesterday":                  "",
		strings.Repeat("9", 100_000): "",
	} {
		var parsed handlers.Time
		quoted, _ := json.Marshal(in)
		err := json.Unmarshal(quoted, &parsed)
		if want == "" {
			if err == nil {
				t.Errorf("%.40s: got %v, want an error", in, parsed)
			} else if len(err.Error()) > 200 {
				t.Errorf("%.40s: the error has %d bytes", in, len(err.Error()))
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got, _ := json.Marshal(parsed); string(got) != `"`+want+`"` {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

func TestALimitIsAnyWayToWriteAnInteger(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]handlers.Limit{"10": 10, "10.0": 10, "1e1": 10} {
		var got handlers.Limit
		if err := json.Unmarshal([]byte(in), &got); err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"10.5", `"10"`, "1e400", "true"} {
		var got handlers.Limit
		if err := json.Unmarshal([]byte(in), &got); err == nil {
			t.Errorf("%s: got %d, want an error", in, got)
		}
	}
}

func TestSearchedWordsAreTakenLiterally(t *testing.T) {
	t.Parallel()
	for query, want := range map[string][]string{
		"":                       {},
		"  leaking\troof ":       {"%leaking%", "%roof%"},
		`50% off_all c:\x`:       {`%50\%%`, `%off\_all%`, `%c:\\x%`},
		strings.Repeat("a ", 99): handlers.Words(strings.Repeat("a ", 20)),
	} {
		if diff := cmp.Diff(want, handlers.Words(query)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", query, diff)
		}
	}
}

const anID = "0d9f7c1e-52b8-4a55-9c35-8c5f6a3d2b10"

// Refused before the database is asked: there is no transaction here.
func TestAPatchIsRefusedWithAllItsFaults(t *testing.T) {
	t.Parallel()
	call := &handlers.Call{ID: anID}
	for _, c := range []struct {
		patch string
		want  []string // path keyword
	}{
		{`{"colour": "red"}`, []string{"/patch/colour additionalProperties"}},
		{`{"id": "x", "title": 5, "a/b~c": 1}`, []string{"/patch/a~1b~0c additionalProperties", "/patch/id additionalProperties", "/patch/title type"}},
		{`{"title": null, "status": "later", "due_at": "soon", "context_ref": []}`,
			[]string{"/patch/context_ref type", "/patch/due_at format", "/patch/status enum", "/patch/title type"}},
		{`{"title": "` + strings.Repeat("ä", 201) + `"}`, []string{"/patch/title maxLength"}},
		{`[]`, []string{"/patch type"}},
	} {
		_, err := handlers.OS{}.UpdateTask(t.Context(), nil, call, handlers.UpdateTask{TaskID: anID, Patch: json.RawMessage(c.patch)})
		failure := (*handlers.Failure)(nil)
		if !errors.As(err, &failure) || failure.Code != "validation_error" {
			t.Errorf("%.60s: got %v, want a validation_error", c.patch, err)
			continue
		}
		var faults []struct{ Path, Keyword, Message string }
		data, _ := json.Marshal(failure.Details)
		if err := json.Unmarshal(data, &faults); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range faults {
			got = append(got, f.Path+" "+f.Keyword)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%.60s (-want +got):\n%s", c.patch, diff)
		}
	}
}

func TestAnUnknownKeyOfAPatchNamesTheKnownOnes(t *testing.T) {
	t.Parallel()
	_, err := handlers.Entity{}.Update(t.Context(), nil, &handlers.Call{ID: anID},
		handlers.UpdateEntity{EntityID: anID, Patch: json.RawMessage(`{"phone": "1"}`)})
	if err == nil || !strings.Contains(err.Error(), "contact, entity_type, name, notes") {
		t.Errorf("got %v, want the keys that can be patched", err)
	}
}

// An id that is no uuid never reaches Postgres, where its cast would end the transaction.
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
		"comms.log_call_outcome": `{"entity_id": "ID", "outcome": "busy"}`,
	} {
		for _, id := range []string{"42", "{" + anID + "}", strings.ReplaceAll(anID, "-", ""), anID[:35] + "g", strings.Repeat("x", 100_000)} {
			handler, _ := h.For(tool)
			call := &handlers.Call{ID: anID, Tool: tool, Input: json.RawMessage(strings.ReplaceAll(input, "ID", id))}
			_, err := handler.Run(t.Context(), nil, call)
			failure := (*handlers.Failure)(nil)
			if !errors.As(err, &failure) {
				t.Errorf("%s %.40s: got %v, want a failure", tool, id, err)
				continue
			}
			if details, _ := failure.Details.(map[string]string); details["reason"] != "not_found" || len(failure.Message) > 300 {
				t.Errorf("%s %.40s: got %.300v", tool, id, failure)
			}
		}
	}
}
