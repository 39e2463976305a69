package supabase_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/supabase"
)

// Shop is the domain of these tests.
type Shop struct{ began, finish chan struct{} }

type Order struct {
	Article string `json:"article"`
}

type Ordered struct {
	Number string `json:"number"`
}

// Order has an effect in Postgres.
func (Shop) Order(ctx context.Context, tx handlers.Tx, call *handlers.Call, in Order) (out Ordered, err error) {
	err = tx.QueryRow(ctx, "insert into notes (title, call_id) values ($1, $2::text::uuid) returning id::text", in.Article,
		call.ID).Scan(&out.Number)
	call.Wrote("notes", handlers.Insert, out.Number)
	return out, err
}

// Fetch reports its start and ends on request.
func (s Shop) Fetch(ctx context.Context, _ *handlers.Call, in Order) (Ordered, error) {
	s.began <- struct{}{}
	select {
	case <-s.finish:
		return Ordered{in.Article}, nil
	case <-ctx.Done():
		return Ordered{}, ctx.Err()
	}
}

// Repair always fails.
func (Shop) Repair(context.Context, *handlers.Call, Order) (Ordered, error) {
	return Ordered{}, &handlers.Failure{Code: "out_of_glue", Message: "There is no glue.",
		Details: map[string]int{"tubes": 0}}
}

// Deliver is not configured.
func (Shop) Deliver(context.Context, *handlers.Call, Order) (Ordered, error) {
	return Ordered{}, &handlers.NotConfigured{Reason: "There is no van.", RequiredEnv: []string{"SHOP_VAN"},
		NextSteps: []string{"Buy one."}}
}

