package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/testing/issuertest"
	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// openShopHTTP opens a shop, and serves it over HTTP to subjects with tokens.
func openShopHTTP(t *testing.T, worker bool, subjects []string, change ...func(*Options)) (o *opened, h *httpEndpoint,
	tokens []string) {
	t.Helper()
	path, tokens := tokensFor(t, subjects...)
	o = openShop(t, worker)
	options := Options{Registry: o.server.o.Registry, Pool: func(ctx context.Context) (*pgxpool.Pool, error) {
		return pgxpool.New(context.WithoutCancel(ctx), o.URL)
	}}
	for _, c := range change {
		c(&options)
	}
	return o, serveHTTP(t, options, HTTPConfig{Auth: "token", Tokens: path}), tokens
}

// called is the result of a tools/call.
type called struct {
	IsError    bool
	Structured json.RawMessage `json:"structuredContent"`
	Content    []struct{ Text string }
	Meta       map[string]any `json:"_meta"`
}

func (a *answer) called(t *testing.T) (c called) {
	t.Helper()
	if err := json.Unmarshal(a.Result, &c); err != nil || len(c.Content) == 0 {
		t.Fatalf("no result of a tool: %d %.500s", a.status, a.text)
	}
	return c
}

func (c called) id() string { id, _ := c.Meta[meta+"callId"].(string); return id }

func TestACallOverHTTPIsItsSubjectsWithTheRightsOfASignedInUser(t *testing.T) {
	t.Parallel()
	o, h, tokens := openShopHTTP(t, true, []string{"ada", "bob"})
	for _, version := range []string{modern, legacy} {
		c := h.rpc(t, version, "tools/call", `{"name":"shop_order","arguments":{"item":"roof"}}`, "token",
			tokens[0]).called(t)
		if c.IsError || string(c.Structured) != `{"text":"roof"}` {
			t.Errorf("%s: %+v", version, c)
		}
	}
	o.count(2, "created_by = 'ada' and signed_in and status = 'succeeded'")

	i := issuertest.New(t)
	theirs := serveHTTP(t, h.o, HTTPConfig{Auth: "jwt", Issuer: i.URL, JWKS: i.URL, Resource: testResource})
	token := sign(t, jwt.SigningMethodES256, i.EC, "ec", map[string]any{"iss": i.URL, "sub": "carol", "role": "admin"})
	c := theirs.rpc(t, modern, "tools/call", `{"name":"shop_order","arguments":{"item":"roof"}}`, "token", token).called(t)
	if c.IsError {
		t.Errorf("%+v", c)
	}
	o.count(1, "created_by = 'carol' and signed_in")
}

func TestAnothersCallIsThereForNobodyElse(t *testing.T) {
	t.Parallel()
	o, h, tokens := openShopHTTP(t, true, []string{"ada", "bob"})
	ada, bob := tokens[0], tokens[1]
	order := `{"name":"shop_order","arguments":{"item":"roof"},"_meta":{"io.github.gemworker/key":"k"}}`
	hers := h.rpc(t, modern, "tools/call", order, "token", ada).called(t)
	for _, c := range []struct{ method, params string }{
		{"tools/call", `{"name":"gem_result","arguments":{"call_id":"%s"}}`},
		{"tools/call", `{"name":"gem_cancel","arguments":{"call_id":"%s"}}`},
		{"resources/read", `{"uri":"gem://receipt/%s"}`},
		{"resources/read", `{"uri":"gem://journal/%s"}`},
	} {
		theirs := h.rpc(t, legacy, c.method, fmt.Sprintf(c.params, hers.id()), "token", bob)
		none := h.rpc(t, legacy, c.method, fmt.Sprintf(c.params, "0197f6a2-0000-7000-8000-000000000000"), "token", bob)
		if theirs.Error == nil || none.Error == nil || theirs.Error.Code != none.Error.Code ||
			strings.ReplaceAll(theirs.Error.Message, hers.id(), "ID") != strings.ReplaceAll(none.Error.Message,
				"0197f6a2-0000-7000-8000-000000000000", "ID") {
			t.Errorf("%s: %s\nof none: %s", c.params, theirs.text, none.text)
		}
		if own := h.rpc(t, legacy, c.method, fmt.Sprintf(c.params, hers.id()), "token", ada); own.Error != nil {
			t.Errorf("her own: %s", own.text)
		}
	}
	his := h.rpc(t, modern, "tools/call", order, "token", bob).called(t)
	if his.IsError || his.id() == hers.id() || his.Meta[meta+"receiptId"] == hers.Meta[meta+"receiptId"] {
		t.Errorf("the same key of another subject: %+v", his)
	}
	again := h.rpc(t, modern, "tools/call", order, "token", ada).called(t)
	if again.id() != hers.id() || o.ran.Load() != 2 {
		t.Errorf("asked again: %+v, ran %d times", again, o.ran.Load())
	}
}

