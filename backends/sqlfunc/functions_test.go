package sqlfunc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/backends/sqlfunc"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// lab is a database with a table of orders and with tools.
type lab struct {
	*handlertest.Env
	functions *sqlfunc.Functions // the last worker's
}

// newLab registers tools, whose names may say more: "shop.slow timeout=50". It starts no worker.
func newLab(t *testing.T, tools ...string) *lab {
	t.Helper()
	l := &lab{}
	l.Env = handlertest.Start(t, handlertest.Options{Registry: registryOf(t, tools), NoWorker: true,
		Domains: []any{Kept{}},
		Backends: func(db *pgxpool.Pool, log *zap.Logger) []binding.Backend {
			l.functions = sqlfunc.New(db, log)
			return []binding.Backend{l.functions}
		}})
	l.exec(t, `create table public.orders (id bigint generated always as identity primary key, call_id text,
		item text unique);
		create table public.parts (order_id bigint references orders deferrable initially deferred)`)
	return l
}

// Kept is a domain in Go. kept.order is its tool, whatever there is in SQL.
type Kept struct{}

func (Kept) Order(context.Context, *handlers.Call, struct{}) (map[string]string, error) {
	return map[string]string{"from": "Go"}, nil
}

func registryOf(t *testing.T, tools []string) []byte {
	t.Helper()
	var entries []map[string]any
	for _, tool := range tools {
		name, more, _ := strings.Cut(tool, " ")
		timeout, mode := 600000, map[string]any{"mode": "none"}
		for _, m := range strings.Fields(more) {
			switch key, value, _ := strings.Cut(m, "="); key {
			case "timeout":
				_, _ = fmt.Sscan(value, &timeout)
			case "key":
				mode = map[string]any{"mode": "keyed", "key_field": value}
			}
		}
		entries = append(entries, map[string]any{
			"name": name, "description": "A tool.", "idempotency": mode, "timeout_ms": timeout,
			"permissions": []string{"write:db"}, "receipt_fields": []string{},
			"retry": map[string]int{"max_attempts": 2, "backoff_ms": 1},
			"input_schema": map[string]any{"type": "object", "required": []string{"item"},
				"properties": map[string]any{"item": map[string]any{"type": "string"}}},
			"output_schema": map[string]any{"type": "object",
				"properties": map[string]any{"order_id": map[string]any{"type": "integer"}}},
		})
	}
	text, err := json.Marshal(map[string]any{"version": "1", "tools": entries})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (l *lab) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := l.DB.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
}

// function creates tools.NAME(ARGUMENTS) returns jsonb in PL/pgSQL.
func (l *lab) function(t *testing.T, name, arguments, body string) {
	t.Helper()
	l.exec(t, fmt.Sprintf("create or replace function tools.%s(%s) returns jsonb language plpgsql as $f$ %s $f$", name,
		arguments, body))
}

