package dashboard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// office is a dashboard whose connections are the logins of deploy/roles.sql, and where anybody can sign in: see as.
type office struct {
	*testing.T
	server *httptest.Server
	owner  *pgxpool.Pool
	user   dashboard.User
}

func newOffice(t *testing.T, change ...func(*dashboard.Options)) *office {
	t.Helper()
	o := officeOn(t, testdb.New(t), change...)
	o.exec(`insert into gem.roles values ('cleo', 'boss'), ('bob', 'boss');
		select gem.record_registry('1', repeat('a', 64),
			'{"version": "1", "tools": [{"name": "shop.refund", "permissions": ["write:db", "send:money"],
			"hints": {"destructive": true}, "idempotency": {"mode": "none"}, "timeout_ms": 1000}]}');
		select gem.start_worker('w', 50, '', '1', '1 hour', '{steps}')`)
	return o
}

func officeOn(t *testing.T, address string, change ...func(*dashboard.Options)) *office {
	t.Helper()
	o := &office{T: t, owner: testdb.Pool(t, address)}
	login := func(name, roles string) *pgxpool.Pool {
		name = "gem_test_" + name + "_" + strings.ToLower(t.Name())
		name = name[:min(len(name), 60)]
		o.exec("create role " + name + " login password 'x'; grant " + roles + " to " + name)
		t.Cleanup(func() {
			conn, err := pgx.Connect(context.Background(), address)
			if err == nil {
				_, err = conn.Exec(context.Background(), "drop role "+name)
				_ = conn.Close(context.Background())
			}
			if err != nil {
				t.Error(err)
			}
		})
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword(name, "x")
		return testdb.Pool(t, u.String())
	}
	options := dashboard.Options{Read: login("read", "gem_monitor"), Act: login("act", "gem_operator, gem_mcp"),
		User: func(*http.Request) (dashboard.User, error) { return o.user, nil }}
	for _, c := range change {
		c(&options)
	}
	through := behind(t, &options, address)
	h, err := dashboard.New(options)
	if err != nil {
		t.Fatal(err)
	}
	o.server = httptest.NewServer(through(h))
	t.Cleanup(o.server.Close)
	return o
}

func (o *office) exec(sql string, args ...any) {
	o.Helper()
	if _, err := o.owner.Exec(o.Context(), sql, args...); err != nil {
		o.Fatalf("%s: %v", sql, err)
	}
}

func (o *office) value(sql string, args ...any) (got string) {
	o.Helper()
	switch err := o.owner.QueryRow(o.Context(), sql, args...).Scan(&got); {
	case errors.Is(err, pgx.ErrNoRows):
		return "null"
	case err != nil:
		o.Fatalf("%s: %v", sql, err)
	}
	return got
}

// ask inserts a question for bob, which a worker asks. parent is SQL: the call that asks, and the name of the question
// there.
func (o *office) ask(tool, input, parent string) (id string) {
	o.Helper()
	id = o.value("insert into core_tool_calls (tool_name, input, created_by, session_id, parent_call_id, parent_step) "+
		"select $1, $2, 'bob', 's 1', "+parent+" returning id::text", tool, input)
	o.exec("select gem.claim('w', 50, true)")
	o.exec("select gem.wait($1, 1, 'w', '[]', 'answer', '{#answer}', 1, null, null)", id)
	return id
}

const byNobody = "null::uuid, null::text"

// page reads a page as a user, and checks its status.
func (o *office) page(user dashboard.User, path string, status int) string {
	o.Helper()
	o.user = user
	got, body := get(o.T, o.server, path)
	if got != status {
		o.Fatalf("%s: %d, want %d: %s", path, got, status, body)
	}
	return body
}

var hidden = regexp.MustCompile(`<input type="hidden" name="(form|digest)" value="([^"]*)">`)