func TestTheHeaderIdempotencyKeyIsAKey(t *testing.T) {
	t.Parallel()
	o, h, tokens := openShopHTTP(t, true, []string{"ada"})
	params := `{"name":"shop_order","arguments":{"item":"roof"}}`
	first := h.rpc(t, modern, "tools/call", params, "token", tokens[0], "Idempotency-Key", "k").called(t)
	again := h.rpc(t, legacy, "tools/call", params, "token", tokens[0], "Idempotency-Key", "k").called(t)
	if first.id() == "" || first.id() != again.id() || o.ran.Load() != 1 {
		t.Errorf("%s and %s, ran %d times", first.id(), again.id(), o.ran.Load())
	}
}

func TestACallGoesOnWhenItsClientIsGone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, version string
		cancels       bool
	}{{"modern", modern, false}, {"legacy", legacy, false}, {"modern, with cancel", modern, true},
		{"legacy, with cancel", legacy, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o, h, tokens := openShopHTTP(t, true, []string{"ada"}, func(o *Options) { o.CancelOnDisconnect = c.cancels })
			ctx, leave := context.WithCancel(t.Context())
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				params := `{"name":"shop_hold","arguments":{}}`
				body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`
				headers := []string{"Mcp-Protocol-Version", c.version, "token", tokens[0]}
				if c.version == modern {
					body = strings.Replace(body, `"arguments"`, `"_meta":{"io.modelcontextprotocol/protocolVersion":"`+modern+
						`","io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}},"arguments"`, 1)
					headers = append(headers, "Mcp-Method", "tools/call", "Mcp-Name", "shop_hold")
				}
				if a, err := h.try(ctx, body, headers...); err == nil {
					t.Errorf("an answer: %s", a.text)
				}
			}()
			id := <-o.holds
			leave()
			<-gone
			if c.cancels {
				if r := o.Await(id); r.Status != "failed" || !strings.Contains(string(r.Result), "cancelled") {
					t.Errorf("the receipt is %s", r.Result)
				}
				return
			}
			close(o.release)
			if r := o.Await(id); r.Status != "succeeded" {
				t.Errorf("the receipt is %s", r.Result)
			}
		})
	}
}

func TestAtItsEndTheServerAnswersWhatWaits(t *testing.T) {
	t.Parallel()
	o, h, tokens := openShopHTTP(t, true, []string{"ada"})
	answered := make(chan *answer, 1)
	go func() {
		answered <- h.rpc(t, modern, "tools/call", `{"name":"shop_hold","arguments":{}}`, "token", tokens[0])
	}()
	id := <-o.holds
	h.stop()
	if c := (<-answered).called(t); !strings.Contains(string(c.Structured), `"gem_pending"`) ||
		!strings.Contains(string(c.Structured), id) {
		t.Errorf("%+v", c)
	}
	if err := <-h.ended; err != nil {
		t.Error(err)
	}
	if _, err := h.try(t.Context(), "{}"); err == nil {
		t.Error("the server takes requests after its end")
	}
	close(o.release)
	if r := o.Await(id); r.Status != "succeeded" {
		t.Errorf("the receipt is %s", r.Result)
	}
}

