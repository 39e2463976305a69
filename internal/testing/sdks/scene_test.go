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
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// scene is a service with an agent, the world in which it acts, and a database. Tests start the workers.
type scene struct {
	t       *testing.T
	env     *handlertest.Env
	service *service
	world   *world
}

// eachScene runs a test with the agent of each language, and audits the database afterwards.
func eachScene(t *testing.T, test func(t *testing.T, s scene)) {
	t.Helper()
	t.Parallel()
	for language := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := serve(t, language, "", w.variable())
			options := optionsAt(testdb.New(t), s.url())
			options.NoWorker = true
			env := handlertest.Start(t, options)
			test(t, scene{t, env, s, w})
			report, err := audit.Database(t.Context(), env.DB, audit.Options{})
			if err != nil || report.Faults > 0 {
				t.Errorf("the audit: %+v, %v", report, err)
			}
		})
	}
}

// world is where thoughts and acts have their effects. It counts them, and does not answer those that a test holds.
type world struct {
	*httptest.Server
	mu   sync.Mutex
	done map[string]int
	held map[string]chan struct{}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{done: map[string]int{}, held: map[string]chan struct{}{}}
	w.Server = httptest.NewServer(w)
	t.Cleanup(func() {
		w.CloseClientConnections()
		w.Close()
	})
	return w
}

func (w *world) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
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

// variable tells a service where the world is.
func (w *world) variable() string { return "SDK_WORLD=" + strings.TrimPrefix(w.URL, "http://") }

// hold delays what is done from now on until it is freed.
func (w *world) hold(what string) (free func()) {
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

// did returns how often something was done.
func (w *world) did(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done[what]
}

// restart kills the service and starts it again, as another program if it gets more variables.
func (s scene) restart(more ...string) {
	s.t.Helper()
	s.service.kill()
	s.service.more = append([]string{s.world.variable()}, more...)
	s.service.start()
}

// untilDone waits until something was done a number of times.
func (s scene) untilDone(what string, times int) {
	s.t.Helper()
	s.env.Until(what, func() bool { return s.world.did(what) >= times })
}

// agentRan is the result of an agent.
type agentRan struct {
	Answer  string
	Turns   int
	Seen    []json.RawMessage
	Offered []string
}

// saw fails the test unless the agent has made these observations, in order.
func (a agentRan) saw(t *testing.T, want ...string) {
	t.Helper()
	got := make([]string, len(a.Seen))
	for i, seen := range a.Seen {
		got[i] = string(seen)
	}
	if !slices.Equal(got, want) {
		t.Errorf("it saw %s, want %s", got, want)
	}
}

// insert makes a call of ada's to the agent, whose model gives the answers of a script.
func (s scene) insert(script string) (id string) {
	s.t.Helper()
	return s.env.Insert(handlertest.Call{Tool: "remote.agent", Input: `{"max_turns": 3, "script": ` + script + `}`,
		CreatedBy: "ada"})
}

// ran returns the result of an agent, which must succeed.
func (s scene) ran(id string) agentRan {
	s.t.Helper()
	return handlertest.Output[agentRan](s.t, s.env.Await(id))
}

// answer answers a call as the owner of the database or, if user is not empty, as a signed-in user. It returns the
// SQLSTATE of the refusal, or an empty text.
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

// events returns how many events with a name the journal of a call has.
func (s scene) events(id, event string) (n int) {
	s.t.Helper()
	for _, name := range s.env.Journal(id) {
		if name == event {
			n++
		}
	}
	return n
}

// questions returns how many questions were asked in all.
func (s scene) questions() int {
	s.t.Helper()
	return testdb.Value[int](s.t, s.env.DB, "select count(*) from core_tool_calls where tool_name = 'wait.answer'")
}
