package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/registry"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// shop is a domain whose handlers are set by a test.
type shop struct {
	ran     *atomic.Int64
	holds   chan string   // gets the id of each call to shop.hold that runs
	release chan struct{} // lets them end
}

type shopInput struct {
	Item  string `json:"item"`
	Size  int    `json:"size"`
	Order string `json:"order"`
}

type shopOutput struct {
	Text string `json:"text"`
}

// Order counts its runs.
func (s shop) Order(_ context.Context, call *handlers.Call, in shopInput) (shopOutput, error) {
	s.ran.Add(1)
	if in.Item == "nothing" {
		return shopOutput{}, errors.New("the shop is closed")
	}
	call.Wrote("orders", handlers.Insert, "7")
	return shopOutput{in.Item + strings.Repeat("x", in.Size)}, nil
}

// Refund is keyed.
func (s shop) Refund(_ context.Context, _ *handlers.Call, in shopInput) (shopOutput, error) {
	s.ran.Add(1)
	return shopOutput{in.Order}, nil
}

// Hold runs until it is released.
func (s shop) Hold(ctx context.Context, call *handlers.Call, _ shopInput) (shopOutput, error) {
	s.ran.Add(1)
	s.holds <- call.ID
	select {
	case <-ctx.Done():
		return shopOutput{}, ctx.Err()
	case <-s.release:
		return shopOutput{"released"}, nil
	}
}

func shopEntry(name, permission, more string) string {
	return fmt.Sprintf(
		`{"name": %q, "description": "A tool of the shop.", "permissions": [%q], "timeout_ms": 600000, "receipt_fields": ["result.text", "effects.db_writes"],
		"input_schema": {"type": "object", "additionalProperties": false, "properties": {"item": {"type": "string"}, "size": {"type": "integer"}, "order": {"type": "string"}}%s},
		"output_schema": {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}`, name, permission, more)
}

var shopRegistry = `{"version": "shop", "tools": [` + strings.Join([]string{
	shopEntry("shop.order", "write:db", "") + `, "idempotency": {"mode": "none"}}`,
	shopEntry("shop.hold", "write:db", "") + `, "idempotency": {"mode": "none"}}`,
	shopEntry("shop.refund", "write:db", `, "required": ["order"]`) +
		`, "idempotency": {"mode": "keyed", "key_field": "order"}, "hints": {"title": "Refund an order", "destructive": false}}`,
	shopEntry("shop.stock.find", "read:db", "") + `, "idempotency": {"mode": "safe-retry"}}`, // has no handler
	shopEntry("shop.ship", "send:parcel", "") + `, "idempotency": {"mode": "safe-retry"}}`,
}, ",") + "]}"

// opened is a server with a worker.
type opened struct {
	*handlertest.Env
	shop
	server *Server
	t      testing.TB
}

// openShop opens a server for a shop. change may alter its options. Without a worker nothing runs.
func openShop(t testing.TB, worker bool, change ...func(*Options)) *opened {
	t.Helper()
	s := shop{new(atomic.Int64), make(chan string, 100), make(chan struct{})}
	e := handlertest.Start(t, handlertest.Options{Domains: []any{s}, Registry: []byte(shopRegistry), NoWorker: !worker})
	return &opened{e, s, newShopServer(t, testdb.RouteTo(t, e.URL).URL, change...), t}
}

func newShopServer(t testing.TB, url string, change ...func(*Options)) *Server {
	t.Helper()
	r, err := registry.Parse([]byte(shopRegistry))
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Registry: r, Pool: func(ctx context.Context) (*pgxpool.Pool, error) {
		return pgpool.Open(context.WithoutCancel(ctx), url, pgpool.Options{MaxConns: 1}) // as gem mcp over stdio does
	}}
	for _, c := range change {
		c(&o)
	}
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// agent is a client that acts for a subject.
type agent struct {
	*sdk.ClientSession
	t testing.TB
}

