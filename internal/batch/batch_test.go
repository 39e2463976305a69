package batch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/gemworker/gem/internal/batch"
)

// sender records what a queue sends, and answers when told to.
type sender struct {
	queue  *batch.Queue[int, int]
	mu     sync.Mutex
	sent   [][]int
	answer chan error
}

func newSender() *sender {
	s := &sender{answer: make(chan error)}
	s.queue = batch.NewQueue(func(n int) int { return n }, func(items []int) ([]int, error) {
		s.mu.Lock()
		s.sent = append(s.sent, slices.Clone(items))
		s.mu.Unlock()
		if err := <-s.answer; err != nil {
			return nil, err
		}
		doubled := make([]int, len(items))
		for i, n := range items {
			doubled[i] = 2 * n
		}
		return doubled, nil
	})
	return s
}

// arrive makes items wait in their order, and returns when each has been taken or waits in the queue.
func (s *sender) arrive(t *testing.T, items ...int) {
	t.Helper()
	for _, n := range items {
		go func() {
			result, _, err := s.queue.Do(t.Context(), n)
			if err == nil && result != 2*n {
				t.Errorf("the result of %d is %d", n, result)
			}
		}()
		synctest.Wait()
	}
}

func TestItemsThatArriveMeanwhileAreSentTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSender()
		s.arrive(t, 1, 2, 3, 4, 5)
		s.answer <- nil
		synctest.Wait()
		s.arrive(t, 6)
		for range 3 {
			s.answer <- nil
			synctest.Wait()
		}
		s.arrive(t, 7)
		s.answer <- nil
		synctest.Wait()
		if got := fmt.Sprint(s.sent); got != "[[1] [2] [3 4 5] [6] [7]]" {
			t.Error(got)
		}
	})
}

func TestAStatementHasAtMostAHundredItemsAndAMegabyte(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSender()
		s.arrive(t, 1, 2)
		for range 150 {
			s.arrive(t, 1)
		}
		s.arrive(t, 1<<19, 1<<19, 1, 3<<20, 1)
		for range 7 {
			s.answer <- nil
			synctest.Wait()
		}
		var counts []int
		for _, items := range s.sent {
			counts = append(counts, len(items))
		}
		if got := fmt.Sprint(counts); got != "[1 1 100 51 2 1 1]" {
			t.Error(got)
		}
	})
}

func TestAnErrorIsThatOfAllItemsOfItsStatement(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, broken := newSender(), errors.New("broken")
		s.arrive(t, 1, 2)
		failed := make(chan bool, 2)
		for range 2 {
			go func() {
				_, sent, err := s.queue.Do(t.Context(), 3)
				failed <- sent && errors.Is(err, broken)
			}()
		}
		synctest.Wait()
		for _, err := range []error{nil, nil, broken} {
			s.answer <- err
			synctest.Wait()
		}
		for range 2 {
			if !<-failed {
				t.Error("an item succeeded")
			}
		}
	})
}

func TestAnItemWhoseCallerLeavesIsNotSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSender()
		s.arrive(t, 1, 2)
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan bool)
		go func() {
			_, sent, err := s.queue.Do(ctx, 3)
			left <- !sent && errors.Is(err, context.Canceled)
		}()
		synctest.Wait()
		s.arrive(t, 4)
		leave()
		if !<-left {
			t.Error("the item that was not sent counts as sent")
		}
		for range 3 {
			s.answer <- nil
			synctest.Wait()
		}
		if got := fmt.Sprint(s.sent); got != "[[1] [2] [4]]" {
			t.Error(got)
		}
	})
}

// Its statement has its effects anyway.
func TestTheResultOfAnItemThatWasSentIsAwaitedBriefly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSender()
		type result struct {
			result int
			sent   bool
			err    error
		}
		do := func(item int) <-chan result {
			ctx, leave := context.WithCancel(t.Context())
			ends := make(chan result, 1)
			go func() {
				r, sent, err := s.queue.Do(ctx, item)
				ends <- result{r, sent, err}
			}()
			synctest.Wait()
			leave()
			synctest.Wait()
			return ends
		}
		answered := do(1)
		s.answer <- nil
		if r := <-answered; r.err != nil || !r.sent {
			t.Errorf("%+v", r)
		}
		if r := <-do(2); !errors.Is(r.err, context.Canceled) || !r.sent {
			t.Errorf("%+v", r)
		}
		s.answer <- nil
	})
}
