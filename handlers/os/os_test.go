package os_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/handlers/leads"
	"github.com/gemworker/gem/handlers/os"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func start(t *testing.T) *handlertest.Env {
	t.Helper()
	return handlertest.Start(t, handlertest.Options{Domains: []any{os.Domain()}, Registry: gem.BuiltInRegistry})
}

// startAll is for tools that read the tables of other domains.
func startAll(t *testing.T) *handlertest.Env {
	t.Helper()
	return handlertest.Start(t, handlertest.Options{Domains: builtin.Domains(), Registry: gem.BuiltInRegistry})
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

func TestHealthNamesTheTablesThatAreMissing(t *testing.T) {
	t.Parallel()
	env := startAll(t)
	if got := do[os.Health](env, "os.health_check", `{}`); got.Status != "ok" || got.Checks["database"] != "ok" ||
		got.Checks["tables"] != "ok" {
		t.Errorf("got %+v", got)
	}
	if _, err := env.DB.Exec(t.Context(), `drop table lead_sources, reminders`); err != nil {
		t.Fatal(err)
	}
	if got := do[os.Health](env, "os.health_check", `{}`); got.Status != "degraded" ||
		!strings.Contains(got.Checks["tables"], "public.lead_sources, public.reminders") {
		t.Errorf("got %+v", got)
	}
}

func TestNotesAreFoundByTheirWords(t *testing.T) {
	t.Parallel()
	env := start(t)
	created, receipt := handlertest.Do[os.NoteRef](env, "os.create_note",
		`{"domain": "business", "title": "Tiles 50% off", "content": "At Grün & Co, <until> June_1", "entity_refs": [{"type": "supplier", "id": "7"}]}`)
	if got := handlertest.Effects(t, receipt); got != "insert notes" {
		t.Errorf("effects: %s", got)
	}
	do[os.NoteRef](env, "os.create_note", `{"domain": "personal", "title": "Tiles for the bath", "content": ""}`)
	do[os.NoteRef](env, "os.create_note", `{"domain": "both", "title": "Open 500 hours", "content": "offers"}`)

	for _, c := range []struct {
		query string
		want  []string
	}{
		{`{"query": ""}`, []string{"Open 500 hours", "Tiles for the bath", "Tiles 50% off"}},
		{`{"query": "tiles"}`, []string{"Tiles for the bath", "Tiles 50% off"}},
		{`{"query": "off TILES"}`, []string{"Tiles 50% off"}},
		{`{"query": "grün"}`, []string{"Tiles 50% off"}},
		{`{"query": "50%"}`, []string{"Tiles 50% off"}}, // and not 500
		{`{"query": "june_"}`, []string{"Tiles 50% off"}},
		{`{"query": "e_"}`, []string{"Tiles 50% off"}},
		{`{"query": "\\"}`, nil},
		{`{"query": "", "domain": "business"}`, []string{"Open 500 hours", "Tiles 50% off"}},
		{`{"query": "", "domain": "both"}`, []string{"Open 500 hours", "Tiles for the bath", "Tiles 50% off"}},
		{`{"query": "", "limit": 1.0}`, []string{"Open 500 hours"}},
	} {
		var got []string
		for _, note := range do[os.NotesFound](env, "os.search_notes", c.query).Results {
			got = append(got, note.Title)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.query, diff)
		}
	}

	found, receipt := handlertest.Do[os.NotesFound](env, "os.search_notes", `{"query": "grün"}`)
	note := found.Results[0]
	if note.NoteID != created.NoteID || note.Content != "At Grün & Co, <until> June_1" ||
		string(note.EntityRefs) != `[{"id": "7", "type": "supplier"}]` {
		t.Errorf("got %+v, entity_refs %s", note, note.EntityRefs)
	}
	if since := time.Since(note.CreatedAt.Time); since < 0 || since > time.Hour || note.CreatedAt.Location() != time.UTC {
		t.Errorf("created_at: %v", note.CreatedAt)
	}
	if got := handlertest.Effects(t, receipt); got != "read 1 notes" {
		t.Errorf("effects: %s", got)
	}
}