func (d *Server) agent(t testing.TB, subject string, o *sdk.ClientOptions) agent {
	t.Helper()
	here, there := sdk.NewInMemoryTransports()
	server, err := d.sdk.Connect(withCaller(context.Background(), caller{subject: subject}), there, nil)
	if err != nil {
		t.Fatal(err)
	}
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o).Connect(t.Context(), here, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = session.Close()
		_ = server.Wait()
	})
	return agent{session, t}
}

// try makes a call, with _meta as pairs.
func (a agent) try(tool, arguments string, meta ...any) (*sdk.CallToolResult, error) {
	params := &sdk.CallToolParams{Name: tool, Arguments: json.RawMessage(arguments), Meta: sdk.Meta{}}
	for i := 0; i < len(meta); i += 2 {
		params.Meta[meta[i].(string)] = meta[i+1]
	}
	return a.CallTool(a.t.Context(), params)
}

func (a agent) call(tool, arguments string, meta ...any) *sdk.CallToolResult {
	a.t.Helper()
	r, err := a.try(tool, arguments, meta...)
	if err != nil {
		a.t.Fatalf("%s: %v", tool, err)
	}
	return r
}

// refusedWith makes a call that must be a protocol error.
func (a agent) refusedWith(code int64, tool, arguments string, meta ...any) string {
	a.t.Helper()
	r, err := a.try(tool, arguments, meta...)
	var coded *jsonrpc.Error
	if !errors.As(err, &coded) || coded.Code != code {
		a.t.Fatalf("%s: got %+v, %v, want the error %d", tool, r, err, code)
	}
	return coded.Message
}

const keyName = meta + "key"

// textIn returns the text for a model.
func textIn(r *sdk.CallToolResult) string {
	var all []string
	for _, c := range r.Content {
		if text, ok := c.(*sdk.TextContent); ok {
			all = append(all, text.Text)
		}
	}
	return strings.Join(all, "\n")
}

