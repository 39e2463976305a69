package webhook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/backends/webhook"
	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/mcpclients"
	"github.com/gemworker/gem/internal/testing/switching"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
	"github.com/google/go-cmp/cmp"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// secret signs the requests of the tests, and token is the value of a header.
const (
	secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	token  = "Bearer token/of-the-service"
)

// crm has a tool of each mode. Its output has one field, an integer.
var crm = func() []byte {
	tool := func(name, mode string, timeout int) string {
		return fmt.Sprintf(
			`{"name": "crm.%s", "description": "", "input_schema": {"type": "object"}, "permissions": [], "timeout_ms": %d, "receipt_fields": [],
			"output_schema": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}},
			"idempotency": {"mode": %q}, "retry": {"max_attempts": 3, "backoff_ms": 1}}`, name, timeout, mode)
	}
	keyed := strings.Replace(tool("keyed", "keyed", 30_000), `"mode": "keyed"`, `"mode": "keyed", "key_field": "key"`, 1)
	keyed = strings.Replace(keyed, `"input_schema": {`,
		`"input_schema": {"required": ["key"], "properties": {"key": {"type": "string"}}, `, 1)
	return fmt.Appendf(nil, `{"version": "1", "tools": [%s, %s, %s, %s, %s]}`, keyed, tool("refund", "none", 30_000),
		tool("sum.up", "safe-retry", 30_000),
		tool("slow_once", "none", 300), tool("slow_again", "safe-retry", 300))
}()

// request is a request that the service got.
type request struct {
	path   string
	header http.Header
	body   []byte
}

// service is the other side. It gives the answers in the call's input, one for each request.
type service struct {
	*httptest.Server
	mu  sync.Mutex
	got map[string][]request // by call
}

// answer describes how the service answers.
type answer struct {
	// 0: it breaks the connection; 1: it never answers; 2: it breaks the connection in the middle of a 200
	Status int               `json:"status"`
	Header map[string]string `json:"header,omitempty"`
	Body   string            `json:"body,omitempty"`
}

// mayBreakOff ends the request without an answer, or in the middle of one, if the status says so.
func (a answer) mayBreakOff(w http.ResponseWriter, r *http.Request) {
	switch a.Status {
	case 1:
		<-r.Context().Done()
	case 2:
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, `{"result"`)
	case 0:
	default:
		return
	}
	panic(http.ErrAbortHandler)
}

func serve(t *testing.T) *service {
	s := &service{got: map[string][]request{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.answer))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

func (s *service) answer(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var said struct {
		Input struct {
			Answers []answer `json:"answers"`
		} `json:"input"`
	}
	_ = json.Unmarshal(body, &said)
	id := r.Header.Get("Webhook-Id")
	s.mu.Lock()
	n := len(s.got[id])
	s.got[id] = append(s.got[id], request{r.Method + " " + r.URL.Path, r.Header.Clone(), body})
	s.mu.Unlock()
	a := answer{Status: 200, Body: `{"result": {"n": 1}}`}
	if n < len(said.Input.Answers) {
		a = said.Input.Answers[n]
	}
	a.mayBreakOff(w, r)
	for name, value := range a.Header {
		w.Header().Set(name, value)
	}
	w.WriteHeader(a.Status)
	if a.Body == "headers" {
		a.Body = fmt.Sprintf(`{"result": {"n": 1, "authorization": %q, "secret": %q}}`, r.Header.Get("Authorization"), secret)
	}
	_, _ = io.WriteString(w, strings.NewReplacer("1MiB", strings.Repeat("x", 1<<20), "NUL", "\x00").Replace(a.Body))
}

func (s *service) requests(id string) []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got[id])
}

// start runs a worker whose domain crm is at a URL.
func start(t *testing.T, url string, variables map[string]string) *handlertest.Env {
	t.Helper()
	env := prepare(t, url, variables)
	env.StartWorker()
	return env
}

// prepare is like start, without a worker.
func prepare(t *testing.T, url string, variables map[string]string) *handlertest.Env {
	t.Helper()
	return prepareWith(t, url, variables, crm)
}