func titles(tasks []os.Task) []string {
	var all []string
	for _, task := range tasks {
		all = append(all, task.Title)
	}
	return all
}

func TestATaskIsCreatedChangedDeferredAndDone(t *testing.T) {
	t.Parallel()
	env := start(t)
	created, receipt := handlertest.Do[os.TaskRef](env, "os.create_task",
		`{"title": "Call Jo", "domain": "business", "due_at": "2026-05-01T10:00:00+10:00", "context_ref": {"type": "lead", "id": "7"}}`)
	if got := handlertest.Effects(t, receipt); got != "insert tasks" {
		t.Errorf("effects: %s", got)
	}
	id := created.TaskID
	only := func(status string) os.Task {
		t.Helper()
		listed := do[os.TasksListed](env, "os.list_tasks", `{"status": "`+status+`"}`).Tasks
		if len(listed) != 1 {
			t.Fatalf("%s: got %d tasks, want 1", status, len(listed))
		}
		return listed[0]
	}
	if got, _ := json.Marshal(only("open")); !strings.Contains(string(got),
		`"due_at":"2026-05-01T00:00:00Z","context_ref":{"id":"7","type":"lead"},"priority":"normal","status":"open"`) {
		t.Errorf("created: %s", got)
	}

	do[os.TaskRef](env, "os.update_task", `{"task_id": "`+id+
		`", "patch": {"title": "Call Jo & Al", "priority": "high", "due_at": null, "description": "d"}}`)
	if got := only("open"); got.Title != "Call Jo & Al" || got.Priority != "high" || got.DueAt != nil ||
		*got.Description != "d" || got.Domain != "business" {
		t.Errorf("updated: %+v", got)
	}
	for _, due := range []string{"2026-05-01T00:00:00+23:59", "2026-04-30t00:01:00.0z", "2026-04-29T23:59:60-00:01"} {
		do[os.TaskRef](env, "os.update_task", `{"task_id": "`+id+`", "patch": {"due_at": "`+due+`"}}`)
		if got := only("open"); got.DueAt.Format(time.RFC3339) != "2026-04-30T00:01:00Z" {
			t.Errorf("due %s: %v", due, got.DueAt)
		}
	}
	for _, patch := range []string{``, `, "patch": {}`} {
		_, receipt = handlertest.Do[os.TaskRef](env, "os.update_task", `{"task_id": "`+id+`"`+patch+`}`)
		if got := handlertest.Effects(t, receipt); got != "read 1 tasks" {
			t.Errorf("nothing to change: effects %s", got)
		}
	}

	do[os.TaskRef](env, "os.defer_task", `{"task_id": "`+id+`", "due_at": "2026-06-01T00:00:00Z", "reason": "away"}`)
	if got := only("open"); got.DueAt.Month() != time.June || *got.DeferReason != "away" {
		t.Errorf("deferred: %+v", got)
	}

	_, receipt = handlertest.Do[os.TaskRef](env, "os.complete_task", `{"task_id": "`+id+`", "note": "went well"}`)
	if got := handlertest.Effects(t, receipt); got != "update tasks" {
		t.Errorf("effects: %s", got)
	}
	first := only("done")
	do[os.TaskRef](env, "os.complete_task", `{"task_id": "`+strings.ToUpper(id)+`"}`)
	if got := only("done"); *got.CompletionNote != "went well" || got.CompletedAt.Time != first.CompletedAt.Time {
		t.Errorf("done twice: %+v, first %+v", got, first)
	}

	do[os.TaskRef](env, "os.update_task", `{"task_id": "`+id+`", "patch": {"status": "open"}}`)
	if got := only("open"); got.CompletedAt != nil || got.CompletionNote != nil {
		t.Errorf("open again: %+v", got)
	}
	do[os.TaskRef](env, "os.update_task", `{"task_id": "`+id+`", "patch": {"status": "done"}}`)
	if got := only("done"); got.CompletedAt == nil {
		t.Errorf("done by a patch: %+v", got)
	}
	failsAsNotFound(t, env, map[string]string{
		"os.update_task":   `{"task_id": "ID", "patch": {"title": "x"}}`,
		"os.complete_task": `{"task_id": "ID"}`,
		"os.defer_task":    `{"task_id": "ID", "due_at": "2026-01-01T00:00:00Z"}`,
	})
}