// structuredIn returns the content for a program.
func structuredIn(t testing.TB, r *sdk.CallToolResult) string {
	t.Helper()
	text, err := json.Marshal(r.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func idOf(r *sdk.CallToolResult) string {
	id, _ := r.Meta[meta+"callId"].(string)
	return id
}

func (o *opened) count(want int, query string, args ...any) {
	o.t.Helper()
	var n int
	if err := o.DB.QueryRow(context.Background(), "select count(*) from core_tool_calls where "+query,
		args...).Scan(&n); err != nil || n != want {
		o.t.Errorf("%d calls, %v, want %d where %s", n, err, want, query)
	}
}

func TestACallIsARowOfItsSubjectAndItsResultThatOfItsReceipt(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	for _, name := range []string{"shop_order", "shop.order"} {
		r := o.server.agent(t, "ada", nil).call(name, `{"item": "roof"}`, meta+"session", "s1", meta+"priority", -7,
			"traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
			"openai/session", "theirs")
		if r.IsError || structuredIn(t, r) != `{"text":"roof"}` || textIn(r) != `{"text": "roof"}` {
			t.Errorf("got %s and %s", structuredIn(t, r), textIn(r))
		}
		receipt := o.Await(idOf(r))
		for field, want := range map[string]any{"receiptId": receipt.ID, "status": "succeeded", "attempt": 1.0,
			"registryVersion": "shop", "replayOf": nil} {
			if got := r.Meta[meta+field]; got != want {
				t.Errorf("%s is %v, want %v", field, got, want)
			}
		}
		if effects := fmt.Sprint(r.Meta[meta+"effects"]); effects != "map[db_writes:[map[action:insert id:7 table:orders]]]" {
			t.Errorf("effects: %s", effects)
		}
	}
	o.count(2, `created_by = 'ada' and signed_in and session_id = 's1' and priority = -7 and traceparent is not null and tool_name = 'shop.order'`)
}

func TestFieldsOfMetaThatAreOursMustBeRightAndThoseOfOthersAreLeftOut(t *testing.T) {
	t.Parallel()
	o := openShop(t, false, func(o *Options) { o.Wait = time.Millisecond })
	a := o.server.agent(t, "ada", nil)
	for field, value := range map[string]any{"session": 1, "parentCallId": "x", "priority": 1.5, "runAt": "tomorrow",
		"key": 1} {
		if said := a.refusedWith(jsonrpc.CodeInvalidParams, "shop_order", `{}`, meta+field, value); !strings.Contains(said,
			meta+field) {
			t.Errorf("%s: %s", field, said)
		}
	}
	a.call("shop_order", `{}`, "traceparent", "nonsense", "openai/session", 7, "claudecode/toolUseId",
		strings.Repeat("x", 256), meta+"runAt", "2001-01-01T00:00:00Z")
	a.call("shop_order", `{}`, "openai/session", "theirs")
	o.count(2, "traceparent is null and created_by = 'ada'")
	o.count(1, "session_id = 'theirs'")
	parent := idOf(a.call("shop_order", `{}`))
	a.call("shop_order", `{}`, meta+"parentCallId", parent)
	o.count(1, "parent_call_id = $1", parent)
	if r := o.server.agent(t, "bob", nil).call("shop_order", `{}`, meta+"parentCallId", parent); !r.IsError ||
		!strings.Contains(textIn(r), "no call of yours") {
		t.Errorf("a parent of another: %s", textIn(r))
	}
}

func TestUnderOneKeyThereIsOneCall(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	other := newShopServer(t, o.URL) // another process
	ada := o.server.agent(t, "ada", nil)
	first := ada.call("shop_order", `{"item": "a"}`, keyName, "k")
	for _, again := range []agent{ada, o.server.agent(t, "ada", nil), other.agent(t, "ada", nil)} {
		if r := again.call("shop.order", `{"item": "a"}`, keyName, "k"); idOf(r) != idOf(first) ||
			r.Meta[meta+"receiptId"] != first.Meta[meta+"receiptId"] {
			t.Errorf("asked again: %v, want %v", r.Meta, first.Meta)
		}
	}
	if n := o.ran.Load(); n != 1 {
		t.Errorf("it ran %d times", n)
	}
	o.count(1, "idempotency_key = 'k'")
	if r := ada.call("shop_order", `{"item": "b"}`, keyName, "k"); !r.IsError ||
		!strings.Contains(textIn(r), `the key "k" belongs to another call: a new call needs a new key`) {
		t.Errorf("other arguments: %s", textIn(r))
	}
	if r := o.server.agent(t, "bob", nil).call("shop_order", `{"item": "a"}`, keyName, "k"); r.IsError ||
		idOf(r) == idOf(first) {
		t.Errorf("another subject: %s, %v", textIn(r), r.Meta)
	}
	o.count(2, "tool_name = 'shop.order'")

	use := ada.call("shop_order", `{"item": "a"}`, "claudecode/toolUseId", "toolu_1")
	if again := ada.call("shop_order", `{"item": "a"}`, "claudecode/toolUseId", "toolu_1"); idOf(again) != idOf(use) {
		t.Errorf("the same use of a tool has two calls")
	}
	if both := ada.call("shop_order", `{"item": "a"}`, "claudecode/toolUseId", "toolu_1", keyName,
		"k"); idOf(both) != idOf(first) {
		t.Error("a key of our own does not win over the use's")
	}
	o.count(1, "idempotency_key is null")
}

func TestAHundredRequestsWithOneKeyOverTwoServersAreOneCall(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	agents := []agent{o.server.agent(t, "ada", nil), newShopServer(t, o.URL).agent(t, "ada", nil)}
	var ids sync.Map
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			if r, err := agents[i%2].try("shop_order", `{"item": "one"}`, keyName, "same"); err != nil || r.IsError {
				t.Errorf("%v, %+v", err, r)
			} else {
				ids.Store(idOf(r)+fmt.Sprint(r.Meta[meta+"receiptId"])+textIn(r), true)
			}
		})
	}
	all.Wait()
	n := 0
	ids.Range(func(_, _ any) bool { n++; return true })
	if n != 1 || o.ran.Load() != 1 {
		t.Errorf("%d answers, %d runs, want one of each", n, o.ran.Load())
	}
	o.count(1, "true")
}

