//go:build !windows

package chaos

import (
	"context"
	"net"
	"sync"
	"time"
)

// proxy is the connection of one worker to Postgres. It can become slow, silent or broken.
type proxy struct {
	listener net.Listener
	to       func() string // returns the current address of Postgres
	done     sync.WaitGroup

	mu      sync.Mutex
	weather weather
	delay   time.Duration
	changed chan struct{} // closed when the weather changes
	links   map[*link]struct{}
}

// weather is the state of the network.
type weather int

const (
	fair weather = iota
	slow         // each packet is delayed
	held         // packets wait until the weather is fair, as in a short network outage
	// packets are lost, and the connections of that time are dead without notice, as behind a router that has forgotten
	// them
	swallowed
)

// link is one connection.
type link struct {
	worker, server net.Conn // server is nil if the worker has no server connection
	dead           bool     // silent forever
}

func startProxy(ctx context.Context, to func() string) (*proxy, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, to: to, changed: make(chan struct{}), links: map[*link]struct{}{}}
	p.done.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.done.Go(func() { p.serve(conn) })
		}
	})
	return p, nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// retire accepts no more connections, and returns when the last one has ended. The worker has gone by then. The weather
// decides if and when Postgres notices that.
func (p *proxy) retire() {
	_ = p.listener.Close()
	p.done.Wait()
}

// during changes the weather and returns when it is fair again: after d, or when ctx ends.
func (p *proxy) during(ctx context.Context, w weather, d, delay time.Duration) {
	p.set(w, delay)
	sleep(ctx, d)
	p.set(fair, 0)
}

func (p *proxy) set(w weather, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		switch {
		case w == swallowed:
			l.dead = true
		case l.dead && l.server != nil:
			_ = l.server.Close() // now Postgres notices; the worker must detect it by itself
		}
	}
	p.weather, p.delay = w, delay
	close(p.changed)
	p.changed = make(chan struct{})
}

// cut breaks all connections at once.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		reset(l.worker)
		if l.server != nil {
			reset(l.server)
		}
	}
}

func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

func (p *proxy) serve(worker net.Conn) {
	l := &link{worker: worker}
	p.mu.Lock()
	l.dead = p.weather == swallowed
	p.mu.Unlock()
	if !l.dead {
		var err error
		if l.server, err = (&net.Dialer{Timeout: time.Second}).Dial("tcp4", p.to()); err != nil {
			reset(worker)
			return
		}
	}
	p.mu.Lock()
	p.links[l] = struct{}{}
	l.dead = l.dead || p.weather == swallowed
	p.mu.Unlock()

	var back sync.WaitGroup
	if l.server != nil {
		back.Go(func() { p.pump(l, l.server, l.worker) })
	}
	p.pump(l, l.worker, l.server)
	back.Wait()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// pump forwards data, and the end of the connection, as the weather permits.
func (p *proxy) pump(l *link, from, to net.Conn) {
	packet := make([]byte, 16<<10)
	for {
		n, err := from.Read(packet)
		passes := p.pass(l, err != nil)
		if n > 0 && passes {
			if _, failed := to.Write(packet[:n]); failed != nil && err == nil {
				err = failed
			}
		}
		switch {
		case err == nil:
		case passes:
			_ = l.worker.Close()
			_ = l.server.Close()
			return
		default:
			_ = from.Close()
			return
		}
	}
}

// pass waits until a packet may continue. It returns false if the packet is lost.
func (p *proxy) pass(l *link, last bool) bool {
	for {
		p.mu.Lock()
		weather, delay, changed, dead := p.weather, p.delay, p.changed, l.dead
		p.mu.Unlock()
		switch {
		case dead && last && weather == swallowed: // even the end is lost
			<-changed
		case dead:
			return false
		case weather == slow:
			time.Sleep(delay)
			return true
		case weather == held:
			<-changed
		default:
			return true
		}
	}
}
