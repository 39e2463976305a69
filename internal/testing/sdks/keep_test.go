package sdks

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/google/go-cmp/cmp"
)

// keepers are services that keep their steps with keep_tool_step.
var keepers = map[string][]string{"TypeScript": {"node", "keep.mjs"}, "Python": {"python3", "keep.py"}}

// eachKeeper runs a test with the service of each language. All requests pass through on, which answers them.
func eachKeeper(t *testing.T, registry []byte, variables []string, on func(p *proxy, w http.ResponseWriter,
	r *http.Request, body []byte), test func(t *testing.T, env *handlertest.Env, p *proxy)) {
	t.Helper()
	t.Parallel()
	for language, command := range keepers {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			database := testdb.New(t)
			s := &service{t: t, command: command, database: loginOf(t, database), more: variables}
			s.start()
			t.Cleanup(s.kill)
			p := &proxy{to: s.url()}
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				p.requests.Add(1)
				body, _ := io.ReadAll(r.Body)
				on(p, w, r, body)
			}))
			t.Cleanup(front.Close)
			// an exchange ends after half of the time
			o := optionsAt(database, front.URL)
			o.Registry = bytes.ReplaceAll(registry, []byte(`"timeout_ms": 20000`), []byte(`"timeout_ms": 600000`))
			test(t, handlertest.Start(t, o), p)
		})
	}
}

// proxy passes requests on to a service.
type proxy struct {
	to       string
	requests atomic.Int64
	quiet    atomic.Bool // for the functions of the tests
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

// passAll answers as the service does.
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
		if n := p.requests.Load(); n != 1 {
			t.Errorf("%d requests", n)
		}
		got := journal(t, env, r.CallID)
		slices.Sort(got[5:7]) // they run in parallel
		want := []string{}
		for i := range 5 {
			want = append(want, fmt.Sprintf(`step {"kind": "step", "name": "s%d", "result": "s%[1]d", "effects": {}}`, i))
		}
		both := `"effects": {"db_writes": [{"id": "a", "table": "things", "action": "insert"}, {"id": "b", "table": ` +
			`"things", "action": "insert"}]}`
		if !strings.Contains(strings.Join(got, " "), both) && strings.Count(strings.Join(got, " "), `"db_writes"`) != 2 {
			t.Errorf("the effects are in no step: %v", got)
		}
		want = append(want, got[5:7]...)
		want = append(want, `began {"name": "o"}`, `step {"kind": "once", "name": "o", "result": "o", "effects": {}}`)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if n := strings.Count(string(r.Effects), `"things"`); n != 2 {
			t.Errorf("the receipt has %s", r.Effects)
		}
		if got := told(env.Run(handlertest.Call{Tool: "remote.case"})); got != "succeeded [1, 1, 2]" {
			t.Errorf("with a call in between: %s", got)
		}
	})
}

// Every other answer is lost after the service has kept its steps. They do not run again.
func TestKeptStepsOutliveALostAnswer(t *testing.T) {
	loses := func(p *proxy, w http.ResponseWriter, r *http.Request, body []byte) {
		status, answer := p.pass(r, body)
		if p.quiet.CompareAndSwap(false, true) {
			panic(http.ErrAbortHandler)
		}
		p.quiet.Store(false)
		w.WriteHeader(status)
		_, _ = w.Write(answer)
	}
	eachKeeper(t, registryText, nil, loses, func(t *testing.T, env *handlertest.Env, _ *proxy) {
		r := env.Run(handlertest.Call{Tool: "remote.play", Input: `{"steps": 5}`})
		if got := told(r); got != kept {
			t.Error(got)
		}
		once := map[string]int{"s0": 1, "s1": 1, "s2": 1, "s3": 1, "s4": 1, "o": 1}
		if diff := cmp.Diff(once, ran(t, env, r.CallID)); diff != "" {
			t.Error(diff)
		}
	})
}

// A proxy delivers each request twice at the same time, and passes on the answer that comes first. A step that must not
// run twice does not.
func TestWithKeepAStepRunsOnceThoughARequestIsDeliveredTwice(t *testing.T) {
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
			r := env.Run(handlertest.Call{Tool: "remote.play", Input: `{"steps": 0}`})
			if got := told(r); got != `succeeded [null, null, "o"]` && !strings.Contains(got, "outcome_unknown") {
				t.Error(got)
			}
			if n := ran(t, env, r.CallID)["o"]; n > 1 {
				t.Errorf("it ran %d times", n)
			}
		}
	})
}

// The end of a step has committed, and its answer is lost in the only attempt. So the call has made progress: it waits.
func TestProgressCountsThoughItsAnswerIsLost(t *testing.T) {
	loses := func(p *proxy, w http.ResponseWriter, r *http.Request, body []byte) {
		status, answer := p.pass(r, body)
		if !p.quiet.Load() {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
		_, _ = w.Write(answer)
	}
	once := bytes.ReplaceAll(registryText, []byte(`"max_attempts": 20`), []byte(`"max_attempts": 1`))
	eachKeeper(t, once, nil, loses, func(t *testing.T, env *handlertest.Env, p *proxy) {
		id := env.Insert(handlertest.Call{Tool: "remote.book"})
		env.Until("it waits for code", func() bool {
			return testdb.Value[string](t, env.DB, "select coalesce(waits_for, status) from core_tool_calls where id = $1",
				id) == "code"
		})
		p.quiet.Store(true)
		testdb.Exec(t, env.DB, "select gem.resume($1)", id)
		if got := told(env.Await(id)); got != "succeeded 1" {
			t.Error(got)
		}
		if n := testdb.Value[int](t, env.DB, "select count(*) from things"); n != 1 {
			t.Errorf("%d rows", n)
		}
	})
}

func TestAStepThatCannotBeKeptRunsAgain(t *testing.T) {
	eachKeeper(t, registryText, []string{"SDK_BROKEN=yes"}, passAll, func(t *testing.T, env *handlertest.Env, _ *proxy) {
		id := env.Insert(handlertest.Call{Tool: "remote.play", Input: `{"steps": 1}`})
		env.Until("it is retried", func() bool {
			return strings.Contains(testdb.Value[string](t, env.DB, "select coalesce(string_agg(data::text, ''), '') from "+
				"core_tool_events where call_id = $1 and event = 'retried'", id), "A step was not kept")
		})
	})
}