func (l *lab) count(t *testing.T, sql string) (n int) {
	t.Helper()
	if err := l.DB.QueryRow(t.Context(), "select count(*) from "+sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// said is what a receipt says in one line: the result, or the code, the message and the details of an error.
func said(r *receipts.Receipt) string {
	if e, failed := r.Error(); failed {
		details, _ := json.Marshal(e.Details)
		return strings.TrimSuffix(fmt.Sprintf("%s: %s %s", e.Code, e.Message, details), " null")
	}
	return string(r.Result)
}

// unexpected is what users read of an error that the tool's author did not raise for them.
func unexpected(r *receipts.Receipt, sqlstate string) string {
	return fmt.Sprintf(
		`execution_error: %[1]s failed unexpectedly. Its operators can look up the cause by the reference %[2]s. {"sqlstate":%[3]q,"reference":%[2]q}`,
		r.ToolName, r.CallID, sqlstate)
}

const newOrder = "insert into orders (call_id, item) values (call ->> 'id', input ->> 'item') returning orders.id " +
	"into id; perform gem.wrote('orders', 'insert', id);"

func TestAFunctionIsATool(t *testing.T) {
	t.Parallel()
	l := newLab(t, "shop.order", "shop.back_office.list", "kept.order")
	l.function(t, "shop_order", "input jsonb, call jsonb",
		"declare id bigint; begin "+newOrder+" return jsonb_build_object('order_id', id, 'call', call - 'id'); end")
	l.exec(t, `create function tools.shop_back_office_list(jsonb) returns jsonb language sql stable as
		$$ select gem.read('orders', count(*)) from orders; select coalesce(jsonb_object_agg(item, id), '{}') from orders
			where item = $1 ->> 'item' $$`)
	l.function(t, "kept_order", "jsonb", "begin return '{\"from\": \"SQL\"}'; end")
	l.StartWorker()

	r := l.Run(handlertest.Call{Tool: "shop.order", Input: `{"item": "a lamp"}`, Session: "s1", CreatedBy: "ada"})
	if want := `{"call": {"tool": "shop.order", "attempt": 1, "created_by": "ada", "session_id": "s1"}, "order_id": 1}`; said(r) != want {
		t.Errorf("the result is %s", said(r))
	}
	if got := handlertest.Effects(t, r); got != "insert orders" || !strings.Contains(string(r.Effects), `"id": "1"`) {
		t.Errorf("its effects: %s", r.Effects)
	}
	if n := l.count(t, "orders where call_id = '"+r.CallID+"'"); n != 1 {
		t.Errorf("%d orders of the call", n)
	}
	r = l.Run(handlertest.Call{Tool: "shop.order", Input: `{"item": "a chair"}`})
	if want := `{"call": {"tool": "shop.order", "attempt": 1, "created_by": null, "session_id": null}, "order_id": 2}`; said(r) != want {
		t.Errorf("the result is %s", said(r))
	}
	r = l.Run(handlertest.Call{Tool: "shop.back_office.list", Input: `{"item": "a lamp"}`})
	if said(r) != `{"a lamp": 1}` || handlertest.Effects(t, r) != "read 2 orders" {
		t.Errorf("the list: %s, %s", said(r), r.Effects)
	}
	if r = l.Run(handlertest.Call{Tool: "kept.order", Input: `{"item": ""}`}); said(r) != `{"from": "Go"}` {
		t.Errorf("a tool in Go and in SQL: %s", said(r))
	}
}

// Whatever a function does, its call gets a receipt with the outcome, and no effect of a failure remains. With
// "$ok" a case does it, and returns.
func TestWhatAFunctionDoesStandsOnTheReceipt(t *testing.T) {
	t.Parallel()
	raise := func(code, detail string) string {
		return "raise exception 'There are none.' using errcode = '" + code + "', detail = '" + detail +
			"', hint = 'A hint.';"
	}
	cases := map[string]struct{ body, want string }{
		"raises": {"raise exception 'There are % left.', 3 using detail = 'secret', hint = 'secret';",
			`execution_error: There are 3 left. {"sqlstate":"P0001"}`},
		"breaks a constraint":            {"insert into orders (item) values ('same'), ('same');", `unexpected 23505`},
		"breaks a constraint at the end": {"insert into parts values (-1); $ok", `unexpected 23503`},
		"divides by zero":                {"id := 1 / 0;", `unexpected 22012`},
		"fails on its own terms": {raise("GM100", `{"error_code": "sold_out", "details": {"left": [0]}}`),
			`sold_out: There are none. {"left":[0]}`},
		"fails without details": {raise("GM100", `{"error_code": "sold_out"}`), `sold_out: There are none.`},
		"detail is no JSON": {raise("GM100", "sold_out"),
			`execution_error: tools.lab_detail_is_no_json(input jsonb, call jsonb) failed: There are none. (with errcode GM100, ` +
				`its detail must be JSON of the form {"error_code": "…", "details": …, "advice": …}) {"sqlstate":"GM100"}`},
		"detail has other fields": {raise("GM101", `{"env": []}`),
			`execution_error: tools.lab_detail_has_other_fields(input jsonb, call jsonb) failed: There are none. (with errcode GM101, ` +
				`its detail must be JSON of the form {"reason": "…", "required_env": […], "next_steps": […]}) {"sqlstate":"GM101"}`},
		"code is none": {raise("GM100", `{"error_code": "Sold out"}`),
			`execution_error: There are none. {"details":null,"error_code":"Sold out"}`},
		"code is of GEM's": {raise("GM100", `{"error_code": "worker_lost"}`),
			`execution_error: There are none. {"details":null,"error_code":"worker_lost"}`},
		"not configured": {raise("GM101",
			`{"reason": "There is no price list.", "required_env": ["PRICES"], "next_steps": ["Load one."]}`),
			`{"reason": "There is no price list.", "status": "not_configured", "next_steps": ["Load one."], "required_env": ["PRICES"]}`},
		"not configured, in short": {"raise exception 'There is no price list.' using errcode = 'GM101';",
			`{"reason": "There is no price list.", "status": "not_configured", "next_steps": [], "required_env": []}`},
		"returns null": {"return null;",
			`output_invalid: tools.lab_returns_null returned null: a tool returns an output, such as one that jsonb_build_object makes`},
		"returns too much": {`return to_jsonb(repeat('x', 17000000));`,
			`output_invalid: tools.lab_returns_too_much returned more than 16 MiB`},
		"returns another type": {`return '{"order_id": "1"}';`,
			`output_invalid: The output of lab.returns_another_type does not fit its schema.`},
		"commits": {"commit;", `unexpected 2D000`},
		"says that it does not hold its call": {"raise exception 'no' using errcode = 'GM001';",
			`unexpected GM001`},
		"ends its call": {"perform gem.finish((call ->> 'id')::uuid, 1, c.claimed_by, 'succeeded', '{}', '{}', '1') from " +
			"core_tool_calls c where c.id = (call ->> 'id')::uuid; $ok",
			`execution_error: tools.lab_ends_its_call(input jsonb, call jsonb) failed: its transaction moved its own call`},
		"names no action":      {"perform gem.wrote('orders', 'upsert', id); $ok", `unexpected 22023`},
		"reads less than none": {"perform gem.read('orders', -1); $ok", `unexpected 22023`},
		"lists no end of rows": {"perform gem.wrote('orders', 'insert', n) from generate_series(1, 10000) n; $ok",
			`unexpected 54000`},
		"forges its effects": {"perform set_config('gem.wrote', 'nonsense', true); $ok",
			`execution_error: gem.wrote is a setting that only GEM changes {"sqlstate":"P0001"}`},
		"forges one effect": {"perform gem.wrote('a', 'insert', 1); perform set_config('gem.wrote_1', 'nonsense', " +
			"true); $ok", `execution_error: tools.lab_forges_one_effect(input jsonb, call jsonb) changed settings that only GEM changes`},
		"forges a long effect": {"perform set_config('gem.wrote', '1', true), set_config('gem.wrote_1', " +
			"jsonb_build_object('table', repeat('x', 20000), 'action', 'insert', 'id', '1')::text, true); $ok",
			`execution_error: gem.wrote is a setting that only GEM changes {"sqlstate":"P0001"}`},
		"forges an action": {"perform set_config('gem.wrote', '1', true), set_config('gem.wrote_1', '{\"table\": \"a\", " +
			"\"action\": \"drop\", \"id\": \"1\"}', true); $ok",
			`execution_error: tools.lab_forges_an_action(input jsonb, call jsonb) changed settings that only GEM changes`},
		"only reads": {"set transaction read only; $ok",
			`unexpected 55000`},
		"keeps a table, and listens": {"create temp table core_tool_calls (id uuid); create type pg_temp.uuid as (a int); " +
			"declare c cursor for select from core_tool_calls; begin open c; end; execute 'declare h cursor with hold for " +
			"select 1'; listen news; $ok", `{"order_id": 1}`},
		"takes another role": {"set role gem_monitor; $ok", `{"order_id": 1}`},
		"takes another user": {"set local session authorization gem_monitor; $ok", `{"order_id": 1}`},
		"wants to last": {"perform set_config('statement_timeout', '1', false); set search_path = ''; set " +
			"default_transaction_isolation = 'serializable'; set local work_mem = '64kB'; $ok",
			`{"order_id": 1}`},
		"speaks without end": {"for n in 1..1000 loop raise warning '%', repeat('x', 10000); end loop; $ok",
			`{"order_id": 1}`},
		"catches its errors": {"begin perform gem.wrote('orders', 'insert', 'none'); raise exception 'no'; exception when " +
			"others then id := 1; end; $ok", `{"order_id": 1}`},
		"lists one long row": {"perform gem.wrote('orders', 'insert', repeat('x', 8000)); $ok", `unexpected 54000`},
		"lists many rows": {"perform gem.wrote('orders', 'insert', n) from generate_series(1, 500) n; $ok",
			`{"order_id": 1}`},
		"makes a row of any kind": {"perform gem.wrote('a', 'insert', 'literal'), gem.wrote('a', 'update', " +
			"gen_random_uuid()), gem.wrote('a', 'delete', 1), gem.wrote('a', 'delete', 'x'::varchar); $ok",
			`{"order_id": 1}`},
	}
	nameOf := func(name string) string {
		return strings.NewReplacer(" ", "_", ",", "", "'", "").Replace(strings.ToLower(name))
	}
	var tools []string
	for name := range cases {
		tools = append(tools, "lab."+nameOf(name))
	}
	l := newLab(t, append(tools, "lab.last")...)
	for name, c := range cases {
		body := strings.ReplaceAll(c.body, "$ok", "return jsonb_build_object('order_id', 1);")
		l.function(t, "lab_"+nameOf(name), "input jsonb, call jsonb",
			"declare id bigint; begin insert into orders (call_id) values (call ->> 'id'); "+body+" end")
	}
	l.function(t, "lab_last", "jsonb", `begin return jsonb_build_object('role', current_user, 'user', session_user,
		'search_path', current_setting('search_path'), 'work_mem', current_setting('work_mem'),
		'isolation', current_setting('default_transaction_isolation'), 'effects', current_setting('gem.wrote'), 'notices',
			current_setting('client_min_messages'),
		'temporary', (select count(*) from pg_type where typnamespace = pg_my_temp_schema()), 'cursors',
			(select count(*) from pg_cursors where is_holdable), 'hears', (select count(*) from pg_listening_channels())); end`)
	l.StartWorker(func(o *worker.Options) { o.Calls = l.Pool(1, false); o.Control = l.Pool(2, false) })

	settings := said(l.Run(handlertest.Call{Tool: "lab.last", Input: `{"item": ""}`}))
	ids := map[string]string{}
	for name := range cases {
		ids[name] = l.Insert(handlertest.Call{Tool: "lab." + nameOf(name), Input: `{"item": ""}`})
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		r := l.Await(ids[name])
		got := said(r)
		if cut, _, _ := strings.Cut(got, " [{"); strings.Contains(got, "output_invalid") {
			got = cut
		}
		want := cases[name].want
		if state, is := strings.CutPrefix(want, "unexpected "); is {
			want = unexpected(r, state)
		}
		if got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, want)
		}
		rows, kept := l.count(t, "orders where call_id = '"+r.CallID+"'"), 0
		if r.Status == receipts.Succeeded {
			kept = 1
		}
		if rows != kept {
			t.Errorf("%s: %d rows", name, rows)
		}
		if effects, want := handlertest.Effects(t, r), map[string]string{"makes a row of any kind": "insert a, update a, " +
			"delete a, delete a",
			"lists many rows": strings.TrimSuffix(strings.Repeat("insert orders, ", 500), ", ")}[name]; effects != want {
			t.Errorf("%s: effects %s, want %s", name, effects, want)
		}
	}
	if after := said(l.Run(handlertest.Call{Tool: "lab.last", Input: `{"item": ""}`})); after != settings {
		t.Errorf("what they set is set in other calls:\nbefore %s\nafter  %s", settings, after)
	}
}

