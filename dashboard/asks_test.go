package dashboard_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker"
)

// till returns an office with a worker whose rules ask the boss about refunds.
func till(t *testing.T) (*office, *handlertest.Env) {
	t.Helper()
	registry := []byte(`{"version": "1.0.0", "tools": [{"name": "till.refund", "description": "Pays back.",
		"idempotency": {"mode": "none"}, "timeout_ms": 10000, "permissions": ["send:money"],
		"input_schema": {"type": "object", "properties": {"amount": {"type": "number"}}}, "output_schema": {"type": "object"}}]}`)
	asks, err := rules.Parse(
		[]byte(`{"version": "1.0.0", "rules": [{"name": "refunds", "tools": ["till.refund"], "action": "ask",
		"ask": {"of": ["boss"], "within": "1h"}, "say": "Look at the order first."}]}`))
	if err != nil {
		t.Fatal(err)
	}
	env := handlertest.Start(t, handlertest.Options{Registry: registry, Domains: []any{Till{}},
		Worker: func(o *worker.Options) { o.Rules = asks }})
	o := officeOn(t, env.URL)
	o.exec("insert into gem.roles values ('cleo', 'boss')")
	return o, env
}

// refunds makes a call that waits for approval, and returns it and its question.
func refunds(o *office, env *handlertest.Env, amount string) (call, question string) {
	o.Helper()
	call = env.Insert(handlertest.Call{Tool: "till.refund", Input: `{"amount": ` + amount + `}`, CreatedBy: "bob"})
	env.Until("the question", func() bool {
		question = o.value("select call_id::text from gem.questions where parent_call_id = $1 and status = 'waiting' and "+
			"waits_for = 'answer'", call)
		return question != "null"
	})
	return call, question
}

var askFields = regexp.MustCompile(`<input type="hidden" name="([a-z]+)" value="([^"]*)">`)

// decide sends the form of a question, as shown on a page, and returns the redirect and its page.
func (o *office) decide(user dashboard.User, page, question, decision, reason string) (to, body string) {
	o.Helper()
	_, form, found := strings.Cut(o.page(user, page, 200), `action="/questions/`+question+`"`)
	if !found {
		o.Fatalf("%s has no form for %s", page, question)
	}
	form, _, _ = strings.Cut(form, "</form>")
	fields := url.Values{"decision": {decision}, "reason": {reason}}
	for _, m := range askFields.FindAllStringSubmatch(form, -1) {
		fields.Set(m[1], m[2])
	}
	answer, err := o.server.Client().PostForm(o.server.URL+"/questions/"+question, fields)
	if err != nil {
		o.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		o.Fatalf("%v: %d %s", err, answer.StatusCode, text)
	}
	return answer.Request.URL.RequestURI(), string(text)
}

func TestAnApprovalInTheListSignsWhatItsPageSignsAndShowsWhatHappened(t *testing.T) {
	t.Parallel()
	o, env := till(t)
	call, question := refunds(o, env, "12.75")
	digest := regexp.MustCompile(`name="digest" value="([0-9a-f]{64})"`)
	page, list := o.page(cleo, "/questions/"+question, 200), o.page(cleo, "/questions", 200)
	o.wants(list, "12.75", "Look at the order first.", "Rule refunds:", "of bob", "expires",
		"may be answered by role:boss")
	for _, where := range []string{list, o.page(cleo, "/", 200), o.page(cleo, "/calls/"+call, 200)} {
		if got, want := digest.FindString(where), digest.FindString(page); got != want || want == "" {
			t.Errorf("signed is %s, and %s on the question's page", got, want)
		}
	}
	to, after := o.decide(cleo, "/questions", question, "approve", "seen")
	o.wants(after, "You approved it.", ">Answered</h2>", "cleo", "answered", call)
	if !strings.HasPrefix(to, "/questions?decided="+question) {
		t.Errorf("it leads to %s", to)
	}
	if r := env.Await(call); !strings.Contains(string(r.Effects), `"by": "cleo"`) {
		t.Errorf("the effects are %s", r.Effects)
	}
	o.wants(o.page(dora, "/questions?decided="+question, 200), "cleo approved till.refund", "Succeeded")
	page = o.page(dora, "/calls/"+call, 200)
	o.wants(page, `<code>refunds</code></td><td data-label="Decision">approved</td><td data-label="Why">by cleo `,
		": seen", `href="/questions/`+question)
	listed, _, _ := strings.Cut(page, `<details id="raw">`)
	o.lacks(listed, "not an error", `"Decision">ask<`)
	o.wants(o.page(dora, "/calls/"+question, 200), "This question has ended: cleo approved the call at ")
	if got := o.value("select result ->> 'reason' from core_tool_receipts where call_id = $1", question); got != "seen" {
		t.Errorf("the reason is %q", got)
	}
}