func TestAFailedCallStaysFailedUnderItsKey(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	a := o.server.agent(t, "ada", nil)
	for range 2 {
		if r := a.call("shop_order", `{"item": "nothing"}`, keyName, "k"); !r.IsError || r.StructuredContent != nil ||
			!strings.Contains(textIn(r), "the shop is closed") {
			t.Errorf("got %s", textIn(r))
		}
	}
	if o.ran.Load() != 1 {
		t.Errorf("it ran %d times", o.ran.Load())
	}
}

func TestACallThatTheSchemaRefusesIsOnRecord(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	r := o.server.agent(t, "ada", nil).call("shop_refund", `{"size": "large"}`)
	if !r.IsError || !strings.Contains(textIn(r), "validation_error") || !strings.Contains(textIn(r), "- /size: ") {
		t.Errorf("got %s", textIn(r))
	}
	o.count(1, "status = 'failed'")
}

func TestAToolWithoutAHandlerSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	if r := o.server.agent(t, "ada", nil).call("shop_stock_find", `{}`); !r.IsError ||
		!strings.Contains(textIn(r), "shop.stock.find is not configured: ") || r.StructuredContent != nil {
		t.Errorf("got %s", textIn(r))
	}
}

func TestToolsThatAreNotOfferedAreUnknown(t *testing.T) {
	t.Parallel()
	o := openShop(t, false)
	a := o.server.agent(t, "ada", nil)
	for tool, want := range map[string]string{
		"shop_ship": "it is closed to signed-in users, since it needs the permission send:parcel",
		"shop.ship": "it is closed to signed-in users, since it needs the permission send:parcel",
		"shop_none": `unknown tool "shop_none": the registry of this server, version `,
		"llm_chat":  `lacks it: add "llm.chat" to "include" in its file`,
	} {
		if said := a.refusedWith(jsonrpc.CodeInvalidParams, tool, `{}`); !strings.Contains(said, want) {
			t.Errorf("%s: %s", tool, said)
		}
	}
	o.count(0, "true")
}

func TestWhatTheDatabaseRefusesIsAnErrorThatAModelReads(t *testing.T) {
	t.Parallel()
	o := openShop(t, false, func(o *Options) { o.Wait = time.Millisecond })
	a := o.server.agent(t, "ada", nil)
	if _, err := o.DB.Exec(t.Context(), "update gem.limits set max_open_calls = 1"); err != nil {
		t.Fatal(err)
	}
	for what, tc := range map[string]struct{ arguments, want string }{
		"too large":  {`{"item": "` + strings.Repeat("x", 1<<20) + `"}`, "Store large content elsewhere"},
		"NUL":        {`{"item": "\u0000"}`, `\u0000`},
		"huge":       {`{"size": 1e10000000}`, "overflow"},
		"half":       {`{"item": "\ud800"}`, "surrogate"},
		"no object":  {`[1]`, "must be a JSON object"},
		"a priority": {`{}`, "priority is 900"},
	} {
		var m []any
		if what == "a priority" {
			m = []any{meta + "priority", 900}
		}
		if r := a.call("shop_order", tc.arguments, m...); !r.IsError ||
			!strings.Contains(textIn(r), "The call to shop.order was not made: ") || !strings.Contains(textIn(r), tc.want) {
			t.Errorf("%s: got %.300s", what, textIn(r))
		}
	}
	o.count(0, "true")
	a.call("shop_order", `{}`, keyName, "first")
	if r := a.call("shop_order", `{}`); !r.IsError || !strings.Contains(textIn(r), "too many open calls") ||
		!strings.Contains(textIn(r), "Wait until some have their receipt") {
		t.Errorf("got %s", textIn(r))
	}
	a.call("shop_order", `{}`, keyName, "first") // is the same call, and no more
	if r := a.call("gem_result", `{"call_id": "`+idOf(a.call("shop_order", `{}`, keyName, "first"))+`"}`); r.IsError {
		t.Errorf("got %s", textIn(r))
	}
	o.count(1, "true")
}

