package durable

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/store"
)

// cancellations holds the waits that returned [handlers.ErrCancelled]. Later, they return it again, even if their
// answer has arrived by then. Otherwise a handler would leave its clean-up half done.
type cancellations struct {
	course *course
	pen    *pen

	writing   sync.Mutex // held while they are written
	unwritten []string   // guarded by course.mu
}

// of returns the error of a wait that a cancellation ended, or nil if there is none or ctx outlives the cancellation.
func (c *cancellations) of(ctx context.Context, need int, of []handlers.Await) error {
	err := context.Cause(ctx)
	if !errors.Is(err, handlers.ErrCancelled) {
		return nil
	}
	c.course.mu.Lock()
	defer c.course.mu.Unlock()
	if !c.course.journal.cancelled[cancelledName(need, of)] {
		return nil
	}
	return err
}

// noted returns err, the error of a wait. If it is a cancellation, the wait is written into the journal before the
// handler's next operation, or when the handler returns.
func (c *cancellations) noted(need int, of []handlers.Await, err error) error {
	if !errors.Is(err, handlers.ErrCancelled) {
		return err
	}
	name := cancelledName(need, of)
	c.course.mu.Lock()
	defer c.course.mu.Unlock()
	if !c.course.journal.cancelled[name] {
		c.course.journal.cancelled[name] = true
		c.unwritten = append(c.unwritten, name)
	}
	return err
}

// write writes the noted waits into the journal. It may end the attempt.
func (c *cancellations) write() {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.course.mu.Lock()
	names := c.unwritten
	c.unwritten = nil
	c.course.mu.Unlock()
	for _, name := range names {
		_ = c.pen.write(store.StepEnded, &stepData{Name: name, Kind: cancelledWait}) // Postgres accepts the name
	}
}

// cancelledName returns the name of the event. In all other names of a journal, a # is the first character, or only a
// number follows it.
func cancelledName(need int, of []handlers.Await) string {
	names := make([]string, len(of))
	for i, one := range of {
		names[i] = one.Name
	}
	name := fmt.Sprintf("cancelled#%d of %q", need, names)
	if len(name) > maxStepName {
		name = fmt.Sprintf("cancelled#%d of %d: %x", need, len(of), sha256.Sum256([]byte(name)))
	}
	return name
}

// enter waits until an operation may run: see [course.enter].
func (r *Run) enter(ctx context.Context, turns int64, what string) (exit func(name string), err error) {
	exit, err = r.course.enter(ctx, turns, what)
	if err != nil {
		return nil, err
	}
	written := false
	defer func() {
		if !written {
			exit("")
		}
	}()
	r.cancellations.write() // may end the attempt and not return
	written = true
	return exit, nil
}

// Returned completes the journal when the handler has returned. Like an operation of the handler, it may end the
// attempt and not return.
func (r *Run) Returned() {
	if !r.options.Replay {
		r.cancellations.write()
	}
}
