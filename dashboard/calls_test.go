package dashboard_test

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/testing/testdb"
)

var listed = regexp.MustCompile(`<tr data-key="([^"]*)"`)

func rowsOf(page string) (ids []string) {
	for _, m := range listed.FindAllStringSubmatch(page, -1) {
		ids = append(ids, m[1])
	}
	return ids
}

func TestTheListOfCallsIsWhatTheTablesHave(t *testing.T) {
	t.Parallel()
	server, db := with(t, viewer)
	for i := range 6 {
		c := client.NewCall{Tool: []string{"mail.send", "notes.find"}[i%2], CreatedBy: fmt.Sprintf("user %d", i%3),
			SessionID: fmt.Sprintf("s&%d", i/2), IdempotencyKey: fmt.Sprintf("k%d", i)}
		failed(t, db, c, []string{"timeout", "panic"}[i%2], fmt.Sprintf("message <%d>", i))
	}
	failed(t, db, client.NewCall{Tool: "mail.send", CreatedBy: "user 1"}, "limit_reached", "not now")
	failed(t, db, client.NewCall{Tool: "mail.send"}, "cancelled", "no longer needed")
	made(t, db, client.NewCall{Tool: "mail.send", CreatedBy: "user 1"})
	made(t, db, client.NewCall{Tool: "mail.send", Delay: time.Hour})
	for query, where := range map[string]string{
		"":                                    "true",
		"state=failed":                        "error ->> 'error_code' in ('timeout', 'panic')",
		"state=refused":                       "error ->> 'error_code' = 'limit_reached'",
		"state=cancelled":                     "error ->> 'error_code' = 'cancelled'",
		"code=limit_reached":                  "error ->> 'error_code' = 'limit_reached'",
		"state=queued":                        "status = 'queued' and run_at <= now()",
		"state=scheduled":                     "run_at > now()",
		"state=open&tool=mail.send":           "status = 'queued' and tool_name = 'mail.send'",
		"tool=notes.find":                     "tool_name = 'notes.find'",
		"caller=user+1":                       "created_by = 'user 1'",
		"caller=user+1&state=failed":          "created_by = 'user 1' and error ->> 'error_code' in ('timeout', 'panic')",
		"session=s%261":                       "session_id = 's&1'",
		"key=k3":                              "idempotency_key = 'k3'",
		"code=panic":                          "error ->> 'error_code' = 'panic'",
		"q=message+%3C2":                      "error ->> 'message' = 'message <2>'",
		"from=2001-01-01T00:00&to=2002-01-01": "false",
		"from=2001-01-01&code=timeout":        "error ->> 'error_code' = 'timeout'",
	} {
		want := testdb.Value[[]string](t, db,
			"select coalesce(array_agg(id::text order by id), '{}') from core_tool_calls where "+
				where)
		status, page := get(t, server, "/calls?"+query)
		got := rowsOf(page)
		slices.Sort(got)
		if status != 200 || !slices.Equal(got, want) {
			t.Errorf("%s: %d, got %v, want %v", query, status, got, want)
		}
		var list struct {
			Calls []struct{ ID, Tool, Status string }
		}
		_, body := get(t, server, "/calls.json?"+query)
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Fatalf("%s: %v: %s", query, err, body)
		}
		var ids []string
		for _, c := range list.Calls {
			ids = append(ids, c.ID)
		}
		slices.Sort(ids)
		if !slices.Equal(ids, want) {
			t.Errorf("%s: the JSON has %v, want %v", query, ids, want)
		}
	}
}

func TestOlderPagesHaveAllCallsOnce(t *testing.T) {
	t.Parallel()
	server, db := with(t, viewer)
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) select 'mail.send' from generate_series(1, 120)")
	older := regexp.MustCompile(`rel="next" href="([^"]*)"`)
	seen, pages := map[string]bool{}, 0
	for path := "/calls?tool=mail.send"; path != ""; pages++ {
		_, page := get(t, server, path)
		for _, id := range rowsOf(page) {
			if seen[id] {
				t.Errorf("call %s is on two pages", id)
			}
			seen[id] = true
		}
		path = ""
		if m := older.FindStringSubmatch(page); m != nil {
			path = html.UnescapeString(m[1])
			if !strings.HasPrefix(path, "/calls?") || !strings.Contains(path, "tool=mail.send") {
				t.Fatalf("the next page is %s", path)
			}
		}
	}
	if pages != 3 || len(seen) != 120 {
		t.Errorf("%d calls on %d pages", len(seen), pages)
	}
}

