package mcp

import (
	"context"
	"errors"
	"fmt"
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

// shares lets each subject use a few connections at once, so that one subject's slow statements do not block others.
// Further statements of the subject wait for its own.
type shares struct {
	mu sync.Mutex
	of map[string]*share
}

// share is one subject's share.
type share struct {
	taken chan struct{} // its capacity is the limit
	in    int           // how many use a connection or wait; guarded by shares.mu
}

// errBusy means that a statement had no connection in time, because others of its subject did not end.
var errBusy = errors.New("your earlier requests take too long: try again when they are answered")

// take waits until the subject may use one more connection, and returns a function that ends the use. It gives up
// when ctx ends, or the request that needs the connection. Whoever has taken one must not take another.
func (s *shares) take(ctx, request context.Context, subject string, most int) (end func(), err error) {
	s.mu.Lock()
	if s.of == nil {
		s.of = map[string]*share{}
	}
	mine := s.of[subject]
	if mine == nil {
		mine = &share{taken: make(chan struct{}, most)}
		s.of[subject] = mine
	}
	mine.in++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if mine.in--; mine.in == 0 {
			delete(s.of, subject)
		}
	}
	select {
	case mine.taken <- struct{}{}:
		return func() { <-mine.taken; leave() }, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-request.Done():
		err = request.Err()
	}
	leave()
	return nil, fmt.Errorf("%w: %w", errBusy, err)
}

// tooMany asks a client to retry later.
func tooMany(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, "too many requests in flight: wait for answers before you send more", http.StatusTooManyRequests)
}
