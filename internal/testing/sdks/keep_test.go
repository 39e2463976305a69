package sdks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/google/go-cmp/cmp"
)

// keepers lists the commands of the services that keep their steps with keep_tool_step.
var keepers = map[string][]string{"TypeScript": {"node", "keep.mjs"}, "Python": {"python3", "keep.py"}}

// eachKeeper runs a test once for each language, with the service that keeps its steps. The worker sends its requests
// to a proxy, and the function on answers them.
func eachKeeper(t *testing.T, registry []byte, variables []string, on func(p *proxy, w http.ResponseWriter,
	r *http.Request, body []byte), test func(t *testing.T, env *handlertest.Env, p *proxy)) {
	t.Helper()
	t.Parallel()
	for language, command := range keepers {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			database := testdb.New(t)
			s := runService(t, command, loginOf(t, database), variables...)
			p := &proxy{to: s.url()}
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				p.requests.Add(1)
				body, _ := io.ReadAll(r.Body)
				on(p, w, r, body)
			}))
			t.Cleanup(front.Close)
			o := optionsAt(database, front.URL)
			o.Registry = registry
			test(t, handlertest.Start(t, o), p)
		})
	}
}

// proxy passes requests on to a service, and counts them.
type proxy struct {
	to       string // the URL of the service
	requests atomic.Int64
	passes   atomic.Bool // in the tests that lose answers: the proxy returns the next answer
	lost     sync.Map    // the names of the operations in lost answers
}

// pass sends a request to the service, and returns its answer.
func (p *proxy) pass(r *http.Request, body []byte) (status int, answer []byte) {
	q, err := http.NewRequestWithContext(r.Context(), r.Method, p.to, bytes.NewReader(body))
	if err != nil {
		return http.StatusBadGateway, nil
	}
	q.Header = r.Header.Clone()
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		return http.StatusBadGateway, nil
	}
	defer resp.Body.Close()
	answer, _ = io.ReadAll(resp.Body)
	return resp.StatusCode, answer
}

// passAll returns the answers of the service unchanged.
func passAll(p *proxy, w http.ResponseWriter, r *http.Request, body []byte) {
	status, answer := p.pass(r, body)
	w.WriteHeader(status)
	_, _ = w.Write(answer)
}

const kept = `succeeded ["s0", "s1", "s2", "s3", "s4", null, null, "o"]`

// ran returns how often each step of a call ran.
func ran(t *testing.T, env *handlertest.Env, id string) map[string]int {
	t.Helper()
	times := map[string]int{}
	for _, line := range testdb.Value[[]string](t, env.DB,
		"select coalesce(array_agg(call_id), '{}') from things where call_id like $1 || ' %'", id) {
		times[line[strings.LastIndex(line, " ")+1:]]++
	}
	return times
}

func TestWithKeepManyStepsEndInOneRequest(t *testing.T) {
	eachKeeper(t, registryText, nil, passAll, func(t *testing.T, env *handlertest.Env, p *proxy) {
		r := env.Run(handlertest.Call{Tool: "remote.play", Input: `{"steps": 5}`})
		if got := told(r); got != kept {
			t.Error(got)
		}
		if n := p.requests.Load(); n > 8 { // nine without keep; a fast machine needs one
			t.Errorf("the worker sent %d requests for 8 steps", n)
		}
		want := []string{}
		for i := range 5 {
			want = append(want, fmt.Sprintf(`step {"kind": "step", "name": "s%d", "result": "s%[1]d", "effects": {}}`, i))
		}
		want = append(want, `began {"name": "o"}`, `step {"kind": "once", "name": "o", "result": "o", "effects": {}}`)
		got := slices.DeleteFunc(journal(t, env, r.CallID), func(line string) bool { // a and b run in parallel
			return strings.Contains(line, `"name": "a"`) || strings.Contains(line, `"name": "b"`)
		})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if n := strings.Count(string(r.Effects), `"things"`); n != 2 {
			t.Errorf("the receipt lists %d of the 2 effects: %s", n, r.Effects)
		}
		if got := told(env.Run(handlertest.Call{Tool: "remote.case"})); got != "succeeded [1, 1, 2]" {
			t.Errorf("with a call between two steps: %s", got)
		}
	})
}