func TestAFormsEmptyFieldsLeaveTheURL(t *testing.T) {
	t.Parallel()
	server, _ := with(t, viewer)
	_, at := follow(t, server.URL+"/calls?state=&tool=mail.send&caller=&from=")
	if got := at.RequestURI(); got != "/calls?tool=mail.send" {
		t.Errorf("at %s", got)
	}
}

func TestAFilterThatCannotBeReadIsAskedForAgain(t *testing.T) {
	t.Parallel()
	server, _ := with(t, viewer)
	for query, want := range map[string]string{
		"state=sleeping&tool=mail.send": `State: "sleeping" is not one of`,
		"from=noon&tool=mail.send":      `"noon" is not a time such as`,
		"tool=mail.send&limit=-1":       "Limit: -1",
	} {
		status, page := get(t, server, "/calls?"+query)
		if status != 400 {
			t.Errorf("%s: %d", query, status)
		}
		says(t, page, want, `name="tool" value="mail.send"`)
		if status, body := get(t, server, "/calls.json?"+query); status != 400 || !strings.Contains(body, `"error"`) {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
	for _, query := range []string{"before=yesterday", "tool=%00", "q=%ff",
		"before=-999999999999999999.0190a000-0000-7005-8000-000000000000", "state=queued&before=-9.-999999999999999999.1"} {
		if status, page := get(t, server, "/calls?"+query); status != 400 {
			t.Errorf("%s: %d %s", query, status, page)
		}
	}
}

func TestAnExactNameLeadsToItsThing(t *testing.T) {
	t.Parallel()
	server, db := with(t, viewer)
	id := failed(t, db, client.NewCall{Tool: "mail.send", SessionID: "a session/1", CreatedBy: "bob & co"}, "timeout",
		"no")
	receipt := testdb.Value[string](t, db, "select id::text from core_tool_receipts")
	made(t, db, client.NewCall{Tool: "notes.find", SessionID: "both", CreatedBy: "both"})
	for text, want := range map[string]string{
		id:                  "/calls/" + id,
		strings.ToUpper(id): "/calls/" + id,
		" " + receipt + " ": "/calls/" + id,
		"a session/1":       "/sessions?id=a+session%2F1",
		"bob & co":          "/calls?caller=bob+%26+co",
		"mail.send":         "/calls?tool=mail.send",
	} {
		if _, at := follow(t, server.URL+"/calls?find="+url.QueryEscape(text)); at.RequestURI() != want {
			t.Errorf("%q leads to %s, want %s", text, at.RequestURI(), want)
		}
	}
	_, page := get(t, server, "/calls?find=both")
	says(t, page, `href="/sessions?id=both"`, `href="/calls?caller=both"`)
	for _, text := range []string{"<b>nothing</b>", strings.Repeat("x", 5000), "\x00", "\xff"} {
		status, page := get(t, server, "/calls?find="+url.QueryEscape(text))
		if status != 404 {
			t.Errorf("%.20q: %d", text, status)
		}
		says(t, page, "Search in names and messages")
		if strings.Contains(page, "<b>nothing") {
			t.Error("the name is HTML")
		}
	}
	long := strings.Repeat("x", 400) // longer than a page shows
	_, page = get(t, server, "/calls?find="+long)
	says(t, page, `href="/calls?q=`+long+`"`)
	if _, body := get(t, server, "/calls.json?find="+id); !strings.Contains(body, `"call_id":"`+id+`"`) {
		t.Error(body)
	}
}

// follow reads a page and returns the final address.
func follow(t *testing.T, at string) (int, *url.URL) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	return answer.StatusCode, answer.Request.URL
}

// hostileNames are texts that agents may write: markup, links with scripts, characters that reverse text, and long
// texts.
var hostileNames = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' autofocus onfocus='alert(1)`, `javascript:alert(1)`,
	`</title></table></main><script>`,
	`{{template "layout.html"}}`, "a\u202Eb\u0007\u200b\u2028", `%00%0d%0aX: y`, `../../etc`, `a/b?c=d&e#f`,
	strings.Repeat("\U0001F600\"<", 60),
}

