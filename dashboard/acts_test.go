package dashboard_test

import (
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var (
	operator = dashboard.User{Name: "ada", Operator: true}
	viewer   = dashboard.User{Name: "bob"}
)

const toolsOfTests = `{"version": "1", "tools": [
	{"name": "mail.send", "idempotency": {"mode": "none"}, "timeout_ms": 1000},
	{"name": "notes.find", "idempotency": {"mode": "safe-retry"}, "timeout_ms": 1000},
	{"name": "orders.pay", "idempotency": {"mode": "keyed", "key_field": "order"}, "timeout_ms": 1000}]}`

// with serves pages with a registry in force, and a worker w whose statements a test runs.
func with(t *testing.T, user dashboard.User) (*httptest.Server, *pgxpool.Pool) {
	t.Helper()
	server, db := pages(t, user)
	testdb.Exec(t, db, "select gem.record_registry('1', repeat('a', 64), '"+toolsOfTests+"')")
	testdb.Exec(t, db, "select gem.start_worker('w', 500, '', '1', '1 hour')")
	return server, db
}

// made inserts a call.
func made(t *testing.T, db *pgxpool.Pool, c client.NewCall) (id string) {
	t.Helper()
	id, err := client.Enqueue(t.Context(), db, c)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// failedOfUser is failed for a call to notes.find of the signed-in user eve.
func failedOfUser(t *testing.T, db *pgxpool.Pool) (id string) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), `with eve as (select set_config('request.jwt.claims',
				'{"role": "authenticated", "sub": "eve"}', true) as claims)
			insert into core_tool_calls (tool_name) select 'notes.find' from eve where claims <> '' returning id::text`).
			Scan(&id)
	})
	if err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, "select gem.claim('w', 500, true)")
	fails(t, db, id, "execution_error", "no")
	return id
}

// running inserts a call, which the worker w claims.
func running(t *testing.T, db *pgxpool.Pool, c client.NewCall) (id string) {
	t.Helper()
	id = made(t, db, c)
	testdb.Exec(t, db, "select gem.claim('w', 500, true)")
	return id
}

// failed inserts a call that fails in its first attempt.
func failed(t *testing.T, db *pgxpool.Pool, c client.NewCall, code, message string) (id string) {
	t.Helper()
	id = running(t, db, c)
	fails(t, db, id, code, message)
	return id
}

// fails ends the first attempt of a call.
func fails(t *testing.T, db *pgxpool.Pool, id, code, message string) {
	t.Helper()
	result, err := json.Marshal(map[string]any{"error": map[string]any{"error_code": code, "message": message,
		"details": map[string]any{}}})
	if err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, "select gem.finish($1, 1, 'w', 'failed', $2::text::jsonb, '{}', '1')", id, string(result))
}

var hiddenField = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// formOf returns the hidden fields of a page's last form that posts to a path.
func formOf(t *testing.T, page, path string) url.Values {
	t.Helper()
	_, form, found := strings.Cut(page, `<form method="post" action="`+path+`">`)
	if !found {
		t.Fatalf("no form that posts to %s:\n%s", path, page)
	}
	form, _, _ = strings.Cut(form, "</form>")
	v := url.Values{}
	for _, m := range hiddenField.FindAllStringSubmatch(form, -1) {
		v.Add(html.UnescapeString(m[1]), html.UnescapeString(m[2]))
	}
	return v
}

// send posts a form, and follows the redirect.
func send(t *testing.T, server *httptest.Server, path string, form url.Values) (status int, at *url.URL, body string) {
	t.Helper()
	answer, err := server.Client().PostForm(server.URL+path, form)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, answer.Request.URL, string(text)
}

// fill loads the page of a form and returns its hidden fields, with more fields.
func fill(t *testing.T, server *httptest.Server, page, path string, more ...string) url.Values {
	t.Helper()
	status, body := get(t, server, page)
	if status != 200 {
		t.Fatalf("%s: %d %s", page, status, body)
	}
	form := formOf(t, body, path)
	for i := 0; i < len(more); i += 2 {
		form.Add(more[i], more[i+1])
	}
	return form
}