// A worker has the rights of its role, and so has a function, unless it is its owner's.
func TestAFunctionHasTheRightsOfTheWorkersRole(t *testing.T) {
	t.Parallel()
	l := newLab(t, "shop.order", "shop.forge", "shop.closed", "shop.ask")
	l.exec(t, "alter table orders enable row level security")
	l.function(t, "shop_order", "input jsonb, call jsonb",
		"declare id bigint; begin "+newOrder+" return jsonb_build_object('order_id', id); end")
	l.function(t, "shop_forge", "jsonb", "begin update core_tool_calls set status = 'succeeded'; return '{}'; end")
	l.function(t, "shop_closed", "jsonb", "begin return '{}'; end")
	l.function(t, "shop_ask", "input jsonb, call jsonb",
		`begin return jsonb_build_object('child', public.enqueue_tool_call('shop.closed', input, parent_call_id => (call ->> 'id')::uuid)); end`)
	l.exec(t, "revoke execute on function tools.shop_closed from public, gem_worker; alter function tools.shop_ask "+
		"security definer set search_path = ''")

	role := "gem_test_" + strings.ToLower(strings.TrimPrefix(l.URL[strings.LastIndex(l.URL, "/")+1:], "gem_test_"))[:20]
	l.exec(t, "create role "+role+" login password 'worker' in role gem_worker")
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), l.URL)
		if err == nil {
			_, err = conn.Exec(context.Background(), "drop role "+role)
			_ = conn.Close(context.Background())
		}
		if err != nil {
			t.Error(err)
		}
	})
	as, err := url.Parse(l.URL)
	if err != nil {
		t.Fatal(err)
	}
	as.User = url.UserPassword(role, "worker")
	pool, err := pgpool.Open(t.Context(), as.String(), pgpool.Options{MaxConns: 6, Mode: pgpool.Direct})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(),
		"create function tools.trojan(jsonb) returns jsonb language sql as 'select $1'"); err == nil ||
		!strings.Contains(err.Error(), "permission denied for schema tools") {
		t.Errorf("the worker's role creates a tool: %v", err)
	}
	l.StartWorker(func(o *worker.Options) { o.Calls, o.Control, o.ListenURL = pool, pool, as.String() })

	for tool, want := range map[string]string{
		"shop.forge":  `unexpected 42501`,
		"shop.order":  `unexpected 42501`,
		"shop.closed": `{"reason": "tools.shop_closed(jsonb) cannot be the tool shop.closed: the worker's role may not execute it.", "status": "not_configured", "next_steps": ["As its owner: grant execute on function tools.shop_closed(jsonb) to gem_worker"], "required_env": []}`,
	} {
		r := l.Run(handlertest.Call{Tool: tool, Input: `{"item": ""}`})
		if state, is := strings.CutPrefix(want, "unexpected "); is {
			want = unexpected(r, state)
		}
		if got := said(r); got != want {
			t.Errorf("%s: %s", tool, got)
		}
	}
	if r := l.Run(handlertest.Call{Tool: "shop.ask", Input: `{"item": ""}`,
		CreatedBy: "ada"}); r.Status != receipts.Succeeded || l.count(t, "core_tool_calls where created_by is null and "+
		"parent_call_id = '"+r.CallID+"'") != 1 {
		t.Errorf("one makes a call: %s", said(r))
	}
	l.exec(t, "alter function tools.shop_order security definer set search_path = public, pg_temp")
	if r := l.Run(handlertest.Call{Tool: "shop.order", Input: `{"item": ""}`}); said(r) != `{"order_id": 1}` ||
		handlertest.Effects(t, r) != "insert orders" {
		t.Errorf("one of the owner's: %s %s", said(r), r.Effects)
	}
}