// send fills in the form of a question's page and sends it, and returns the next page.
func (o *office) send(user dashboard.User, id string, fields url.Values, status int) string {
	o.Helper()
	form := url.Values{}
	for _, m := range hidden.FindAllStringSubmatch(o.page(user, "/questions/"+id, 200), -1) {
		form.Set(m[1], m[2])
	}
	if form.Get("form") == "" {
		form.Set("form", strings.Repeat("a", 26))
	}
	for name, v := range fields {
		form[name] = v
	}
	answer, err := o.server.Client().PostForm(o.server.URL+"/questions/"+id, form)
	if err != nil {
		o.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != status {
		o.Fatalf("%v: %d, want %d: %s", fields, answer.StatusCode, status, body)
	}
	return string(body)
}

func (o *office) wants(page string, words ...string) {
	o.Helper()
	for _, w := range words {
		if !strings.Contains(page, w) {
			o.Errorf("the page lacks %q:\n%s", w, content(page))
		}
	}
}

func (o *office) lacks(page string, words ...string) {
	o.Helper()
	for _, w := range words {
		if strings.Contains(page, w) {
			o.Errorf("the page has %q:\n%s", w, content(page))
		}
	}
}

// content returns a page without its frame.
func content(page string) string {
	_, page, _ = strings.Cut(page, "<main")
	page, _, _ = strings.Cut(page, "</main>")
	return page
}

// given returns the answer to a question, and who gave it.
func (o *office) given(id string) string {
	o.Helper()
	return o.value("select (data ->> 'by') || ' ' || (data -> 'value') from core_tool_events where call_id = $1 and "+
		"event = 'answered'", id)
}

var (
	cleo     = dashboard.User{Name: "cleo", Subject: "cleo"}
	bob      = dashboard.User{Name: "bob", Subject: "bob"}
	dora     = dashboard.User{Name: "dora", Subject: "dora", Operator: true}
	onlooker = dashboard.User{Name: "viewer"}
)

const refund = `{"tool": "shop.refund", "input": {"amount": 12345678901234567890.10, "note": "<script>alert(1)</script>"}, "text": "May it?", "by": ["role:boss"],
	"digest": "%064d", "call_id": "0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55", "rules": [{"name": "big_refunds", "message": "It is more than 100."}],
	"before": [{"tool": "shop.find", "status": "failed", "error_code": "timeout", "at": "2026-01-01T00:00:00Z"}]}`

// approval makes a question of rules about a call of bob's.
func (o *office) approval() (id string) {
	o.Helper()
	o.exec("insert into core_tool_calls (tool_name, input, created_by, priority) values ('shop.refund', '{}', 'bob', " +
		"-600)")
	return o.ask("wait.approval", fmt.Sprintf(refund, 7),
		"(select id from core_tool_calls where tool_name = 'shop.refund' order by seq desc limit 1), '##ab'")
}

func TestAnApprovalShowsItsCallWholeAndIsDecidedWithAReason(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	id := o.approval()
	o.wants(o.page(cleo, "/questions", 200), `href="/questions/`+id, "May it?", "role:boss", "You answer as cleo")
	page := o.page(cleo, "/questions/"+id, 200)
	o.wants(page, "<title>Approval: waiting for you", "12345678901234567890.10", "&lt;script&gt;", "shop.refund",
		"write:db", "send:money", "it is destructive", "big_refunds",
		"It is more than 100.", "shop.find", "timeout", fmt.Sprintf("%064d", 7), "bob", "s%201",
		`name="decision" value="deny"`)
	o.lacks(page, "<script>alert")

	o.wants(o.send(cleo, id, url.Values{"reason": {"why not"}}, 422), "Choose Approve or Deny.", "why not</textarea>")
	o.wants(o.send(cleo, id, url.Values{"reason": {"why not"}, "decision": {"approve"},
		"digest": {strings.Repeat("0", 64)}}, 409),
		"because the question has changed", "why not</textarea>")
	o.wants(o.send(cleo, id, url.Values{"reason": {strings.Repeat("a", 1001)}, "decision": {"approve"}}, 422),
		"must have 0 to 1000")
	if got := o.given(id); got != "null" {
		t.Fatalf("it was answered: %s", got)
	}
	o.wants(o.send(cleo, id, url.Values{"reason": {"a line\r\nand another"}, "decision": {"approve"}}, 200),
		"You approved it.", "Answered by cleo")
	if got, want := o.given(id), `cleo {"reason": "a line\nand another", "approved": true}`; got != want {
		t.Errorf("the answer is %s, want %s", got, want)
	}
	o.lacks(o.page(cleo, "/questions", 200), id)
	o.wants(o.page(dora, "/questions/"+id, 200), "Approval: approved", "Approved by cleo", "&#34;approved&#34;: true",
		"12345678901234567890.10")
}

// Any login can set request.jwt.claims, even a member of gem_operator that is not one of gem_mcp.
func TestALoginOfOperatorsAnswersAsNobodyElse(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	id := o.approval()
	for roles, want := range map[string]string{"gem_operator": "may answer only as itself", "gem_operator, gem_mcp": ""} {
		act := login(t, o.owner, o.owner.Config().ConnString(), roles)
		_, err := act.Exec(t.Context(), "select set_config('request.jwt.claims', '{\"sub\": \"cleo\"}', false); select "+
			"answer_tool_call('"+id+"', '{\"approved\": true}')")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", roles, err)
		}
	}
}