func TestACallThatGoesOnIsPendingAndItsResultComesLater(t *testing.T) {
	t.Parallel()
	o := openShop(t, true, func(o *Options) { o.Wait = time.Millisecond })
	a := o.server.agent(t, "ada", nil)
	r := a.call("shop_hold", `{}`)
	id := idOf(r)
	if said := structuredIn(t, r); r.IsError || !strings.Contains(said, `"gem_pending"`) ||
		!strings.Contains(said, "call gem_result with call_id "+id) {
		t.Errorf("got %s", said)
	}
	<-o.holds
	if r = a.call("gem_result", `{"call_id": "`+id+`"}`); !strings.Contains(structuredIn(t, r), `"state":"running"`) {
		t.Errorf("got %s", structuredIn(t, r))
	}
	another := newShopServer(t, o.URL).agent(t, "ada", nil) // the first request of another process
	if r = another.call("gem_result", `{"call_id": "`+id+`"}`); !strings.Contains(structuredIn(t, r), `"gem_pending"`) {
		t.Errorf("got %s", structuredIn(t, r))
	}
	close(o.release)
	r = a.call("gem_result", `{"call_id": "`+strings.ToUpper(id)+`", "wait_seconds": 45}`)
	var receipt struct {
		CallID string `json:"call_id"`
		Status string
		Result shopOutput
	}
	if err := json.Unmarshal([]byte(structuredIn(t, r)), &receipt); err != nil || receipt.CallID != id ||
		receipt.Status != "succeeded" || receipt.Result.Text != "released" {
		t.Errorf("got %s, %v", structuredIn(t, r), err)
	}
	if strings.Contains(structuredIn(t, r), "worker_id") {
		t.Error("the receipt names its worker")
	}
}

func TestACallOfAnotherIsNone(t *testing.T) {
	t.Parallel()
	o := openShop(t, false, func(o *Options) { o.Wait = time.Millisecond })
	id := idOf(o.server.agent(t, "ada", nil).call("shop_order", `{}`))
	bob := o.server.agent(t, "bob", nil)
	const nobodys = "0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55"
	for _, tool := range []string{"gem_result", "gem_cancel"} {
		hers := bob.refusedWith(jsonrpc.CodeInvalidParams, tool, `{"call_id": "`+id+`"}`)
		none := bob.refusedWith(jsonrpc.CodeInvalidParams, tool, `{"call_id": "`+nobodys+`"}`)
		if strings.ReplaceAll(hers, id, nobodys) != none {
			t.Errorf("%s: %q and %q", tool, hers, none)
		}
		bob.refusedWith(jsonrpc.CodeInvalidParams, tool, `{"call_id": "x"}`)
		bob.refusedWith(jsonrpc.CodeInvalidParams, tool, `{"call_id": 5}`)
	}
	for _, kind := range []string{receiptURI, journalURI} {
		for _, call := range []string{id, nobodys, "x"} {
			_, err := bob.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: kind + call})
			var coded *jsonrpc.Error
			if !errors.As(err, &coded) || coded.Code != jsonrpc.CodeInvalidParams || coded.Message != "Resource not found" {
				t.Errorf("%s: %v", kind+call, err)
			}
		}
	}
	o.count(1, "status = 'queued'")
}