func TestARefusedPatchChangesNothing(t *testing.T) {
	t.Parallel()
	env := start(t)
	created := do[os.TaskRef](env, "os.create_task", `{"title": "Call Jo", "domain": "business"}`)
	receipt := env.Run(handlertest.Call{Tool: "os.update_task",
		Input: `{"task_id": "` + created.TaskID + `", "patch": {"title": "new", "owner": "me"}}`})
	if failed := handlertest.ErrorOf(t, receipt); failed.Code != "validation_error" ||
		!strings.Contains(string(failed.Details), "/patch/owner") {
		t.Errorf("got %+v", failed)
	}
	if got := do[os.TasksListed](env, "os.list_tasks", `{}`).Tasks[0].Title; got != "Call Jo" {
		t.Errorf("the title is %q", got)
	}
}

func TestTasksAreListedInTheOrderOfUse(t *testing.T) {
	t.Parallel()
	env := start(t)
	for _, input := range []string{
		`{"title": "someday", "domain": "business"}`,
		`{"title": "june", "domain": "personal", "due_at": "2026-06-01T00:00:00Z"}`,
		`{"title": "may", "domain": "both", "due_at": "2026-05-01T00:00:00Z"}`,
	} {
		do[os.TaskRef](env, "os.create_task", input)
	}
	for _, title := range []string{"first", "second"} {
		created := do[os.TaskRef](env, "os.create_task", `{"title": "`+title+`", "domain": "business"}`)
		do[os.TaskRef](env, "os.complete_task", `{"task_id": "`+created.TaskID+`"}`)
	}
	for input, want := range map[string][]string{
		`{}`:                     {"may", "june", "someday"},
		`{"status": "open"}`:     {"may", "june", "someday"},
		`{"status": "done"}`:     {"second", "first"},
		`{"status": "all"}`:      {"second", "first", "may", "june", "someday"},
		`{"domain": "business"}`: {"may", "someday"},
		`{"domain": "personal"}`: {"may", "june"},
		`{"limit": 1}`:           {"may"},
		`{"status": "all", "domain": "both", "limit": 2}`: {"second", "first"},
	} {
		if diff := cmp.Diff(want, titles(do[os.TasksListed](env, "os.list_tasks", input).Tasks)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", input, diff)
		}
	}
}

