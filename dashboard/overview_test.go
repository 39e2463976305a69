package dashboard_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// lacks fails the test if a page contains one of the texts.
func lacks(t *testing.T, body string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(body, text) {
			t.Errorf("the page has %q", text)
		}
	}
}

func TestTheOverviewSaysWhatThereIsToDo(t *testing.T) {
	t.Parallel()
	server, db := pages(t, dashboard.User{Name: "ada"})
	_, body := get(t, server, "/")
	says(t, body, "Nothing needs attention", "No call is open", "No call failed in the last day",
		"<title>Overview: healthy")
	lacks(t, body, "no such")

	made(t, db, client.NewCall{Tool: "mail.send"})
	made(t, db, client.NewCall{Tool: "mail.send"})
	_, body = get(t, server, "/")
	says(t, body, "<strong>No worker is alive</strong>, and 2 calls are queued", "<title>Overview: 1 thing needs "+
		"attention", "<strong>2</strong> queued", `data-say="2 queued, 0 waiting, 0 running, 1 need attention"`)

	testdb.Exec(t, db, "select gem.record_registry('1', repeat('a', 64), '"+toolsOfTests+"')")
	testdb.Exec(t, db, "select gem.start_worker('w', 500, '', '1', '1 hour')")
	failed(t, db, client.NewCall{Tool: "mail.send"}, "outcome_unknown", "The worker died.")
	_, body = get(t, server, "/")
	says(t, body, "1 call may or may not have taken effect", "1 worker alive", "2 of 500 slots busy",
		`<code class="code outcome_unknown">`, "The worker died.")
	lacks(t, body, "No worker is alive")
}

func TestWhatIsCountedAsUnknownIsNotTakenForATool(t *testing.T) {
	t.Parallel()
	server, db := pages(t, dashboard.User{Name: "ada", Operator: true})
	testdb.Exec(t, db, "select gem.start_worker('w', 500, '', '1', '1 hour')")
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name, created_by) select 'mail.send', 'cancelled' from "+
		"generate_series(1, 12)")
	testdb.Exec(t, db, "select gem.operator_cancel(array(select id from core_tool_calls), 'ada', '')")
	testdb.Exec(t, db, `insert into gem.outcome_minutes select date_trunc('minute', gem.now()), n, 0, 12, 0, 0, 0, 0, '{}',
		'{}' from unnest(array['', '(unknown)']) n
			on conflict (minute, tool_name) do update set failed = 12`) // as workers count them, some seconds later
	_, body := get(t, server, "/")
	says(t, body, "<title>Overview: healthy")

	for range 10 {
		failed(t, db, client.NewCall{Tool: "mail.sned"}, "unknown_tool", "The registry has no such tool.")
	}
	_, body = get(t, server, "/")
	says(t, body, "<strong>10 calls of the last day named tools that the registry does not have.</strong>",
		`href="/calls?code=unknown_tool"`)
	_, body = get(t, server, "/tools/%28unknown%29")
	says(t, body, "calls that ended before a worker claimed them", `href="/calls?code=unknown_tool"`)
	lacks(t, body, "calls?tool=", "failures?tool=", "No registry in force has this tool")
}

func TestTheOverviewsNumbersAreThoseOfItsJSON(t *testing.T) {
	t.Parallel()
	server, db := with(t, dashboard.User{Name: "ada"})
	failed(t, db, client.NewCall{Tool: "mail.send"}, "execution_error", "Broken.")
	made(t, db, client.NewCall{Tool: "notes.find"})
	var o view.Overview
	_, body := get(t, server, "/overview.json")
	if err := json.Unmarshal([]byte(body), &o); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	if o.Queue.Ready != 1 || o.Workers.Alive != 1 || len(o.Failures) != 1 || o.Failures[0].Code != "execution_error" {
		t.Errorf("%+v", o)
	}
}

// The current minute is not drawn: its calls are not all counted yet.
func TestPlotsShowWhatEndedByMinute(t *testing.T) {
	t.Parallel()
	server, db := with(t, dashboard.User{Name: "ada"})
	testdb.Exec(t, db, `insert into gem.outcome_minutes (minute, tool_name, succeeded, failed, refused, cancelled,
		not_configured, hits, durations, waits)
		select date_trunc('minute', gem.now()) - make_interval(mins => n), '', 10 * n, 0, 7 * n, 0, 0, 0, array[0, 0, 5], '{}'
			from unnest(array[0, 5]) n`)
	_, body := get(t, server, "/")
	says(t, body, `data-v="50"`, `<polyline class="good"`, `<figure data-key="calls 1 2 3"`,
		`data-label="Refused" data-v="35"`, "uplot.min.", "plot.")
	_, day := get(t, server, "/?range=day")
	says(t, day, "Calls ended per 5 minutes", `<strong>Last day</strong>`)
	_, other := get(t, server, "/workers")
	lacks(t, other, "uplot")
}

func TestTheOverviewExplainsHowOldItsNumbersAreAndWhyAChartIsEmpty(t *testing.T) {
	t.Parallel()
	server, _ := with(t, dashboard.User{Name: "ada"})
	const empty = "The first point appears within two minutes after a call ends."
	_, body := get(t, server, "/")
	says(t, body, "counted every 15 seconds and read every 20 seconds, the last time <time",
		"Charts get one point every minute.", empty)
	lacks(t, body, "data-table", "<polyline")
	_, day := get(t, server, "/?range=day")
	says(t, day, "Charts get one point every 5 minutes.")

	server, db := with(t, dashboard.User{Name: "ada"})
	testdb.Exec(t, db, `insert into gem.outcome_minutes (minute, tool_name, succeeded, failed, refused, cancelled,
		not_configured, hits, durations, waits)
		values (date_trunc('minute', gem.now()) - interval '5 minutes', '', 3, 0, 0, 0, 0, 0, array[0, 5], array[3])`)
	_, body = get(t, server, "/")
	says(t, body, `<figure data-key="calls 1 2" data-table="minutes"`, "<polyline")
	lacks(t, body, empty)
}

