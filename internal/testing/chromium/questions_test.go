package chromium

import (
	"strings"
	"testing"
)

// Scenario 19: neither the user who made the call nor a viewer may approve it, and an approval counts once.
func TestAnApprovalIsGivenByAnotherPersonAndCountsOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	refund := s.Insert(of("shop.refund", `{"order": "A-1", "cents": 12000}`))
	approval := s.Question(refund).ID
	page := "/questions/" + approval
	asker, looker, first, second := openTab(t, s.serve(ada)), openTab(t, s.serve(vera)), openTab(t, s.serve(grace)),
		openTab(t, s.serve(grace), scriptless)
	for _, b := range []*tab{asker, looker} {
		b.expects("status of 4")
		b.visit(page)
		if n := b.count("main form button"); n > 0 {
			t.Errorf("a form is shown to %s:\n%s", b.text("header .user"), b.text("main"))
		}
	}
	second.expects("status of 409")
	for _, b := range []*tab{first, second} {
		b.visit("/questions")
		b.follow(`main a[href$="` + page + `"]`)
		b.has("shop.refund", "12000", "large_refunds")
	}
	second.fill("main [name=reason]", "twice")
	first.fill("main [name=reason]", "within the budget")
	first.follow("main form button[value=approve]")
	if r := s.Await(refund); r.Status != "succeeded" {
		t.Errorf("the refund: %s", r.Result)
	}
	second.follow("main form button[value=approve]")
	second.says("answered")
	if got := s.value("select result->>'approved' || ' ' || (result->>'by') || ': ' || (result->>'reason') from "+
		"core_tool_receipts where call_id = $1", approval); got != "true grace: within the budget" {
		t.Errorf("the approval is %q", got)
	}
}

// A question that appears in an open list is decided there, and the list shows the result of the call. Typed text stays
// while the list changes.
func TestAnApprovalIsDecidedInTheListWhereItAppears(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	b := openTab(t, s.serve(grace))
	b.visit("/questions")
	first := s.Insert(of("shop.refund", `{"order": "A-1", "cents": 12000}`))
	b.until("the form", `document.querySelectorAll("main form.decide").length === 1`)
	b.fill("main form.decide [name=reason]", "within the budget")
	s.Insert(of("shop.refund", `{"order": "B-2", "cents": 22000}`))
	b.until("the second form", `document.querySelectorAll("main form.decide").length === 2`)
	b.barrierFree("two questions")
	b.follow(`main li[data-key="ask ` + s.Question(first).ID + `"] button[value=approve]`)
	if r := s.Await(first); r.Status != "succeeded" {
		t.Errorf("the refund: %s", r.Result)
	}
	b.says("Answered")
	b.until("its end", `document.querySelector("[data-key^=decided] .state.succeeded")`)
	b.until("the other question alone", `document.querySelectorAll("main form.decide").length === 1`)
	if got := s.value(
		"select result->>'reason' from core_tool_receipts where tool_name = 'wait.approval'"); got != "within the budget" {
		t.Errorf("the reason is %q", got)
	}
}

// The call's page also takes the decision without a script, and shows the result.
func TestAnApprovalIsDecidedOnTheCallsPage(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for kind, set := range browsers {
		refund := s.Insert(of("shop.refund", `{"order": "A-1", "cents": 12000}`))
		s.Question(refund)
		b := openTab(t, s.serve(grace), set...)
		b.visit("/calls/" + refund)
		b.has("Waiting for an approval", "You approve exactly the input below.")
		b.follow("main form.decide button[value=approve]")
		if r := s.Await(refund); r.Status != "succeeded" {
			t.Errorf("%s: the refund: %s", kind, r.Result)
		}
		b.visit("/calls/" + refund)
		b.until("its end", `document.querySelector("h1 ~ .state.succeeded")`)
	}
}

// A denial ends the call with its reason.
func TestADenialEndsTheCall(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	refund := s.Insert(of("shop.refund", `{"order": "A-1", "cents": 12000}`))
	b := openTab(t, s.serve(grace), scriptless)
	b.visit("/questions/" + s.Question(refund).ID)
	b.fill("main [name=reason]", "not this one")
	b.follow("main form button[value=deny]")
	if r := s.Await(refund); !strings.Contains(string(r.Result), "approval_denied") {
		t.Errorf("the refund: %s", r.Result)
	}
}

// A question is shown as a form for its schema.
func TestAQuestionIsAnsweredInAForm(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	origin := s.serve(ada)
	for kind, set := range browsers {
		fulfil := s.Insert(of("shop.fulfil", `{"order": "A-1"}`))
		b := openTab(t, origin, set...)
		b.visit("/questions/" + s.Question(fulfil).ID)
		b.has("Where does A-1 go?")
		b.fill("main form [name='value.0']", "the blue door")
		b.fill("main form [name='value.1']", "3")
		b.click("main form [name='value.2'][value='0']")
		b.follow("main form button.main")
		if r := s.Await(fulfil); !strings.Contains(string(r.Result), "the blue door") {
			t.Errorf("%s: the call came to %s", kind, r.Result)
		}
	}
}