func TestReceiptAndJournalAreResources(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	a := o.server.agent(t, "ada", nil)
	id := idOf(a.call("shop_order", `{"item": "roof"}`))
	for uri, want := range map[string]string{receiptURI + id: `"result":{"text":"roof"}`,
		journalURI + id: `"event":"succeeded"`} {
		r, err := a.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri})
		if err != nil || len(r.Contents) != 1 || r.Contents[0].MIMEType != "application/json" ||
			!strings.Contains(r.Contents[0].Text, want) || strings.Contains(r.Contents[0].Text, "worker_id") {
			t.Errorf("%s: %+v, %v", uri, r, err)
		}
	}
	templates, err := a.ListResourceTemplates(t.Context(), nil)
	if err != nil || len(templates.ResourceTemplates) != 2 {
		t.Errorf("%+v, %v", templates, err)
	}
}

func TestALargeResultIsALinkToItsReceipt(t *testing.T) {
	t.Parallel()
	o := openShop(t, true, func(o *Options) { o.MaxResult = 5000 })
	a := o.server.agent(t, "ada", nil)
	whole := a.call("shop_order", `{"item": "y", "size": 4000}`)
	if len(textIn(whole)) < 4000 {
		t.Errorf("got %d bytes of a result that is small enough", len(textIn(whole)))
	}
	r := a.call("shop_order", `{"item": "y", "size": 6000}`)
	said := structuredIn(t, r)
	link, _ := r.Content[len(r.Content)-1].(*sdk.ResourceLink)
	if r.IsError || len(said) > 3000 || !strings.Contains(said, `"gem_large":{"beginning":"{\"text\": \"yxxx`) ||
		!strings.Contains(said, `"bytes":6013`) || link == nil || link.URI != receiptURI+idOf(r) {
		t.Errorf("got %s and %+v", said, link)
	}
	if again := structuredIn(t, a.call("gem_result", `{"call_id": "`+idOf(r)+`"}`)); again != said {
		t.Errorf("gem_result: %s", again)
	}
	read, err := a.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: link.URI})
	if err != nil || len(read.Contents[0].Text) < 6000 {
		t.Errorf("the resource: %v", err)
	}
}

func TestACancelledRequestCancelsItsCallAndADisconnectDoesNot(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*Options)
		end    func(agent, context.CancelFunc)
		want   string
	}{
		"cancelled": {func(*Options) {}, func(_ agent, cancel context.CancelFunc) { cancel() }, "failed"},
		"cancelled, kept": {func(o *Options) { o.KeepOnCancel = true },
			func(_ agent, cancel context.CancelFunc) { cancel() }, "succeeded"},
		"gone": {func(*Options) {}, func(a agent, _ context.CancelFunc) { _ = a.Close() }, "succeeded"},
		"gone, not wanted": {func(o *Options) { o.CancelOnDisconnect = true },
			func(a agent, _ context.CancelFunc) { _ = a.Close() }, "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := openShop(t, true, tc.change)
			here, there := pipes()
			server, err := o.server.sdk.Connect(withCaller(context.Background(), caller{subject: "ada"}), there, nil)
			if err != nil {
				t.Fatal(err)
			}
			session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), here, nil)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var calling sync.WaitGroup
			calling.Go(func() { _, _ = session.CallTool(ctx, &sdk.CallToolParams{Name: "shop_hold"}) })
			id := <-o.holds
			if strings.HasPrefix(name, "gone") {
				_ = here.hangUp()
			} else {
				cancel()
			}
			calling.Wait()
			if tc.want == "succeeded" {
				if name == "gone" {
					_ = server.Wait() // the server has noticed
				}
				close(o.release)
			}
			if r := o.Await(id); string(r.Status) != tc.want {
				t.Errorf("the call %s, want %s", r.Status, tc.want)
			}
			_ = session.Close()
			_ = here.hangUp()
			_ = server.Wait()
		})
	}
}

