package chromium

import (
	"context"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/gemworker/gem/handlers/handlertest"
)

// browsers are the two kinds of browsers in which each act is tested.
var browsers = map[string][]func(*tab){"with scripts": nil, "without scripts": {scriptless}}

// by returns the actors and reasons that the journal of a call has for an event.
func (s *scene) by(call, event string) string {
	s.t.Helper()
	return s.value("select string_agg((data->>'by') || ': ' || (data->>'reason'), ', ' order by seq) from "+
		"core_tool_events where call_id = $1 and event = $2 and data ? 'by'", call, event)
}

func (s *scene) status(call string) string {
	s.t.Helper()
	return s.value("select status || coalesce(' ' || (error->>'error_code'), '') from core_tool_calls where id = $1", call)
}

// Scenarios 3 and 5.
func TestACallIsCancelledAndTheJournalSaysByWhomAndWhy(t *testing.T) {
	t.Parallel()
	s := newScene(t, withoutWorker)
	origin := s.serve(ada)
	for kind, set := range browsers {
		queued := s.Insert(of("shop.charge", `{"order": "A-1"}`))
		b := openTab(t, origin, set...)
		b.visit("/calls/" + queued)
		b.follow(`main a[href$="/cancel"]`)
		b.fill(`[name=reason]`, "the customer left "+kind)
		b.follow("main form button.danger")
		if got := b.where(); !strings.HasPrefix(got, "/calls/"+queued) {
			t.Errorf("%s: it leads to %s", kind, got)
		}
		b.says("cancelled")
		if got := s.status(queued); got != "failed cancelled" {
			t.Errorf("%s: the call is %s", kind, got)
		}
		if got := s.by(queued, "failed"); got != "ada: the customer left "+kind {
			t.Errorf("%s: the journal names %q", kind, got)
		}
		b.visit("/calls/" + queued + "/cancel")
		if b.count("main form button.danger") > 0 {
			t.Errorf("%s: an ended call can be cancelled", kind)
		}
	}
}

// Scenario 5.
func TestTwoPeopleCancelOneCallAndItEndsOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	running := s.Insert(of("shop.charge", `{"order": "slow-1"}`))
	s.runs(running)
	first, second, late := openTab(t, s.serve(ada)), openTab(t, s.serve(grace)), openTab(t, s.serve(grace))
	for _, b := range []*tab{first, second, late} {
		b.expects("status of 409")
		b.visit("/calls/" + running + "/cancel")
		b.fill("[name=reason]", "we both press")
	}
	pressed := make(chan error, 2)
	for _, b := range []*tab{first, second} {
		go func() {
			ctx, cancel := context.WithTimeout(b.ctx, patience)
			defer cancel()
			_, err := chromedp.Run(ctx, chromedp.WaitEvent(page.LoadEventFired, nil,
				chromedp.Click(chromedp.CSS("main form button.danger"))))
			pressed <- err
		}()
	}
	for range 2 {
		if err := <-pressed; err != nil {
			t.Fatal(err)
		}
	}
	s.Await(running)
	late.follow("main form button.danger")
	late.says("ended")
	if got := s.status(running); got != "failed cancelled" {
		t.Errorf("the call is %s", got)
	}
	if got := s.by(running, "cancel_requested"); got != "ada: we both press" && got != "grace: we both press" {
		t.Errorf("the journal names %q", got)
	}
	if n := s.value("select count(*) from core_tool_events where call_id = $1 and event = 'cancel_requested'",
		running); n != "1" {
		t.Errorf("%s events ask for the end", n)
	}
	if n := s.value("select count(*) from core_tool_receipts where call_id = $1", running); n != "1" {
		t.Errorf("%s receipts", n)
	}
}

