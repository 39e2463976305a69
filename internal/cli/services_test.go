package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// services is a delta whose agents are calls to remote.agent. A service in another language handles this durable tool.
type services struct {
	delta
	domains string
}

const serviceSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// eachService runs a test once for each language, with the agent of internal/testing/sdks.
func eachService(t *testing.T, test func(t *testing.T, s services)) {
	t.Helper()
	t.Parallel()
	for language, command := range map[string][]string{"TypeScript": {"node", "service.mjs"},
		"Python": {"python3", "service.py"}} {
		t.Run(language, func(t *testing.T) {
			s := services{delta: newDelta(t)}
			s.registry = serviceRegistry(t)
			effects := httptest.NewServer(s)
			t.Cleanup(effects.Close)
			s.domains = fmt.Sprintf(`{"version": "1", "remote": {"http": {"url": "http://127.0.0.1:%d", "secret_env":
				"SDK_SECRET", "durable": ["agent"]}}}`, startService(t, strings.TrimPrefix(effects.URL, "http://"), command))
			test(t, s)
			s.sound()
		})
	}
}

// serviceRegistry returns the registry of delta with the tools of the service added.
func serviceRegistry(t *testing.T) string {
	t.Helper()
	var file map[string]any
	if err := json.Unmarshal([]byte(deltaRegistry(t)), &file); err != nil {
		t.Fatal(err)
	}
	for name, calls := range map[string][]string{"remote.agent": {"remote.act"}, "remote.act": nil} {
		entry := map[string]any{"name": name, "input_schema": map[string]any{"type": "object"}, "output_schema": true,
			"idempotency": map[string]any{"mode": "safe-retry"}, "timeout_ms": 600000}
		if calls != nil {
			entry["calls"] = calls
		}
		file["tools"] = append(file["tools"].([]any), entry)
	}
	encoded, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

// startService starts a service, which runs until the end of the test, and returns its port. effects is the address of
// the server to which the agents report their effects.
func startService(t *testing.T, effects string, command []string) (port int) {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir, cmd.Stderr = "../testing/sdks", os.Stderr
	cmd.Env = append(bareEnvironment(), "SDK_SECRET="+serviceSecret, "SDK_WORLD="+effects)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		_, err = fmt.Sscan(line, &port)
	}
	if err != nil {
		t.Fatalf("%v printed %q: %v", command, line, err)
	}
	return port
}

// ServeHTTP receives the effects of the agents. It records each as an effect of delta, so that a test can count and
// delay it.
func (s services) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	what, err := io.ReadAll(r.Body)
	if err == nil {
		err = (&Delta{s.db}).do(r.Context(), exampleID, string(what))
	}
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
	}
}

func (s services) worker() *process {
	s.Helper()
	return s.delta.worker("GEM_DOMAINS="+s.domains, "SDK_SECRET="+serviceSecret)
}

// insert makes a call to remote.agent. The agent calls remote.act in its first turn and ends in its second turn.
func (s services) insert() (id string) {
	s.Helper()
	return testdb.Value[string](s.T, s.db, `insert into core_tool_calls (tool_name, input, created_by) values
		('remote.agent', '{"script": [{"actions": [{"tool": "remote.act", "input": {"text": "one"}}]},
		{"content": "done"}]}', 'ada') returning id::text`)
}

// continued fails the test unless an agent ends after two turns, and only its step "think 2" has run twice.
func (s services) continued(id string) {
	s.Helper()
	var ran struct {
		Answer string
		Turns  int
	}
	if r := s.await(id); json.Unmarshal(r.Result, &ran) != nil || ran.Answer != "done" || ran.Turns != 2 {
		s.Errorf("%s: %s", r.Status, r.Result)
	}
	for what, times := range map[string]int{"think 1": 1, "one": 1, "think 2": 2} {
		if n := s.did(what); n != times {
			s.Errorf("%s: %d times, want %d", what, n, times)
		}
	}
}

// A1: the worker is killed after the effect of a step, before the step is in the journal.
func TestAStepOfAServiceRunsAgainAfterItsWorkerWasKilled(t *testing.T) {
	eachService(t, func(_ *testing.T, s services) {
		s.hold("think 2")
		first := s.worker()
		id := s.insert()
		s.kill(first, "think 2", 1)
		s.free("think 2")
		s.worker()
		s.continued(id)
	})
}

// A2: the worker is stopped while a step runs, and the call continues on another worker.
func TestAServiceContinuesOnAnotherWorkerAfterAStop(t *testing.T) {
	eachService(t, func(t *testing.T, s services) {
		s.hold("think 2")
		first := s.worker()
		id := s.insert()
		s.until("select count(*) > 0 from delta_log where what = 'think 2'")
		second := s.worker()
		first.stop(t)
		s.until("select count(*) = 2 from delta_log where what = 'think 2'") // before the first one has ended
		s.free("think 2")
		s.continued(id)
		second.stderr.waitFor(t, id)
	})
}
