// Package batch sends items in as few statements as possible, and never waits for more of them.
package batch

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
)

// Buckets are those of histograms of the number of items in a statement.
var Buckets = metric.WithExplicitBucketBoundaries(1, 2, 4, 8, 16, 32, 64, most)

const (
	most     = 100     // items of a statement
	mostSize = 1 << 20 // bytes of their arguments, unless one item alone has more
	inFlight = 2       // statements at the same time
	// patience is how long the result of an item that was sent is awaited after its caller's context has ended. Handlers
	// have a second then.
	patience = 800 * time.Millisecond
)

// Queue sends items. An item is sent at once unless two statements are in flight. The items that arrive meanwhile are
// sent together in the next statement, in the order of their arrival.
type Queue[Item, Result any] struct {
	// send sends items, and returns a result for each of them, in their order.
	send func(items []Item) ([]Result, error)
	size func(Item) int // of an item's arguments in bytes

	mu      sync.Mutex
	waiting []*sending[Item, Result]
	flying  int
}

// sending is an item whose result someone waits for.
type sending[Item, Result any] struct {
	item   Item
	done   chan struct{} // is closed when the statement with the item has ended
	result Result
	err    error
}

// NewQueue returns a queue. A statement may outlast the callers that wait for it, so send has its own time limit.
func NewQueue[Item, Result any](size func(Item) int, send func(items []Item) ([]Result, error)) *Queue[Item, Result] {
	return &Queue[Item, Result]{send: send, size: size}
}

// Do sends an item and returns its result. If ctx ends first, Do returns its error. sent then reports whether the item
// may have been sent: Do waits briefly for the result of one that was, because it has its effects anyway.
func (q *Queue[Item, Result]) Do(ctx context.Context, item Item) (result Result, sent bool, err error) {
	s := &sending[Item, Result]{item: item, done: make(chan struct{})}
	q.mu.Lock()
	q.waiting = append(q.waiting, s)
	if q.flying < inFlight {
		q.flying++
		go q.fly()
	}
	q.mu.Unlock()
	select {
	case <-s.done:
		return s.result, true, s.err
	case <-ctx.Done():
	}
	if q.remove(s) {
		return result, false, ctx.Err()
	}
	select {
	case <-s.done:
		return s.result, true, s.err
	case <-time.After(patience):
		return result, true, ctx.Err()
	}
}

// remove removes an item that was not sent yet, and reports whether there was one.
func (q *Queue[Item, Result]) remove(s *sending[Item, Result]) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, w := range q.waiting {
		if w == s {
			q.waiting = append(q.waiting[:i], q.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// fly sends what waits, until nothing does.
func (q *Queue[Item, Result]) fly() {
	for next := q.next(); len(next) > 0; next = q.next() {
		items := make([]Item, len(next))
		for i, s := range next {
			items[i] = s.item
		}
		results, err := q.send(items)
		for i, s := range next {
			if s.err = err; err == nil {
				s.result = results[i]
			}
			close(s.done)
		}
	}
}

// next takes the items of the next statement. If there are none, the caller no longer sends.
func (q *Queue[Item, Result]) next() (next []*sending[Item, Result]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, size := 0, 0
	for n < min(len(q.waiting), most) {
		size += q.size(q.waiting[n].item)
		if n > 0 && size > mostSize {
			break
		}
		n++
	}
	next, q.waiting = q.waiting[:n:n], q.waiting[n:]
	if n == 0 {
		q.flying--
	}
	return next
}
