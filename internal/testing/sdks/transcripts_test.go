package sdks

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/worker"
	"github.com/google/go-cmp/cmp"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

var update = flag.Bool("update", false, "record the transcripts in sdk/transcripts again, with the TypeScript service")

// transcript is a file of sdk/transcripts. It contains the requests and answers of calls to the tools of service.mjs
// and service.py.
type transcript struct {
	About string  `json:"about"`
	Calls []*talk `json:"calls"`
	file  string
}

// talk contains all requests and answers of one call, and what happens to the call in between.
type talk struct {
	About string          `json:"about"`
	Tool  string          `json:"tool"`
	Input json.RawMessage `json:"input"`
	// Events happen one after the other. Each happens when the call waits or has ended.
	Events []event `json:"events,omitempty"`
	// Lost lists the exchanges whose answer does not reach the worker, by number from 1.
	Lost      []int       `json:"lost,omitempty"`
	Exchanges []*exchange `json:"exchanges"`
	// End contains the status and the result of the receipt, or the reason why the call waits for code.
	End map[string]any `json:"end"`
}

// event is something that happens to a call. One of the fields is set, and for Answer and Send also Value.
type event struct {
	Answer  string `json:"answer,omitempty"`  // answer the question with this name with Value
	Approve string `json:"approve,omitempty"` // approve the call that the approval with this name asks for
	Deny    string `json:"deny,omitempty"`    // deny the call that the approval with this name asks for
	Send    string `json:"send,omitempty"`    // send Value to the call under this name
	Cancel  bool   `json:"cancel,omitempty"`  // cancel the call
	Minutes int    `json:"minutes,omitempty"` // let this time pass
	Replay  string `json:"replay,omitempty"`  // replay the call; this is how the replay ends

	Value any `json:"value,omitempty"`
}

// exchange is a request and its answer.
type exchange struct {
	Request    map[string]any `json:"request"`
	Status     int            `json:"status,omitempty"` // 0 means 200
	RetryAfter string         `json:"retry_after,omitempty"`
	Answer     map[string]any `json:"answer"`
	// Keeps contains the arguments with which the service calls keep_tool_step before it answers.
	Keeps map[string]any `json:"keeps,omitempty"`
}

// readTranscripts returns the files of sdk/transcripts.
func readTranscripts(t *testing.T) (all []*transcript) {
	t.Helper()
	files, err := filepath.Glob("../../../sdk/transcripts/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("sdk/transcripts contains no files", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		one := &transcript{file: file}
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(one); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, one)
	}
	return all
}

// The transcripts contain these constants in place of values that differ between runs.
const (
	anyID    = "id"
	anyToken = "token"
	anyTime  = "2026-01-01T00:00:00Z"
)

var ids = regexp.MustCompile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

// fixed returns a request with constants in place of the values that differ between runs.
func fixed(t *testing.T, body []byte) map[string]any {
	t.Helper()
	var request map[string]any
	if err := json.Unmarshal(ids.ReplaceAll(body, []byte(anyID)), &request); err != nil {
		t.Errorf("%v: %s", err, body)
		return nil
	}
	if state, ok := request["exchange"].(map[string]any); ok {
		state["left_ms"] = 60000.0
		if state["token"] != nil {
			state["token"] = anyToken
		}
	}
	entries, _ := request["journal"].([]any)
	for _, entry := range entries {
		if result, ok := entry.(map[string]any)["result"].(map[string]any); ok && result["at"] != nil {
			result["at"] = anyTime
		}
	}
	return request
}

// stage is the service that a worker calls. It handles one call at a time: it returns the answers of a transcript, or
// passes the requests on to a real service and records its answers.
type stage struct {
	*httptest.Server
	t    *testing.T
	env  *handlertest.Env
	real string // the URL of the service to record; empty: return the answers of the transcript

	mu   sync.Mutex
	talk *talk
	next int    // the number of requests of the call so far
	id   string // the id of the call
}

