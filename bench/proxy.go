package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// proxy delays data by half of the round-trip time in each direction, without holding back later data. Or it counts the
// statements of clients.
type proxy struct {
	listener net.Listener
	executed *atomic.Int64 // nil: no count
	done     sync.WaitGroup
	mu       sync.Mutex
	open     map[net.Conn]struct{}
}

// delayed returns url with a slow proxy in front of its server.
func delayed(ctx context.Context, to string, roundTrip time.Duration) (through string, stop func(), err error) {
	return (&proxy{}).start(ctx, to, roundTrip)
}

// counted returns url with a proxy in front of its server, and the number of statements executed through it. It does
// not count the begin, the settings and the end of a transaction, which pgx sends as Query messages.
func counted(ctx context.Context, to string) (through string, executed *atomic.Int64, stop func(), err error) {
	executed = &atomic.Int64{}
	through, stop, err = (&proxy{executed: executed}).start(ctx, to, 0)
	return through, executed, stop, err
}

func (p *proxy) start(ctx context.Context, to string, roundTrip time.Duration) (through string, stop func(),
	err error) {
	parsed, err := url.Parse(to)
	if err != nil {
		return "", nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	p.listener, p.open = l, map[net.Conn]struct{}{}
	server := parsed.Host
	p.done.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.done.Go(func() { p.serve(ctx, client, server, roundTrip/2) })
		}
	})
	parsed.Host = l.Addr().String()
	return parsed.String(), p.stop, nil
}

func (p *proxy) stop() {
	_ = p.listener.Close()
	p.mu.Lock()
	for conn := range p.open {
		_ = conn.Close()
	}
	p.mu.Unlock()
	p.done.Wait()
}

func (p *proxy) serve(ctx context.Context, client net.Conn, to string, delay time.Duration) {
	server, err := new(net.Dialer).DialContext(ctx, "tcp4", to)
	if err != nil {
		_ = client.Close()
		return
	}
	p.mu.Lock()
	p.open[client], p.open[server] = struct{}{}, struct{}{}
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { carry(server, p.heard(client), delay) })
	both.Go(func() { carry(client, server, delay) })
	both.Wait()
	p.mu.Lock()
	delete(p.open, client)
	delete(p.open, server)
	p.mu.Unlock()
}

// heard wraps a client to count its messages, if the proxy counts.
func (p *proxy) heard(client net.Conn) net.Conn {
	if p.executed == nil {
		return client
	}
	return &heard{Conn: client, executed: p.executed}
}

// heard counts the Execute messages of a Postgres client that does not encrypt them.
type heard struct {
	net.Conn
	executed *atomic.Int64
	begun    bool   // the first message of a connection has no type
	rest     []byte // of a partial message
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	h.rest = append(h.rest, p[:n]...)
	for {
		head := 4
		if h.begun {
			head = 5
		}
		if len(h.rest) < head {
			return n, err
		}
		size := head - 4 + int(binary.BigEndian.Uint32(h.rest[head-4:]))
		if len(h.rest) < size {
			return n, err
		}
		switch {
		case h.begun && h.rest[0] == 'E':
			h.executed.Add(1)
		case !h.begun && size > 8: // a shorter one is a request for encryption
			h.begun = true
		}
		h.rest = h.rest[size:]
	}
}

type packet struct {
	due  time.Time
	data []byte
}

func carry(to, from net.Conn, delay time.Duration) {
	under := make(chan packet, 1<<14)
	go func() {
		defer close(under)
		buffer := make([]byte, 32<<10)
		for {
			n, err := from.Read(buffer)
			if n > 0 {
				under <- packet{time.Now().Add(delay), bytes.Clone(buffer[:n])}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range under {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.data); err != nil {
			break
		}
	}
	_ = to.Close()
	_ = from.Close()
	for range under {
		continue // unblocks the reader
	}
}