func TestProgressIsAStreamAndTheRestIsNot(t *testing.T) {
	t.Parallel()
	_, h, tokens := openShopHTTP(t, true, []string{"ada"})
	for _, version := range []string{modern, legacy} {
		a := h.rpc(t, version, "tools/call", `{"name":"shop_order","arguments":{"item":"roof"},"_meta":{"progressToken":7}}`,
			"token", tokens[0])
		if kind := a.header.Get("Content-Type"); kind != "text/event-stream" || a.called(t).IsError {
			t.Errorf("%s: %s %s", version, kind, a.text)
		}
		for _, event := range a.events {
			if !strings.Contains(string(event), `"notifications/progress"`) {
				t.Errorf("%s: %s", version, event)
			}
		}
		if a := h.rpc(t, version, "tools/call", `{"name":"shop_order","arguments":{"item":"roof"}}`, "token",
			tokens[0]); a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %v", version, a.header)
		}
	}
}

func TestWhatPostgresRefusesIsToldToTheModel(t *testing.T) {
	t.Parallel()
	o, h, tokens := openShopHTTP(t, true, []string{"ada"})
	for name, input := range map[string]string{
		"1 MiB and more":  `{"item":"` + strings.Repeat("a", 1<<20) + `"}`,
		"depth":           strings.Repeat(`{"a":`, 8_900) + "1" + strings.Repeat("}", 8_900),
		"more depth":      strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000),
		"NUL":             `{"item":"a\u0000b"}`,
		"a large number":  `{"size":1e10000000}`,
		"half a sequence": `{"item":"\ud800"}`,
	} {
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"shop_order","arguments":` + input + `}}`
		a := h.post(t, body, "Mcp-Protocol-Version", legacy, "token", tokens[0])
		if c := a.called(t); !c.IsError || c.Content[0].Text == "" {
			t.Errorf("%s: %d %.300s", name, a.status, a.text)
		}
	}
	if c := h.rpc(t, modern, "tools/call", `{"name":"shop_order","arguments":{"item":"roof"}}`, "token",
		tokens[0]).called(t); c.IsError {
		t.Errorf("after that: %+v", c)
	}
	if n := o.ran.Load(); n > 2 { // half a surrogate may be replaced
		t.Errorf("the tool ran %d times", n)
	}
}

func TestThe65thRequestOfASubjectIsAskedToComeAgain(t *testing.T) {
	t.Parallel()
	o, h, tokens := openShopHTTP(t, false, []string{"ada", "bob"})
	ctx, leave := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for range maxEach {
		waiting.Go(func() {
			body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"shop_order","arguments":{}}}`
			if a, err := h.try(ctx, body, "Mcp-Protocol-Version", legacy, "token", tokens[0]); err == nil {
				t.Errorf("an answer, without a worker: %d %s", a.status, a.text)
			}
		})
	}
	for n := 0; n < maxEach; {
		if err := o.DB.QueryRow(t.Context(), "select count(c) from pg_sleep(0.01) left join core_tool_calls c on "+
			"created_by = 'ada'").Scan(&n); err != nil {
			t.Fatal(err)
		}
	}
	if a := h.rpc(t, modern, "tools/list", "", "token", tokens[0]); a.status != 429 || a.header.Get("Retry-After") == "" {
		t.Errorf("ada's 65th: %d %s", a.status, a.text)
	}
	if a := h.rpc(t, modern, "tools/list", "", "token", tokens[1]); a.status != 200 {
		t.Errorf("bob's first: %d %s", a.status, a.text)
	}
	leave()
	waiting.Wait()
	// the server has noticed the disconnections
	for a := h.rpc(t, modern, "tools/list", "", "token", tokens[0]); a.status != 200; {
		a = h.rpc(t, modern, "tools/list", "", "token", tokens[0])
	}
}