func TestOnlyOneSignatureIsATool(t *testing.T) {
	t.Parallel()
	const wanted = "Create the function tools.lab_X(input jsonb) returns jsonb, or with a second argument named call of " +
		"type jsonb."
	cases := map[string]struct{ sql, fault, remedy string }{
		"text": {"function tools.lab_text(input text) returns jsonb language sql as 'select null::jsonb'",
			"lab_text(input text) cannot be the tool lab.text: it takes other arguments.", wanted},
		"json": {"function tools.lab_json(jsonb) returns json language sql as 'select null::json'",
			"lab_json(jsonb) cannot be the tool lab.json: it returns json.", wanted},
		"set": {"function tools.lab_set(jsonb) returns setof jsonb language sql as 'select $1'",
			"lab_set(jsonb) cannot be the tool lab.set: it returns a set of rows.", wanted},
		"rows": {"function tools.lab_rows(jsonb) returns table (a jsonb) language sql as 'select $1'",
			"lab_rows(jsonb) cannot be the tool lab.rows: it returns a set of rows.", wanted},
		"procedure": {"procedure tools.lab_procedure(jsonb) language sql as 'select 1'",
			"lab_procedure(IN jsonb) cannot be the tool lab.procedure: it is a procedure.", wanted},
		"aggregate": {"aggregate tools.lab_aggregate(jsonb) (sfunc = jsonb_concat, stype = jsonb)",
			"lab_aggregate(jsonb) cannot be the tool lab.aggregate: it is an aggregate.", wanted},
		"many": {"function tools.lab_many(variadic jsonb[]) returns jsonb language sql as 'select $1[1]'",
			"lab_many(VARIADIC jsonb[]) cannot be the tool lab.many: it takes other arguments.", wanted},
		"other": {"function tools.lab_other(input jsonb, options jsonb) returns jsonb language sql as 'select $1'",
			"lab_other(input jsonb, options jsonb) cannot be the tool lab.other: its second argument is not named call.",
			wanted},
		"default": {"function tools.lab_default(input jsonb, dry boolean default false) returns jsonb language sql as " +
			"'select $1'", "lab_default(input jsonb, dry boolean) cannot be the tool lab.default: it takes other arguments.",
			wanted},
		"two": {"function tools.lab_two(jsonb) returns jsonb language sql as 'select $1'; create function " +
			"tools.lab_two(input jsonb, call jsonb) returns jsonb language sql as 'select $1'",
			"lab_two cannot be the tool lab.two: there are two: one that takes the input, and one that takes the input and " +
				"the call.", "Drop one: drop function tools.lab_two(jsonb)"},
		"helped": {"function tools.lab_helped(jsonb) returns jsonb language sql as 'select $1'; create function " +
			"tools.lab_helped(int) returns int language sql as 'select $1'", "", ""},
		"out":     {"function tools.lab_out(jsonb, out result jsonb) language sql as 'select $1'", "", ""},
		"nothing": {"table nothing ()", "-", ""},
	}
	var tools []string
	for name := range cases {
		tools = append(tools, "lab."+name)
	}
	l := newLab(t, tools...)
	for _, c := range cases {
		l.exec(t, "create "+c.sql)
	}
	l.StartWorker()
	for name, c := range cases {
		r := l.Run(handlertest.Call{Tool: "lab." + name, Input: `{"item": ""}`})
		want := fmt.Sprintf(`{"reason": "tools.%s", "status": "not_configured", "next_steps": ["%s"], "required_env": []}`,
			c.fault, strings.ReplaceAll(c.remedy, "X", name))
		switch c.fault {
		case "":
			want = `{"item": ""}`
		case "-":
			if r.Status != receipts.NotConfigured {
				t.Errorf("%s: %s", name, said(r))
			}
			continue
		}
		if said(r) != want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, said(r), want)
		}
		if h, ok := l.functions.For("lab." + name); !ok ||
			strings.Contains(h.Func, ", which is no tool: ") != (c.fault != "") {
			t.Errorf("%s: %v", name, h)
		}
		if n := l.Logs.FilterMessageSnippet("cannot be used").FilterField(zap.String("tool", "lab."+name)).
			Len(); n != min(len(c.fault), 1) {
			t.Errorf("%s: its fault was logged %d times", name, n)
		}
	}
}