// Scenario 6.
func TestACallIsDoneAgainOnceAndThePageSaysFirstWhatThatMeans(t *testing.T) {
	t.Parallel()
	s := newScene(t, withoutWorker)
	lost := s.StartWorker()
	unknown := s.Insert(of("shop.charge", `{"order": "slow-2"}`))
	s.runs(unknown)
	lost.Kill()
	s.StartWorker()
	s.Await(unknown)
	declined := s.Insert(handlertest.Call{Tool: "shop.charge", Input: `{"order": "declined-1", "cents": 4}`,
		CreatedBy: "ada", Session: "s-1", Key: "k-1"})
	s.Await(declined)
	late := s.Insert(of("shop.ship", `{"order": "late-1"}`))
	s.Await(late)
	shipped := s.Insert(of("shop.ship", `{"order": "late-1", "cents": 1}`))
	s.Await(shipped)
	before := s.value("select md5(string_agg(r::text, '' order by id)) from core_tool_receipts r")

	origin := s.serve(ada)
	for kind, set := range browsers {
		b := openTab(t, origin, set...)
		b.expects("status of 4")

		// A tool whose effect may happen twice must be confirmed by name.
		for _, id := range []string{declined, unknown} {
			b.visit("/calls/" + id)
			b.follow(`main a[href$="/again"]`)
			b.says("may happen twice")
			b.do("take the browser's own check away", evaluate(`document.querySelector("[name=confirm]").required = false`))
			b.fill("[name=confirm]", "shop.ship")
			b.fill("[name=reason]", "the bank says so")
			b.follow("main form button.main")
			if got := b.count("[name=confirm]"); got != 1 {
				t.Errorf("%s: another tool's name was taken: %s", kind, b.where())
			}
			b.fill("[name=confirm]", "shop.charge")
			b.follow("main form button.main")
			again := strings.TrimPrefix(strings.SplitN(b.where(), "?", 2)[0], "/calls/")
			if again == id || s.value("select tool_name || input from core_tool_calls where id = $1",
				again) != s.value("select tool_name || input from core_tool_calls where id = $1", id) {
				t.Fatalf("%s: the new call is %s", kind, b.where())
			}
			if got := s.by(again, "queued"); got != "ada: the bank says so" {
				t.Errorf("%s: the journal names %q", kind, got)
			}
			if id == unknown {
				s.runs(again)
				s.exec("select public.cancel_tool_call($1)", again)
			}
			s.Await(again)
		}

		// A key that has succeeded since then is a hit.
		b.visit("/calls/" + late + "/again")
		b.says("succeeded since")
		b.follow("main form button.main")
		hit := strings.TrimPrefix(strings.SplitN(b.where(), "?", 2)[0], "/calls/")
		s.Await(hit)
		if got := s.value("select replay_of from core_tool_receipts where call_id = $1",
			hit); got != s.value("select id from core_tool_receipts where call_id = $1", shipped) {
			t.Errorf("%s: the new call replays %q", kind, got)
		}
	}
	after := s.value("select md5(string_agg(r::text, '' order by id)) from core_tool_receipts r where created_at <= "+
		"(select max(created_at) from core_tool_receipts where call_id = $1)", shipped)
	if before != after {
		t.Error("a receipt was changed")
	}
	if code := startGem(t, []string{"DATABASE_URL=" + s.URL}, "audit").ends(); code != 0 {
		t.Errorf("gem audit ends with %d", code)
	}
}

// A double click counts as one click.
func TestAFormThatIsSentTwiceActsOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t, withoutWorker)
	declined := s.Insert(of("os.create_note", note))
	s.exec("select public.cancel_tool_call($1)", declined)
	b := openTab(t, s.serve(ada))
	b.visit("/calls/" + declined + "/again")
	eval[any](b, `(() => {
		const f = document.querySelector("main form");
		const body = new URLSearchParams(new FormData(f));
		return Promise.all([1, 2, 3].map(() => fetch(f.action, {method: "POST", body, redirect: "manual"}))).then(() => true);
	})()`)
	b.follow("main form button.main")
	if n := s.value("select count(*) from core_tool_calls"); n != "2" {
		t.Errorf("there are %s calls after three requests and a click", n)
	}
}

// Scenario 7, for the pages. Package migrations tests the rights of the roles in psql.
func TestAViewerSeesNoPayloadAndCannotAct(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	secret := s.Insert(of("os.create_note", `{"domain": "business", "title": "hush-title", "content": "hush-content"}`))
	failed := s.Insert(of("shop.charge", `{"order": "declined-hush"}`))
	running := s.Insert(of("shop.charge", `{"order": "slow-3"}`))
	s.Await(secret)
	s.Await(failed)
	s.runs(running)
	approval := s.Question(s.Insert(of("shop.refund", `{"order": "A-1", "cents": 12000}`))).ID
	for name, origin := range map[string]string{"a viewer": s.serve(vera), "without ACT_URL": s.serve(ada, readOnly)} {
		b := openTab(t, origin)
		b.expects("status of 403", "status of 404")
		b.visit("/")
		if name == "without ACT_URL" {
			b.has("Read-only")
		}
		for _, p := range []string{"/", "/calls", "/calls/" + secret, "/calls/" + failed, "/calls/" + running, "/failures",
			"/questions", "/questions/" + approval, "/workers", "/tools/os.create_note"} {
			b.visit(p)
			if text := eval[string](b, "document.documentElement.outerHTML"); strings.Contains(text, "hush-title") ||
				strings.Contains(text, "hush-content") || strings.Contains(text, `"cents"`) {
				t.Errorf("%s: %s shows a payload", name, p)
			}
			if n := eval[int](b, `[...document.querySelectorAll("main form")].filter(f => f.method === "post").length`); n != 0 {
				t.Errorf("%s: %s has %d forms that act", name, p, n)
			}
		}
		for _, act := range []string{"/calls/" + running + "/cancel", "/calls/" + failed + "/again", "/calls/bulk",
			"/questions/" + approval} {
			status := eval[int](b,
				`fetch("`+act+`", {method: "POST", body: new URLSearchParams({form: "a".repeat(26), confirm: "shop.charge", id: "`+
					running+`", do: "cancel", decision: "approve"})}).then(r => r.status)`)
			if status != 403 {
				t.Errorf("%s: POST %s is answered with %d", name, act, status)
			}
		}
	}
	if got := s.status(running) + ", " + s.status(approval); got != "running, waiting" {
		t.Errorf("the call and the approval are %s", got)
	}
}