func TestAQueuedCallIsCancelledAtOnceAndTwiceIsTheSame(t *testing.T) {
	t.Parallel()
	o := openShop(t, false, func(o *Options) { o.Wait = time.Millisecond })
	a := o.server.agent(t, "ada", nil)
	id := idOf(a.call("shop_order", `{}`))
	if said := structuredIn(t, a.call("gem_cancel", `{"call_id": "`+id+`"}`)); said != `{"answer":"cancelled","call_id":"`+
		id+`"}` {
		t.Errorf("got %s", said)
	}
	if said := structuredIn(t, a.call("gem_cancel", `{"call_id": "`+id+`"}`)); said != `{"answer":"failed","call_id":"`+id+
		`"}` {
		t.Errorf("again: %s", said)
	}
	o.count(1, "status = 'failed' and error ->> 'error_code' = 'cancelled'")
}

func TestProgressIsTheJournalAndGrows(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	told := make(chan *sdk.ProgressNotificationParams, 100)
	a := o.server.agent(t, "ada", &sdk.ClientOptions{ProgressNotificationHandler: func(_ context.Context,
		req *sdk.ProgressNotificationClientRequest) {
		told <- req.Params
	}})
	var calling sync.WaitGroup
	calling.Go(func() {
		params := &sdk.CallToolParams{Name: "shop_hold", Meta: sdk.Meta{}}
		params.SetProgressToken("p")
		_, _ = a.CallTool(t.Context(), params)
	})
	<-o.holds
	last := 0.0
	for last < 2 { // queued, claimed
		p := <-told
		if p.ProgressToken != "p" || p.Progress <= last {
			t.Errorf("got %+v after %v", p, last)
		}
		last = p.Progress
	}
	close(o.release)
	calling.Wait()
}

func TestAStoppedServerAnswersThatItsCallsArePending(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	a := o.server.agent(t, "ada", nil)
	answer := make(chan *sdk.CallToolResult, 1)
	go func() {
		r, _ := a.try("shop_hold", `{}`)
		answer <- r
	}()
	<-o.holds
	o.server.Stop()
	if r := <-answer; r == nil || !strings.Contains(structuredIn(t, r), "gem_pending") {
		t.Errorf("got %+v", r)
	}
	close(o.release)
}

func TestAKeyMayComeAsAnArgument(t *testing.T) {
	t.Parallel()
	o := openShop(t, true, func(o *Options) { o.KeyArgument = true })
	a := o.server.agent(t, "ada", nil)
	first := a.call("shop_order", `{"item": "a", "gem_key": "k"}`)
	if again := a.call("shop_order", `{"item": "a"}`, keyName, "k"); first.IsError || idOf(again) != idOf(first) {
		t.Errorf("%s: the key of the argument is another than that of _meta", textIn(first))
	}
	a.refusedWith(jsonrpc.CodeInvalidParams, "shop_order", `{"gem_key": "k"}`, keyName, "other")
	a.refusedWith(jsonrpc.CodeInvalidParams, "shop_order", `{"gem_key": 7}`)
	a.refusedWith(jsonrpc.CodeInvalidParams, "shop_order", `{"gem_key": ""}`)
	if r := a.call("shop_stock_find", `{"gem_key": "k"}`); !strings.Contains(textIn(r), "not_configured") &&
		!strings.Contains(textIn(r), "gem_key") {
		t.Errorf("a tool that only reads takes a gem_key: %s", textIn(r))
	}
}

func TestStatementsHaveTheRightsOfASignedInUser(t *testing.T) {
	t.Parallel()
	o := openShop(t, false)
	err := o.server.as(t.Context(), caller{subject: "ada"}, func(db handlers.DB) error {
		var role string
		err := db.QueryRow(t.Context(), "select current_user").Scan(&role)
		if role != "gem_frontend" {
			t.Errorf("statements run as %s", role)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := callerOf(t.Context()); err == nil {
		t.Error("a request without a caller has one")
	}
}

func TestEveryVersionOfTheProtocolGetsTheSameToolsAndResults(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	var first string
	for _, version := range []string{"2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"} {
		here, there := sdk.NewInMemoryTransports()
		server, err := o.server.sdk.Connect(withCaller(context.Background(), caller{subject: "ada"}), there, nil)
		if err != nil {
			t.Fatal(err)
		}
		session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), here,
			&sdk.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		list, err := session.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		r, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "shop_order",
			Arguments: json.RawMessage(`{"item": "roof"}`), Meta: sdk.Meta{keyName: "k"}})
		if err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		got := string(encode(list.Tools)) + idOf(r) + structuredIn(t, r) + textIn(r)
		if first == "" {
			first = got
		}
		if got != first {
			t.Errorf("%s: got %s, want %s", version, got, first)
		}
		_ = session.Close()
		_ = server.Wait()
	}
	o.count(1, "true")
}