func TestTheSecondWhoDecidesIsToldWhoWasFirst(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.exec("insert into gem.roles values ('dora', 'boss')")
	id := o.approval()
	o.user = dora
	before := hidden.FindAllStringSubmatch(o.page(dora, "/questions/"+id, 200), -1)
	o.send(cleo, id, url.Values{"decision": {"deny"}}, 200)
	stale := url.Values{"decision": {"approve"}, "reason": {"it is fine"}}
	for _, m := range before {
		stale.Set(m[1], m[2])
	}
	o.wants(o.send(dora, id, stale, 409), "you cannot answer this question now", "Denied by cleo", "it is fine")
	if got := o.given(id); !strings.HasPrefix(got, `cleo {"approved": false}`) {
		t.Errorf("the answer is %s", got)
	}
}

func TestWhoMayNotAnswerSeesWhyAndWhoMay(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	id := o.approval()
	for who, c := range map[string]struct {
		user  dashboard.User
		words []string
	}{
		"who asked": {bob, []string{"role:boss", "not by the people who made the call",
			"You are bob, with the role boss"}},
		"somebody": {dashboard.User{Name: "eve", Subject: "eve"},
			[]string{"role:boss", "You are eve, without a role"}},
		"who is nobody":     {onlooker, []string{"role:boss", "the dashboard does not know your subject"}},
		"an operator":       {dora, []string{"role:boss", "You are dora, without a role", "12345678901234567890.10"}},
		"the login":         {dashboard.User{Name: "ops", Operator: true}, []string{"role:boss", "You are gem_test_act_"}},
		"somebody's viewer": {dashboard.User{Name: "cleo"}, []string{"role:boss"}},
	} {
		page := o.page(c.user, "/questions/"+id, 200)
		o.wants(page, append(c.words, "<title>Approval: waiting for others")...)
		o.lacks(page, `name="decision"`)
		if !c.user.Operator {
			o.lacks(page, "12345678901234567890.10", "May it?", "big_refunds")
		}
		o.send(c.user, id, url.Values{"decision": {"approve"}}, http.StatusForbidden)
		if got := o.given(id); got != "null" {
			t.Fatalf("%s approved it: %s", who, got)
		}
		o.wants(o.page(c.user, "/questions", 200), id, "role:boss")
	}
	o.page(cleo, "/questions/0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55", 404)
	o.page(cleo, "/questions/x", 404)
	o.page(cleo, "/questions/"+o.value("select parent_call_id::text from core_tool_calls where id = $1", id), 404)
}

func TestAQuestionThatNoRuleAsksSaysWhoseWordItIs(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	page := o.page(cleo, "/questions/"+o.ask("wait.approval", fmt.Sprintf(refund, 8), byNobody), 200)
	o.wants(page, "bob asks. Neither a rule nor a handler asks this; the text is the caller")
	o.lacks(page, "big_refunds", "shop.find")
}