func newStage(t *testing.T, database, real string) *stage {
	t.Helper()
	s := &stage{t: t, real: real}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	// The worker runs one call at a time. So if a call makes another call, it waits before the other call ends.
	options := optionsAt(database, s.URL)
	ours := options.Worker
	options.Worker = func(o *worker.Options) {
		ours(o)
		o.Concurrency = 1
	}
	s.env = handlertest.Start(t, options)
	testdb.Exec(t, s.env.DB, "insert into gem.roles (subject, role) values ('boss', 'boss')")
	return s
}

func (s *stage) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	request := fixed(s.t, body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if request["gem"] != nil && !strings.Contains(string(body), s.id) {
		panic(http.ErrAbortHandler) // a request of an earlier call, which has waited for code since
	}
	s.next++
	if s.real != "" {
		s.record(r, body, request)
	}
	if s.next > len(s.talk.Exchanges) {
		s.t.Errorf("%s: the worker sent another request: %s", s.talk.About, body)
		panic(http.ErrAbortHandler)
	}
	now := s.talk.Exchanges[s.next-1]
	if diff := cmp.Diff(now.Request, request); diff != "" {
		s.t.Errorf("%s: request %d differs:\n%s", s.talk.About, s.next, diff)
	}
	if now.Keeps != nil && s.real == "" {
		s.keep(now.Keeps, body)
	}
	if slices.Contains(s.talk.Lost, s.next) {
		panic(http.ErrAbortHandler)
	}
	if now.RetryAfter != "" {
		w.Header().Set("Retry-After", now.RetryAfter)
	}
	if now.Status != 0 {
		w.WriteHeader(now.Status)
	}
	answer, _ := json.Marshal(now.Answer)
	_, _ = w.Write(answer)
}

// record sends a request to the real service, and adds the request and the answer to the transcript.
func (s *stage) record(r *http.Request, body []byte, request map[string]any) {
	forward, err := http.NewRequestWithContext(r.Context(), r.Method, s.real, bytes.NewReader(body))
	if err != nil {
		s.t.Error(err)
		return
	}
	forward.Header = r.Header.Clone()
	if e := answered(s.t, forward); e != nil {
		e.Request = request
		s.talk.Exchanges = append(s.talk.Exchanges, e)
	}
}

// answered sends a request and returns the answer.
func answered(t *testing.T, r *http.Request) *exchange {
	t.Helper()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer resp.Body.Close()
	e := &exchange{RetryAfter: resp.Header.Get("Retry-After")}
	if resp.StatusCode != http.StatusOK {
		e.Status = resp.StatusCode
	}
	text, _ := io.ReadAll(resp.Body)
	if err := json.Unmarshal(ids.ReplaceAll(text, []byte(anyID)), &e.Answer); err != nil {
		t.Error(err)
	}
	return e
}

// keep calls keep_tool_step with the arguments in the transcript, as the service does in the transaction of a step.
func (s *stage) keep(keeps map[string]any, body []byte) {
	var said struct{ Exchange struct{ Token string } }
	_ = json.Unmarshal(body, &said)
	step := maps.Clone(keeps["step"].(map[string]any))
	step["token"] = said.Exchange.Token
	_, err := s.env.DB.Exec(s.t.Context(), "select keep_tool_step($1, to_jsonb($2::text))", step, keeps["result"])
	if err != nil {
		s.t.Errorf("%s: %v", s.talk.About, err)
	}
}