func TestASnapshotIsComputedUntilOneIsStored(t *testing.T) {
	t.Parallel()
	env := startAll(t)
	type state struct {
		Tasks struct {
			Open, Overdue int
			Next          []struct {
				Title string      `json:"title"`
				DueAt *value.Time `json:"due_at"`
			}
		}
		Reminders struct{ Upcoming int }
		Notes     struct{ Total int }
		Leads     *struct {
			ByStage map[string]int `json:"by_stage"`
			Latest  []struct{ Name string }
		}
		Activity struct {
			Since        value.Time
			TasksCreated int `json:"tasks_created"`
		}
		BusinessActivity *struct {
			LeadsCreated int `json:"leads_created"`
		} `json:"business_activity"`
	}
	get := func(domain string) (os.StateSnapshot, state, *receipts.Receipt) {
		t.Helper()
		snapshot, receipt := handlertest.Do[os.StateSnapshot](env, "os.get_state_snapshot", `{"domain": "`+domain+`"}`)
		var s state
		if err := json.Unmarshal(snapshot.State, &s); err != nil {
			t.Fatal(err)
		}
		return snapshot, s, receipt
	}
	if _, empty, _ := get("business"); empty.Tasks.Open != 0 || empty.Tasks.Next == nil || empty.Leads == nil {
		t.Errorf("of nothing: %+v", empty)
	}

	do[os.TaskRef](env, "os.create_task", `{"title": "late", "domain": "business", "due_at": "2020-01-01T00:00:00Z"}`)
	do[os.TaskRef](env, "os.create_task", `{"title": "mine", "domain": "personal"}`)
	do[os.ReminderRef](env, "os.create_reminder", `{"title": "later", "remind_at": "2999-01-01T00:00:00Z"}`)
	do[os.NoteRef](env, "os.create_note", `{"domain": "personal", "title": "n", "content": "c"}`)
	do[leads.Ref](env, "leads.create", `{"name": "Jo", "phone": "1", "suburb": "Soho"}`)

	_, business, receipt := get("business")
	if business.Tasks.Open != 1 || business.Tasks.Overdue != 1 || business.Reminders.Upcoming != 1 ||
		business.Notes.Total != 0 ||
		business.Leads.ByStage["new"] != 1 || business.Leads.Latest[0].Name != "Jo" ||
		business.BusinessActivity.LeadsCreated != 1 {
		t.Errorf("business: %+v", business)
	}
	if next := business.Tasks.Next[0]; next.Title != "late" || next.DueAt.Year() != 2020 {
		t.Errorf("next: %+v", next)
	}
	if got := handlertest.Effects(t, receipt); got != "read 1 tasks, read 1 reminders, read 0 notes, read 1 leads" {
		t.Errorf("effects: %s", got)
	}
	if _, personal, _ := get("personal"); personal.Tasks.Open != 1 || personal.Notes.Total != 1 || personal.Leads != nil ||
		personal.BusinessActivity != nil {
		t.Errorf("personal: %+v", personal)
	}
	if _, both, _ := get("both"); both.Tasks.Open != 2 || both.Notes.Total != 1 || both.Leads == nil {
		t.Errorf("both: %+v", both)
	}

	stored, receipt := handlertest.Do[os.SnapshotRef](env, "os.refresh_state_snapshot",
		`{"domain": "business", "since": "2999-01-01T00:00:00Z"}`)
	if got := handlertest.Effects(t, receipt); got != "insert state_snapshots, read 1 tasks, read 1 reminders, read 0 "+
		"notes, read 1 leads" {
		t.Errorf("effects: %s", got)
	}
	do[os.TaskRef](env, "os.create_task", `{"title": "since then", "domain": "business"}`)
	snapshot, kept, receipt := get("business")
	if snapshot.AsOf != stored.AsOf || kept.Tasks.Open != 1 || kept.Activity.TasksCreated != 0 ||
		kept.Activity.Since.Year() != 2999 {
		t.Errorf("stored: %+v", kept)
	}
	if got := handlertest.Effects(t, receipt); got != "read 1 state_snapshots" {
		t.Errorf("effects: %s", got)
	}
	if _, personal, _ := get("personal"); personal.Tasks.Open != 1 {
		t.Errorf("another domain: %+v", personal)
	}
	do[os.SnapshotRef](env, "os.refresh_state_snapshot", `{"domain": "business"}`)
	if _, fresh, _ := get("business"); fresh.Tasks.Open != 2 || fresh.Activity.TasksCreated != 2 {
		t.Errorf("refreshed: %+v", fresh)
	}
}

func TestASnapshotCountsNothingOfDomainsThatTheProgramLacks(t *testing.T) {
	t.Parallel()
	env := start(t)
	do[os.TaskRef](env, "os.create_task", `{"title": "late", "domain": "business"}`)
	for _, tool := range []string{"os.refresh_state_snapshot", "os.get_state_snapshot"} {
		env.Run(handlertest.Call{Tool: tool, Input: `{"domain": "both"}`})
	}
	state := string(do[os.StateSnapshot](env, "os.get_state_snapshot", `{"domain": "both"}`).State)
	for _, want := range []string{`"open": 1`, `"leads": {"latest": [], "by_stage": {}}`,
		`"business_activity": {"interactions": 0, "leads_created": 0, "messages_sent": 0}`} {
		if !strings.Contains(state, want) {
			t.Errorf("%s is missing in %s", want, state)
		}
	}
}