func TestAQuestionCannotEndItsQuotes(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	id := o.ask("wait.answer",
		`{"text": "ok?\u201d\nA rule asks about a call of ada.\n\u201cRefund 5?", "by": ["role:boss"]}`, byNobody)
	for _, path := range []string{"/questions/" + id, "/questions"} {
		page := o.page(cleo, path, 200)
		o.wants(page, "A rule asks about a call of ada.")
		o.lacks(page, "\u201c", "\u201d")
	}
}

func TestAReadOnlyDashboardShowsWhoMayAnswerAndNothingOfWhatIsAsked(t *testing.T) {
	t.Parallel()
	o := newOffice(t, func(options *dashboard.Options) { options.Act = nil })
	id := o.approval()
	page := o.page(dora, "/questions/"+id, 200)
	o.wants(page, "role:boss", "This dashboard is read-only and takes no answers.")
	o.lacks(page, "May it?", "12345678901234567890.10", "<textarea")
	o.send(dora, id, url.Values{"decision": {"approve"}}, 403)
	o.wants(o.page(dora, "/questions", 200), id)
}

func TestAnAnswerIsAFormOfItsSchema(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	text := strings.Repeat("ä", 20)
	for name, c := range map[string]struct {
		schema string
		fields url.Values
		want   string // the answer; empty if it is refused
		says   string
	}{
		"a text": {`null`, url.Values{"value": {"a\r\nb </textarea><script>"}}, `"a\nb </textarea><script>"`,
			"Your answer was recorded."},
		"an empty text": {`{"type": "string"}`, url.Values{"value": {""}}, "", "Answer is required."},
		"too long a text": {`{"type": "string", "maxLength": 19}`, url.Values{"value": {text}}, "",
			"has 20 characters, and must have 0 to 19"},
		"a number as it is": {`{"type": "number"}`, url.Values{"value": {" 12345678901234567890.10 "}},
			`12345678901234567890.10`, ""},
		"no number": {`{"type": "number"}`, url.Values{"value": {"12,5"}}, "",
			"must be a number, such as 12 or 0.5"},
		"a text for a number": {`{"type": "number"}`, url.Values{"value": {`"1"`}}, "", "must be a number"},
		"half of an integer":  {`{"type": "integer"}`, url.Values{"value": {"1.5"}}, "", "must be of type integer"},
		"a number beyond":     {`{"type": "integer", "maximum": 3}`, url.Values{"value": {"4"}}, "", "must be at most 3"},
		"a huge number": {`{"type": "number"}`, url.Values{"value": {"1e400000"}}, "",
			"Your answer was not accepted."},
		"yes":      {`{"type": "boolean"}`, url.Values{"value": {"0"}}, `true`, ""},
		"neither":  {`{"type": "boolean"}`, url.Values{}, "", "Answer: choose one."},
		"a choice": {`{"type": "string", "enum": ["red", "blue"]}`, url.Values{"value": {"1"}}, `"blue"`, ""},
		"no choice of these": {`{"type": "string", "enum": ["red", "blue"]}`, url.Values{"value": {"2"}}, "",
			"choose one"},
		"an object":             {`{"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string", "title": "The <b>a</b>"}, "c": {"type": "boolean"}}, "required": ["b"]}`, url.Values{"value.0": {"7"}, "value.1": {""}, "value.2": {"1"}}, `{"b": 7, "c": false}`, ""},
		"an object with a gap":  {`{"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}, "required": ["b"]}`, url.Values{"value.1": {"typed before"}}, "", "typed before</textarea>"},
		"one that takes a list": {`{"type": "object", "properties": {}}`, url.Values{}, `{}`, ""},
	} {
		id := o.ask("wait.answer", `{"text": "When?", "schema": `+c.schema+`}`, byNobody)
		if c.schema == "null" {
			id = o.ask("wait.answer", `{"text": "When?"}`, byNobody)
		}
		status, want := 200, "bob "+c.want
		if c.want == "" {
			status, want = 422, "null"
		}
		page := o.send(bob, id, c.fields, status)
		o.wants(page, c.says)
		o.lacks(page, "<script>", "<b>")
		got := o.given(id)
		if status == 200 {
			var compact string
			if err := o.owner.QueryRow(t.Context(), "select 'bob ' || ($1::jsonb)::text", c.want).Scan(&compact); err != nil {
				t.Fatal(err)
			}
			want = compact
		}
		if got != want {
			t.Errorf("%s: the answer is %s, want %s", name, got, want)
		}
	}
}

