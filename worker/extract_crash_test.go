package worker_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/handlers/extract"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/handlers/llm"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
)

// The text has two shards. The answer to the second has to be corrected, so there are three answers in all.
func TestADocumentWhoseWorkerDiesAtAnyPointIsReadAndPaysOneAnswerTwiceAtMost(t *testing.T) {
	t.Parallel()
	document := "Alpha " + strings.Repeat("x", 392) + "\n\nBeta " + strings.Repeat("y", 200)
	input, err := json.Marshal(map[string]any{"text": document, "chunk": map[string]int{"size": 500, "context": 0},
		"program": map[string]any{"instructions": "Extract names.", "classes": []map[string]string{{"name": "name"}}}})
	if err != nil {
		t.Fatal(err)
	}
	answer := func(r *llmtest.Request) llmtest.Script {
		switch asked := r.Asked.Messages[0].Content[0].Text; {
		case strings.Contains(asked, "Alpha"):
			return llmtest.Say(`{"extractions": [{"class": "name", "quote": "Alpha"}]}`)
		case strings.Contains(asked, "REJECTED"):
			return llmtest.Say(`{"extractions": [{"class": "name", "quote": "Beta"}]}`)
		}
		return llmtest.Say(`{"extractions": [{"class": "name", "quote": "Beta"}, {"class": "name", "quote": "Nobody"}]}`)
	}
	const want = `{"kind": "non_empty", "document": 605, "rejected": 0, "extractions": [["Alpha", 0, 5], ["Beta", 400, 404]]}`
	for _, s := range some([]struct {
		point    string
		requests int
	}{
		{"before wait 1", 3}, // which makes the calls of both shards
		{"after wait 1", 3},
		{"after wait 2", 3},     // which waits for them
		{"before step 1", 4},    // the answer about the first shard was read, and is not in the journal
		{"after step 1", 3},     // it is
		{"after begin 2", 3},    // the second is to be asked about
		{"after stream 2", 4},   // it has answered
		{"before step 2", 4},    //
		{"after step 2", 3},     //
		{"before step 3", 4},    // the answer was corrected
		{"after step 3", 3},     //
		{"before receipt 1", 3}, // of a shard
		{"after receipt 1", 3},  //
		{"after receipt 2", 3},  //
		{"before handler 4", 3}, // which merges
		{"before receipt 3", 3}, //
		{"after receipt 3", 3},  //
	}) {
		t.Run(s.point, func(t *testing.T) {
			t.Parallel()
			server := llmtest.Start(t, llmtest.Options{Answer: answer})
			routes := modelRoutes(t, server)
			l := llm.Domain()
			env := handlertest.Start(t, handlertest.Options{Registry: gem.BuiltInRegistry, NoWorker: true,
				Domains:     []any{l, extract.Domain(l)},
				Environment: map[string]string{"LLM_ROUTES": routes}})
			id := env.Insert(handlertest.Call{Tool: "extract.run", Input: string(input), CreatedBy: "ada"})
			dieOn(t, nil, s.point, testdb.RouteTo(t, env.URL), doomedModels, "", "LLM_ROUTES="+routes)

			env.StartWorker(func(o *worker.Options) { o.HeartbeatInterval = 50 * time.Millisecond })
			if r := env.Await(id); r.Status != receipts.Succeeded {
				t.Fatalf("attempt %d: %s %s", r.Attempt, r.Status, r.Result)
			}
			got := text(t, env, `select jsonb_build_object('document', result -> 'document' -> 'length', 'kind',
				result -> 'result_kind', 'rejected', result -> 'rejected_count', 'extractions',
				(select jsonb_agg(jsonb_build_array(e -> 'quote', e -> 'start', e -> 'end'))
					from jsonb_array_elements(result -> 'extractions') e))::text
				from core_tool_receipts where call_id = $1`, id)
			if got != want {
				t.Errorf("got %s", got)
			}
			if n := server.Counts().Requests; n != s.requests {
				t.Errorf("the model was asked %d times, want %d", n, s.requests)
			}
			if n := number(t, env, "select count(*) from core_tool_calls where tool_name = 'extract.shard'"); n != 2 {
				t.Errorf("%d shards", n)
			}
			if twice := number(t, env, "select count(*) from (select from core_llm_requests where status = 'done' group by "+
				"call_id, label having count(*) > 1) t"); twice != 0 {
				t.Error("an answer that is in a journal was bought again")
			}
			report, err := audit.Database(t.Context(), env.DB, audit.Options{})
			if err != nil || report.Faults != 0 {
				t.Errorf("audit: %+v (%v)", report, err)
			}
		})
	}
}
