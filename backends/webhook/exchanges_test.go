package webhook_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/backends/webhook"
	"github.com/gemworker/gem/handlers/exchange"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/worker"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// scripted is a service with scripted answers. The input of a call lists them.
type scripted struct {
	*httptest.Server
	mu   sync.Mutex
	next map[string]int      // by call
	got  map[string][]string // bodies of requests, by call
	ids  []string            // their webhook-ids
}

func script(t *testing.T) *scripted {
	t.Helper()
	s := &scripted{next: map[string]int{}, got: map[string][]string{}}
	verifier, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if err := verifier.Verify(body, r.Header); err != nil {
			t.Error(err)
		}
		var said struct {
			Call  struct{ ID string }
			Input struct{ Answers []answer }
		}
		if err := json.Unmarshal(body, &said); err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		n := min(s.next[said.Call.ID], len(said.Input.Answers)-1)
		s.next[said.Call.ID]++
		s.got[said.Call.ID] = append(s.got[said.Call.ID], string(body))
		s.ids = append(s.ids, r.Header.Get("Webhook-Id")+" "+r.Header.Get("Idempotency-Key"))
		s.mu.Unlock()
		a := said.Input.Answers[n]
		a.mayBreakOff(w, r)
		w.WriteHeader(a.Status)
		_, _ = io.WriteString(w, large.Replace(a.Body)) // an input cannot be so large
	}))
	t.Cleanup(s.Close)
	return s
}

var large = strings.NewReplacer("1 MiB", strings.Repeat("x", 1<<20), "5 MiB", strings.Repeat(" ", 5<<20))

// durableCRM has two durable tools. crm.plan has three attempts, and crm.slow has two short ones.
const durableCRM = `{"version": "1", "tools": [{"name": "crm.plan", "description": "", "input_schema": {"type": "object"},
	"permissions": [], "output_schema": {}, "timeout_ms": 5000, "receipt_fields": [], "calls": ["crm.other"],
	"deadline_ms": 600000, "idempotency": {"mode": "none"}, "retry": {"max_attempts": 3, "backoff_ms": 1}},
	{"name": "crm.slow", "description": "", "input_schema": {"type": "object"}, "permissions": [], "output_schema": {},
	"timeout_ms": 300, "receipt_fields": [], "calls": [], "deadline_ms": 600000, "idempotency": {"mode": "none"},
	"retry": {"max_attempts": 2, "backoff_ms": 1}},
	{"name": "crm.other", "description": "", "input_schema": {"type": "object"}, "permissions": [], "output_schema": {},
	"timeout_ms": 5000, "receipt_fields": [], "idempotency": {"mode": "none"}}]}`

func startScripted(t *testing.T) (*handlertest.Env, *scripted) {
	t.Helper()
	s := script(t)
	return handlertest.Start(t, handlertest.Options{Registry: []byte(durableCRM), Worker: func(o *worker.Options) {
		o.Handlers.Add(webhook.New(o.Registry, map[string]backends.Service{"crm": {URL: s.URL, SecretEnv: "CRM_SECRET",
			Durable: []string{"plan", "slow"}}}, func(string) string { return secret }))
	}}), s
}

// step is an answer that ends a step, but not the call.
const step = `{"gem": 1, "ops": [{"op": "step", "name": "a", "kind": "step", "result": 1}]}`