// prepareWith is like prepare, with another registry.
func prepareWith(t *testing.T, url string, variables map[string]string, registry []byte) *handlertest.Env {
	t.Helper()
	return handlertest.Start(t, handlertest.Options{Registry: registry, NoWorker: true, Worker: func(o *worker.Options) {
		o.Handlers.Add(webhook.New(o.Registry, map[string]backends.Service{"crm": {URL: url + "/base",
			SecretEnv: "CRM_SECRET",
			HeaderEnv: map[string]string{"authorization": "CRM_TOKEN"}}},
			func(variable string) string { return variables[variable] }))
	}})
}

func set() map[string]string { return map[string]string{"CRM_SECRET": secret, "CRM_TOKEN": token} }

// input returns an input for which the service gives these answers.
func input(answers ...answer) string {
	text, _ := json.Marshal(map[string]any{"answers": answers})
	return string(text)
}

// A service gets text from a caller only in the body. All headers come from GEM or from the service's own settings.
func TestNoWordOfACallerIsInAHeader(t *testing.T) {
	t.Parallel()
	s := serve(t)
	env := start(t, s.URL, set())
	const hostile = "x\r\nAuthorization: Bearer other\r\n\r\nGET / HTTP/1.1\x1b\u202eü"
	var id string
	err := env.DB.QueryRow(context.Background(), `insert into core_tool_calls (tool_name, input, session_id, created_by,
		idempotency_key)
		values ('crm.sum.up', jsonb_build_object($1::text, $1::text), $1::text, $1::text, $1::text) returning id::text`,
		hostile).Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	env.Await(id)
	got := s.requests(id)
	if len(got) != 1 || !strings.Contains(string(got[0].body), `"session_id":"x\r\nAuthorization: Bearer other`) {
		t.Fatalf("got %+v", got)
	}
	want := []string{"Accept", "Accept-Encoding", "Authorization", "Connection", "Content-Length", "Content-Type",
		"Idempotency-Key", "Traceparent", "User-Agent",
		"Webhook-Id", "Webhook-Signature", "Webhook-Timestamp"}
	for name, values := range got[0].header {
		if !slices.Contains(want, name) || len(values) != 1 || strings.Contains(values[0], "other") ||
			strings.ContainsAny(values[0], "\r\n\x1b\u202eü") {
			t.Errorf("%s: %q", name, values)
		}
	}
}

