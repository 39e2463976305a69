package mcp

import (
	"errors"
	"net/http"
	"sync"
)

const (
	maxBody     = 2 << 20  // bytes of a request; an input may have 1 MiB, and more in JSON's escapes
	maxHeader   = 64 << 10 // bytes of a request's headers
	maxBodies   = 32 << 20 // bytes of all requests in flight
	firstRoom   = 8 << 10  // bytes that are reserved for a request before its body arrives
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

// bodyRoom counts the bytes of all requests in flight.
type bodyRoom struct {
	mu  sync.Mutex
	all int
	of  map[string]int // by the subject of a token
}

// reserve reserves a number of bytes until release, and reports whether there was room. A subject gets at most a
// quarter of the room that the others leave, so any number of subjects leaves some.
func (r *bodyRoom) reserve(subject string, bytes int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	room := maxBodies - r.all
	if subject != "" {
		own := r.of[subject]
		room = (room+own)/4 - own
	}
	if bytes > room {
		return false
	}
	if r.of == nil {
		r.of = map[string]int{}
	}
	r.all += bytes
	r.of[subject] += bytes
	return true
}

func (r *bodyRoom) release(subject string, bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all -= bytes
	if r.of[subject] -= bytes; r.of[subject] <= 0 {
		delete(r.of, subject)
	}
}

// errBusy means that a statement had no connection in time, because others of its subject did not end.
var errBusy = errors.New("your earlier requests take too long: try again when they are answered")

// tooMany asks a client to retry later.
func tooMany(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, "too many requests in flight: wait for answers before you send more", http.StatusTooManyRequests)
}