// A stepTx runs and commits once, both after a step that was kept and together with other steps.
func TestWithKeepAStepTxCommitsOnce(t *testing.T) {
	eachKeeper(t, registryText, nil, passAll, func(t *testing.T, env *handlertest.Env, _ *proxy) {
		for input, want := range map[string]string{`{"beside": false}`: `succeeded ["a", 1, "c"]`,
			`{"beside": true}`: `succeeded ["a", 1, "o"]`} {
			r := env.Run(handlertest.Call{Tool: "remote.book", Input: input})
			if got := told(r); got != want {
				t.Errorf("%s: %s, want %s", input, got, want)
			}
			for name, n := range ran(t, env, r.CallID) {
				if n != 1 {
					t.Errorf("%s: %s ran %d times, want 1", input, name, n)
				}
			}
		}
	})
}

// Every other answer is lost after the service has kept the steps of the request.
func TestKeptStepsDoNotRunAgainAfterALostAnswer(t *testing.T) {
	loses := func(p *proxy, w http.ResponseWriter, r *http.Request, body []byte) {
		status, answer := p.pass(r, body)
		if p.passes.CompareAndSwap(false, true) {
			var said struct{ Ops []struct{ Name string } }
			_ = json.Unmarshal(answer, &said)
			for _, op := range said.Ops { // of a slow machine: after five seconds, steps go into the answer
				p.lost.Store(op.Name, true)
			}
			panic(http.ErrAbortHandler)
		}
		p.passes.Store(false)
		w.WriteHeader(status)
		_, _ = w.Write(answer)
	}
	eachKeeper(t, registryText, nil, loses, func(t *testing.T, env *handlertest.Env, p *proxy) {
		r := env.Run(handlertest.Call{Tool: "remote.play", Input: `{"steps": 5}`})
		if _, lost := p.lost.Load("o"); told(r) != kept && !lost {
			t.Error(told(r))
		}
		times := ran(t, env, r.CallID)
		for _, name := range []string{"s0", "s1", "s2", "s3", "s4", "o"} {
			if _, lost := p.lost.Load(name); times[name] != 1 && !lost {
				t.Errorf("%s ran %d times", name, times[name])
			}
		}
	})
}

// The proxy delivers each request twice at the same time, and returns the first answer.
func TestWithKeepAStepOnceRunsAtMostOnceIfARequestIsDeliveredTwice(t *testing.T) {
	twice := func(p *proxy, w http.ResponseWriter, r *http.Request, body []byte) {
		type answered struct {
			status int
			answer []byte
		}
		answers := make(chan answered, 2)
		for range 2 {
			go func() {
				status, answer := p.pass(r, body)
				answers <- answered{status, answer}
			}()
		}
		first := <-answers
		<-answers
		w.WriteHeader(first.status)
		_, _ = w.Write(first.answer)
	}
	eachKeeper(t, registryText, nil, twice, func(t *testing.T, env *handlertest.Env, _ *proxy) {
		for range 5 {
			r := env.Run(handlertest.Call{Tool: "remote.play", Input: `{"steps": 0, "once": true}`})
			if got := told(r); got != `succeeded ["o"]` && !strings.Contains(got, "outcome_unknown") {
				t.Error(got)
			}
			if n := ran(t, env, r.CallID)["o"]; n > 1 {
				t.Errorf("the stepOnce ran %d times", n)
			}
		}
	})
}

