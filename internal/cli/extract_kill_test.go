package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
)

// kill -9 of one of two workers during the read of a document. The model is stopped before that, so that the worker
// dies with as many open questions as it can have.
func TestADocumentOfWhichAWorkerIsKilledPaysAgainForWhatItAskedThen(t *testing.T) {
	t.Parallel()
	shards, slots := 30, 3
	if os.Getenv("GEM_TEST_LONG") != "" {
		shards, slots = 489, 10
	}
	undisturbed := newReading(t, shards, slots, shards+1)
	want := undisturbed.result()
	if n := undisturbed.server.Counts().Requests; n != shards {
		t.Errorf("%d requests for %d shards", n, shards)
	}
	for _, percent := range []int{10, 50, 90} {
		t.Run(fmt.Sprintf("at %d %%", percent), func(t *testing.T) {
			t.Parallel()
			r := newReading(t, shards, slots, shards*percent/100)
			before, after := r.killOne()
			if got := r.result(); got != want {
				t.Errorf("the result is another one:\n%s\n%s", got, want)
			}
			if again := int64(r.server.Counts().Requests - shards); again < before || again > after || again > int64(slots) {
				t.Errorf("%d answers were paid twice, of a worker with %d slots that waited for %d to %d", again, slots, before,
					after)
			}
			r.sound()
		})
	}
}

// reading is a document that two workers read with a model that stops at a request.
type reading struct {
	delta
	server  *llmtest.Server
	workers map[string]*process
	id      string
	held    atomic.Int64  // requests that came since
	enough  int64         // so many come at least
	release chan struct{} // lets the model continue
}

var shardToken = regexp.MustCompile(`\bT\d+\b`)

func newReading(t *testing.T, shards, slots, stopAt int) *reading {
	t.Helper()
	r := &reading{workers: map[string]*process{}, enough: int64(min(slots, shards-stopAt+1)), release: make(chan struct{})}
	var asked atomic.Int64
	r.server = llmtest.Start(t, llmtest.Options{Answer: func(q *llmtest.Request) llmtest.Script {
		answer := llmtest.Say(fmt.Sprintf(`{"extractions": [{"class": "token", "quote": %q}]}`,
			shardToken.FindString(q.Asked.Messages[0].Content[0].Text)))
		if asked.Add(1) >= int64(stopAt) {
			answer.Before = func(ctx context.Context, delta int) {
				if delta == 0 {
					r.held.Add(1)
					select {
					case <-r.release:
					case <-ctx.Done():
					}
				}
			}
		}
		return answer
	}})
	url := newDatabase(t)
	r.delta = delta{T: t, url: url, db: testdb.Pool(t, url)}
	routes := fmt.Sprintf(`{"version": "1", "providers": {"here": {"dialect": "openai", "base_url": %q, "local": true}},
		"targets": {"quick": {"provider": "here", "model": "quick-1", "context": 100000, "max_output": 2000}}, "routes": {"default": {"targets": ["quick"]}}}`,
		r.server.BaseURL(llmtest.OpenAI))
	for _, name := range []string{"one", "two"} {
		r.workers[name] = startWorker(t, url, "LLM_ROUTES="+routes, "WORKER_ID="+name,
			fmt.Sprint("WORKER_CONCURRENCY=", slots))
	}
	var text strings.Builder
	for n := range shards {
		line := fmt.Sprintf("T%d stands in this line.\n", n)
		text.WriteString(line + strings.Repeat("x", 398-len(line)) + "\n\n")
	}
	input, err := json.Marshal(map[string]any{"text": text.String(), "chunk": map[string]int{"size": 500, "context": 0},
		"program": map[string]any{"instructions": "Extract tokens.", "classes": []map[string]string{{"name": "token"}}}})
	if err != nil {
		t.Fatal(err)
	}
	r.id = testdb.Value[string](t, r.db,
		"insert into core_tool_calls (tool_name, input) values ('extract.run', $1) returning "+
			"id::text", input)
	return r
}

// killOne kills the worker with more open requests, once all of them have reached the model. It returns the number of
// requests before and after that: the worker may have started some meanwhile that did not reach the model.
func (r *reading) killOne() (before, after int64) {
	r.Helper()
	const sent = "from core_llm_requests q join core_tool_calls c on c.id = q.call_id where q.status = 'sent'"
	name := ""
	for deadline := time.Now().Add(patience); name == ""; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("%d requests are held, and not %d", r.held.Load(), r.enough)
		}
		held := r.held.Load()
		var begun, open int64
		var most string
		if err := r.db.QueryRow(r.Context(), `select (select count(*) from core_llm_requests), coalesce(sum(n), 0),
			coalesce(max(n), 0), coalesce((array_agg(worker order by n desc))[1], '')
			from (select c.claimed_by as worker, count(*) as n `+sent+" group by c.claimed_by) w").Scan(&begun, &open, &before,
			&most); err != nil {
			r.Fatal(err)
		}
		if held >= r.enough && held == open && begun == int64(r.server.Counts().Requests) {
			name = most
		}
	}
	victim := r.workers[name[:3]]
	if err := victim.cmd.Process.Kill(); err != nil {
		r.Fatal(err)
	}
	_ = victim.cmd.Wait()
	after = testdb.Value[int64](r.T, r.db, "select count(*) "+sent+" and c.claimed_by = $1", name)
	close(r.release)
	return before, after
}

// result returns the result of the run, without the ids of calls and the cost of the requests.
func (r *reading) result() string {
	r.Helper()
	if receipt := r.await(r.id); receipt.Status != receipts.Succeeded {
		r.Fatalf("%s: %s", receipt.Status, receipt.Result)
	}
	return testdb.Value[string](r.T, r.db, `select (jsonb_set(result, '{shards}',
		(select jsonb_agg(s - 'call_id' order by n) from jsonb_array_elements(result -> 'shards') with ordinality a (s, n)))
		#- '{usage,requests}' #- '{usage,unknown_requests}')::text from core_tool_receipts where call_id = $1`, r.id)
}