func says(t *testing.T, body string, texts ...string) {
	t.Helper()
	plain := html.UnescapeString(body)
	for _, text := range texts {
		if !strings.Contains(plain, text) {
			t.Errorf("the page does not say %q:\n%s", text, body)
		}
	}
}

func TestAQueuedCallIsCancelledByAnOperatorWhomTheJournalNames(t *testing.T) {
	t.Parallel()
	server, db := with(t, operator)
	id := made(t, db, client.NewCall{Tool: "mail.send"})
	path := "/calls/" + id + "/cancel"
	_, page := get(t, server, path)
	says(t, page, "Cancel a queued call", "It ends at once")
	form := fill(t, server, path, path, "reason", "no longer needed", "by", "eve")
	status, at, _ := send(t, server, path, form)
	if at.Path != "/calls/"+id || at.Query().Get("done") == "" {
		t.Errorf("%d, at %s", status, at)
	}
	got := testdb.Value[string](t, db, "select concat_ws(', ', event, data ->> 'by', data ->> 'reason') from "+
		"core_tool_events where call_id = $1 order by seq desc limit 1", id)
	if want := "failed, ada, no longer needed"; got != want {
		t.Errorf("the journal says %q, want %q", got, want)
	}
}

func TestAFormThatIsSentTwiceAtOnceActsOnce(t *testing.T) {
	t.Parallel()
	server, db := with(t, operator)
	id := failed(t, db, client.NewCall{Tool: "notes.find"}, "execution_error", "no")
	path := "/calls/" + id + "/again"
	form := fill(t, server, path, path)
	var ends [4]string
	var all sync.WaitGroup
	for i := range ends {
		all.Go(func() {
			answer, err := http.DefaultTransport.RoundTrip(post(t, server, path, form))
			if err != nil {
				t.Error(err)
				return
			}
			_ = answer.Body.Close()
			ends[i] = answer.Header.Get("Location")
		})
	}
	all.Wait()
	if ends[0] == "" || len(slices.Compact(ends[:])) != 1 {
		t.Errorf("they lead to %q", ends)
	}
	if n := testdb.Value[int](t, db, "select count(*) from core_tool_calls"); n != 2 {
		t.Errorf("%d calls", n)
	}
}

// This holds even after the process has forgotten the form, and in another process.
func TestAFormMakesACallAgainOnceOverProcesses(t *testing.T) {
	t.Parallel()
	server, db := with(t, operator)
	h, err := dashboard.New(dashboard.Options{Read: db, Act: db,
		User: func(*http.Request) (dashboard.User, error) { return operator, nil }})
	if err != nil {
		t.Fatal(err)
	}
	other := httptest.NewServer(h)
	t.Cleanup(other.Close)
	testdb.Exec(t, db, "update gem.tools set frontends = true")
	for whose, id := range map[string]string{"a server's": failed(t, db, client.NewCall{Tool: "notes.find"},
		"execution_error", "no"), "a user's": failedOfUser(t, db)} {
		path := "/calls/" + id + "/again"
		form := fill(t, server, path, path)
		_, first, _ := send(t, server, path, form)
		_, second, _ := send(t, other, path, form)
		if first.Path != second.Path || first.Path == path {
			t.Errorf("%s: %s, %s", whose, first, second)
		}
	}
}

// One call that cannot be repeated does not stop the others.
func TestABulkActLeavesOutWhatIsRefused(t *testing.T) {
	t.Parallel()
	server, db := with(t, operator)
	testdb.Exec(t, db, "update gem.tools set frontends = true")
	failed(t, db, client.NewCall{Tool: "notes.find"}, "execution_error", "no")
	refused := failedOfUser(t, db)
	failed(t, db, client.NewCall{Tool: "notes.find"}, "execution_error", "no")
	testdb.Exec(t, db, `create function public.no() returns trigger language plpgsql as $$
		begin raise check_violation using message = 'not this one'; end $$;
		create trigger no before insert on core_tool_calls for each row when (new.created_by = 'eve') execute function no()`)
	status, _, page := send(t, server, "/calls/bulk", fill(t, server, "/calls/bulk?do=again&all=yes&code=execution_error",
		"/calls/bulk"))
	if status != http.StatusOK {
		t.Errorf("status %d", status)
	}
	says(t, page, "Run again: 2 calls. Unchanged: 1 call.", "Not this one.", refused)
}