func TestAHitSaysWhoseResultItRepeats(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	first := o.server.agent(t, "ada", nil).call("shop_refund", `{"order": "7"}`)
	hit := o.server.agent(t, "bob", nil).call("shop_refund", `{"order": "7"}`)
	if hit.IsError || structuredIn(t, hit) != structuredIn(t, first) ||
		hit.Meta[meta+"replayOf"] != first.Meta[meta+"receiptId"] {
		t.Errorf("got %v, want a hit of %v", hit.Meta, first.Meta)
	}
	if o.ran.Load() != 1 {
		t.Errorf("it ran %d times", o.ran.Load())
	}
}

func TestAHitWhoseInputDiffersSaysSo(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	a := o.server.agent(t, "ada", nil)
	first := a.call("shop_refund", `{"order": "7", "item": "roof"}`)
	same := a.call("shop_refund", `{"order": "7", "item": "roof"}`)
	other := a.call("shop_refund", `{"order": "7", "item": "door"}`)
	read := a.call("gem_result", `{"call_id": "`+idOf(other)+`"}`)
	const note = "Its result is that of an earlier call to shop.refund, which had the same order but otherwise a " +
		"different input"
	for _, r := range []*sdk.CallToolResult{other, read} {
		if r.IsError || len(r.Content) != 2 || !strings.Contains(textIn(r), note) || r.Meta[meta+"inputDiffers"] != true {
			t.Errorf("got %s, %v", textIn(r), r.Meta)
		}
	}
	if structuredIn(t, other) != structuredIn(t, first) {
		t.Errorf("programs read %s, want %s", structuredIn(t, other), structuredIn(t, first))
	}
	for _, r := range []*sdk.CallToolResult{first, same} {
		if len(r.Content) != 1 || r.Meta[meta+"inputDiffers"] != nil {
			t.Errorf("got %s, %v", textIn(r), r.Meta)
		}
	}
	if o.ran.Load() != 1 {
		t.Errorf("it ran %d times", o.ran.Load())
	}
}

func TestALargeFailureIsNoSuccess(t *testing.T) {
	t.Parallel()
	o := openShop(t, true, func(o *Options) { o.MaxResult = 20 })
	a := o.server.agent(t, "ada", nil)
	r := a.call("shop_order", `{"item": 5}`)
	if said := structuredIn(t, a.call("gem_result", `{"call_id": "`+idOf(r)+`"}`)); !strings.Contains(said,
		"has not succeeded: it is failed validation_error") {
		t.Errorf("got %s", said)
	}
}

func TestNobodyWaitsForACallOfAnother(t *testing.T) {
	t.Parallel()
	o := openShop(t, false)
	id := ""
	if err := o.DB.QueryRow(t.Context(), "insert into public.core_tool_calls (tool_name, created_by) values "+
		"('shop.order', 'bob') returning id::text").Scan(&id); err != nil {
		t.Fatal(err)
	}
	_, err := o.server.agent(t, "ada", nil).CallTool(t.Context(),
		&sdk.CallToolParams{Name: "gem_result", Arguments: map[string]any{"call_id": id, "wait_seconds": 45}})
	if err == nil || !strings.Contains(err.Error(), "you have no call") || o.server.waiter != nil {
		t.Errorf("ada waited to hear: %v", err)
	}
}