func TestARequestHasTheCallItsInputAndASignature(t *testing.T) {
	t.Parallel()
	s := serve(t)
	env := start(t, s.URL, set())
	var id string
	err := env.DB.QueryRow(context.Background(), `insert into core_tool_calls (tool_name, input, session_id, created_by,
		traceparent)
		values ('crm.sum.up', '{"a": "<é>"}', 'talk', 'ann', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01')
			returning id::text`).Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	r := env.Await(id)
	if got := handlertest.Output[map[string]int](t, r); got["n"] != 1 {
		t.Errorf("got %v", got)
	}
	got := s.requests(id)
	if len(got) != 1 {
		t.Fatalf("%d requests", len(got))
	}
	want := fmt.Sprintf(
		`{"call":{"id":%q,"tool":"crm.sum.up","attempt":1,"session_id":"talk","created_by":"ann"},"input":{"a": "<é>"}}`, id)
	if diff := cmp.Diff(strings.ReplaceAll(want, `": "`, `":"`), string(got[0].body)); diff != "" {
		t.Error(diff)
	}
	if got[0].path != "POST /base/sum_up" {
		t.Error(got[0].path)
	}
	for name, want := range map[string]string{"Webhook-Id": id, "Idempotency-Key": id, "Authorization": token,
		"Content-Type": "application/json",
		"Traceparent":  "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"} {
		if got := got[0].header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	verifier, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	if err := verifier.Verify(got[0].body, got[0].header); err != nil {
		t.Error(err)
	}
	if err := verifier.Verify(append(got[0].body, ' '), got[0].header); err == nil {
		t.Error("the signature fits another body too")
	}
	verify, err := json.Marshal(map[string]any{"secret": secret, "body": string(got[0].body), "headers": map[string]string{
		"webhook-id": id, "webhook-timestamp": got[0].header.Get("Webhook-Timestamp"),
		"webhook-signature": got[0].header.Get("Webhook-Signature")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("the npm package standardwebhooks", func(t *testing.T) {
		other := strings.Replace(string(verify), "sum.up", "refund", 1)
		if out := mcpclients.Run(t, []string{"VERIFY=" + string(verify)}, "webhook.mjs"); out.Code != 0 ||
			!strings.Contains(out.Stdout, id) {
			t.Errorf("it refuses the request: %s", out.Stderr)
		}
		if out := mcpclients.Run(t, []string{"VERIFY=" + other}, "webhook.mjs"); out.Code == 0 {
			t.Error("it takes another body too")
		}
	})
	var effects struct {
		ExternalCalls []map[string]any `json:"external_calls"`
	}
	if err := json.Unmarshal(r.Effects, &effects); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]map[string]any{{"service": "crm", "endpoint": s.URL + "/base/sum_up", "status_code": 200.0}},
		effects.ExternalCalls); diff != "" {
		t.Error(diff)
	}
}

func TestAServiceThatSwitchesProtocolsHoldsNoCall(t *testing.T) {
	t.Parallel()
	url, closed := switching.New(t)
	env := start(t, url, set())
	for tool, want := range map[string]string{
		"crm.refund": "outcome_unknown crm got the request, and it switched to another protocol.",
		"crm.sum.up": "execution_error crm answered 101",
	} {
		if got := ended(t, env.Run(handlertest.Call{Tool: tool})); !strings.Contains(got, want) {
			t.Errorf("%s: %s", tool, got)
		}
		<-closed
	}
}

func TestASecretThatIsEscapedAsInJSONIsShownNowhere(t *testing.T) {
	t.Parallel()
	escaped := func(text string) string {
		var b strings.Builder
		for i, c := range text {
			if i%4 == 0 {
				fmt.Fprintf(&b, `\u%04X`, c)
			} else {
				b.WriteRune(c)
			}
		}
		return b.String()
	}
	s := serve(t)
	env := start(t, s.URL, set())
	for name, a := range map[string]answer{
		"a result":  {Status: 200, Body: `{"result": {"n": 1, "echo": "` + escaped(token) + `"}}`},
		"a failure": {Status: 422, Body: `{"error": {"error_code": "bad", "message": "` + escaped(secret) + `"}}`},
		"a reason":  {Status: 501, Body: `{"reason": "` + escaped(token) + `"}`},
		"a text":    {Status: 500, Body: escaped(secret) + " " + escaped(token)},
		"a long text": {Status: 400,
			Body: strings.Repeat(" ", 4<<10-20) + escaped(token)},
	} {
		r := env.Run(handlertest.Call{Tool: "crm.refund", Input: input(a)})
		got := ended(t, r)
		if !strings.Contains(got, "[secret]") || strings.Contains(got, "of-the-service") || strings.Contains(got, "qrTwj") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// ended describes a receipt by its status, error code and message.
func ended(t *testing.T, r *receipts.Receipt) string {
	t.Helper()
	if r.Status != receipts.Failed {
		return fmt.Sprintf("%s %s", r.Status, r.Result)
	}
	e := handlertest.ErrorOf(t, r)
	return fmt.Sprintf("%s %s %s %s", r.Status, e.Code, e.Message, e.Details)
}

func TestEveryAnswerHasItsMeaning(t *testing.T) {
	t.Parallel()
	s := serve(t)
	env := start(t, s.URL, set())
	for name, c := range map[string]struct {
		tool     string
		answer   answer
		want     []string
		requests int
	}{
		"a result": {answer: answer{Status: 200, Body: `{"result": {"n": 2}}`}, want: []string{`succeeded {"n": 2}`}},
		"a result that does not fit": {answer: answer{Status: 200, Body: `{"result": {"n": "2"}}`},
			want: []string{"output_invalid", "crm.refund does not fit its schema"}},
		"null": {answer: answer{Status: 200, Body: `{"result": null}`}, want: []string{"output_invalid"}},
		"no result": {answer: answer{Status: 200, Body: `{"n": 2}`},
			want: []string{"execution_error crm answered 200, and not with", "n", "unexpected_answer"}},
		"a text": {answer: answer{Status: 200, Body: `"sunny"`},
			want: []string{`in JSON (it is a string): "sunny"`}},
		"nothing": {answer: answer{Status: 200}, want: []string{"execution_error", "(an empty body)"}},
		"HTML": {answer: answer{Status: 200, Body: "<html>\nlogin"},
			want: []string{"execution_error", "<html> login"}},
		"two values": {answer: answer{Status: 200, Body: `{"result": {"n": 1}} {}`},
			want: []string{"execution_error", "more than one value"}},
		"another success": {answer: answer{Status: 201, Body: `{"result": {"n": 1}}`},
			want: []string{"outcome_unknown crm got the request, and it answered 201 with a result:"}},
		"another success of a tool that may run again": {tool: "crm.sum.up",
			answer: answer{Status: 201, Body: `{"result": {"n": 1}}`},
			want:   []string{"execution_error crm answered 201", `"status_code": 201`}},
		"an error with a result": {answer: answer{Status: 500, Body: `{"result": {"n": 1}}`},
			want: []string{"outcome_unknown crm got the request, and it answered 500 with a result:"}},
		"an error with effects": {answer: answer{Status: 403, Body: `{"effects": {"files_written": ["a"]}}`},
			want: []string{"outcome_unknown crm got the request, and it answered 403 with a result:"}},
		"a failure with a result": {answer: answer{Status: 422,
			Body: `{"error": {"error_code": "bad"}, "result": {"n": 1}}`},
			want: []string{"outcome_unknown crm got the request, and it answered 422 with a result:"}},
		"a failure without one": {answer: answer{Status: 422,
			Body: `{"error": {"error_code": "bad", "message": "No."}, "result": null, "effects": {}}`},
			want: []string{"bad No. null"}},
		"no content": {answer: answer{Status: 204}, want: []string{"execution_error crm answered 204: (an empty " +
			"body)"}},
		"a redirect": {answer: answer{Status: 307, Header: map[string]string{"Location": s.URL + "/elsewhere"}},
			want: []string{"execution_error crm answered 307"}},
		"a failure of its own": {answer: answer{Status: 422,
			Body: `{"error": {"error_code": "card_expired", "message": "The card is old.", "details": {"year": 2020}}}`},
			want: []string{`card_expired The card is old. {"year": 2020}`}},
		"a failure without all": {answer: answer{Status: 400, Body: `{"error": {"message": "No."}}`},
			want: []string{"execution_error No. null"}},
		"a code of GEM's": {answer: answer{Status: 403,
			Body: `{"error": {"error_code": "rule_blocked", "message": "No."}}`},
			want: []string{`execution_error No.`, `"error_code": "rule_blocked"`}},
		"a code that is none": {answer: answer{Status: 400,
			Body: `{"error": {"error_code": "Not Found!", "message": "No."}}`},
			want: []string{`execution_error No.`, `"error_code": "Not Found!"`}},
		"an input that is wrong": {answer: answer{Status: 400,
			Body: `{"error": {"error_code": "validation_error", "message": "Too much."}}`},
			want: []string{`validation_error Too much.`}},
		"another 4xx": {answer: answer{Status: 404, Body: "not hereNUL " + strings.Repeat("é", 1000)},
			want: []string{"execution_error crm answered 404: not here  éé", "éé…"}},
		"an error in words": {answer: answer{Status: 401, Body: `{"error": "unauthorized"}`},
			want: []string{`execution_error crm answered 401: {"error": "unauthorized"}`}},
		"not there": {answer: answer{Status: 501, Body: "nope"},
			want: []string{"not_configured", "crm answered 501", "it said \\\"nope\\\""}},
		"not set up": {answer: answer{Status: 501,
			Body: `{"reason": "No bank account.", "required_env": ["BANK"], "next_steps": ["Open one."]}`},
			want: []string{`"reason": "No bank account."`, `"required_env": ["BANK"]`, `"next_steps": ["Open one."]`}},
		"too long an answer": {answer: answer{Status: 200,
			Body: `{"result": {"n": 1, "x": "1MiB"}}`}, want: []string{"execution_error crm answered 200 with more than " +
			"1048576 bytes", "answer_too_large"}},
		"too long an error": {answer: answer{Status: 500, Body: `{"result": {"n": 1, "x": "1MiB"}}`},
			want: []string{"outcome_unknown crm got the request, and it answered 500 with more than 1048576 bytes"}},
		"unavailable": {answer: answer{Status: 503, Body: "later"},
			want: []string{"execution_error crm answered 503: later"}},
		"a gateway that gave up": {answer: answer{Status: 504, Body: "upstream"},
			want: []string{"outcome_unknown crm got the request, and something before it gave up on its answer " +
				"(504: upstream)"}},
		"a broken connection": {answer: answer{Status: 0},
			want: []string{"outcome_unknown crm got the request, and the connection broke", "not known"}},
		"half an answer": {answer: answer{Status: 2},
			want: []string{"outcome_unknown crm got the request, and the connection broke"}},
		"no answer in its time": {tool: "crm.slow_once", answer: answer{Status: 1},
			want: []string{"outcome_unknown", "time was over", "not known"}},
		"no answer in its time, and it may run twice": {tool: "crm.slow_again", answer: answer{Status: 1},
			want: []string{"succeeded"}, requests: 2},
		"secrets": {answer: answer{Status: 200, Body: "headers"},
			want: []string{`succeeded`, `"authorization": "[secret]"`, `"secret": "[secret]"`}},
		"secrets in a failure": {answer: answer{Status: 400, Body: "bad " + token + " and " + secret},
			want: []string{"bad [secret] and [secret]"}},
		"the token alone": {answer: answer{Status: 422,
			Body: `{"error": {"error_code": "refused", "message": "No: token/of-the-service", "details": ["token\/of-the-service"]}}`}, want: []string{`refused No: [secret] ["[secret]"]`}},
		"effects": {answer: answer{Status: 200,
			Body: `{"result": {"n": 1}, "effects": {"messages_sent": [{"type": "email", "recipient": "a@example.com", "message_id": "m1"}]}}`}, want: []string{"succeeded"}},
		"unknown effects": {answer: answer{Status: 200,
			Body: `{"result": {"n": 1}, "effects": {"idempotency": {"hit": true}}}`},
			want: []string{"output_invalid The effects that crm.refund reports cannot be taken", "idempotency", "It has run."}},
		"effects of models": {answer: answer{Status: 200,
			Body: `{"result": {"n": 1}, "effects": {"external_calls": [{"service": "x", "endpoint": "y", "status_code": 200, "llm": {}}]}}`},
			want: []string{"output_invalid", "llm"}},
		"an unknown action": {answer: answer{Status: 200,
			Body: `{"result": {"n": 1}, "effects": {"db_writes": [{"table": "t", "action": "drop", "id": "1"}]}}`},
			want: []string{"output_invalid", `drop`}},
		"too many effects": {answer: answer{Status: 200,
			Body: `{"result": {"n": 1}, "effects": {"files_written": ["a"` + strings.Repeat(`, "a"`, 1000) + `]}}`},
			want: []string{"output_invalid", `they are 1001, and may be at most 1000`}},
		"an effect without a name": {answer: answer{Status: 200,
			Body: `{"result": {"n": 1}, "effects": {"db_reads": [{"count": 1}]}}`}, want: []string{"output_invalid", "empty"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.tool == "" {
				c.tool = "crm.refund"
			}
			id := env.Insert(handlertest.Call{Tool: c.tool, Input: input(c.answer)})
			r := env.Await(id)
			got := ended(t, r)
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("got %s, want %q in it", got, want)
				}
			}
			if all := got + string(r.Effects); strings.Contains(all, secret[6:]) || strings.Contains(all, token) {
				t.Errorf("the receipt shows a secret: %s", all)
			}
			if n := len(s.requests(id)); n != max(c.requests, 1) {
				t.Errorf("%d requests", n)
			}
			if name == "effects" && !strings.Contains(string(r.Effects), `"message_id": "m1"`) {
				t.Errorf("the effects are %s", r.Effects)
			}
		})
	}
	t.Cleanup(func() {
		for _, line := range env.Logs.All() {
			if text := fmt.Sprint(line.Message, line.ContextMap()); strings.Contains(text, secret[6:]) ||
				strings.Contains(text, token) {
				t.Errorf("the log shows a secret: %s", text)
			}
		}
	})
}

// A service may have acted before it answers that the input is wrong, or that it is not set up.
func TestACallThatReachedItsServiceMayHappenTwice(t *testing.T) {
	t.Parallel()
	s := serve(t)
	env := start(t, s.URL, set())
	for want, a := range map[string]answer{
		"validation_error": {Status: 400, Body: `{"error": {"error_code": "validation_error", "message": "Too much."}}`},
		"not_configured":   {Status: 501, Body: "nope"},
	} {
		r := env.Run(handlertest.Call{Tool: "crm.refund", Input: input(a)})
		means, err := client.PreviewRepeat(t.Context(), env.DB, r.CallID)
		if err != nil || !means.MayHappenTwice || !strings.Contains(ended(t, r), want) {
			t.Errorf("%s: repeating it means %+v, %v", ended(t, r), means, err)
		}
	}
	env = start(t, s.URL, nil) // without its secret
	r := env.Run(handlertest.Call{Tool: "crm.refund"})
	if means, err := client.PreviewRepeat(t.Context(), env.DB, r.CallID); err != nil || means.MayHappenTwice {
		t.Errorf("%s: repeating it means %+v, %v", ended(t, r), means, err)
	}
}

func TestACallThatMayRunAgainIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := serve(t)
	env := start(t, s.URL, set())
	var ids []string
	for _, status := range []int{408, 425, 429, 500, 502, 503, 504, 599, 0, 2} {
		ids = append(ids, env.Insert(handlertest.Call{Tool: "crm.sum.up",
			Input: input(answer{Status: status, Body: "later"})}))
	}
	for _, id := range ids {
		r := env.Await(id)
		got := s.requests(id)
		if r.Status != receipts.Succeeded || r.Attempt != 2 || len(got) != 2 {
			t.Errorf("%s in attempt %d after %d requests", ended(t, r), r.Attempt, len(got))
			continue
		}
		if !strings.Contains(string(got[1].body), `"attempt":2`) ||
			got[0].header.Get("Idempotency-Key") != got[1].header.Get("Idempotency-Key") {
			t.Errorf("the second request: %s", got[1].body)
		}
	}
	never := env.Run(handlertest.Call{Tool: "crm.sum.up",
		Input: input(answer{Status: 500}, answer{Status: 502}, answer{Status: 503, Body: "down"})})
	if got := ended(t, never); !strings.Contains(got, `execution_error crm answered 503: down {"attempts": 3}`) {
		t.Error(got)
	}
}

func TestRetryAfterIsWhenTheCallRunsAgain(t *testing.T) {
	t.Parallel()
	s := serve(t)
	env := start(t, s.URL, set())
	for _, after := range []string{"600", time.Now().Add(10 * time.Minute).UTC().Format(http.TimeFormat)} {
		later := env.Insert(handlertest.Call{Tool: "crm.sum.up",
			Input: input(answer{Status: 429, Header: map[string]string{"Retry-After": after}})})
		env.Until("the call to be put back", func() bool { return slices.Contains(env.Journal(later), "retried") })
		var far bool
		err := env.DB.QueryRow(context.Background(), "select run_at > gem.now() + interval '5 minutes' from "+
			"core_tool_calls where id = $1", later).Scan(&far)
		if err != nil || !far {
			t.Errorf("after %s: it runs before its time, %v", after, err)
		}
		if n := len(s.requests(later)); n != 1 {
			t.Errorf("after %s: %d requests", after, n)
		}
	}
	tooFar := env.Run(handlertest.Call{Tool: "crm.sum.up",
		Input: input(answer{Status: 503, Header: map[string]string{"Retry-After": "86400"}})})
	if got := ended(t, tooFar); !strings.Contains(got, "execution_error crm answered 503") || tooFar.Attempt != 1 {
		t.Error(got, tooFar.Attempt)
	}
}

func TestACancelledCallEndsItsRequest(t *testing.T) {
	t.Parallel()
	s := serve(t)
	env := start(t, s.URL, set())
	id := env.Insert(handlertest.Call{Tool: "crm.refund", Input: input(answer{Status: 1})})
	env.Until("the request", func() bool { return len(s.requests(id)) == 1 })
	if _, err := client.Cancel(context.Background(), env.DB, id); err != nil {
		t.Fatal(err)
	}
	if got := ended(t, env.Await(id)); !strings.Contains(got,
		"cancelled The call was cancelled while it ran. The receipt lists its known effects") {
		t.Error(got)
	}
}

// The worker dies while the service has the request.
func TestACallWhoseWorkerIsLostIsSentAgainIfItMayBe(t *testing.T) {
	t.Parallel()
	s := serve(t)
	env := prepare(t, s.URL, set())
	first := env.StartWorker(func(o *worker.Options) { o.ShutdownGrace = 0 }) // when killed, it waits for no answer
	once := env.Insert(handlertest.Call{Tool: "crm.refund", Input: input(answer{Status: 1})})
	again := env.Insert(handlertest.Call{Tool: "crm.sum.up", Input: input(answer{Status: 1})})
	env.Until("both requests", func() bool { return len(s.requests(once)) == 1 && len(s.requests(again)) == 1 })
	first.Kill()
	env.StartWorker()
	if got := ended(t, env.Await(once)); !strings.Contains(got, "outcome_unknown") || len(s.requests(once)) != 1 {
		t.Errorf("%s, after %d requests", got, len(s.requests(once)))
	}
	if got := ended(t, env.Await(again)); !strings.Contains(got, "succeeded") || len(s.requests(again)) != 2 {
		t.Errorf("%s, after %d requests", got, len(s.requests(again)))
	}
}

func TestAKeyThatSucceededMakesNoRequest(t *testing.T) {
	t.Parallel()
	s := serve(t)
	env := start(t, s.URL, set())
	first := env.Run(handlertest.Call{Tool: "crm.keyed", Input: `{"key": "a"}`})
	second := env.Run(handlertest.Call{Tool: "crm.keyed", Input: `{"key": "a"}`})
	if first.Status != receipts.Succeeded || second.ReplayOf != first.ID || len(s.requests(second.CallID)) != 0 {
		t.Errorf("%s, %s, %d requests", ended(t, first), ended(t, second), len(s.requests(second.CallID)))
	}
}

// If a certificate is not trusted, the request is not sent. The call is retried as usual, since the certificate may be
// replaced.
func TestACertificateThatIsNotTrustedIsAnError(t *testing.T) {
	t.Parallel()
	secure := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the service was reached")
	}))
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // it would log that the client does not trust it
	secure.StartTLS()
	t.Cleanup(secure.Close)
	r := start(t, secure.URL, set()).Run(handlertest.Call{Tool: "crm.sum.up"})
	if got := ended(t, r); !strings.Contains(got, "execution_error crm could not be connected, and nothing was sent: "+
		"tls: failed to verify certificate") || r.Attempt != 3 {
		t.Error(got, r.Attempt)
	}
}

