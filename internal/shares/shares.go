// Package shares divides slots, such as the connections of a pool, so that one user's slow work does not block others.
package shares

import (
	"context"
	"sync"
)

// Shares gives each user a few slots at once. Further work of the same user waits. The zero value is ready to use.
type Shares[User comparable] struct {
	mu sync.Mutex
	of map[User]*share
}

// share is one user's share.
type share struct {
	taken chan struct{} // its capacity is the limit
	in    int           // how many hold a slot or wait; guarded by Shares.mu
}

// Take waits until the user has a free slot, out of most, and returns a function that frees it. It returns the error of
// ctx if ctx ends first. Work that holds a slot must not take another.
func (s *Shares[User]) Take(ctx context.Context, user User, most int) (free func(), err error) {
	mine := s.enter(user, most)
	select {
	case mine.taken <- struct{}{}:
		return func() { <-mine.taken; s.leave(user) }, nil
	case <-ctx.Done():
		s.leave(user)
		return nil, ctx.Err()
	}
}

func (s *Shares[User]) enter(user User, most int) *share {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[User]*share{}
	}
	mine := s.of[user]
	if mine == nil {
		mine = &share{taken: make(chan struct{}, most)}
		s.of[user] = mine
	}
	mine.in++
	return mine
}

func (s *Shares[User]) leave(user User) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[user].in--; s.of[user].in == 0 {
		delete(s.of, user)
	}
}

// In returns how many hold a slot or wait, by user.
func (s *Shares[User]) In() map[User]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := map[User]int{}
	for user, mine := range s.of {
		in[user] = mine.in
	}
	return in
}