// A stepTx commits in the only attempt of a call, and the answer is lost. The call has made progress, so it does not
// fail: it waits for code.
func TestACallWithAKeptStepWaitsForCodeAfterALostAnswer(t *testing.T) {
	loses := func(p *proxy, w http.ResponseWriter, r *http.Request, body []byte) {
		status, answer := p.pass(r, body)
		if !p.passes.Load() {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
		_, _ = w.Write(answer)
	}
	once := bytes.ReplaceAll(registryText, []byte(`"max_attempts": 20`), []byte(`"max_attempts": 1`))
	eachKeeper(t, once, nil, loses, func(t *testing.T, env *handlertest.Env, p *proxy) {
		id := env.Insert(handlertest.Call{Tool: "remote.book", Input: `{"beside": false}`})
		env.Until("the call to wait for code", func() bool {
			return testdb.Value[string](t, env.DB, "select coalesce(waits_for, status) from core_tool_calls where id = $1",
				id) == "code"
		})
		p.passes.Store(true)
		testdb.Exec(t, env.DB, "select gem.resume($1)", id)
		if got := told(env.Await(id)); got != `succeeded ["a", 1, "c"]` {
			t.Error(got)
		}
		if diff := cmp.Diff(map[string]int{"a": 1, "b-ran": 1, "b": 1, "c": 1}, ran(t, env, id)); diff != "" {
			t.Error(diff)
		}
	})
}

// keep fails without writing. The step goes into the answer, and does not run again.
func TestAStepThatCannotBeKeptIsInTheAnswer(t *testing.T) {
	eachKeeper(t, registryText, []string{"SDK_KEEP=refused"}, passAll, func(t *testing.T, env *handlertest.Env, _ *proxy) {
		r := env.Run(handlertest.Call{Tool: "remote.play", Input: `{"steps": 5}`})
		if got := told(r); got != kept {
			t.Error(got)
		}
		for name, n := range ran(t, env, r.CallID) {
			if n != 1 {
				t.Errorf("%s ran %d times, want 1", name, n)
			}
		}
		if n := strings.Count(string(r.Effects), `"things"`); n != 2 {
			t.Errorf("the receipt lists %d of the 2 effects: %s", n, r.Effects)
		}
	})
}

// keep fails after it has written a step. The step does not run again.
func TestAStepThatIsKeptAlthoughKeepFailsDoesNotRunAgain(t *testing.T) {
	eachKeeper(t, registryText, []string{"SDK_KEEP=lost"}, passAll, func(t *testing.T, env *handlertest.Env, _ *proxy) {
		r := env.Run(handlertest.Call{Tool: "remote.play", Input: `{"steps": 5}`})
		if got := told(r); !strings.Contains(got, "outcome_unknown") { // only the beginning of o is in the journal
			t.Error(got)
		}
		if diff := cmp.Diff(map[string]int{"s0": 1, "s1": 1, "s2": 1, "s3": 1, "s4": 1}, ran(t, env, r.CallID)); diff != "" {
			t.Error(diff)
		}
	})
}

// keep fails to write the beginning of a stepOnce, so the stepOnce runs in the next request. There, keep fails after it
// has written another step. The stepOnce does not run again, and its end is recorded.
func TestAStepOnceRunsOnceIfKeepFailsForItAndForAnotherStep(t *testing.T) {
	eachKeeper(t, registryText, []string{"SDK_KEEP=flaps"}, passAll, func(t *testing.T, env *handlertest.Env, _ *proxy) {
		r := env.Run(handlertest.Call{Tool: "remote.play", Input: `{"steps": 0, "parallel": true}`})
		if got := told(r); got != `succeeded ["o", "b"]` {
			t.Error(got)
		}
		if diff := cmp.Diff(map[string]int{"o": 1, "a": 1, "b": 1}, ran(t, env, r.CallID)); diff != "" {
			t.Error(diff)
		}
	})
}

// A call is cancelled after the beginning of its stepOnce was recorded, and before the stepOnce runs. The stepTx of its
// clean-up runs nevertheless.
func TestACleanUpRunsAStepTxAlthoughAStepOnceMayRun(t *testing.T) {
	eachKeeper(t, registryText, nil, passAll, func(t *testing.T, _ *handlertest.Env, p *proxy) {
		answer := string(answerTo(t, p.to, `{"gem": 1, "input": {}, "call": {"id": "c", "tool": "remote.unknown", "attempt": 1,
			"session_id": null, "created_by": null}, "journal": [{"name": "o", "kind": "once", "ended": null}], "exchange":
			{"number": 2, "left_ms": 60000, "cancelled": true, "replay": false, "may_run": ["o"], "steps": 1, "token": "x"}}`))
		if !strings.Contains(answer, `"undo"`) { // the stepTx has run, and failed because the token is false
			t.Error(answer)
		}
	})
}