func TestWorkersAreShownWithWhatTheyHold(t *testing.T) {
	t.Parallel()
	server, db := with(t, dashboard.User{Name: "ada"})
	id := running(t, db, client.NewCall{Tool: "mail.send"})
	testdb.Exec(t, db, "select gem.record_registry('2', repeat('b', 64), '"+strings.Replace(toolsOfTests, `"1"`, `"2"`, 1)+
		"')")
	testdb.Exec(t, db, "select gem.start_worker('<b>x', 5, '', '2', '1 hour')")
	testdb.Exec(t, db, "select gem.start_worker('gone', 5, '', '2', '1 hour')")
	testdb.Exec(t, db, "update core_workers set alive_until = gem.now() - interval '1 minute' where worker_id = 'gone'")
	_, body := get(t, server, "/workers")
	says(t, body, "<title>Workers: 2 alive", "run with different registries:</strong> 1, 2", "/calls/"+id, "attempt 1",
		`<span class="state dead">Dead</span>`, `<span class="id"><b>x</span>`, "1 of 500")
	lacks(t, body, "<b>x", "different rules")
	_, text := get(t, server, "/workers.json")
	var all []view.Worker
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(all, func(w view.Worker) bool { return w.ID == "gone" && w.State == "dead" }) {
		t.Errorf("%s", text)
	}
	server, _ = pages(t, dashboard.User{Name: "ada"})
	_, body = get(t, server, "/workers")
	says(t, body, "No worker has run within the hour")
}

func TestTheOverviewTellsOfQuestionsAndOfWorkersWithoutRules(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	const later, text = "(tool_name, run_at) values ('a.flow', now() + interval '1 day')", `{"text": "When?"}`
	flow := o.value("insert into core_tool_calls " + later + " returning id::text")
	ofUser := o.value("insert into core_tool_calls (tool_name, input) values ('wait.answer', $1) returning id::text", text)
	o.exec("select gem.claim('w', 50, true)")
	o.exec(`select gem.wait($1, 1, 'w', '[]', 'answer', '{#answer}', 1,
		jsonb_build_object('#answer', gem.now() + interval '1 minute'), null)`, ofUser)
	for _, in := range []string{"30 minutes", "2 hours"} {
		id := o.value(`insert into core_tool_calls (tool_name, input, parent_call_id, parent_step)
			values ('wait.answer', $1, $2, $3) returning id::text`, text, flow, in)
		o.exec("select gem.claim('w', 50, true)")
		o.exec("select gem.wait($1, 1, 'w', '[]', 'answer', '{#answer}', 1, jsonb_build_object('#answer', gem.now() + "+
			"$2::text::interval), null)", id, in)
	}
	o.exec("update gem.limits set rules_required = true")
	o.exec("insert into gem.notices (at, kind, subject) values (now() - interval '1 hour', 'failed', 'x')")
	says(t, o.page(dashboard.User{Name: "ada"}, "/", 200), "1 question expires within the hour",
		"2 questions wait for an answer",
		"1 question of a user waits for an answer", "1 worker claims nothing", "<strong>3</strong> open questions",
		"No worker delivers notices", "5 need attention")
	says(t, o.page(dashboard.User{Name: "ada"}, "/workers", 200), "It claims nothing: this database requires rules.")
}

// Each live page has its parts, and each part has an element.
func TestThePartsOfLivePagesHaveTheirElements(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	question := o.ask("wait.answer", `{"text": "When?", "by": ["role:boss"]}`, byNobody)
	failed(t, o.owner, client.NewCall{Tool: "shop.refund", SessionID: "s 1"}, "execution_error", "It broke.")
	o.user = dashboard.User{Name: "bob", Subject: "bob", Operator: true}
	for _, path := range []string{"/", "/?range=day", "/workers", "/calls?state=failed", "/failures", "/questions",
		"/questions/" + question, "/calls/" + question} {
		_, page := get(t, o.server, path)
		if !strings.Contains(page, "data-watch=") {
			t.Errorf("%s is not live", path)
			continue
		}
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, o.server.URL+"/live?watch="+url.QueryEscape(path), nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := o.server.Client().Do(q)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		lines := bufio.NewScanner(answer.Body)
		for lines.Scan() && !strings.HasPrefix(lines.Text(), "data: ") {
		}
		id := strings.TrimPrefix(lines.Text(), "data: ")
		if answer.StatusCode != http.StatusOK || id == "" || !strings.Contains(page, `id="`+id+`"`) {
			t.Errorf("%s: %d, a part %q", path, answer.StatusCode, id)
		}
		stop()
		_ = answer.Body.Close()
	}
}

// A carriage return ends a line of an event: one in a tool's name would let an agent send its own events to everyone
// who watches.
func TestATextMakesNoEventOfItsOwn(t *testing.T) {
	t.Parallel()
	server, db := with(t, viewer)
	made(t, db, client.NewCall{Tool: "a\r\rdata: now\rdata: All is well\r\revent: over\rdata: x\r\r"})
	answer, err := server.Client().Get(server.URL + "/live?watch=overview")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var sent strings.Builder
	for lines := bufio.NewScanner(answer.Body); lines.Scan() && !strings.Contains(sent.String(), "All is well"); {
		sent.WriteString(lines.Text() + "\n")
	}
	if text := sent.String(); !strings.Contains(text, "␍data: All is well") || strings.Contains(text, "\r") {
		t.Errorf("%q", text)
	}
}