func TestAServiceThatIsAwayWasNotReached(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	env := start(t, url, set())
	once, again := env.Insert(handlertest.Call{Tool: "crm.refund"}), env.Insert(handlertest.Call{Tool: "crm.sum.up"})
	// With mode none, a try that sent nothing does not count as one of the entry's three attempts.
	for id, tries := range map[string]int{once: registry.TriesToSend, again: 3} {
		got := ended(t, env.Await(id))
		if !strings.Contains(got, "execution_error crm could not be connected, and nothing was sent") ||
			!strings.Contains(got, fmt.Sprintf(`{"attempts": %d}`, tries)) {
			t.Error(got)
		}
	}
}

func TestAVariableThatIsMissingOrWrongIsNamed(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for name, c := range map[string]struct {
		variables map[string]string
		want      []string
	}{
		"none": {nil, []string{"CRM_SECRET is not set; CRM_TOKEN is not set",
			`"required_env": ["CRM_SECRET", "CRM_TOKEN"]`}},
		"no base64": {map[string]string{"CRM_SECRET": "hunter2-hunter2-hunter2-hunter2", "CRM_TOKEN": "x"},
			[]string{"CRM_SECRET is not whsec_", `"required_env": ["CRM_SECRET"]`}},
		"too short": {map[string]string{"CRM_SECRET": "whsec_aHVudGVyMg==", "CRM_TOKEN": "x"},
			[]string{"at least 24 bytes"}},
		"no header value": {map[string]string{"CRM_SECRET": secret, "CRM_TOKEN": "hunter2\nhunter2"},
			[]string{"CRM_TOKEN has characters", `"required_env": ["CRM_TOKEN"]`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, s.URL, c.variables).Run(handlertest.Call{Tool: "crm.refund"})
			if r.Status != receipts.NotConfigured {
				t.Fatal(ended(t, r))
			}
			for _, want := range c.want {
				if !strings.Contains(string(r.Result), want) {
					t.Errorf("%s lacks %q", r.Result, want)
				}
			}
			if strings.Contains(string(r.Result), "hunter2") {
				t.Error("it shows the value")
			}
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.got) > 0 {
		t.Error("a request was made")
	}
}

// Anyone who knows the URL of an incoming webhook can post to it.
func TestAnInputIsPostedToAURLThatIsSecret(t *testing.T) {
	t.Parallel()
	const path = "/services/T0/B0/qrTwj-of-the-service"
	var answers atomic.Pointer[answer]
	got := make(chan request, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- request{r.Method + " " + r.URL.RequestURI(), r.Header.Clone(), body}
		a := answers.Load()
		w.WriteHeader(a.Status)
		_, _ = io.WriteString(w, a.Body)
	}))
	t.Cleanup(server.Close)
	registry := bytes.ReplaceAll(crm, []byte(`"n"`), []byte(`"status_code"`))
	env := handlertest.Start(t, handlertest.Options{Registry: registry, Worker: func(o *worker.Options) {
		o.Handlers.Add(webhook.New(o.Registry, map[string]backends.Service{"crm": {URLEnv: "CRM_URL"}},
			func(string) string { return server.URL + path + "?sig=1" }))
	}})
	for _, c := range []struct {
		answer
		want string
	}{
		{answer{Status: 200, Body: "ok"}, `succeeded {"status_code": 200}`},
		{answer{Status: 204}, `succeeded {"status_code": 204}`},
		{answer{Status: 404, Body: "no such page: " + path + "?sig=1"}, "crm answered 404: (an empty body)"},
		{answer{Status: 403, Body: "see " + server.URL + path + "?sig=1"}, "crm answered 403: (an empty body)"},
		{answer{Status: 422, Body: `{"error": {"message": "no hook qrTwj-of-the-service"}}`}, "crm answered 422: (an empty body)"},
		{answer{Status: 200, Body: strings.Repeat("x", 2<<20)}, `succeeded {"status_code": 200}`},
		{answer{Status: 501}, "the service at the URL in CRM_URL serve"},
	} {
		answers.Store(&c.answer)
		r := env.Run(handlertest.Call{Tool: "crm.refund", Input: `{"answers": [], "text": "a & b"}`})
		if said := ended(t, r); !strings.Contains(said, c.want) {
			t.Errorf("%d: %s", c.Status, said)
		}
		if all := string(r.Result) + string(r.Effects); strings.Contains(all, "qrTwj") {
			t.Errorf("%d: the URL is shown: %s", c.Status, all)
		}
		req := <-got
		if req.path != "POST "+path+"?sig=1" || string(req.body) != `{"text": "a & b", "answers": []}` ||
			req.header.Get("Webhook-Signature") != "" || req.header.Get("Idempotency-Key") != r.CallID {
			t.Errorf("%d: got %s %v %s", c.Status, req.path, req.header, req.body)
		}
	}
}

func TestARequestOfMoreThanAMebibyteIsNotSent(t *testing.T) {
	t.Parallel()
	s := serve(t)
	env := start(t, s.URL, set())
	id := env.Insert(handlertest.Call{Tool: "crm.refund", Input: fmt.Sprintf(`{"x": %q}`, strings.Repeat("x", 1<<20-100))})
	if got := ended(t, env.Await(id)); !strings.Contains(got, "execution_error The request would have") ||
		!strings.Contains(got, "input_too_large") {
		t.Error(got)
	}
	if len(s.requests(id)) > 0 {
		t.Error("a request was made")
	}
}