// perform makes a call, lets the events of the transcript happen, and returns how the call ends.
func (s *stage) perform(one *talk) map[string]any {
	s.t.Helper()
	t, env := s.t, s.env
	s.mu.Lock()
	id := env.Insert(handlertest.Call{Tool: one.Tool, Input: string(one.Input), CreatedBy: "ann"})
	s.talk, s.next, s.id = one, 0, id
	s.mu.Unlock()
	rests := func() bool {
		return testdb.Value[bool](t, env.DB, `select status = 'waiting' and waits_for <> 'time' and not exists (select from
			core_tool_calls k where k.parent_call_id = c.id and k.status in ('queued', 'running')) or gem.is_final(status)
			or status = 'queued' and run_at > gem.now() + '1 s' from core_tool_calls c where id = $1`, id)
	}
	for i, e := range one.Events {
		env.Until(one.About+": the call to wait or end", rests)
		value, _ := json.Marshal(e.Value)
		decide := func(name string, decision string) {
			testdb.Exec(t, env.DB, fmt.Sprintf(`begin; set local role gem_frontend;
				set local request.jwt.claims = '{"sub": "boss", "role": "gem_frontend"}';
				select answer_tool_call('%s', '%s'); commit`, child(t, env, id, name), decision))
		}
		switch {
		case e.Answer != "":
			testdb.Exec(t, env.DB, "select answer_tool_call($1, $2)", child(t, env, id, e.Answer), string(value))
		case e.Approve != "":
			decide(e.Approve, `{"approved": true}`)
		case e.Deny != "":
			decide(e.Deny, `{"approved": false, "reason": "no"}`)
		case e.Send != "":
			env.Until(one.About+": the wait for "+e.Send, func() bool {
				return testdb.Value[bool](t, env.DB, `select coalesce('#' || $2 = any(waits), false) from core_tool_calls
					where id = $1`, id, e.Send)
			})
			testdb.Exec(t, env.DB, "select answer_tool_call($1, $2, $3)", id, string(value), e.Send)
		case e.Cancel:
			testdb.Exec(t, env.DB, "select gem.cancel($1)", id)
		case e.Minutes > 0:
			env.Pass(time.Duration(e.Minutes) * time.Minute)
		case e.Replay != "":
			r := env.Replay(id)
			said := strings.TrimSpace(strings.Join([]string{r.Lacks, r.Misfit, r.Stopped, strings.Join(r.Unread, ", ")}, " "))
			if r.Same() {
				said = "the same " + said
			}
			if one.Events[i].Replay = strings.TrimSpace(said); one.Events[i].Replay != e.Replay && s.real == "" {
				t.Errorf("%s: the replay ends with %q, want %q", one.About, said, e.Replay)
			}
		}
	}
	var status, result, why string
	env.Until(one.About+": the end", func() bool {
		return rests() && env.DB.QueryRow(t.Context(), `select coalesce(r.status, c.waits_for), coalesce(r.result::text, ''), coalesce((select e.data #>> '{code,message}' from core_tool_events e where e.call_id = c.id and
			e.event = 'waiting' order by e.seq desc limit 1), '') from core_tool_calls c left join core_tool_receipts r
			on r.call_id = c.id where c.id = $1`, id).Scan(&status, &result, &why) == nil && (status == "code" || result != "")
	})
	if status == "code" {
		return map[string]any{"waits_for": status, "why": why}
	}
	var value any
	_ = json.Unmarshal([]byte(strings.ReplaceAll(result, s.URL, "http://service")), &value)
	return map[string]any{"status": status, "result": value}
}

// The worker sends exactly the requests of the transcripts if the service returns their answers. Each SDK returns
// exactly these answers to these requests.
func TestTranscripts(t *testing.T) {
	if *update {
		record(t)
	}
	all := readTranscripts(t)
	t.Run("worker", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, testdb.New(t), "")
		for _, file := range all {
			for _, one := range file.Calls {
				if diff := cmp.Diff(one.End, s.perform(one)); diff != "" {
					t.Errorf("%s: %s ends differently:\n%s", file.file, one.About, diff)
				}
				if s.next != len(one.Exchanges) {
					t.Errorf("%s: %s: the worker sent %d requests, want %d", file.file, one.About, s.next, len(one.Exchanges))
				}
			}
		}
	})
	for language := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			// this keep_tool_step only stores its arguments, in the table kept
			database := testdb.NewEmpty(t)
			db := testdb.Pool(t, database)
			testdb.Exec(t, db, `create table things (call_id text); create table kept (step jsonb, result jsonb);
				create schema gem; create function gem.wrote(text, text, int) returns void language sql as '';
				create function keep_tool_step(jsonb, jsonb) returns void language sql as
				'insert into kept values ($1, $2)'`)
			s := serve(t, language, database)
			for _, file := range all {
				for _, one := range file.Calls {
					for i, want := range one.Exchanges {
						request := maps.Clone(want.Request)
						request["call"] = maps.Clone(request["call"].(map[string]any))
						// the services count the transient failures of each call, by its id
						request["call"].(map[string]any)["id"] = fmt.Sprint(file.file, one.About)
						got := answered(t, signed(t, s.url(), request))
						if got == nil {
							t.Fatalf("%s: %s: exchange %d has no answer", file.file, one.About, i+1)
						}
						var steps []map[string]any
						_ = json.Unmarshal(testdb.Value[[]byte](t, db, `with all_kept as (delete from kept returning *)
							select coalesce(jsonb_agg(to_jsonb(k)), '[]') from all_kept k`), &steps)
						if got.Request = want.Request; len(steps) > 0 {
							got.Keeps = steps[0]
						}
						if diff := cmp.Diff(want, got); diff != "" {
							t.Errorf("%s: %s: answer %d differs:\n%s", file.file, one.About, i+1, diff)
						}
					}
				}
			}
		})
	}
}