func TestADenialOnTheCallsPageStaysThereAndShowsWhatHappened(t *testing.T) {
	t.Parallel()
	o, env := till(t)
	call, question := refunds(o, env, "99")
	o.wants(o.page(cleo, "/calls/"+call, 200), "<title>till.refund: waiting for an approval",
		"Rules require approval first")
	to, _ := o.decide(cleo, "/calls/"+call, question, "deny", "no")
	if !strings.HasPrefix(to, "/calls/"+call) {
		t.Errorf("it leads to %s", to)
	}
	env.Await(call)
	o.wants(o.page(cleo, "/calls/"+call, 200), "<title>till.refund: refused", "approval_denied")
	o.wants(o.page(dora, "/calls/"+call, 200), `<code>refunds</code></td><td data-label="Decision">denied</td>`,
		"The decision is final for this call.",
		`<span class="state refused">Denied</span>`, "The question to people: denied")
	o.lacks(o.page(bob, "/calls/"+call, 200), "Succeeded", "has ended: succeeded")
	o.wants(o.page(dora, "/calls/"+question, 200), "This question has ended: cleo denied the call at ")
	o.wants(o.page(dora, "/questions/"+question, 200), `<span class="state refused">Denied</span>`, "Denied by cleo")
	o.lacks(o.page(bob, "/calls/"+call, 200), `name="decision"`)
}

// Nobody approves unseen arguments, and a caller's text is not shown as a rule's.
func TestAListDecidesNothingThatItDoesNotShowWhole(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	long := o.ask("wait.approval", `{"tool": "shop.refund", "input": {"a": "`+strings.Repeat("x", 3000)+
		`"}, "by": ["role:boss"], "digest": "`+fmt.Sprintf("%064d", 9)+`"}`, byNobody)
	page := o.page(cleo, "/questions", 200)
	o.wants(page, "Read all of it and decide", "Neither a rule nor a handler asks this")
	o.lacks(page, `action="/questions/`+long)

	o.ask("wait.approval", fmt.Sprintf(refund, 8), byNobody)
	page = o.page(cleo, "/questions", 200)
	o.wants(page, "Neither a rule nor a handler asks this", `name="decision"`)
	o.lacks(page, "big_refunds")
}

func TestAnApprovalIsCountedOnce(t *testing.T) {
	t.Parallel()
	o, env := till(t)
	call, question := refunds(o, env, "5")
	var now view.Overview
	if err := json.Unmarshal([]byte(o.page(cleo, "/overview.json", 200)), &now); err != nil {
		t.Fatal(err)
	}
	if now.Queue.Waiting != 1 || now.Queue.WaitingFor["answer"] != 1 || len(now.Queue.WaitingFor) != 1 ||
		len(now.Tools) != 1 || now.Tools[0].Tool != "till.refund" {
		t.Errorf("waiting: %+v of %+v", now.Queue, now.Tools)
	}
	o.wants(o.page(cleo, "/", 200), "<title>Overview: 1 thing needs attention", `data-open="1"`,
		">1<span class=\"hidden\"> open")
	o.decide(cleo, "/", question, "approve", "")
	env.Await(call)
	env.Pass(2 * time.Minute)
	o.exec("select gem.count_outcomes(1000)")
	err := view.Read(t.Context(), o.owner, func(ctx context.Context, db view.DB) error {
		ended, err := view.ReadEnded(ctx, db)
		if err == nil && (ended.Hour.Succeeded != 1 || len(ended.Busiest) != 1) {
			t.Errorf("ended: %+v, the busiest %+v", ended.Hour, ended.Busiest)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A question with many lines would move its arguments and its buttons out of sight.
func TestAListShowsFewLinesOfAQuestion(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	text, err := json.Marshal("May it?" + strings.Repeat("\n \n", 500) + "one\ntwo\nthree\nfour\nfive\nsix" +
		strings.Repeat("x", 10_000))
	if err != nil {
		t.Fatal(err)
	}
	o.ask("wait.approval", `{"tool": "shop.refund", "input": {"a": 1}, "by": ["role:boss"], "text": `+string(text)+
		`, "digest": "`+fmt.Sprintf("%064d", 9)+`"}`, byNobody)
	page := o.page(cleo, "/questions", 200)
	o.wants(page, "May it?", `name="decision" value="approve"`)
	if lines := strings.Count(content(page), "\n"); lines > 60 {
		t.Errorf("the list has %d lines:\n%s", lines, content(page))
	}
}
