package extract_test

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/gemworker/gem"
	pure "github.com/gemworker/gem/grounding"
	"github.com/gemworker/gem/handlers/extract"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/handlers/llm"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
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
		return testdb.Value[int](t, s.DB, "select count(*) from core_tool_calls where waits_for = 'key'") == 3
	})
	both()
	f, g := succeeded(t, s.Await(first), text), succeeded(t, s.Await(second), text)
	if s.requests("once") != 3 || f.Usage.Calls+g.Usage.Calls != 3 || f.Usage.Cached+g.Usage.Cached != 3 ||
		f.spans() != g.spans() {
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
	d := extract.Domain(llm.Domain())
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
		if err := json.Unmarshal([]byte(testdb.Value[string](t, s.DB,
			"select input::text from core_tool_calls where tool_name = 'extract.shard'")), &honest); err != nil {
			t.Fatal(err)
		}
	}
	with := func(more object) object {
		input := maps.Clone(honest)
		maps.Copy(input, more)
		return input
	}
	before := s.server.Counts().Requests
	for what, test := range map[string]struct {
		more object
		code string
	}{
		"another text":    {object{"text": text}, "request_hash_mismatch"}, // its hash has an answer by now
		"another context": {object{"before": "x"}, "request_hash_mismatch"},
		"another model":   {object{"model": "model_b"}, "request_hash_mismatch"},
		"another program": {object{"program": object{"instructions": "Say nothing.", "classes": []object{{"name": "token"}}}},
			"request_hash_mismatch"},
		"another scope":  {object{"scope": "bob"}, "request_hash_mismatch"},
		"another prompt": {object{"prompt": 7}, "request_hash_mismatch"},
		"no hash":        {object{"request_hash": strings.Repeat("0", 64)}, "request_hash_mismatch"},
		"another route": {object{"route": "other", "text": text, "request_hash": hashOf(honest, object{"text": text})},
			"request_hash_mismatch"},
		"nobody's scope": {object{"scope": "", "request_hash": hashOf(honest, object{"scope": ""})}, "scope_mismatch"},
		"bob's scope":    {object{"scope": "bob", "request_hash": hashOf(honest, object{"scope": "bob"})}, "scope_mismatch"},
	} {
		if r := asked(with(test.more)); s.server.Counts().Requests != before {
			t.Errorf("%s: a model was asked: %s", what, r.Result)
		} else if e := handlertest.ErrorOf(t, r); string(e.Code) != test.code || r.ReplayOf != "" {
			t.Errorf("%s: %s", what, r.Result)
		}
	}
	if n := testdb.Value[int](t, s.DB,
		"select count(*) from core_tool_receipts where tool_name = 'extract.shard' and status = "+
			"'succeeded'"); n != 1 {
		t.Errorf("%d keys were won", n)
	}
	if r := asked(honest); r.ReplayOf == "" || s.server.Counts().Requests != before {
		t.Errorf("the honest question: %s", r.Result)
	}
	if r := asked(with(object{"text": text, "request_hash": hashOf(honest, object{"text": text})})); s.server.Counts().
		Requests != before+1 {
		t.Errorf("an honest question of its own: %s", r.Result)
	}
	if f := succeeded(t, s.Run(run(text)), text); f.Usage.Cached != 1 || f.spans() != "T1 0-2" {
		t.Errorf("a run asks the same: %+v", f)
	}
}

// hashOf is the hash of a question with other fields.
func hashOf(question, more object) string {
	input := maps.Clone(question)
	maps.Copy(input, more)
	encoded, _ := json.Marshal(input)
	var r pure.Request
	_ = json.Unmarshal(encoded, &r)
	return r.Sum()
}

func TestASignedInUserAsksThroughRunsAlone(t *testing.T) {
	t.Parallel()
	open := strings.Replace(string(gem.BuiltInRegistry), `"tools": [`,
		`"overrides": {"extract.run": {"frontends": true}}, "tools": [`, 1)
	s := start(t, func(o *handlertest.Options) { o.Registry = []byte(open) })
	text := document("signed", 2)
	call := run(text)
	call.SignedIn = true
	if f := succeeded(t, s.Run(call), text); f.spans() != "T1 0-2, T2 400-402" {
		t.Errorf("%+v", f)
	}
	err := pgx.BeginFunc(t.Context(), s.DB, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `select set_config('request.jwt.claims', '{"role": "authenticated", "sub": "ada"}',
			true)`)
		if err == nil {
			_, err = tx.Exec(t.Context(), "insert into core_tool_calls (tool_name, input) select tool_name, input from "+
				"core_tool_calls where tool_name = 'extract.shard' limit 1")
		}
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "extract.shard is closed to signed-in users") {
		t.Errorf("a shard of a signed-in user's: %v", err)
	}
}