func post(t *testing.T, server *httptest.Server, path string, form url.Values) *http.Request {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return q
}

func TestARunningCallIsAskedToEndOnce(t *testing.T) {
	t.Parallel()
	server, db := with(t, operator)
	id := running(t, db, client.NewCall{Tool: "mail.send"})
	path := "/calls/" + id + "/cancel"
	_, page := get(t, server, path)
	says(t, page, "may continue until it notices")
	for range 2 { // of two browsers
		send(t, server, path, fill(t, server, path, path))
	}
	if n := testdb.Value[int](t, db, "select count(*) from core_tool_events where event = 'cancel_requested'"); n != 1 {
		t.Errorf("%d events", n)
	}
	_, page = get(t, server, path)
	says(t, page, "has already asked to cancel this call")
}

func TestAnEndedCallIsNotCancelled(t *testing.T) {
	t.Parallel()
	server, db := with(t, operator)
	id := made(t, db, client.NewCall{Tool: "mail.send"})
	path := "/calls/" + id + "/cancel"
	form := fill(t, server, path, path, "reason", "a reason that was typed")
	testdb.Exec(t, db, "select gem.claim('w', 500, true)")
	testdb.Exec(t, db, "select gem.finish($1, 1, 'w', 'succeeded', '{}', '{}', '1')", id)
	status, _, body := send(t, server, path, form)
	if status != 409 {
		t.Errorf("status %d", status)
	}
	says(t, body, "The call had already ended: it succeeded. Nothing was changed.")
	if _, page := get(t, server, path); strings.Contains(page, "<button class=\"danger\">") {
		t.Error("there is a button to cancel it")
	}
}

func TestWhatMayHappenTwiceWantsTheToolsName(t *testing.T) {
	t.Parallel()
	server, db := with(t, operator)
	id := failed(t, db, client.NewCall{Tool: "mail.send", Input: map[string]string{"to": "x"}, SessionID: "s1"},
		"execution_error", "no")
	path := "/calls/" + id + "/again"
	form := fill(t, server, path, path, "confirm", "mail.sent", "reason", `a "reason" that was typed`)
	status, _, body := send(t, server, path, form)
	if status != 428 {
		t.Errorf("status %d", status)
	}
	says(t, body, "It may happen twice.", "may happen twice. To repeat it anyway, confirm the name of its tool: "+
		"mail.send.", `value="mail.sent"`, `value="a "reason" that was typed"`)
	if n := testdb.Value[int](t, db, "select count(*) from core_tool_calls"); n != 1 {
		t.Fatalf("%d calls", n)
	}
	form = formOf(t, body, path)
	form.Set("confirm", "mail.send")
	receipt := testdb.Value[string](t, db, "select to_jsonb(r)::text from core_tool_receipts r")
	_, at, _ := send(t, server, path, form)
	made := strings.TrimPrefix(at.Path, "/calls/")
	got := testdb.Value[string](t, db,
		"select concat_ws(' ', c.tool_name, c.input, c.session_id, c.parent_call_id, e.data "+
			"->> 'again_of', e.data ->> 'by') from core_tool_calls c join core_tool_events e on e.call_id = c.id where c.id = $1",
		made)
	if want := fmt.Sprintf(`mail.send {"to": "x"} s1 %s %[1]s ada`, id); got != want {
		t.Errorf("the new call is %s, want %s", got, want)
	}
	if now := testdb.Value[string](t, db, "select to_jsonb(r)::text from core_tool_receipts r"); now != receipt {
		t.Errorf("the receipt became %s", now)
	}
}

