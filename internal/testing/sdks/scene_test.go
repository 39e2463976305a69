package sdks

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// scene is a service with an agent, the server that counts the agent's effects, and a database. Tests start the
// workers.
type scene struct {
	t       *testing.T
	env     *handlertest.Env
	service *service
	effects *effects
}

// eachScene runs a test with the agent of each language, and audits the database afterwards.
func eachScene(t *testing.T, test func(t *testing.T, s scene)) {
	t.Helper()
	t.Parallel()
	for language := range languages {
		t.Run(language, func(t *testing.T) {
			if language != "TypeScript" {
				testdb.Long(t, "the same test with TypeScript")
			}
			t.Parallel()
			counted := newEffects(t)
			s := serve(t, language, "", counted.variable())
			options := optionsAt(testdb.New(t), s.url())
			options.NoWorker = true
			env := handlertest.Start(t, options)
			test(t, scene{t, env, s, counted})
			report, err := audit.Database(t.Context(), env.DB, audit.Options{})
			if err != nil || report.Faults > 0 {
				t.Errorf("the audit reports %+v, %v", report, err)
			}
		})
	}
}

// effects is a server that receives a request for each effect of an agent, such as "think 1" in its first turn. It
// counts the effects. A test can hold the answer to an effect, so that the step of the agent does not end.
type effects struct {
	*httptest.Server
	mu   sync.Mutex
	done map[string]int
	held map[string]chan struct{}
}

func newEffects(t *testing.T) *effects {
	t.Helper()
	w := &effects{done: map[string]int{}, held: map[string]chan struct{}{}}
	w.Server = httptest.NewServer(w)
	t.Cleanup(func() {
		w.CloseClientConnections()
		w.Close()
	})
	return w
}

func (w *effects) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	w.mu.Lock()
	w.done[string(body)]++
	held := w.held[string(body)]
	w.mu.Unlock()
	if held == nil {
		return
	}
	select {
	case <-held:
	case <-r.Context().Done(): // the service died
	}
}

// variable returns the environment variable that gives a service the address of the server.
func (w *effects) variable() string { return "SDK_WORLD=" + strings.TrimPrefix(w.URL, "http://") }

// hold delays the answers to an effect from now on, until the test calls free.
func (w *effects) hold(what string) (free func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := make(chan struct{})
	w.held[what] = held
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.held, what)
		close(held)
	}
}

// count returns how often an effect has happened.
func (w *effects) count(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done[what]
}

// restart kills the service and starts it again. more adds variables to its environment, for example to run another
// version of the agent.
func (s scene) restart(more ...string) {
	s.t.Helper()
	s.service.kill()
	s.service.more = append([]string{s.effects.variable()}, more...)
	s.service.start()
}

// untilDone waits until an effect has happened a number of times.
func (s scene) untilDone(what string, times int) {
	s.t.Helper()
	s.env.Until(what, func() bool { return s.effects.count(what) >= times })
}

// agentRan is the result of an agent.
type agentRan struct {
	Answer  string
	Turns   int
	Seen    []json.RawMessage
	Offered []string
}

// saw fails the test unless the agent's actions returned these results, in order.
func (a agentRan) saw(t *testing.T, want ...string) {
	t.Helper()
	got := make([]string, len(a.Seen))
	for i, seen := range a.Seen {
		got[i] = string(seen)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the agent saw the results %s, want %s", got, want)
	}
}

// insert makes a call to the agent, created by ada. The lines of the script take the place of the model's answers.
func (s scene) insert(script string) (id string) {
	s.t.Helper()
	return s.env.Insert(handlertest.Call{Tool: "remote.agent", Input: `{"max_turns": 3, "script": ` + script + `}`,
		CreatedBy: "ada"})
}

// asked makes a call to the agent that asks a question. A worker runs until the agent waits for the answer.
func (s scene) asked() (id string, q client.Question) {
	s.t.Helper()
	w := s.env.StartWorker()
	id = s.insert(asks)
	q = s.env.Question(id)
	s.env.UntilItWaits(id, "call")
	w.Stop()
	return id, q
}

// ran waits for the end of a call to the agent and returns its result. The test fails unless the call succeeds.
func (s scene) ran(id string) agentRan {
	s.t.Helper()
	return handlertest.Output[agentRan](s.t, s.env.Await(id))
}

// answer answers a call as the owner of the database or, if user is not empty, as that signed-in user. If the answer is
// rejected, it returns the SQLSTATE of the error, and otherwise an empty text.
func (s scene) answer(id, answer, user string) (state string) {
	s.t.Helper()
	err := pgx.BeginFunc(s.t.Context(), s.env.DB, func(tx pgx.Tx) error {
		if user != "" {
			if _, err := tx.Exec(s.t.Context(), `select set_config('request.jwt.claims',
				jsonb_build_object('role', 'authenticated', 'sub', $1::text)::text, true)`, user); err != nil {
				return err
			}
		}
		_, err := tx.Exec(s.t.Context(), "select answer_tool_call($1, to_jsonb($2::text))", id, answer)
		return err
	})
	if refusal := (*pgconn.PgError)(nil); errors.As(err, &refusal) {
		return refusal.Code
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return ""
}

// events returns the number of events with a name in the journal of a call.
func (s scene) events(id, event string) (n int) {
	s.t.Helper()
	for _, name := range s.env.Journal(id) {
		if name == event {
			n++
		}
	}
	return n
}

// questions returns the number of calls to wait.answer.
func (s scene) questions() int {
	s.t.Helper()
	return testdb.Value[int](s.t, s.env.DB, "select count(*) from core_tool_calls where tool_name = 'wait.answer'")
}