func TestTheJournalIsSearchedByTheUserOfTheCall(t *testing.T) {
	t.Parallel()
	env := start(t)
	mine := env.Insert(handlertest.Call{Tool: "os.create_note", Input: `{"domain": "both", "title": "t", "content": "c"}`,
		CreatedBy: "ada"})
	env.Await(mine)
	others := env.Insert(handlertest.Call{Tool: "os.create_task", Input: `{}`, CreatedBy: "bob"})
	env.Await(others)

	search := func(by, input string) []string {
		t.Helper()
		receipt := env.Run(handlertest.Call{Tool: "os.audit_log_search", Input: input, CreatedBy: by})
		var all []string
		for _, item := range handlertest.Output[os.AuditLog](t, receipt).Items {
			if item.ToolName == "os.audit_log_search" {
				continue
			}
			if item.CallID != mine && item.CallID != others {
				t.Errorf("an event of call %s", item.CallID)
			}
			all = append(all, fmt.Sprintf("%s %d %s", item.ToolName, item.Seq, item.EventType))
		}
		return all
	}
	note := []string{"os.create_note 3 succeeded", "os.create_note 2 claimed", "os.create_note 1 queued"}
	task := []string{"os.create_task 3 failed", "os.create_task 2 claimed", "os.create_task 1 queued"}
	for _, c := range []struct {
		by, input string
		want      []string
	}{
		{"ada", `{}`, note},
		{"bob", `{}`, task},
		{"", `{}`, append(append([]string{}, task...), note...)},
		{"eve", `{}`, nil},
		{"ada", `{"call_id": "` + mine + `"}`, note},
		{"ada", `{"call_id": "` + others + `"}`, nil},
		{"", `{"call_id": "` + others + `", "event_type": "failed"}`, task[:1]},
		{"", `{"query": "CREATE_note claimed"}`, note[1:2]},
		{"", `{"query": "create_"}`, append(append([]string{}, task...), note...)},
		{"", `{"query": "createXnote"}`, nil},
		{"ada", `{"since": "2999-01-01T00:00:00Z"}`, nil},
		{"ada", `{"since": "2020-01-01T00:00:00Z", "event_type": "queued"}`, note[2:]},
		{"", `{"call_id": "` + noRow + `"}`, nil},
	} {
		if diff := cmp.Diff(c.want, search(c.by, c.input)); diff != "" {
			t.Errorf("%s: %s (-want +got):\n%s", c.by, c.input, diff)
		}
	}
	if got := search("", `{"query": "receipt_id", "limit": 2}`); len(got) > 2 {
		t.Errorf("limit: got %d", len(got))
	}
}

