package dashboard

import (
	"cmp"
	"context"
	"net/http"
	"sync"
	"time"
)

// shares lets each user read a few pages at once, so that one user's slow filters do not block others. Further pages
// wait for up to 5 s.
type shares struct {
	wait time.Duration // for tests; 0 means 5 s

	mu sync.Mutex
	of map[User]*share
}

// share is one user's share.
type share struct {
	taken chan struct{} // its capacity is the limit
	in    int           // how many read or wait; guarded by shares.mu
}

// take waits until the user may read one more page, and returns a function that ends the read.
func (s *shares) take(ctx context.Context, user User, most int) (end func(), err error) {
	s.mu.Lock()
	if s.of == nil {
		s.of = map[User]*share{}
	}
	mine := s.of[user]
	if mine == nil {
		mine = &share{taken: make(chan struct{}, most)}
		s.of[user] = mine
	}
	mine.in++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if mine.in--; mine.in == 0 {
			delete(s.of, user)
		}
	}
	wait := time.NewTimer(cmp.Or(s.wait, 5*time.Second))
	defer wait.Stop()
	select {
	case mine.taken <- struct{}{}:
		return func() { <-mine.taken; leave() }, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-wait.C:
		err = &pageError{http.StatusServiceUnavailable,
			"Your other pages are still loading. Try again when they have loaded."}
	}
	leave()
	return nil, err
}

// read reads a page as soon as the user has a slot; users share half of the connections.
func (s *site) read(ctx context.Context, r *request, show func(context.Context, *request) (*content, error)) (*content,
	error) {
	end, err := s.shares.take(ctx, r.user, max(int(r.db().Stat().MaxConns())/2, 1))
	if err != nil {
		return nil, err
	}
	defer end()
	return show(ctx, r)
}
