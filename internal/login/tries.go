package login

import (
	"net/netip"
	"sync"
	"time"
)

const (
	mostTries     = 5 // per minute and address
	triesTime     = time.Minute
	mostAddresses = 10_000 // with an attempt in the last minute; further ones wait
)

// tries counts the wrong passwords of each address.
type tries struct {
	now func() time.Time

	mu     sync.Mutex
	of     map[netip.Prefix]*tried
	looked time.Time
}

type tried struct {
	since time.Time
	n     int
}

// begin counts an attempt before its result is known, so that parallel attempts count too. It returns how long the
// address has to wait, or 0.
func (t *tries) begin(from netip.Addr) (wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, key := t.now(), network(from)
	if t.of == nil {
		t.of = map[netip.Prefix]*tried{}
	}
	one := t.of[key]
	if one != nil && now.Sub(one.since) >= triesTime {
		one = nil
	}
	if one == nil {
		if t.forget(now); len(t.of) >= mostAddresses {
			return triesTime
		}
		one = &tried{since: now}
		t.of[key] = one
	}
	if one.n >= mostTries {
		return triesTime - now.Sub(one.since)
	}
	one.n++
	return 0
}

// right removes an attempt with the right password.
func (t *tries) right(from netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if one := t.of[network(from)]; one != nil && one.n > 0 {
		one.n--
	}
}

// forget removes old addresses if the limit is reached. It scans all of them at most once a second.
func (t *tries) forget(now time.Time) {
	if len(t.of) < mostAddresses || now.Sub(t.looked) < time.Second {
		return
	}
	t.looked = now
	for key, one := range t.of {
		if now.Sub(one.since) >= triesTime {
			delete(t.of, key)
		}
	}
}

// network returns the network of one person: an IPv4 address, or 2⁶⁴ IPv6 addresses.
func network(a netip.Addr) netip.Prefix {
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // zero for an invalid address
	return p
}
