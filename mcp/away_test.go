package mcp

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// wire leads to the database of a test, and can be cut.
type wire struct {
	url  string // of the database, through the wire
	down atomic.Bool
	open sync.Map // connections
	// insert is called when the next statement of a caller was passed on, before its answer is; then the connection
	// breaks.
	insert atomic.Pointer[func()]
	asked  chan struct{} // closed when a poll for ended calls was passed on: everything before it was answered
	once   sync.Once
}

func newWire(t testing.TB, to string) *wire {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	server := u.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u.Host = listener.Addr().String()
	w := &wire{url: u.String(), asked: make(chan struct{})}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { w.pass(client, server) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		all.Wait()
	})
	return w
}

// cut breaks all connections, and prevents new ones.
func (w *wire) cut() {
	w.down.Store(true)
	w.open.Range(func(conn, _ any) bool {
		_ = conn.(net.Conn).Close()
		return true
	})
}

// pass carries one connection.
func (w *wire) pass(client net.Conn, server string) {
	defer func() { _ = client.Close() }()
	w.open.Store(client, true)
	defer w.open.Delete(client)
	if w.down.Load() {
		return
	}
	up, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer func() { _ = up.Close() }()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(client, up)
		_ = client.Close()
	})
	defer back.Wait()
	defer func() { _ = up.Close() }()
	buffer := make([]byte, 1<<16)
	for {
		n, err := client.Read(buffer)
		if n > 0 && bytes.Contains(buffer[:n], []byte(`"sub":`)) {
			if f := w.insert.Swap(nil); f != nil {
				_ = client.Close() // before the answer
				_, _ = up.Write(buffer[:n])
				(*f)()
				return
			}
		}
		if bytes.Contains(buffer[:n], []byte("from gem.ended(")) {
			w.once.Do(func() { close(w.asked) })
		}
		if _, failed := up.Write(buffer[:n]); err != nil || failed != nil {
			return
		}
	}
}

func TestWhileTheDatabaseIsAwayToolsAreListedAndCallsRefused(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	w := newWire(t, o.URL)
	d := newShopServer(t, w.url)
	d.patience = 0
	a := d.agent(t, "ada", nil)
	w.down.Store(true)
	if _, names := list(t, d); len(names) != 6 {
		t.Errorf("listed: %v", names)
	}
	for range 2 {
		if said := a.refusedWith(jsonrpc.CodeInternalError, "shop_order", `{}`); !strings.HasPrefix(said,
			"The call was not made: Postgres cannot be reached") || strings.Contains(said, "password") {
			t.Errorf("got %s", said)
		}
	}
	a.refusedWith(jsonrpc.CodeInternalError, "gem_result", `{"call_id": "0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55"}`)
	w.down.Store(false)
	if r := a.call("shop_order", `{"item": "roof"}`); r.IsError {
		t.Errorf("the database is back: %s", textIn(r))
	}
	o.count(1, "true")
}

func TestACallWhoseInsertWasNotAnsweredIsMadeOnce(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	w := newWire(t, o.URL)
	a := newShopServer(t, w.url).agent(t, "ada", nil)
	inserted := func() {
		o.Until("the call is there", func() bool {
			var n int
			err := o.DB.QueryRow(t.Context(), "select count(*) from core_tool_calls").Scan(&n)
			return err == nil && n == 1
		})
	}
	w.insert.Store(&inserted)
	if r := a.call("shop_order", `{"item": "roof"}`); r.IsError || structuredIn(t, r) != `{"text":"roof"}` {
		t.Errorf("got %s", textIn(r))
	}
	if o.ran.Load() != 1 || w.insert.Load() != nil {
		t.Errorf("it ran %d times", o.ran.Load())
	}
	o.count(1, "true")
}

func TestACallThatMayHaveBeenMadeSaysHowToFindOut(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	w := newWire(t, o.URL)
	d := newShopServer(t, w.url, func(o *Options) { o.Wait = time.Nanosecond })
	a := d.agent(t, "ada", nil)
	cut := func() { w.down.Store(true) }
	w.insert.Store(&cut)
	said := a.refusedWith(jsonrpc.CodeInternalError, "shop_order", `{"item": "roof"}`, keyName, "k")
	id := rowID("ada", "shop.order", "k")
	if !strings.HasPrefix(said, "It is unknown whether the call was made: ") ||
		!strings.Contains(said, `with the same key, "k"`) || !strings.Contains(said, "gem_result with call_id "+id) {
		t.Errorf("got %s", said)
	}
	w.down.Store(false)
	again := newShopServer(t, w.url).agent(t, "ada", nil).call("shop_order", `{"item": "roof"}`, keyName, "k")
	if again.IsError || idOf(again) != id || o.ran.Load() != 1 {
		t.Errorf("asked again: %s, %d runs", textIn(again), o.ran.Load())
	}
}

func TestACallThatCannotBeSeenIsPending(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	w := newWire(t, o.URL)
	d := newShopServer(t, w.url)
	a := d.agent(t, "ada", nil)
	go func() {
		<-o.holds
		<-w.asked // the server knows that the call was made
		w.cut()
		d.Stop() // the request's time is over
	}()
	if r := a.call("shop_hold", `{}`); !strings.Contains(structuredIn(t, r), `"state":"unknown"`) ||
		!strings.Contains(structuredIn(t, r), "call gem_result") {
		t.Errorf("got %s", textIn(r))
	}
	close(o.release)
}

func TestACallThatAFailoverLosesIsMadeAgainUnderItsID(t *testing.T) {
	t.Parallel()
	o := openShop(t, false, func(o *Options) { o.Wait = time.Millisecond })
	// The first call is lost with its commit, so that no wait can be over before.
	_, err := o.DB.Exec(t.Context(), `create function lose() returns trigger language plpgsql security definer as $$
		begin
			if not exists (select from gem.epochs where why = 'promotion') then
				set local session_replication_role = replica;
				delete from core_tool_events;
				delete from core_tool_calls;
				insert into gem.epochs (server, at, why) values (clock_timestamp(), clock_timestamp(), 'promotion');
			end if;
			return null;
		end $$;
		create constraint trigger lose after insert on core_tool_calls initially deferred
			for each row execute function lose()`)
	if err != nil {
		t.Fatal(err)
	}
	r := o.server.agent(t, "ada", nil).call("shop_order", `{"item": "roof"}`)
	var id string
	var promotions int
	err = o.DB.QueryRow(t.Context(), `select id::text, (select count(*) from gem.epochs where why = 'promotion')
		from core_tool_calls where tool_name = 'shop.order'`).Scan(&id, &promotions)
	if err != nil || promotions != 1 {
		t.Fatalf("it was lost %d times, and is not there again: %v", promotions, err)
	}
	if r.IsError || !strings.Contains(structuredIn(t, r), `{"gem_pending":{"call_id":"`+id) {
		t.Errorf("%s was lost: got %s", id, textIn(r))
	}
}
