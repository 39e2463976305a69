package audit_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/ledger"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
)

// asked are calls that asked models: one whose first attempt was lost, and one that was cancelled after its worker was
// lost.
func asked(t *testing.T, env *handlertest.Env) {
	t.Helper()
	h := handler{t: t, env: env}
	send := func(attempt int, name string) int64 {
		t.Helper()
		begun, err := ledger.Begin{CallID: h.call, Attempt: attempt, Label: "main", Route: "default", RoutesVersion: "1",
			Targets: []ledger.Target{{Target: name, Provider: "p", Model: "m",
				Reserve: provider.USD, Priced: true, Budgets: []ledger.Budget{{Name: "all", Period: ledger.Month,
					Limit: 99 * provider.USD}}}}}.Send(context.Background(), env.DB)
		if err != nil || begun.ID == 0 {
			t.Fatalf("%+v, %v", begun, err)
		}
		return begun.ID
	}
	end := func(e ledger.End) {
		t.Helper()
		if settled, err := e.Settle(context.Background(), env.DB); err != nil || !settled {
			t.Fatal(settled, err)
		}
	}
	written := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	h.begin(800)
	send(1, "x")
	// The attempt did not see what the ledger decided afterwards.
	var seen handlers.Call
	seen.CalledModel("p", "https://p.example/v1", 200, receipts.ModelRequest{Request: 1, Target: "x", Model: "m",
		Outcome: string(ledger.Done)})
	testdb.Exec(t, env.DB, "select gem.release($1, 1, 'd', $2)", h.call, written(seen.Effects()))
	h.claim()
	end(ledger.End{ID: send(2, "x"), Status: ledger.Failed, Kind: provider.RateLimited, HTTPStatus: 429,
		Cost: new(provider.Money)})
	end(ledger.End{ID: send(2, "y"), Status: ledger.Done, HTTPStatus: 200, Cost: new(provider.USD / 4),
		Usage: provider.Usage{Input: 7, Output: 9, Known: true}})
	requests, err := ledger.Requests(t.Context(), env.DB, h.call)
	if err != nil {
		t.Fatal(err)
	}
	var call handlers.Call
	for _, r := range requests {
		call.CalledModel(r.Provider, "https://p.example/v1", r.HTTPStatus, r.Entry())
	}
	testdb.Exec(t, env.DB, `select gem.finish($1, 2, 'd', 'succeeded', $2,
		$3::jsonb || '{"idempotency": {"mode": "none", "hit": false}}', 'x')`, h.call,
		written(map[string]any{"usage": map[string]any{"call": ledger.Sum(requests)}}), written(call.Effects()))

	h.begin(800)
	send(1, "y")
	h.do("select gem.release($1, 1, 'd')")
	h.do("select cancel_tool_call($1)")
}
