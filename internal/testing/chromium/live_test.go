package chromium

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// stays marks a page and returns a check that it was not loaded again.
func (b *tab) stays() (check func()) {
	b.t.Helper()
	eval[any](b, "window.stays = true")
	return func() {
		b.t.Helper()
		if !eval[bool](b, "!!window.stays") {
			b.t.Errorf("%s was loaded again", b.where())
		}
	}
}

// Scenario 4.
func TestCallsAppearAndEndWhileSomebodyLooks(t *testing.T) {
	t.Parallel()
	s := newScene(t, withoutWorker)
	b := openTab(t, s.serve(ada))
	b.visit("/calls")
	stays := b.stays()
	var ids []string
	for range 3 {
		ids = append(ids, s.Insert(of("os.create_note", note)))
	}
	b.until("three rows", `document.querySelectorAll("main tr[data-key] .state.queued").length === 3`)

	watching := openTab(t, b.origin)
	watching.visit("/calls/" + ids[0])
	loaded := watching.stays()
	watching.until("a queued call", `document.querySelector("main .state.queued")`)
	s.StartWorker()
	watching.until("its end", `document.querySelector("main .state.succeeded")`)
	b.until("three ends", `document.querySelectorAll("main tr[data-key] .state.succeeded").length === 3`)
	loaded()
	stays()

	// A page from the history continues, whether the browser kept it or loads it again.
	b.visit("/workers")
	eval[any](b, "history.back(), null")
	b.until("the list", `location.pathname === "/calls" && document.querySelectorAll("main tr[data-key]").length === 3`)
	s.Insert(of("os.create_note", note))
	b.until("four rows", `document.querySelectorAll("main tr[data-key]").length === 4`)
}

// Scenario 4: without the database, the page reports that and recovers by itself.
func TestAPageSaysThatTheDatabaseIsAwayAndComesBackByItself(t *testing.T) {
	t.Parallel()
	s := newScene(t, withoutWorker)
	g := newGate(t, s.URL)
	s.monitor, s.operate = g.through(s.monitor), g.through(s.operate)
	b := openTab(t, s.serve(ada))
	b.expects("status of 503")
	b.visit("/calls")
	stays := b.stays()
	s.Insert(of("os.create_note", note))
	b.until("a row", `document.querySelectorAll("main tr[data-key]").length === 1`)

	g.close()
	b.until("it to be said", `!document.querySelector("#away").hidden`)
	other := openTab(t, b.origin)
	other.expects("status of 503")
	if status := other.visit("/calls"); status != 503 {
		t.Errorf("the list without a database is answered with %d", status)
	}
	other.has("cannot be reached")

	s.Insert(of("os.create_note", note))
	g.open()
	b.until("the second row",
		`document.querySelector("#away").hidden && document.querySelectorAll("main tr[data-key]").length === 2`)
	other.until("the list", `document.querySelectorAll("main tr[data-key]").length === 2`)
	stays()
}

// gate is a proxy in front of Postgres that can be closed. Then it breaks all connections and refuses new ones.
type gate struct {
	t       *testing.T
	server  string
	address string

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
}

func newGate(t *testing.T, databaseURL string) *gate {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{t: t, server: u.Host, address: "127.0.0.1:0", conns: map[net.Conn]bool{}}
	g.open()
	t.Cleanup(g.close)
	return g
}

// through returns a connection string that leads through the gate.
func (g *gate) through(databaseURL string) string {
	u, err := url.Parse(databaseURL)
	if err != nil {
		g.t.Fatal(err)
	}
	u.Host = g.address
	return u.String()
}

func (g *gate) open() {
	g.t.Helper()
	l, err := net.Listen("tcp4", g.address)
	if err != nil {
		g.t.Fatal(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listener, g.address = l, l.Addr().String()
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp4", g.server)
			if err != nil {
				_ = from.Close()
				continue
			}
			g.join(from, to)
		}
	}()
}

func (g *gate) join(from, to net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for a, b := range map[net.Conn]net.Conn{from: to, to: from} {
		g.conns[a] = true
		go func() {
			_, _ = io.Copy(a, b)
			_ = a.Close()
			_ = b.Close()
		}()
	}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.listener.Close()
	for c := range g.conns {
		_ = c.Close()
	}
	clear(g.conns)
}