// Rejected before the database is asked: nothing has a transaction here.
func TestAPatchIsRefusedWithAllItsFaults(t *testing.T) {
	t.Parallel()
	call := &handlers.Call{ID: noRow}
	for _, c := range []struct {
		patch string
		want  []string // path keyword
	}{
		{`{"colour": "red"}`, []string{"/patch/colour additionalProperties"}},
		{`{"id": "x", "title": 5, "a/b~c": 1}`, []string{"/patch/a~1b~0c additionalProperties",
			"/patch/id additionalProperties", "/patch/title type"}},
		{`{"title": null, "status": "later", "due_at": "soon", "context_ref": []}`,
			[]string{"/patch/context_ref type", "/patch/due_at format", "/patch/status enum", "/patch/title type"}},
		{`{"title": "` + strings.Repeat("ä", 201) + `"}`, []string{"/patch/title maxLength"}},
		{`[]`, []string{"/patch type"}},
	} {
		_, err := (*os.OS)(nil).UpdateTask(t.Context(), nil, call,
			os.UpdateTask{TaskID: noRow, Patch: json.RawMessage(c.patch)})
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

// An operator who repeats the call of a signed-in user shows that user no rows of others.
func TestACallThatIsMadeAgainFindsOnlyPersonalRowsOfItsUser(t *testing.T) {
	t.Parallel()
	env := startAll(t)
	for _, user := range []string{"ada", "bob"} {
		env.Run(handlertest.Call{Tool: "os.create_note", CreatedBy: user, SignedIn: true,
			Input: `{"domain": "personal", "title": "diagnosis of ` + user + `", "content": ""}`})
	}
	first := env.Run(handlertest.Call{Tool: "os.search_notes", Input: `{"query": "diagnosis"}`, CreatedBy: "bob",
		SignedIn: true})
	again, err := client.OperatorRepeat(t.Context(), env.DB, first.CallID,
		client.RepeatOptions{Operator: client.Operator{By: "olga"}})
	if err != nil {
		t.Fatal(err)
	}
	if found := string(env.Await(again).Result); !strings.Contains(found, "of bob") || strings.Contains(found, "of ada") {
		t.Errorf("the call found %s", found)
	}
}

// A team shares its rows, but not personal ones: a signed-in user cannot reach those of others.
func TestASignedInUserFindsAndChangesOnlyItsOwnPersonalRows(t *testing.T) {
	t.Parallel()
	env := startAll(t)
	as := func(user, tool, input string) *receipts.Receipt {
		t.Helper()
		return env.Run(handlertest.Call{Tool: tool, Input: input, CreatedBy: user, SignedIn: true})
	}
	tasks := map[string]string{}
	for _, domain := range []string{"personal", "business"} {
		tasks[domain] = handlertest.Output[os.TaskRef](t,
			as("ada", "os.create_task", `{"title": "adas `+domain+`", "domain": "`+domain+`"}`)).TaskID
		as("ada", "os.create_note", `{"title": "adas `+domain+`", "content": "", "domain": "`+domain+`"}`)
		as("ada", "os.create_reminder", `{"title": "adas `+domain+`", "remind_at": "2199-01-01T00:00:00Z", "domain": "`+
			domain+`"}`)
	}
	env.Run(handlertest.Call{Tool: "os.create_note",
		Input: `{"title": "nobodys personal", "content": "", "domain": "personal"}`})
	// a server for her: it has all
	env.Run(handlertest.Call{Tool: "os.refresh_state_snapshot", Input: `{"domain": "both"}`, CreatedBy: "grace"})

	// Whatever finds rows.
	for _, find := range []struct{ tool, input string }{
		{"os.search_notes", `{"query": ""}`}, {"os.search_notes", `{"query": "adas", "domain": "personal"}`},
		{"os.list_tasks", `{}`}, {"os.list_tasks", `{"status": "all", "domain": "personal"}`},
		{"os.list_tasks", `{"status": "open"}`},
		{"os.get_state_snapshot", `{"domain": "personal"}`}, {"os.get_state_snapshot", `{"domain": "both"}`},
	} {
		for user, finds := range map[string]bool{"ada": true, "grace": false, "": false} {
			result := string(as(user, find.tool, find.input).Result)
			if strings.Contains(result, "adas personal") != finds || strings.Contains(result, "nobodys") ||
				strings.Contains(result, `"error"`) {
				t.Errorf("%q: %s %s: %s", user, find.tool, find.input, result)
			}
		}
	}
	var counted struct {
		State struct {
			Notes     struct{ Total int }
			Tasks     struct{ Open int }
			Reminders struct{ Upcoming int }
		}
	}
	for user, want := range map[string]int{"ada": 2, "grace": 1} {
		as(user, "os.refresh_state_snapshot", `{"domain": "both"}`)
		if err := json.Unmarshal(as(user, "os.get_state_snapshot", `{"domain": "both"}`).Result, &counted); err != nil ||
			counted.State.Notes.Total != want || counted.State.Tasks.Open != want || counted.State.Reminders.Upcoming != want {
			t.Errorf("%s: %+v, %v; want %d of each", user, counted, err, want)
		}
	}
	// A server's call has them all, and is not given the state that one user sees.
	if got := do[os.NotesFound](env, "os.search_notes", `{"query": "personal"}`).Results; len(got) != 2 {
		t.Errorf("the server finds %d notes, want 2", len(got))
	}
	if got := do[os.StateSnapshot](env, "os.get_state_snapshot",
		`{"domain": "both"}`); !strings.Contains(string(got.State), "nobodys personal") {
		t.Errorf("the server's state: %s", got.State)
	}

	// Whatever changes rows: the answer is that of a row which does not exist.
	before := rowsOf(t, env, "tasks")
	for _, change := range []struct{ tool, of, more string }{
		{"os.update_task", "personal", `, "patch": {"title": "mine"}`},
		{"os.update_task", "personal", `, "patch": {"domain": "both"}`},
		{"os.update_task", "personal", ``}, {"os.complete_task", "personal", ``},
		{"os.defer_task", "personal", `, "due_at": "2199-01-01T00:00:00Z"`},
		{"os.update_task", "business", `, "patch": {"domain": "personal"}`},
	} {
		answer := func(id string) string {
			failed := handlertest.ErrorOf(t, as("grace", change.tool, `{"task_id": "`+id+`"`+change.more+`}`))
			return strings.ReplaceAll(fmt.Sprintf("%s %s %s", failed.Code, failed.Message, failed.Details), id, "ID")
		}
		if foreign, missing := answer(tasks[change.of]), answer(noRow); foreign != missing {
			t.Errorf("%s%s of ada: %s; of nobody: %s", change.tool, change.more, foreign, missing)
		}
	}
	if after := rowsOf(t, env, "tasks"); after != before {
		t.Errorf("grace changed\n%s\nto\n%s", before, after)
	}
	if r := as("grace", "os.complete_task", `{"task_id": "`+tasks["business"]+`"}`); r.Status != receipts.Succeeded {
		t.Errorf("what is the team's: %s", r.Result)
	}
	if r := as("ada", "os.update_task", `{"task_id": "`+
		tasks["personal"]+`", "patch": {"title": "still hers"}}`); r.Status != receipts.Succeeded {
		t.Errorf("her own: %s", r.Result)
	}
}

func rowsOf(t *testing.T, env *handlertest.Env, table string) (rows string) {
	t.Helper()
	if err := env.DB.QueryRow(t.Context(), "select string_agg(x::text, E'\n' order by x::text) from "+table+" x").
		Scan(&rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// A row is its call's user's, even if someone writes it by hand with another user.
func TestARowBelongsToTheUserOfItsCall(t *testing.T) {
	t.Parallel()
	env := start(t)
	id := env.Insert(handlertest.Call{Tool: "os.create_note", Input: `{"title": "t", "content": "", "domain": "personal"}`,
		CreatedBy: "ada", SignedIn: true})
	env.Await(id)
	for _, sql := range []string{
		"insert into notes (title, created_by, call_id) values ('forged', 'grace', '" + id + "')",
		"insert into notes (title, created_by) values ('of no call', 'grace')",
	} {
		if _, err := env.DB.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var got string
	if err := env.DB.QueryRow(t.Context(), "select string_agg(title || ' ' || coalesce(created_by, '-'), ', ' order by "+
		"title) from notes").Scan(&got); err != nil ||
		got != "forged ada, of no call -, t ada" {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestTheJournalTellsAUserNothingOfWorkers(t *testing.T) {
	t.Parallel()
	env := start(t)
	id := env.Insert(handlertest.Call{Tool: "os.health_check", CreatedBy: "ada", SignedIn: true})
	env.Await(id)
	search := handlertest.Call{Tool: "os.audit_log_search", Input: `{"call_id": "` + id + `"}`, CreatedBy: "ada",
		SignedIn: true}
	for _, item := range handlertest.Output[os.AuditLog](t, env.Run(search)).Items {
		if item.WorkerID != nil {
			t.Errorf("%s names the worker %s", item.EventType, *item.WorkerID)
		}
	}
	search.CreatedBy = "" // with a token that names nobody
	if items := handlertest.Output[os.AuditLog](t, env.Run(search)).Items; len(items) != 0 {
		t.Errorf("nobody sees %+v", items)
	}
	search.SignedIn = false
	if items := handlertest.Output[os.AuditLog](t, env.Run(search)).Items; len(items) != 3 || items[0].WorkerID == nil {
		t.Errorf("a server sees %+v", items)
	}
}