// A schema of that name which belongs to someone else holds no tools.
func TestFunctionsOfAnotherOwnersSchemaAreNoTools(t *testing.T) {
	t.Parallel()
	l := newLab(t, "shop.order")
	l.function(t, "shop_order", "jsonb", "begin return '{}'; end")
	functions := sqlfunc.New(l.DB, nil)
	if _, ok := functions.For("shop.order"); !ok {
		t.Error("it is no tool")
	}
	l.exec(t, "alter schema tools owner to gem_monitor")
	if err := functions.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, ok := functions.For("shop.order"); ok {
		t.Error("it is a tool")
	}
}

func TestFunctionsComeChangeAndGoWithoutARestart(t *testing.T) {
	t.Parallel()
	l := newLab(t, "shop.order")
	l.StartWorker()
	run := func() string { return said(l.Run(handlertest.Call{Tool: "shop.order", Input: `{"item": ""}`})) }
	if got := run(); !strings.Contains(got, "not_configured") {
		t.Errorf("before there is one: %s", got)
	}
	time.Sleep(100 * time.Millisecond) // for which a miss is remembered
	l.function(t, "shop_order", "input jsonb", "begin return '{\"order_id\": 1}'; end")
	if got := run(); got != `{"order_id": 1}` {
		t.Errorf("the first: %s", got)
	}
	l.function(t, "shop_order", "input jsonb", "begin return '{\"order_id\": 2}'; end")
	if got := run(); got != `{"order_id": 2}` {
		t.Errorf("the second: %s", got)
	}
	l.exec(t, "drop function tools.shop_order")
	l.function(t, "shop_order", "input jsonb, call jsonb",
		"begin return jsonb_build_object('order_id', call -> 'attempt'); end")
	if got := run(); got != `{"order_id": 2}` { // the second attempt finds it
		t.Errorf("the third: %s", got)
	}
	l.exec(t, "drop function tools.shop_order")
	if got := run(); !strings.Contains(got, "tools.shop_order(input jsonb, call jsonb) was dropped.") {
		t.Errorf("after it was dropped: %s", got)
	}
	if got := run(); !strings.Contains(got, "not_configured") {
		t.Errorf("without one: %s", got)
	}
}

