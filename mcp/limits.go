package mcp

import (
	"errors"
	"net/http"
	"sync"
)

const (
	maxBody     = 2 << 20  // bytes of a request; an input may have 1 MiB, and more in JSON's escapes
	maxHeader   = 64 << 10 // bytes of a request's headers
	maxRequests = 1024     // in flight, of a process
	maxEach     = 64       // in flight, of a subject with a token
)

// gate limits how many are in at once, for each name.
type gate struct {
	most int
	mu   sync.Mutex
	in   map[string]int
}

// enter adds n under a name, and returns a function that removes them; nil if the limit would be exceeded.
func (g *gate) enter(name string, n int) (leave func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.in[name]+n > g.most {
		return nil
	}
	if g.in == nil {
		g.in = map[string]int{}
	}
	g.in[name] += n
	return func() { g.leave(name, n) }
}

// leave removes n under a name.
func (g *gate) leave(name string, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.in[name] -= n; g.in[name] == 0 {
		delete(g.in, name)
	}
}

// errBusy means that a statement had no connection in time, because others of its subject did not end.
var errBusy = errors.New("your earlier requests take too long: try again when they are answered")

// tooMany asks a client to retry later.
func tooMany(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, "too many requests in flight: wait for answers before you send more", http.StatusTooManyRequests)
}