func TestAnOperatorTellsOfAnEventAsTheLogin(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	id := o.ask("wait.event", "{}", byNobody)
	ops := dashboard.User{Name: "ops", Operator: true}
	o.wants(o.send(ops, id, url.Values{"value": {"{"}}, 422), "must be JSON")
	o.send(ops, id, url.Values{"value": {`{"paid": true}`}}, 200)
	if got := o.given(id); !strings.HasPrefix(got, "gem_test_act_") || !strings.HasSuffix(got, `{"paid": true}`) {
		t.Errorf("the answer is %s", got)
	}
}

func TestAnAnswerThatComesTooLateIsNotTaken(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	late := o.ask("wait.answer", `{"text": "When?", "until": "2026-01-01T00:00:00Z"}`, byNobody)
	o.wants(o.page(bob, "/questions/"+late, 200), "The deadline for an answer has passed.")
	o.wants(o.send(bob, late, url.Values{"value": {"now"}}, 409), "You had typed", "now")
	cancelled := o.ask("wait.answer", `{"text": "When?"}`, byNobody)
	o.exec("select cancel_tool_call($1)", cancelled)
	o.wants(o.page(bob, "/questions/"+cancelled, 200), "This question is being cancelled", "Someone asked to cancel it.")
	o.exec("select cancel_tool_call($1)", cancelled)
	o.wants(o.page(dora, "/questions/"+cancelled, 200), "ended without an answer", "cancelled")
}

func TestARefusalOfTheDatabaseIsASentenceAndKeepsWhatWasTyped(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.exec("update gem.limits set max_calls_per_hour = 1")
	o.send(bob, o.ask("wait.answer", `{"text": "When?"}`, byNobody), url.Values{"value": {"now"}}, 200)
	o.wants(o.send(bob, o.ask("wait.answer", `{"text": "When?"}`, byNobody), url.Values{"value": {"a long answer"}}, 429),
		"Too many answers in an hour. Try again later.", "a long answer</textarea>")
	late := o.ask("wait.answer", `{"text": "When?"}`, byNobody)
	o.exec(`with call as (update core_tool_calls set events = events + 1 where id = $1 returning *)
		insert into core_tool_events (call_id, seq, at, event, attempt, data) select id, events, now(), 'timed_out', 1,
			'{"names": ["#answer"]}' from call`, late)
	o.wants(o.send(bob, late, url.Values{"value": {"a late answer"}}, 410), "The time for this answer",
		"a late answer</textarea>")

	busy := o.ask("wait.answer", `{"text": "When?"}`, byNobody)
	tx, err := o.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "select from core_tool_calls where id = $1 for update", busy); err != nil {
		t.Fatal(err)
	}
	o.wants(o.send(bob, busy, url.Values{"value": {"an answer"}}, 503), "The call is busy", "an answer</textarea>")
}

// No worker has read the question yet, so only the size of its input is limited.
func TestAQuestionOfAnySizeIsASmallPage(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	many := func(one string) string { return "[" + strings.Repeat(one+",", 10_000) + one + "]" }
	for _, input := range []string{`{"tool": "shop.refund", "input": {}, "text": "` + strings.Repeat("long ", 50_000) +
		`", "by": ["user:eve"]}`,
		`{"tool": "shop.refund", "input": {}, "rules": ` + many(`{"name": "a", "message": "b"}`) + `, "by": ["user:eve"]}`,
		`{"tool": "` + strings.Repeat("x", 100_000) + `", "input": {}}`} {
		if page := o.page(dora, "/questions/"+o.ask("wait.approval", input, byNobody), 200); len(page) > 50_000 {
			t.Errorf("%s… takes %d bytes", input[:70], len(page))
		}
	}
}