func shopRegistry(t *testing.T) []byte {
	t.Helper()
	type object = map[string]any
	var tools []object
	for name, idempotency := range map[string]object{
		"shop.order": {"mode": "keyed", "key_field": "article"}, "shop.fetch": {"mode": "none"},
		"shop.repair":  {"mode": "none"},
		"shop.deliver": {"mode": "none"}, "shop.wrap": {"mode": "none"}, // without a handler
	} {
		tools = append(tools, object{
			"name": name, "idempotency": idempotency, "timeout_ms": 600_000, "permissions": []string{},
			"input_schema": object{"type": "object", "required": []string{"article"}, "additionalProperties": false,
				"properties": object{"article": object{"type": "string"}}},
			"output_schema": object{"type": "object"},
		})
	}
	text, err := json.Marshal(object{"version": "1.0.0", "tools": tools})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A frontend has only the client. This is the code that it would use.
const (
	enqueue = `const {data: id, error} = await supabase.rpc('enqueue_tool_call', {tool_name: '%s', input: %s}); if (error) throw error.message; return id`
	poll    = `
		for (const until = Date.now() + 60_000; Date.now() < until; ) {
			const {data: receipt, error} = await supabase.rpc('get_receipt', {call_id: '%s'})
			if (error) throw error.message
			if (receipt) return %s
			await new Promise(wake => setTimeout(wake, 20))
		}
		throw 'no receipt'`
	call1 = `const {data, error} = await supabase.from('core_tool_calls').select('%s').eq('id', '%s').single();
		if (error) throw error.message; return data`
)

func TestTheLifeOfACallAsItsFrontendSeesIt(t *testing.T) {
	t.Parallel()
	p := supabase.Start(t, supabase.Options{})
	shop := Shop{began: make(chan struct{}), finish: make(chan struct{})}
	env := handlertest.Start(t, handlertest.Options{
		Database: p.DatabaseURL, Registry: shopRegistry(t), Domains: []any{shop}, NoWorker: true,
	})
	run := func(body string, args ...any) json.RawMessage {
		t.Helper()
		return p.Client().Run(p.User("ada"), fmt.Sprintf(body, args...))
	}
	send := func(tool, input string) (id string) {
		t.Helper()
		if err := json.Unmarshal(run(enqueue, tool, input), &id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	want := func(what string, got json.RawMessage, want string) {
		t.Helper()
		if string(got) != want {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
	await := func(from chan struct{}) {
		t.Helper()
		select {
		case <-from:
		case <-time.After(time.Minute):
			t.Fatal("no handler began")
		}
	}

	id := send("shop.fetch", `{article: 'a lamp'}`)
	want("before there is a worker", run(call1, "status, attempt", id), `{"status":"queued","attempt":0}`)
	want("before there is a receipt", run(`return (await supabase.rpc('get_receipt', {call_id: '%s'})).data`, id), `null`)
	waiting := send("shop.fetch", `{article: 'never fetched'}`)
	want("a queued one cancelled", run(`return (await supabase.rpc('cancel_tool_call', {id: '%s'})).data`, waiting),
		`"cancelled"`)
	want("its receipt", run(poll, waiting, "[receipt.status, receipt.result.error.error_code]"), `["failed","cancelled"]`)

	env.StartWorker()
	await(shop.began)
	want("while it runs", run(call1, "status, attempt", id), `{"status":"running","attempt":1}`)
	close(shop.finish)
	want("its receipt", run(poll, id, "[receipt.status, receipt.result, receipt.attempt]"),
		`["succeeded",{"number":"a lamp"},1]`)
	want("when it has ended", run(call1, "status, error", id), `{"status":"succeeded","error":null}`)

	first, again := send("shop.order", `{article: 'a chair'}`), ""
	want("a key's first", run(poll, first, "[receipt.status, receipt.effects.idempotency.hit, "+
		"receipt.effects.db_writes.length]"), `["succeeded",false,1]`)
	again = send("shop.order", `{article: 'a chair'}`)
	want("a hit", run(poll, again, "[receipt.status, receipt.effects.idempotency.hit, receipt.replay_of !== null]"),
		`["succeeded",true,true]`)
	var graces string
	if err := json.Unmarshal(p.Client().Run(p.User("grace"), fmt.Sprintf(enqueue, "shop.order", `{article: 'a chair'}`)),
		&graces); err != nil {
		t.Fatal(err)
	}
	hers := p.Client().Run(p.User("grace"), fmt.Sprintf(poll, graces,
		"[receipt.effects.idempotency.hit, (await supabase.from('core_tool_receipts').select('id').eq('id', "+
			"receipt.replay_of)).data]"))
	want("a hit of another's key", hers, `[true,[]]`)
	if n := p.Value("select count(*) from notes where title = 'a chair'"); n != "1" {
		t.Errorf("%s chairs were ordered", n)
	}
	want("a failure", run(poll, send("shop.repair", `{article: 'a vase'}`), "[receipt.status, receipt.result.error]"),
		`["failed",{"details":{"tubes":0},"message":"There is no glue.","error_code":"out_of_glue"}]`)
	want("a wrong input", run(poll, send("shop.repair", `{}`), "[receipt.status, receipt.result.error.error_code]"),
		`["failed","validation_error"]`)
	want("a tool that is not there", run(poll, send("shop.sell", `{}`),
		"[receipt.status, receipt.result.error.error_code]"), `["failed","unknown_tool"]`)
	want("what is not set up", run(poll, send("shop.deliver", `{article: 'a sofa'}`),
		"[receipt.status, receipt.result.reason, receipt.result.required_env]"),
		`["not_configured","There is no van.",["SHOP_VAN"]]`)
	want("what is not built", run(poll, send("shop.wrap", `{article: 'a sofa'}`), "receipt.status"), `"not_configured"`)
}

func TestAFrontendEndsACallThatRuns(t *testing.T) {
	t.Parallel()
	p := supabase.Start(t, supabase.Options{})
	shop := Shop{began: make(chan struct{}), finish: make(chan struct{})}
	handlertest.Start(t, handlertest.Options{
		Database: p.DatabaseURL, Registry: shopRegistry(t), Domains: []any{shop},
	})
	c, ada := p.Client(), p.User("ada")
	var id string
	if err := json.Unmarshal(c.Run(ada, fmt.Sprintf(enqueue, "shop.fetch", "{article: 'a lamp'}")), &id); err != nil {
		t.Fatal(err)
	}
	select {
	case <-shop.began:
	case <-time.After(time.Minute):
		t.Fatal(errors.New("no handler began"))
	}
	if a := c.Query(p.User("grace"), "rpc('cancel_tool_call', {id: '"+id+"'})"); a.Outcome() != "404 PT404" {
		t.Errorf("another user: %s", a.Outcome())
	}
	if a := c.Query(ada, "rpc('cancel_tool_call', {id: '"+id+"'})"); string(a.Data) != `"requested"` {
		t.Errorf("got %s %s", a.Outcome(), a.Data)
	}
	if got := c.Run(ada, fmt.Sprintf(poll, id, "[receipt.status, receipt.result.error.error_code]")); string(
		got) != `["failed","cancelled"]` {
		t.Errorf("got %s", got)
	}
	events := c.Query(ada, "from('core_tool_events').select('event').eq('call_id', '"+id+"').order('seq')")
	if got := string(
		events.Data); got != `[{"event":"queued"},{"event":"claimed"},{"event":"cancel_requested"},{"event":"failed"}]` {
		t.Errorf("the journal is %s", got)
	}
}

// The receipts are published for Realtime, which shows a row only to users who may select it.
func TestReceiptsArePublishedForRealtime(t *testing.T) {
	t.Parallel()
	p := supabase.Start(t, supabase.Options{})
	if got := p.Value("select string_agg(schemaname || '.' || tablename, ' ') from pg_publication_tables where pubname " +
		"= 'supabase_realtime'"); got != "public.core_tool_receipts" {
		t.Errorf("published: %s", got)
	}
}

func TestPostgRESTSeesNewMigrationsByItself(t *testing.T) {
	t.Parallel()
	p := supabase.Start(t, supabase.Options{NotMigrated: true})
	send := supabase.Request{Method: "POST", Path: "/rpc/enqueue_tool_call", Token: p.User("ada"),
		Body: `{"tool_name": "a.b"}`}
	if a := p.Send(send); a.Outcome() != "404 PGRST202" {
		t.Fatalf("before: %s %s", a.Outcome(), a.Message)
	}
	p.Migrate()
	awaitFunctions(t, p)
	if a := p.Send(send); a.Status != 200 {
		t.Errorf("after: %s %s", a.Outcome(), a.Message)
	}
}

// awaitFunctions waits until PostgREST has seen the migrations.
func awaitFunctions(t *testing.T, p *supabase.Project) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		a := p.Send(supabase.Request{Method: "POST", Path: "/rpc/get_receipt", Body: ids.Replace(`{"call_id": "NO_CALL"}`)})
		if a.Outcome() == "401 42501" {
			return
		}
		if a.Outcome() != "404 PGRST202" || time.Now().After(deadline) {
			t.Fatalf("the functions are not there: %s %s", a.Outcome(), a.Message)
		}
	}
}