// Postgres ends the statement; nothing of it stays.
func TestAFunctionEndsWithItsTime(t *testing.T) {
	t.Parallel()
	l := newLab(t, "shop.order timeout=3000")
	l.function(t, "shop_order", "input jsonb, call jsonb",
		"declare id bigint; begin "+newOrder+" perform set_config('statement_timeout', '0', true); perform pg_sleep(60); "+
			"return '{}'; end")
	l.StartWorker()
	r := l.Run(handlertest.Call{Tool: "shop.order", Input: `{"item": ""}`})
	if said(r) != `timeout: shop.order took longer than its 3s. {"timeout_ms":3000}` ||
		handlertest.Effects(t, r) != "" || l.count(t, "orders") > 0 {
		t.Errorf("%s %s", said(r), r.Effects)
	}
	l.Until("the statement to end", func() bool {
		return l.count(t, "pg_stat_activity where datname = current_database() and state = 'active' and query like "+
			"'%gem.run_tool%' and pid <> pg_backend_pid()") == 0
	})
}

// One that catches even its cancellation ends with its connection, and gives back its locks. The driver takes 15 s to
// abandon a connection.
func TestAFunctionThatRefusesToEndEnds(t *testing.T) {
	t.Parallel()
	if os.Getenv("GEM_TEST_LONG") == "" {
		t.Skip("it takes 20 s: set GEM_TEST_LONG=1")
	}
	l := newLab(t, "shop.order timeout=3000")
	l.function(t, "shop_order", "input jsonb, call jsonb", "declare id bigint; begin "+newOrder+" loop begin perform "+
		"pg_sleep(0.1); exception when query_canceled then null; end; end loop; end")
	l.StartWorker()
	if r := l.Run(handlertest.Call{Tool: "shop.order", Input: `{"item": ""}`}); !strings.HasPrefix(said(r), "timeout: ") {
		t.Errorf("%s", said(r))
	}
	l.Until("the statement to end", func() bool {
		return l.count(t, "pg_stat_activity where datname = current_database() and query like '%gem.run_tool%' and state = "+
			"'active' and pid <> pg_backend_pid()") == 0
	})
}

