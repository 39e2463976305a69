package extract_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
)

func TestWithoutAModelNothingBegins(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*scene, *handlertest.Options){
		"no routes": func(_ *scene, o *handlertest.Options) { o.Environment = nil },
		"no key": func(s *scene, o *handlertest.Options) {
			o.Environment["LLM_ROUTES"] = routes(s.server, "SCRIPTED_API_KEY")
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := llmtest.Start(t, llmtest.Options{})
			s := start(t, func(o *handlertest.Options) { change(&scene{server: server}, o) })
			r := s.Run(run(document("missing", 2)))
			if r.Status != receipts.NotConfigured || !strings.Contains(string(r.Result), "_API_KEY") && what == "no key" {
				t.Errorf("%s: %s", r.Status, r.Result)
			}
			if n := testdb.Value[int](t, s.DB, "select count(*) from core_tool_calls"); n != 1 {
				t.Errorf("%d calls", n)
			}
			if f := succeeded(t, s.Run(run("  \n")), "  \n"); f.Kind != "empty_by_evidence" { // for which none is needed
				t.Errorf("%+v", f)
			}
		})
	}
}

func TestAProviderThatIsBusyIsAskedAgainLater(t *testing.T) {
	t.Parallel()
	s := start(t)
	text := document("busy", 2)
	s.server.Script("", llmtest.Script{Fault: llmtest.Limited(20*time.Second, llmtest.InSeconds)})
	id := s.Insert(run(text))
	s.UntilItWaits(id, "call")
	s.Until("a shard to come back later", func() bool {
		return testdb.Value[int](t, s.DB, "select count(*) from core_tool_events where event = 'retried'") > 0 &&
			testdb.Value[int](t, s.DB, "select count(*) from core_tool_calls where status = 'running'") == 0
	})
	s.Pass(time.Minute)
	r := s.Await(id)
	f := succeeded(t, r, text)
	if f.spans() != "T1 0-2, T2 400-402" || f.Usage.Calls != 2 || f.Usage.Requests != 3 ||
		f.Usage.Requests != s.requests("busy") {
		t.Errorf("%d requests: %+v", s.requests("busy"), f.Usage)
	}
}

func TestACancelledRunLeavesWhatWasRead(t *testing.T) {
	t.Parallel()
	s := start(t)
	text := document("cancel", 3)
	s.on("cancel", func(a asked) llmtest.Script {
		script := finds(a)
		if strings.Contains(a.Text, "T3") {
			script.Before = func(ctx context.Context, _ int) { <-ctx.Done() }
		}
		return script
	})
	id := s.Insert(run(text))
	s.Until("two shards to be read, and their ends to be reported", func() bool {
		return testdb.Value[int](t, s.DB, "select count(*) from core_tool_events where event = 'returned'") == 2 &&
			s.requests("cancel") == 3
	})
	s.UntilItWaits(id, "call")
	if _, err := client.Cancel(t.Context(), s.DB, id); err != nil {
		t.Fatal(err)
	}
	if f := failedWith(t, s.Await(id), "cancelled"); f.Usage.Calls != 2 || f.Usage.Requests != 2 || f.Usage.Cost == "" {
		t.Errorf("%+v", f.Usage)
	}
	s.Until("the open shard to be cancelled", func() bool {
		return testdb.Value[int](t, s.DB,
			"select count(*) from core_tool_receipts where tool_name = 'extract.shard' and status = "+
				"'failed'") == 1
	})
	s.on("cancel", finds)
	if f := succeeded(t, s.Run(run(text)), text); f.Usage.Cached != 2 || f.Usage.Calls != 1 {
		t.Errorf("%+v", f.Usage)
	}
}

func TestWhatWasPrunedIsPaidAgain(t *testing.T) {
	t.Parallel()
	s := start(t)
	text := document("pruned", 2)
	succeeded(t, s.Run(run(text)), text)
	if n := testdb.Value[int](t, s.DB, "select count(*) from gem.prune(array(select id from core_tool_calls))"); n != 3 {
		t.Fatalf("%d calls were pruned", n)
	}
	if f := succeeded(t, s.Run(run(text)), text); f.Usage.Calls != 2 || f.Usage.Cached != 0 || s.requests("pruned") != 4 {
		t.Errorf("%d requests: %+v", s.requests("pruned"), f.Usage)
	}
}

// The plan of a resumed call belongs to the program that resumes it: it does not take for its own what
// another program has asked.
func TestARunGoesOnWithOtherModels(t *testing.T) {
	t.Parallel()
	s := start(t, func(o *handlertest.Options) { o.NoWorker = true })
	text := document("models", 2)
	s.on("models", func(a asked) llmtest.Script {
		script := finds(a)
		if a.Model == "model_a" && strings.Contains(a.Text, "T2") {
			script.Before = func(ctx context.Context, _ int) { <-ctx.Done() }
		}
		return script
	})
	w := s.StartWorker()
	id := s.Insert(run(text))
	s.Until("one shard to be read", func() bool {
		return testdb.Value[int](t, s.DB, "select count(*) from core_tool_receipts") == 1 && s.requests("models") == 2
	})
	s.UntilItWaits(id, "call")
	w.Kill()
	next := s.onSameDatabase(t, strings.NewReplacer(`"version":"1"`, `"version":"2"`, `["model_a"]`,
		`["model_b"]`).Replace(s.routes))
	r := next.Await(id)
	if f := succeeded(t, r, text); f.spans() != "T1 0-2, T2 400-402" || strings.Join(f.Models, " ") != "model_b" {
		t.Errorf("%s", r.Result)
	}
}