func TestEachAnswerOfADurableHandlerHasItsMeaning(t *testing.T) {
	t.Parallel()
	env, _ := startScripted(t)
	ok := func(body string) answer { return answer{Status: 200, Body: body} }
	for name, c := range map[string]struct {
		answers []answer
		want    string // of a receipt, or of the message for a call that waits for code
	}{
		"a result":                   {[]answer{ok(`{"gem": 1, "result": {"x": 1}}`)}, `succeeded {"x": 1}`},
		"null":                       {[]answer{ok(`{"gem": 1, "result": null}`)}, `succeeded null`},
		"a step, then a result":      {[]answer{ok(step), ok(`{"gem": 1, "steps": 1, "result": 2}`)}, `succeeded 2`},
		"an error":                   {[]answer{ok(`{"gem": 1, "error": {"error_code": "mine", "message": "m"}}`)}, `failed mine m`},
		"a code of GEM's":            {[]answer{ok(`{"gem": 1, "error": {"error_code": "rule_blocked", "message": "m"}}`)}, `failed execution_error m`},
		"output_invalid":             {[]answer{ok(`{"gem": 1, "error": {"error_code": "output_invalid", "message": "m"}}`)}, `failed output_invalid m`},
		"not configured":             {[]answer{ok(`{"gem": 1, "not_configured": {"reason": "r"}}`)}, `not_configured {"reason": "r"`},
		"501":                        {[]answer{{Status: 501, Body: `{"reason": "none"}`}}, `not_configured {"reason": "none"`},
		"501 after progress":         {[]answer{ok(step), {Status: 501}}, `code: crm answered 501`},
		"503":                        {[]answer{{Status: 503}, {Status: 503}, ok(`{"gem": 1, "result": 1}`)}, `succeeded 1`},
		"503 for ever":               {[]answer{{Status: 503}}, `failed execution_error crm answered 503`},
		"503 for ever, after a step": {[]answer{ok(step), {Status: 503}}, `code: crm answered 503`},
		"a broken connection":        {[]answer{{Status: 0}, ok(`{"gem": 1, "result": 1}`)}, `succeeded 1`},
		"no answer":                  {[]answer{{Status: 1}}, `failed timeout crm.slow took longer than its 300ms`},
		"no answer after a step":     {[]answer{ok(step), {Status: 1}}, `code: no answer from crm`},
		"404":                        {[]answer{{Status: 404, Body: "no page"}}, `code: crm answered 404: no page`},
		"401":                        {[]answer{{Status: 401, Body: "unsigned"}}, `code: crm answered 401: unsigned`},
		"no JSON":                    {[]answer{ok("<html>")}, `code: crm answered 200, and not as a durable handler does`},
		"another protocol":           {[]answer{ok(`{"gem": 2, "result": 1}`)}, `"gem": 2, and this worker speaks 1`},
		"two ends":                   {[]answer{ok(`{"gem": 1, "result": 1, "misfit": {"name": "a", "message": "m"}}`)}, `more than one end`},
		"nothing":                    {[]answer{ok(`{"gem": 1}`)}, `neither operations nor an end`},
		"an unknown field":           {[]answer{ok(`{"gem": 1, "results": 1}`)}, `unknown field`},
		"5 MiB":                      {[]answer{ok("5 MiB")}, `more than 4194304 bytes`},
		"another count of steps":     {[]answer{ok(step), ok(`{"gem": 1, "steps": 0, "result": 2}`)}, `counted 0 steps in the journal, and there are 1`},
		"a step twice":               {[]answer{ok(step), ok(step)}, `the journal has a already`},
		"an end of a step once that never began": {[]answer{ok(`{"gem": 1, "ops": [{"op": "step", "name": "o", "kind": "once", "result": 1}]}`)},
			`the beginning of o is not in the journal`},
		"a name that cannot be": {[]answer{ok(`{"gem": 1, "ops": [{"op": "step", "name": "a#1", "kind": "step", "result": 1}]}`)}, `cannot be a name`},
		"a tx without a token":  {[]answer{ok(`{"gem": 1, "ops": [{"op": "step", "name": "a", "kind": "tx", "result": 1}]}`)}, `only keep_tool_step`},
		"an unknown operation":  {[]answer{ok(`{"gem": 1, "ops": [{"op": "drop", "name": "a"}]}`)}, `is no operation`},
		"a clean-up without a cancellation": {[]answer{ok(`{"gem": 1, "ops": [{"op": "step", "name": "a", "kind": "step", "result": 1, "cleanup": true}]}`),
			ok(`{"gem": 1, "result": 1}`)}, `succeeded 1`},
		"a name that is empty": {[]answer{ok(`{"gem": 1, "wait": {"need": 1, "for": [{"name": ""}]}}`)}, `cannot be a name`},
		"a wait for nothing":   {[]answer{ok(`{"gem": 1, "wait": {"need": 1, "for": []}}`)}, `waits for 1 of 0 names`},
		"a wait for what is there": {[]answer{ok(step), ok(`{"gem": 1, "wait": {"need": 1, "for": [{"name": "a"}]}}`)},
			`waits for what has arrived`},
		"a misfit": {[]answer{ok(`{"gem": 1, "misfit": {"name": "a", "message": "another"}}`)}, `code: another`},
		"a call that is not listed": {[]answer{ok(`{"gem": 1, "ops": [{"op": "call", "name": "c", "tool": "crm.plan", "input": {}}],
			"wait": {"need": 1, "for": [{"name": "c"}]}}`), ok(`{"gem": 1, "result": 1}`)}, `succeeded 1`},
		"a step with invalid effects": {[]answer{ok(`{"gem": 1, "ops": [{"op": "step", "name": "a", "kind": "step", "result": 1,
			"effects": {"db_reads": [{"table": "t", "count": "5"}]}}]}`), ok(`{"gem": 1, "steps": 1, "result": 1}`)}, `succeeded 1`},
		"effects that are none": {[]answer{ok(`{"gem": 1, "result": 1, "effects": {"db_writes": [{}]}}`)}, `failed output_invalid`},
		"a huge result":         {[]answer{ok(`{"gem": 1, "ops": [{"op": "step", "name": "a", "kind": "step", "result": "1 MiB"}]}`), ok(`{"gem": 1, "result": 1}`)}, `succeeded 1`},
	} {
		t.Run(name, func(t *testing.T) {
			tool := "crm.plan"
			if c.answers[len(c.answers)-1].Status == 1 {
				tool = "crm.slow"
			}
			id := env.Insert(handlertest.Call{Tool: tool, Input: input(c.answers...)})
			var got string
			env.Until("the call to end, or to wait for code", func() bool {
				got = testdb.Value[string](t, env.DB, `select case
					when c.waits_for = 'code' then 'code: ' || (select e.data #>> '{code,message}' from core_tool_events e
						where e.call_id = c.id and e.event = 'waiting' order by e.seq desc limit 1)
					when r.status = 'failed' then concat_ws(' ', 'failed', r.result #>> '{error,error_code}',
						r.result #>> '{error,message}')
					when r.status is not null then r.status || ' ' || r.result else '' end
					from core_tool_calls c left join core_tool_receipts r on r.call_id = c.id where c.id = $1`, id)
				return got != ""
			})
			if !strings.Contains(got, c.want) {
				t.Errorf("%.300s", got)
			}
			testdb.Exec(t, env.DB, "select gem.cancel($1) where not gem.is_final((select status from core_tool_calls "+
				"where id = $1))", id)
		})
	}
}