func TestTheRequestsOfASubjectLeaveConnectionsForOthers(t *testing.T) {
	t.Parallel()
	path, tokens := tokensFor(t, "ada", "bob")
	o := openShop(t, true)
	h := serveHTTP(t, Options{Registry: o.server.o.Registry, Wait: 10 * time.Minute,
		Pool: func(ctx context.Context) (*pgxpool.Pool, error) {
			return pgpool.Open(context.WithoutCancel(ctx), o.URL, pgpool.Options{MaxConns: 4})
		}}, HTTPConfig{Auth: "token", Tokens: path})
	h.tryFor, h.patience = 10*time.Minute, 10*time.Minute // the inserts that wait do not end by themselves

	lock, err := o.DB.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	unlock := func() {
		if _, err := lock.Exec(t.Context(), "select pg_advisory_unlock_all()"); err != nil {
			t.Error(err)
		}
	}
	defer unlock() // even if the test fails
	if _, err := lock.Exec(t.Context(), "select pg_advisory_lock(hashtextextended('gem.limits ada', 0))"); err != nil {
		t.Fatal(err)
	}
	order := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"shop_order","arguments":{}}}`
	ask := func(ctx context.Context, token string) (*answer, error) {
		return h.try(ctx, order, "Mcp-Protocol-Version", legacy, "token", token)
	}
	var hers sync.WaitGroup
	t.Cleanup(hers.Wait)
	for range 8 {
		hers.Go(func() {
			if a, err := ask(t.Context(), tokens[0]); err != nil || a.status != 200 {
				t.Errorf("ada's: %+v, %v", a, err)
			}
		})
	}
	o.Until("requests of ada wait for the lock", func() bool {
		var n int
		err := o.DB.QueryRow(t.Context(), "select count(*) from pg_locks where locktype = 'advisory' and not granted and "+
			"database = (select oid from pg_database where datname = current_database())").Scan(&n)
		return err == nil && n >= 2 && h.shares.In()["ada"] == 8
	})

	// A request whose client leaves while it waits for the others makes no call.
	ctx, leave := context.WithCancel(t.Context())
	hers.Go(func() {
		if a, err := ask(ctx, tokens[0]); err == nil {
			t.Errorf("an answer: %s", a.text)
		}
	})
	o.Until("the ninth waits", func() bool { return h.shares.In()["ada"] == 9 })
	leave()
	o.Until("the ninth has left", func() bool { return h.shares.In()["ada"] == 8 })

	his := make(chan error, 1)
	go func() {
		_, err := ask(t.Context(), tokens[1])
		his <- err
	}()
	o.Until("bob has an answer", func() bool { return len(his) == 1 })
	if err := <-his; err != nil {
		t.Errorf("bob's: %v", err)
	}
	o.count(0, "created_by = 'ada'") // all eight still wait
	o.count(1, "created_by = 'bob' and status = 'succeeded'")
	unlock()
	hers.Wait()
	o.count(8, "created_by = 'ada' and status = 'succeeded'")
	if in := h.shares.In(); len(in) != 0 {
		t.Errorf("shares are left: %v", in)
	}
}

func TestTheServerServesWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	var there atomic.Bool
	o, h, tokens := openShopHTTP(t, true, []string{"ada"}, func(o *Options) {
		open := o.Pool
		o.Pool = func(ctx context.Context) (*pgxpool.Pool, error) {
			if !there.Load() {
				return nil, errors.New("Postgres is away")
			}
			return open(ctx)
		}
	})
	params := `{"name":"shop_order","arguments":{"item":"roof"}}`
	if a := h.rpc(t, modern, "tools/list", "", "token", tokens[0]); len(a.listed()) == 0 {
		t.Errorf("list: %d %s", a.status, a.text)
	}
	if a := h.rpc(t, modern, "tools/call", params, "token", tokens[0]); a.Error == nil || a.Error.Code != -32603 ||
		!strings.Contains(a.Error.Message, "away") {
		t.Errorf("call: %d %s", a.status, a.text)
	}
	there.Store(true)
	if c := h.rpc(t, modern, "tools/call", params, "token", tokens[0]).called(t); c.IsError || o.ran.Load() != 1 {
		t.Errorf("call, with the database: %+v", c)
	}
}

func TestTheServerIsNotServedWithTheRightsOfTheOwner(t *testing.T) {
	t.Parallel()
	o := openShop(t, false)
	_, err := o.DB.Exec(t.Context(), `create role gem_test_mcp_nobody login password 'x';
		create role gem_test_mcp_deaf login password 'x' in role gem_frontend; create role gem_test_mcp_all nologin bypassrls;
			grant gem_test_mcp_all to current_user`)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := o.DB.Exec(context.Background(), "drop role gem_test_mcp_nobody; drop role gem_test_mcp_deaf; drop "+
			"role gem_test_mcp_all"); err != nil {
			t.Error(err)
		}
	})
	as := func(role string) string {
		u, err := url.Parse(o.URL)
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword(role, "x")
		return u.String()
	}
	var owner string
	if err := o.DB.QueryRow(t.Context(), "select current_user").Scan(&owner); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ url, role, want string }{
		{as("gem_test_mcp_nobody"), "", "grant gem_mcp"},
		{as("gem_test_mcp_deaf"), "", "cannot read which calls have ended"},
		{o.URL, "no_such_role", "no_such_role"},
		{o.URL, owner, "sees the calls of all users"},
		{o.URL, "gem_test_mcp_all", "sees the calls of all users"},
	} {
		opens := func(ctx context.Context) (*pgxpool.Pool, error) {
			return pgxpool.New(context.WithoutCancel(ctx), c.url)
		}
		h := serveHTTP(t, Options{Registry: o.server.o.Registry, Pool: opens, DBRole: c.role}, HTTPConfig{})
		var none *NoRoleError
		if err := <-h.ended; !errors.As(err, &none) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v", c, err)
		}

		var there atomic.Bool // the database is away at the start, and there at the first call
		late := serveHTTP(t, Options{Registry: o.server.o.Registry, DBRole: c.role,
			Pool: func(ctx context.Context) (*pgxpool.Pool, error) {
				if !there.Load() {
					return nil, errors.New("Postgres is away")
				}
				return opens(ctx)
			}}, HTTPConfig{})
		if a := late.rpc(t, modern, "tools/list", ""); len(a.listed()) == 0 {
			t.Errorf("list: %s", a.text)
		}
		there.Store(true)
		if a := late.rpc(t, modern, "tools/call", `{"name":"shop_order","arguments":{}}`); a.Error == nil ||
			!strings.Contains(a.Error.Message, c.want) {
			t.Errorf("%+v: %s", c, a.text)
		}
	}
	o.count(0, "true")
}

func TestACallOfAToolOutOfScopeIsThereForNoToken(t *testing.T) {
	t.Parallel()
	path, tokens := tokensFor(t, "ada read:db", "ada read:db write:db")
	o := openShop(t, true)
	h := serveHTTP(t, Options{Registry: o.server.o.Registry, Pool: func(ctx context.Context) (*pgxpool.Pool, error) {
		return pgxpool.New(context.WithoutCancel(ctx), o.URL)
	}},
		HTTPConfig{Auth: "token", Tokens: path, Scopes: "on"})
	reads, writes := tokens[0], tokens[1]
	ordered := h.rpc(t, modern, "tools/call", `{"name":"shop_order","arguments":{"item":"roof"}}`, "token",
		writes).called(t).id()
	found := h.rpc(t, modern, "tools/call", `{"name":"shop_stock_find","arguments":{}}`, "token", reads).called(t).id()
	for _, about := range []struct{ method, params string }{
		{"tools/call", `{"name":"gem_result","arguments":{"call_id":"%s"}}`},
		{"tools/call", `{"name":"gem_cancel","arguments":{"call_id":"%s"}}`},
		{"resources/read", `{"uri":"gem://receipt/%s"}`},
		{"resources/read", `{"uri":"gem://journal/%s"}`},
		{"tasks/get", `{"taskId":"%s","_meta":{"io.modelcontextprotocol/clientCapabilities":{"extensions":{"` +
			tasksExtension + `":{}}}}}`},
	} {
		ask := func(id, token string) *answer {
			a := h.rpc(t, modern, about.method, fmt.Sprintf(about.params, id), "token", token)
			a.text = strings.ReplaceAll(a.text, id, "ID")
			return a
		}
		none := ask("0197f6a2-0000-7000-8000-000000000000", reads)
		if hidden := ask(ordered, reads); hidden.Error == nil || hidden.text != none.text {
			t.Errorf("%s: %s\nof none: %s", about.params, hidden.text, none.text)
		}
		for id, token := range map[string]string{ordered: writes, found: reads} {
			if shown := ask(id, token); shown.Error != nil {
				t.Errorf("%s: %s", about.params, shown.text)
			}
		}
	}
}
