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

// room is what requests in flight share: their number, or the bytes of their bodies.
type room struct {
	most int // of all
	each int // of a subject with a token; 0: no limit but the one of take

	mu  sync.Mutex
	all int
	of  map[string]int // by the subject of a token
}

// take takes n until giveBack, and reports whether there was room. A subject gets at most a quarter of the room that
// the others leave, so that a few subjects cannot fill it.
func (r *room) take(subject string, n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := r.most - r.all
	if subject != "" {
		own := r.of[subject]
		left = (left+own)/4 - own
		if r.each > 0 {
			left = min(left, r.each-own)
		}
	}
	if n > 0 && n > left { // left is negative if the others took more since
		return false
	}
	if r.of == nil {
		r.of = map[string]int{}
	}
	r.all += n
	r.of[subject] += n
	return true
}

func (r *room) giveBack(subject string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all -= n
	if r.of[subject] -= n; r.of[subject] <= 0 {
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
