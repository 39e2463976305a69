package extract_test

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/gemworker/gem/handlers/extract"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/handlers/llm"
	"github.com/gemworker/gem/internal/llm/llmtest"
	"github.com/gemworker/gem/receipts"
)

// Scenario 11: two runs of one user ask once for both, and those of two users each for itself.
func TestRunsAtOnceShareTheirShards(t *testing.T) {
	t.Parallel()
	s := start(t)
	gate := make(chan struct{})
	both := sync.OnceFunc(func() { close(gate) })
	s.on("once", func(a asked) llmtest.Script {
		script := finds(a)
		script.Before = func(ctx context.Context, _ int) {
			select {
			case <-gate:
			case <-ctx.Done():
			}
		}
		return script
	})
	text := document("once", 3)
	call := run(text)
	first, second := s.Insert(call), s.Insert(call)
	s.Until("the second run's shards to wait for the key", func() bool {
		return query[int](t, s, "select count(*) from core_tool_calls where waits_for = 'key'") == 3
	})
	both()
	f, g := succeeded(t, s.Await(first), text), succeeded(t, s.Await(second), text)
	if s.requests("once") != 3 || f.Usage.Calls+g.Usage.Calls != 3 || f.Usage.Cached+g.Usage.Cached != 3 || f.spans() != g.spans() {
		t.Errorf("%d requests: %+v and %+v", s.requests("once"), f.Usage, g.Usage)
	}
	call.CreatedBy = "bob"
	if h := succeeded(t, s.Run(call), text); s.requests("once") != 6 || h.Usage.Cached != 0 {
		t.Errorf("%d requests: %+v", s.requests("once"), h.Usage)
	}
}

func TestWithOneScopeForAllCallersShareTheirShards(t *testing.T) {
	t.Parallel()
	s := start(t, func(o *handlertest.Options) { o.Environment["EXTRACT_CACHE_SCOPE"] = "all" })
	text := document("shared", 2)
	for n, user := range []string{"ada", "bob", ""} {
		call := run(text)
		call.CreatedBy, call.SignedIn = user, false
		if f := succeeded(t, s.Run(call), text); s.requests("shared") != 2 || f.Usage.Cached != min(n, 1)*2 {
			t.Errorf("%s: %d requests: %+v", user, s.requests("shared"), f.Usage)
		}
	}
}

func TestTheScopeIsOneThatThereIs(t *testing.T) {
	t.Parallel()
	_, models := llm.DomainAndModels()
	d := extract.Domain(models)
	config := d.Config.(interface {
		Wrong() map[string]string
	})
	if len(config.Wrong()) != 1 {
		t.Error("an empty scope is one")
	}
}

// Scenario 16: nobody can put an answer under the hash of another question.
func TestAPoisonedHashIsRefusedAndWinsNoKey(t *testing.T) {
	t.Parallel()
	s := start(t)
	text := paragraph("poison", 1)
	asked := func(input object) *receipts.Receipt {
		encoded, _ := json.Marshal(input)
		return s.Run(handlertest.Call{Tool: "extract.shard", Input: string(encoded), CreatedBy: "ada"})
	}
	honest := object{}
	{ // as extract.run asks it, about another text
		s.Run(run(paragraph("honest", 1)))
		if err := json.Unmarshal([]byte(query[string](t, s, "select input::text from core_tool_calls where tool_name = 'extract.shard'")), &honest); err != nil {
			t.Fatal(err)
		}
	}
	with := func(more object) object {
		input := maps.Clone(honest)
		maps.Copy(input, more)
		return input
	}
	before := s.server.Counts().Requests
	for what, more := range map[string]object{
		"another text":    {"text": text},
		"another context": {"before": "x"},
		"another model":   {"model": "model_b"},
		"another route":   {"route": "other"},
		"another program": {"program": object{"instructions": "Say nothing.", "classes": []object{{"name": "token"}}}},
		"another scope":   {"scope": "bob"},
		"another prompt":  {"prompt": 7},
	} {
		input := with(more)
		input["request_hash"] = strings.Repeat("0", 64)
		if r := asked(input); s.server.Counts().Requests != before {
			t.Errorf("%s: a model was asked: %s", what, r.Result)
		} else if e := handlertest.ErrorOf(t, r); e.Code != "request_hash_mismatch" {
			t.Errorf("%s: %s", what, r.Result)
		}
	}
	if n := query[int](t, s, "select count(*) from core_tool_receipts where idempotency_key like '%' || repeat('0', 64) || '%' and status = 'succeeded'"); n != 0 {
		t.Error("a key was won")
	}
}