// Each request contains what the previous answer added, and has its own id.
func TestARequestHasTheJournal(t *testing.T) {
	t.Parallel()
	env, s := startScripted(t)
	refused := `{"gem": 1, "ops": [{"op": "call", "name": "c", "tool": "crm.plan", "input": {}}],
		"wait": {"need": 1, "for": [{"name": "c"}]}}`
	id := env.Insert(handlertest.Call{Tool: "crm.plan", Input: input(answer{Status: 200, Body: step}, answer{Status: 200,
		Body: `{"gem": 1, "ops": [{"op": "began", "name": "o"}]}`}, answer{Status: 200, Body: refused},
		answer{Status: 200, Body: `{"gem": 1, "result": 1}`}), CreatedBy: "ada"})
	env.Await(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	var last struct {
		Call     map[string]any
		Exchange map[string]any
		Journal  json.RawMessage
	}
	if n := len(s.got[id]); n != 4 {
		t.Fatalf("%d requests", n)
	}
	if !strings.Contains(s.got[id][2], `"may_run":["o"]`) || strings.Contains(s.got[id][3], `"may_run":["o"]`) {
		t.Error("the step o may run in the request after its beginning, and in no other")
	}
	if err := json.Unmarshal([]byte(s.got[id][3]), &last); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`{"name":"a","kind":"step","ended":1,"result":1}`, `{"name":"o","kind":"once","ended":null}`,
		`"name":"c","kind":"call","tool":"crm.plan"`, `"error_code":"not_allowed"`} {
		if !strings.Contains(string(last.Journal), part) {
			t.Errorf("%s lacks %s", last.Journal, part)
		}
	}
	if last.Exchange["number"] != 4.0 || last.Exchange["steps"] != 3.0 || last.Call["created_by"] != "ada" {
		t.Errorf("%v %v", last.Exchange, last.Call)
	}
	if want := fmt.Sprintf("%[1]s-1-4 %[1]s-1-4", id); s.ids[3] != want {
		t.Errorf("%s, want %s", s.ids[3], want)
	}
}

// An answer that arrives before the handler waits for it is marked as early: it does not show that the handler got that
// far.
func TestARequestMarksAnAnswerThatCameEarly(t *testing.T) {
	t.Parallel()
	env, s := startScripted(t)
	id := env.Insert(handlertest.Call{Tool: "crm.plan", Input: input(
		answer{Status: 200, Body: `{"gem": 1, "wait": {"need": 1, "for": [{"name": "z", "within_ms": 3000}]}}`},
		answer{Status: 200, Body: `{"gem": 1, "wait": {"need": 1, "for": [{"name": "#other"}]}}`},
		answer{Status: 200, Body: `{"gem": 1, "result": 1}`})})
	env.UntilItWaits(id, "time")
	testdb.Exec(t, env.DB, "select answer_tool_call($1, '7', 'paid')", id)
	env.UntilItWaits(id, "answer")
	testdb.Exec(t, env.DB, "select answer_tool_call($1, '8', 'other')", id)
	env.Await(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := 1; i <= 2; i++ {
		var said struct{ Journal []exchange.Entry }
		if err := json.Unmarshal([]byte(s.got[id][i]), &said); err != nil {
			t.Fatal(err)
		}
		for _, e := range said.Journal {
			if e.Early != (e.Name == "#paid") {
				t.Errorf("request %d: %+v", i+1, e)
			}
		}
	}
}

// A service cannot ask for an approval with the digest of another call: people would see one call and approve another.
func TestAnApprovalHasTheDigestOfWhatItShows(t *testing.T) {
	t.Parallel()
	env, _ := startScripted(t)
	const ask = `{"gem": 1, "ops": [{"op": "call", "name": "ap", "tool": "wait.approval", "input": {"tool": "crm.other",
		"input": {"cents": 1}, "text": "Pay 1 cent?", "by": ["role:boss"], "others": true,
		"digest": "0000000000000000000000000000000000000000000000000000000000000000"}}],
		"wait": {"need": 1, "for": [{"name": "ap"}]}}`
	id := env.Insert(handlertest.Call{Tool: "crm.plan", Input: input(answer{Status: 200, Body: ask},
		answer{Status: 200, Body: `{"gem": 1, "result": 1}`})})
	env.Await(id)
	if got := testdb.Value[string](t, env.DB, "select data::text from core_tool_events where call_id = $1 and event = "+
		"'step'", id); !strings.Contains(got, "The digest of the approval is not that of its tool and input.") {
		t.Error(got)
	}
}
