package supabase_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/backends/sqlfunc"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/supabase"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
)

const leakyRegistry = `{"version": "leaky", "tools": [%s]}`

// An SQL function fails below another function. The name and the statement of that function contain a marker. Postgres
// adds the marker to the error's context, for operators. A signed-in user reads everything that the API returns about
// the call, and requests more.
func TestNoFrontendReadsWhereAFunctionFailed(t *testing.T) {
	t.Parallel()
	const marker = "zq7_marker"
	p := supabase.Start(t, supabase.Options{OlderProject: true})
	var tools []string
	for _, name := range []string{"shop.says", "shop.breaks", "shop.busy"} {
		tools = append(tools,
			fmt.Sprintf(`{"name": %q, "description": "A tool of the shop.", "permissions": ["write:db"], "timeout_ms": 60000, "receipt_fields": [],
			"retry": {"max_attempts": 2, "backoff_ms": 1}, "idempotency": {"mode": "safe-retry"}, "input_schema": {"type": "object"}, "output_schema": {"type": "object"}}`, name))
	}
	p.Exec(`
		create function public.zq7_marker_raise(code text, said text) returns void language plpgsql as $f$
		begin
		  raise exception using errcode = code, message = said, detail = case when code = 'P0001' then ''
		    else 'zq7_marker' end;
		end $f$;
		create function tools.shop_says(jsonb) returns jsonb language plpgsql as $f$
		begin perform public.zq7_marker_raise('P0001', 'There is no lamp.'); return '{}'; end $f$;
		create function tools.shop_breaks(jsonb) returns jsonb language plpgsql as $f$
		begin perform public.zq7_marker_raise('42P01', 'relation "zq7_marker" does not exist'); return '{}'; end $f$;
		create function tools.shop_busy(jsonb) returns jsonb language plpgsql as $f$
		begin perform public.zq7_marker_raise('40001', 'zq7_marker'); return '{}'; end $f$`)
	env := handlertest.Start(t, handlertest.Options{Database: p.DatabaseURL,
		Registry: fmt.Appendf(nil, leakyRegistry, strings.Join(tools, ",")),
		Backends: func(db *pgxpool.Pool, log *zap.Logger) []binding.Backend {
			return []binding.Backend{sqlfunc.New(db, log)}
		}})

	ada := p.User("ada")
	var got strings.Builder
	send := func(r supabase.Request, outcome string) supabase.Answer {
		t.Helper()
		r.Token = ada
		a := p.Send(r)
		_ = a.Header.Write(&got)
		got.Write(a.Data)
		if a.Outcome() != outcome {
			t.Errorf("%s %s: %s, want %s: %s", r.Method, r.Path, a.Outcome(), outcome, a.Data)
		}
		return a
	}
	get := func(path, outcome string) { t.Helper(); send(supabase.Request{Path: path}, outcome) }
	for _, tool := range []string{"shop.says", "shop.breaks", "shop.busy"} {
		a := send(supabase.Request{Method: "POST", Path: "/rpc/enqueue_tool_call",
			Body: fmt.Sprintf(`{"tool_name": %q}`, tool)}, "200")
		var id string
		if err := json.Unmarshal(a.Data, &id); err != nil {
			t.Fatal(err)
		}
		env.Await(id)
		get("/rpc/get_receipt?call_id="+id, "200")
		send(supabase.Request{Method: "POST", Path: "/rpc/get_receipt", Body: fmt.Sprintf(`{"call_id": %q}`, id)}, "200")
		send(supabase.Request{Method: "POST", Path: "/rpc/cancel_tool_call", Body: fmt.Sprintf(`{"id": %q}`, id)}, "200")
	}
	get("/core_tool_calls?select=id,tool_name,input,status,error,attempt,retries,events", "200")
	get("/core_tool_receipts?select=id,call_id,tool_name,status,result,effects,attempt", "200")
	get("/core_tool_events?select=call_id,seq,at,event,attempt", "200")
	get("/core_tool_progress?select=*", "200")
	get("/open_questions", "200")
	get("/rpc/list_tools", "200")
	for _, path := range []string{"/core_tool_events?select=data", "/core_tool_events?select=event&data=not.is.null",
		"/core_tool_events", "/core_tool_events?order=data",
		"/core_tool_calls?select=*", "/core_tool_calls?select=id,core_tool_events(data)", "/core_tool_receipts?select=*"} {
		get(path, "403 42501")
	}
	send(supabase.Request{Path: "/journal", Header: map[string]string{"Accept-Profile": "gem"}}, "406 PGRST106")

	for said, times := range map[string]int{"There is no lamp.": 4,
		"failed unexpectedly. Its operators can look up the cause by the reference": 8, `"retried"`: 1} {
		if n := strings.Count(got.String(), said); n < times {
			t.Errorf("%q was read %d times, want %d:\n%s", said, n, times, got.String())
		}
	}
	for _, secret := range []string{marker, "PL/pgSQL"} {
		if at := strings.Index(got.String(), secret); at >= 0 {
			t.Errorf("a signed-in user reads %s: %s", secret, got.String()[max(0, at-300):min(got.Len(), at+300)])
		}
	}
	if n := p.Value("select count(*) from core_tool_events where data::text like '%' || $1 || '%'", marker); n != "4" {
		t.Errorf("operators find it in %s events, want 4", n)
	}
}