func TestArgumentsThatAreTooLongForAPageAreAFile(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	input, _ := json.Marshal(map[string]any{"tool": "shop.refund", "by": []string{"role:boss"},
		"digest": fmt.Sprintf("%064d", 9), "input": map[string]string{"a": strings.Repeat("ä", 100_000)}})
	id := o.ask("wait.approval", string(input), byNobody)
	page := o.page(cleo, "/questions/"+id, 200)
	o.wants(page, `href="/questions/`+id+`/arguments"`, "This is the beginning of 200.0 KB")
	if len(page) > 200_000 {
		t.Errorf("the page has %d bytes", len(page))
	}
	if whole := o.page(cleo, "/questions/"+id+"/arguments", 200); strings.Count(whole, "ä") != 100_000 {
		t.Errorf("the file has %d bytes", len(whole))
	}
	o.page(onlooker, "/questions/"+id+"/arguments", 404)
	deep := o.ask("wait.approval", `{"tool": "a.b", "by": ["role:boss"], "digest": "`+fmt.Sprintf("%064d", 9)+
		`", "input": {"a": `+strings.Repeat("[", 3000)+strings.Repeat("]", 3000)+`}}`, byNobody)
	if page := o.page(cleo, "/questions/"+deep, 200); len(page) > 200_000 {
		t.Errorf("the page has %d bytes", len(page))
	}
}

func TestTheQuestionsAreListedAsJSON(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	id := o.approval()
	var list struct {
		Yours []struct{ ID, Text string }
		Open  []struct {
			CallID string `json:"call_id"`
			By     []string
		}
	}
	if err := json.Unmarshal([]byte(o.page(cleo, "/questions.json", 200)), &list); err != nil || len(list.Yours) != 1 ||
		list.Yours[0].ID != id || len(list.Open) != 1 {
		t.Errorf("%v: %+v", err, list)
	}
	body := o.page(onlooker, "/questions.json", 200)
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Yours) != 0 || len(list.Open) != 1 ||
		list.Open[0].CallID != id || strings.Contains(body, "May it?") {
		t.Errorf("%v: %s", err, body)
	}
}

// Till is a domain with a tool that a rule asks about.
type Till struct{}

// Refund pays back.
func (Till) Refund(_ context.Context, _ *handlers.Call, in struct{ Amount json.Number }) (map[string]any, error) {
	return map[string]any{"paid": in.Amount}, nil
}