// The server ends a statement even if the worker does not, which may be gone.
func TestPostgresKnowsTheTimeOfAFunction(t *testing.T) {
	t.Parallel()
	l := newLab(t, "shop.order timeout=600000")
	l.exec(t, `do $$ begin execute format('alter database %I set statement_timeout = 1234', current_database()); end $$`)
	l.function(t, "shop_order", "jsonb",
		`begin return jsonb_build_object('order_id', extract(epoch from current_setting('statement_timeout')::interval)::int / 100,
		'looks', current_setting('client_connection_check_interval') = '2s' or version() not like '%linux%'); end`)
	l.StartWorker()
	// of 600 s some are over
	if got := said(l.Run(handlertest.Call{Tool: "shop.order",
		Input: `{"item": ""}`})); got != `{"looks": true, "order_id": 5}` && got != `{"looks": true, "order_id": 6}` {
		t.Errorf("%s", got)
	}
}

func TestACancelledCallEndsItsFunction(t *testing.T) {
	t.Parallel()
	l := newLab(t, "shop.order")
	l.function(t, "shop_order", "input jsonb, call jsonb", "declare id bigint; begin "+newOrder+" perform pg_sleep(60); "+
		"return '{}'; end")
	l.StartWorker()
	id := l.Insert(handlertest.Call{Tool: "shop.order", Input: `{"item": ""}`})
	l.Until("it to run", func() bool {
		return l.count(t, "pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'") == 1
	})
	l.exec(t, "select cancel_tool_call('"+id+"')")
	if r := l.Await(id); said(r) != "cancelled: The call was cancelled while it ran. It had no effect: its transaction "+
		"was rolled back." || l.count(t, "orders") > 0 {
		t.Errorf("%s", said(r))
	}
	l.Until("the statement to end", func() bool {
		return l.count(t, "pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'") == 0
	})
}

