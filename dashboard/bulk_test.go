package dashboard_test

import (
	"fmt"
	"html"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestMarkedCallsAreCancelledAndThePageSaysWhichWereNot(t *testing.T) {
	t.Parallel()
	server, db := with(t, operator)
	busy := running(t, db, client.NewCall{Tool: "mail.send"})
	over := failed(t, db, client.NewCall{Tool: "mail.send"}, "timeout", "no")
	queued := made(t, db, client.NewCall{Tool: "notes.find"})
	path := "/calls/bulk?" + url.Values{"do": {"cancel"}, "id": {queued, busy, over}}.Encode()
	_, page := get(t, server, path)
	says(t, page, "Cancel 3 calls", "Already ended")
	_, at, page := send(t, server, "/calls/bulk", fill(t, server, path, "/calls/bulk", "reason", "a drill"))
	if at.Path != "/calls/bulk/done" {
		t.Errorf("at %s", at)
	}
	says(t, page, "Cancelled: 1 call. Cancellation requested: 1 call. Unchanged: 1 call.", over,
		"it had already ended: it failed")
	got := testdb.Value[string](t, db,
		"select string_agg(event || ' ' || (data ->> 'reason'), ', ' order by call_id) from "+
			"core_tool_events where data ->> 'by' = 'ada'")
	if want := "cancel_requested a drill, failed a drill"; got != want {
		t.Errorf("the journals say %q, want %q", got, want)
	}
}

func TestAllThatAFilterFindsIsCancelledAndNothingElse(t *testing.T) {
	t.Parallel()
	server, db := with(t, operator)
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name, created_by) select 'mail.send', 'bob' from "+
		"generate_series(1, 703)")
	made(t, db, client.NewCall{Tool: "notes.find", CreatedBy: "bob"})
	path := "/calls/bulk?do=cancel&all=yes&state=queued&tool=mail.send"
	form := fill(t, server, path, "/calls/bulk")
	if form.Get("most") != "703" {
		t.Errorf("the page counts %s", form.Get("most"))
	}
	for range 4 { // they come after they were counted
		made(t, db, client.NewCall{Tool: "mail.send"})
	}
	_, _, page := send(t, server, "/calls/bulk", form)
	says(t, page, "Cancelled: 703 calls.")
	if n := testdb.Value[int](t, db, "select count(*) from core_tool_calls where status = 'queued'"); n != 5 {
		t.Errorf("%d calls are open", n)
	}
}

func TestAllOfARowOfFailuresAreMadeAgain(t *testing.T) {
	t.Parallel()
	server, db := with(t, operator)
	var ids []string
	for i := range 3 {
		ids = append(ids, failed(t, db, client.NewCall{Tool: "mail.send", Input: map[string]int{"n": i}}, "execution_error",
			fmt.Sprintf("no mailbox %d", i)))
	}
	failed(t, db, client.NewCall{Tool: "mail.send"}, "timeout", "no server")
	_, page := get(t, server, "/failures")
	says(t, page, "no mailbox 2")
	_, row, _ := strings.Cut(page, "no mailbox")
	_, row, _ = strings.Cut(row, `href="/calls/bulk`)
	path, _, _ := strings.Cut(row, `"`)
	path = "/calls/bulk" + html.UnescapeString(path)
	_, page = get(t, server, path)
	says(t, page, "Run 3 calls again", "3 of <code>mail.send</code> may happen twice.")

	form := fill(t, server, path, "/calls/bulk", "confirm", "mail", "reason", "typed")
	status, _, page := send(t, server, "/calls/bulk", form)
	if status != 422 {
		t.Errorf("status %d", status)
	}
	says(t, page, "The name does not match the tool", `name="confirm" value="mail"`, `value="typed"`)
	form = formOf(t, page, "/calls/bulk")
	form.Set("confirm", "mail.send")
	for range 2 { // the second time is the same form
		_, _, page = send(t, server, "/calls/bulk", form)
		says(t, page, "Run again: 3 calls.")
	}
	got := testdb.Value[[]string](t, db,
		"select array_agg(data ->> 'again_of' order by call_id) from core_tool_events where "+
			"data ? 'again_of'")
	slices.Sort(got)
	slices.Sort(ids)
	if !slices.Equal(got, ids) {
		t.Errorf("made again: %v, want %v", got, ids)
	}
}

func TestWhatWasNotConfirmedIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	server, db := with(t, operator)
	twice := failed(t, db, client.NewCall{Tool: "mail.send"}, "execution_error", "no")
	safe := failed(t, db, client.NewCall{Tool: "notes.find"}, "execution_error", "no")
	open := made(t, db, client.NewCall{Tool: "notes.find"})
	// A form without the field that the page has.
	form := url.Values{"form": {"12345678901234567890"}, "do": {"again"}, "id": {twice, safe, open}, "most": {"3"}}
	_, _, page := send(t, server, "/calls/bulk", form)
	says(t, page, "Run again: 1 call. Unchanged: 2 calls.", twice, "may happen twice", open, "has not ended")
}

func TestABulkActSaysWhatItCannotTake(t *testing.T) {
	t.Parallel()
	server, _ := with(t, operator)
	many := url.Values{"do": {"cancel"}}
	for i := range 501 {
		many.Add("id", fmt.Sprintf("00000000-0000-7000-8000-%012d", i))
	}
	for path, want := range map[string]string{
		"do=cancel":                          "No call was selected.",
		"do=drop&all=yes":                    "do must be cancel or again.",
		"do=cancel&id=nothing":               "is not a call id",
		"do=cancel&all=yes&state=sleeping":   "is not one of queued",
		"do=cancel&all=yes&before=yesterday": "is not the end of a page of this list",
		many.Encode():                        "501 calls were selected, but at most 500 can be.",
	} {
		status, page := get(t, server, "/calls/bulk?"+path)
		if status != 400 {
			t.Errorf("%.60s: %d", path, status)
		}
		says(t, page, want)
	}
	status, page := get(t, server, "/calls/bulk?do=cancel&all=yes&tool=none")
	if status != 200 {
		t.Errorf("%d", status)
	}
	says(t, page, "No call matches, so there is nothing to do.")
	if status, _ := get(t, server, "/calls/bulk/done"); status != 404 {
		t.Errorf("%d", status)
	}
}