// From the rule to the receipt: the approved call runs. After a deploy that changes the tool, the old question is
// void, and a new one is asked.
func TestWhatIsApprovedOnThePageIsWhatRuns(t *testing.T) {
	t.Parallel()
	registryOf := func(version, permission string) []byte {
		return []byte(`{"version": "` + version + `", "tools": [{"name": "till.refund",
			"input_schema": {"type": "object", "properties": {"amount": {"type": "number"}}}, "output_schema": {"type": "object"},
			"permissions": ["` + permission + `"], "idempotency": {"mode": "none"}, "timeout_ms": 10000}]}`)
	}
	asks, err := rules.Parse(
		[]byte(`{"version": "1.0.0", "rules": [{"name": "refunds", "tools": ["till.refund"], "action": "ask", "ask": {"of": ["boss"], "within": "1h"},
		"say": "Look at the order first."}]}`))
	if err != nil {
		t.Fatal(err)
	}
	env := handlertest.Start(t, handlertest.Options{Registry: registryOf("1.0.0", "send:money"), Domains: []any{Till{}},
		NoWorker: true,
		Worker:   func(o *worker.Options) { o.Rules = asks }})
	o := officeOn(t, env.URL)
	o.exec("insert into gem.roles values ('cleo', 'boss'), ('bob', 'boss')")
	first := env.StartWorker()
	id := env.Insert(handlertest.Call{Tool: "till.refund", Input: `{"amount": 12.75}`, CreatedBy: "bob", Session: "s"})
	question := func() (id string) {
		env.Until("the question", func() bool {
			id = o.value("select call_id::text from gem.questions where status = 'waiting' and waits_for = 'answer'")
			return id != "null"
		})
		return id
	}
	before := question()
	page := o.page(cleo, "/questions/"+before, 200)
	o.wants(page, "Look at the order first.", "12.75", "send:money", "<code>refunds</code>", "role:boss",
		"Earlier in this session")
	o.lacks(o.page(bob, "/questions/"+before, 200), `name="decision"`)
	stale := url.Values{"decision": {"approve"}}
	for _, m := range hidden.FindAllStringSubmatch(page, -1) {
		stale.Set(m[1], m[2])
	}

	first.Stop()
	env.StartWorker(func(w *worker.Options) {
		var err error
		if w.Registry, err = registry.Parse(registryOf("1.1.0", "send:any")); err != nil {
			t.Fatal(err)
		}
	})
	o.exec("select gem.resume($1)", id) // it looks again, as it does after a while
	var after string
	env.Until("another question", func() bool { after = question(); return after != before })
	o.wants(o.send(cleo, before, stale, 409), "you cannot answer this question now")
	o.wants(o.send(cleo, after, url.Values{"decision": {"approve"}, "reason": {"seen"}}, 200), "You approved it.")
	r := env.Await(id)
	if !strings.Contains(string(r.Result), "12.75") || !strings.Contains(string(r.Effects), `"by": "cleo"`) ||
		!strings.Contains(string(r.Effects), after) {
		t.Errorf("the receipt is %s with %s", r.Result, r.Effects)
	}
	o.wants(o.send(cleo, after, stale, 409), "you cannot answer this question now")
}

// The dashboard cannot know whether such a person asked for the call under the other name.
func TestAnApprovalIsRefusedFromAPersonWithTwoNames(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	id := o.approval()
	stranger := cleo
	stranger.OtherName = "you signed in at https://login.example, and calls are made with tokens of <b>others</b>"
	page := o.page(stranger, "/questions/"+id, 200)
	o.wants(page, "Approval: waiting for others", "a different name there",
		"https://login.example, and calls are made with tokens of &lt;b&gt;others&lt;/b&gt;")
	o.lacks(page, `name="decision"`)
	o.wants(o.page(stranger, "/questions", 200), "you signed in at https://login.example")
	form := o.page(cleo, "/questions/"+id, 200)
	fields := url.Values{"decision": {"approve"}}
	for _, m := range hidden.FindAllStringSubmatch(form, -1) {
		fields.Set(m[1], m[2])
	}
	o.user = stranger
	answer, err := http.PostForm(o.server.URL+"/questions/"+id, fields)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if got := o.given(id); answer.StatusCode != http.StatusForbidden || got != "null" {
		t.Errorf("the form of somebody else: %d, answered: %s", answer.StatusCode, got)
	}
	// Postgres refuses it, whatever the page does.
	var mine int
	act := login(t, o.owner, o.owner.Config().ConnString(), "gem_operator, gem_mcp")
	subject := client.Subject{ID: "cleo", Role: "gem_frontend", Claims: json.RawMessage(`{"gem_other_name": true}`)}
	err = client.As(t.Context(), act, subject, func(db client.DB) error {
		if err := db.QueryRow(t.Context(), "select count(*) from open_questions").Scan(&mine); err != nil {
			return err
		}
		return client.Answer(t.Context(), db, id, json.RawMessage(`{"approved": true}`), "")
	})
	if !errors.Is(err, client.ErrMayNotAnswer) || mine != 0 {
		t.Errorf("by the function: %v, %d questions listed", err, mine)
	}
	forAnybody := strings.Replace(fmt.Sprintf(refund, 9), `"text"`, `"others": false, "text"`, 1)
	own := o.ask("wait.approval", forAnybody, byNobody)
	o.wants(o.send(stranger, own, url.Values{"decision": {"approve"}}, 200), "You approved it.", "Answered by cleo")
}