func TestThePageSaysWhatItWouldMeanToMakeACallAgain(t *testing.T) {
	t.Parallel()
	server, db := with(t, operator)
	order := client.NewCall{Tool: "orders.pay", Input: map[string]int{"order": 7}}
	lost := failed(t, db, order, "outcome_unknown", "its worker was lost")
	_, page := get(t, server, "/calls/"+lost+"/again")
	says(t, page, "It may happen twice.", "it is unknown whether the call took effect", `name="confirm"`)

	paid := running(t, db, order)
	testdb.Exec(t, db, "select gem.hold_key($1, 1, 'w', 'orders.pay:order=7')", paid)
	_, page = get(t, server, "/calls/"+lost+"/again")
	says(t, page, "holds its key now", paid)

	testdb.Exec(t, db, "select gem.finish($1, 1, 'w', 'succeeded', '{}', '{}', '1')", paid)
	_, page = get(t, server, "/calls/"+lost+"/again")
	says(t, page, "Its key has succeeded since", paid, "Nothing will run")
	if strings.Contains(page, `name="confirm"`) {
		t.Error("a name is to be typed where nothing runs")
	}

	open := made(t, db, order)
	_, page = get(t, server, "/calls/"+open+"/again")
	says(t, page, "It cannot be run again: call "+open+" has not ended: it is queued.")
	if status, _, body := send(t, server, "/calls/"+open+"/again",
		url.Values{"form": {"12345678901234567890"}}); status != 409 {
		t.Errorf("%d %s", status, body)
	}
}

func TestViewersDoNotAct(t *testing.T) {
	t.Parallel()
	server, db := with(t, viewer)
	id := made(t, db, client.NewCall{Tool: "mail.send"})
	form := url.Values{"form": {"12345678901234567890"}, "do": {"cancel"}, "id": {id}, "most": {"1"}, "by": {"ada"}}
	for _, path := range []string{"/calls/" + id + "/cancel", "/calls/" + id + "/again", "/calls/bulk"} {
		if status, _, body := send(t, server, path, form); status != 403 {
			t.Errorf("POST %s: %d %s", path, status, body)
		}
		if status, body := get(t, server, path); status != 403 {
			t.Errorf("GET %s: %d %s", path, status, body)
		}
	}
	_, page := get(t, server, "/calls?tool=mail.send")
	for _, act := range []string{"/bulk", "checkbox\" name", "/again"} {
		if strings.Contains(page, act) {
			t.Errorf("the list offers %s to a viewer", act)
		}
	}
	if n := testdb.Value[int](t, db, "select count(*) from core_tool_events"); n != 1 {
		t.Errorf("%d events", n)
	}
}

func TestActsOnNoCallAreNotFound(t *testing.T) {
	t.Parallel()
	server, _ := with(t, operator)
	for _, path := range []string{"/calls/00000000-0000-7000-8000-000000000000/cancel",
		"/calls/00000000-0000-7000-8000-000000000000/again", "/calls/nothing/again"} {
		if status, body := get(t, server, path); status != 404 {
			t.Errorf("GET %s: %d %s", path, status, body)
		}
		if status, _, body := send(t, server, path, url.Values{"form": {"12345678901234567890"}}); status != 404 {
			t.Errorf("POST %s: %d %s", path, status, body)
		}
	}
}

func TestAReasonThatIsTooLongIsAskedForAgain(t *testing.T) {
	t.Parallel()
	server, db := with(t, operator)
	id := made(t, db, client.NewCall{Tool: "mail.send"})
	path := "/calls/" + id + "/cancel"
	status, _, body := send(t, server, path, fill(t, server, path, path, "reason", strings.Repeat("x", 1001)))
	if status != 422 {
		t.Errorf("status %d", status)
	}
	says(t, body, "The reason has 1001 characters, and may have at most 1000.", strings.Repeat("x", 1001))
	for _, reason := range []string{"a\x00b", "\xff"} {
		if status, _, body := send(t, server, path, fill(t, server, path, path, "reason", reason)); status != 400 {
			t.Errorf("%q: %d %s", reason, status, body)
		}
	}
}