func TestHostileNamesAndMessagesAreText(t *testing.T) {
	t.Parallel()
	server, db := with(t, operator)
	for range 6 {
		for _, h := range hostileNames {
			name := string([]rune(h)[:min(len([]rune(h)), 180)])
			failed(t, db, client.NewCall{Tool: name, CreatedBy: name, SessionID: name, IdempotencyKey: name,
				Input: map[string]string{"x": h}}, "execution_error", h+strings.Repeat(h, 20))
		}
	}
	paths := []string{"/calls", "/failures", "/calls?state=failed", "/calls/bulk?do=again&all=yes&state=failed"}
	for _, h := range hostileNames {
		for _, field := range []string{"state", "tool", "caller", "session", "key", "code", "message", "q", "find", "from"} {
			paths = append(paths, "/calls?"+url.Values{field: {h}}.Encode())
		}
		paths = append(paths, "/failures?"+url.Values{"tool": {h}}.Encode(), "/failures?"+url.Values{"within": {h}}.Encode())
	}
	paths = append(paths, "/calls/"+testdb.Value[string](t, db,
		"select id::text from core_tool_calls where tool_name like '<script%' limit 1")+"/again",
		"/calls/bulk?do=again&all=yes&"+url.Values{"tool": {hostileNames[1]}}.Encode())
	for _, path := range paths {
		status, page := get(t, server, path)
		if status >= 500 {
			t.Errorf("%s: %d %s", path, status, page)
		}
		if len(page) > 200<<10 {
			t.Errorf("%s has %d bytes", path, len(page))
		}
		for _, bad := range []string{"<script>alert", "<img", "onfocus='", "</title></table>", `href="javascript:`,
			`action="javascript:`, "\u202E", "\u2028"} {
			if i := strings.Index(page, bad); i >= 0 {
				t.Errorf("%s has %q: …%s…", path, bad, page[max(0, i-80):min(len(page), i+80)])
			}
		}
	}
}

func TestFailuresAreSummedUpByToolAndCodeWithTheLastMessage(t *testing.T) {
	t.Parallel()
	server, db := with(t, viewer)
	for i := range 4 {
		failed(t, db, client.NewCall{Tool: "mail.send"}, "execution_error", fmt.Sprintf("no mailbox %d", i))
	}
	lacks := running(t, db, client.NewCall{Tool: "notes.find"})
	testdb.Exec(t, db, `select gem.finish($1, 1, 'w', 'not_configured',
		'{"status": "not_configured", "reason": "no key", "required_env": [], "next_steps": []}', '{}', '1')`, lacks)
	_, page := get(t, server, "/failures")
	says(t, page, "<title>Failures: the last 24 hours", "no mailbox 3", `class="n">4</td>`, "no key")
	if strings.Contains(page, "/bulk") {
		t.Error("a viewer is offered to act")
	}
	links := regexp.MustCompile(`<a href="(/calls\?[^"]*)">List`).FindAllStringSubmatch(page, -1)
	var counts []int
	for _, l := range links {
		_, list := get(t, server, html.UnescapeString(l[1]))
		counts = append(counts, len(rowsOf(list)))
	}
	if !slices.Equal(counts, []int{4, 1}) {
		t.Errorf("the lists have %v calls", counts)
	}
	var all struct{ Failures []struct{ Count int } }
	_, body := get(t, server, "/failures.json?within=1h&tool=mail.send")
	if err := json.Unmarshal([]byte(body), &all); err != nil || len(all.Failures) != 1 || all.Failures[0].Count != 4 {
		t.Errorf("%v %s", err, body)
	}
	if status, _ := get(t, server, "/failures?within=ever"); status != 400 {
		t.Errorf("%d", status)
	}
}
