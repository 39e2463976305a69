package main

import (
	"bytes"
	"context"
	"net"
	"net/url"
	"sync"
	"time"
)

// proxy delays what passes through it: half of the round-trip time each way, without holding back what comes after.
type proxy struct {
	listener net.Listener
	done     sync.WaitGroup
	mu       sync.Mutex
	open     map[net.Conn]struct{}
}

// delayed returns url with a proxy in front of its server.
func delayed(ctx context.Context, to string, roundTrip time.Duration) (through string, stop func(), err error) {
	parsed, err := url.Parse(to)
	if err != nil {
		return "", nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	p := &proxy{listener: l, open: map[net.Conn]struct{}{}}
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
	both.Go(func() { carry(server, client, delay) })
	both.Go(func() { carry(client, server, delay) })
	both.Wait()
	p.mu.Lock()
	delete(p.open, client)
	delete(p.open, server)
	p.mu.Unlock()
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
		continue // lets the reader go
	}
}