// What may pass is tried again, in a new transaction.
func TestAConflictRunsAgain(t *testing.T) {
	t.Parallel()
	l := newLab(t, "shop.order", "shop.never", "shop.keyed key=item")
	l.function(t, "shop_order", "input jsonb, call jsonb", "declare id bigint; begin "+newOrder+" if call ->> 'attempt' "+
		"= '1' then raise serialization_failure; end if; return jsonb_build_object('order_id', id); end")
	l.function(t, "shop_never", "jsonb", "begin raise exception 'Two calls wait for one another.' using errcode = "+
		"'deadlock_detected'; end")
	l.function(t, "shop_keyed", "input jsonb, call jsonb",
		"declare id bigint; begin "+newOrder+" return jsonb_build_object('order_id', id); end")
	l.StartWorker()
	r := l.Run(handlertest.Call{Tool: "shop.order", Input: `{"item": ""}`})
	if said(r) != `{"order_id": 2}` || r.Attempt != 2 || l.count(t, "orders") != 1 ||
		handlertest.Effects(t, r) != "insert orders" {
		t.Errorf("attempt %d: %s %s", r.Attempt, said(r), r.Effects)
	}
	if r := l.Run(handlertest.Call{Tool: "shop.never", Input: `{"item": ""}`}); said(r) != unexpected(r, "40P01") ||
		r.Attempt != 2 {
		t.Errorf("attempt %d: %s", r.Attempt, said(r))
	}
	first, second := l.Run(handlertest.Call{Tool: "shop.keyed", Input: `{"item": "k"}`}),
		l.Run(handlertest.Call{Tool: "shop.keyed", Input: `{"item": "k"}`})
	if said(first) != said(second) || second.ReplayOf != first.ID || l.count(t, "orders where item = 'k'") != 1 {
		t.Errorf("a keyed call ran twice: %s %s", said(first), said(second))
	}
}

// A rule judges what a function returned before anything of it is committed.
func TestARuleTakesBackWhatAFunctionDid(t *testing.T) {
	t.Parallel()
	l := newLab(t, "shop.order")
	l.function(t, "shop_order", "input jsonb, call jsonb",
		"declare id bigint; begin "+newOrder+" return jsonb_build_object('order_id', id); end")
	set, err := rules.Parse(
		[]byte(`{"version": "1", "rules": [{"name": "second", "tools": ["shop.*"], "action": "block", "when": {"result": {"order_id": {"const": 2}}}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	l.StartWorker(func(o *worker.Options) { o.Rules = set })
	first, second := l.Run(handlertest.Call{Tool: "shop.order", Input: `{"item": "a"}`}),
		l.Run(handlertest.Call{Tool: "shop.order", Input: `{"item": "b"}`})
	if first.Status != receipts.Succeeded || handlertest.ErrorOf(t, second).Code != receipts.RuleBlocked ||
		l.count(t, "orders") != 1 {
		t.Errorf("%s, then %s; %d orders", said(first), said(second), l.count(t, "orders"))
	}
}