// signed returns a signed request.
func signed(t *testing.T, url string, request any) *http.Request {
	t.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	signature, err := signer.Sign("id", now, body)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Webhook-Id", "id")
	r.Header.Set("Webhook-Timestamp", strconv.FormatInt(now.Unix(), 10))
	r.Header.Set("Webhook-Signature", signature)
	return r
}

// record runs the calls of the transcripts with the TypeScript service, and writes the requests, the answers and the
// ends into the files. It does not change what is written by hand: the calls, their events, and the arguments of
// keep_tool_step.
func record(t *testing.T) {
	t.Helper()
	database := testdb.New(t)
	s := newStage(t, database, serve(t, "TypeScript", loginOf(t, database)).url())
	for _, file := range readTranscripts(t) {
		for _, one := range file.Calls {
			before := one.Exchanges
			one.Exchanges = nil
			one.End = s.perform(one)
			for i, e := range one.Exchanges {
				if i < len(before) {
					e.Keeps = before[i].Keeps
				}
			}
		}
		text, err := json.Marshal(file)
		if err != nil {
			t.Fatal(err)
		}
		var value any
		if err := json.Unmarshal(text, &value); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file.file, append(written(value, 0, ""), '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// written returns a value as JSON. Its lines are at most 150 characters long where possible.
func written(value any, depth int, key string) []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value)
	text := bytes.TrimSpace(b.Bytes())
	pad := strings.Repeat("  ", depth+1)
	list, isList := value.([]any)
	fields, isObject := value.(map[string]any)
	if len(key)+len(text)+2*depth < 150 && depth > 1 || !isList && !isObject || len(list)+len(fields) == 0 {
		return text
	}
	var lines []string
	for _, one := range list {
		lines = append(lines, pad+string(written(one, depth+1, "")))
	}
	for _, key := range slices.SortedFunc(maps.Keys(fields), byReading) {
		name := strconv.Quote(key) + ": "
		lines = append(lines, pad+name+string(written(fields[key], depth+1, name)))
	}
	open, shut := "[", "]"
	if isObject {
		open, shut = "{", "}"
	}
	return []byte(open + "\n" + strings.Join(lines, ",\n") + "\n" + pad[2:] + shut)
}

// byReading compares keys of the transcripts. It puts them in the order in which a person reads them.
func byReading(a, b string) int {
	order := []string{"about", "gem", "op", "do", "number", "id", "name", "kind", "tool", "call", "input", "exchange",
		"journal", "events", "lost", "calls", "request", "keeps", "status", "retry_after", "answer", "exchanges", "end",
		"left_ms", "attempt", "ended", "result"}
	rank := func(key string) int {
		if i := slices.Index(order, key); i >= 0 {
			return i
		}
		return len(order)
	}
	if rank(a) != rank(b) {
		return rank(a) - rank(b)
	}
	return strings.Compare(a, b)
}
