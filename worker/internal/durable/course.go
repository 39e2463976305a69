package durable

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"sync"

	"github.com/gemworker/gem/internal/lanes"
	"github.com/gemworker/gem/receipts"
	"golang.org/x/sync/semaphore"
)

// course is the state of a run: the running steps, the effects that they recorded, and whether anything new may begin.
type course struct {
	options *Options
	life    *life
	// a StepTx takes all turns, so that all rows recorded meanwhile belong to it; any other step takes one
	turns *semaphore.Weighted

	mu      sync.Mutex // guards the following fields, the journal and the calls
	journal *Journal
	running int                     // steps
	tried   receipts.HandlerEffects // of steps that the journal lacks: the end of the attempt records them
	// recorded outside of steps: each run records them again, and the journal does not have them
	outside    receipts.HandlerEffects
	pending    receipts.HandlerEffects // of the step that is being written
	tx         *lanes.Tx               // of the StepTx that runs
	progressed bool
	stopped    bool  // the attempt no longer waits for the handler
	left       *Exit // the end of the attempt, if the handler has not returned
}

// allTurns exceeds the number of a call's goroutines.
const allTurns = 1 << 30

// enter waits until a step may run (alone, if it takes all turns), and returns a function to call with the step's name
// after it has ended. If nothing new may begin, the attempt ends here.
func (c *course) enter(ctx context.Context, turns int64, what string) (exit func(name string), err error) {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.life.whole, cancel)()
	if err := c.turns.Acquire(waiting, turns); err != nil {
		turns = 0
	}
	entered := false
	release := func() { c.turns.Release(turns) }
	defer func() {
		if !entered {
			release()
		}
	}()
	if _, err := c.begins(ctx); err != nil {
		return nil, err
	}
	if c.options.Replay {
		c.leave(&Exit{Why: Replayed, Lacks: what})
	}
	entered = true
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == 0 {
		c.outside.Add(c.options.Call.TakeEffects())
	}
	c.running++
	return func(name string) {
		c.mu.Lock()
		c.running--
		if _, kept := c.journal.ended[name]; !kept && !c.stopped {
			c.tried.Add(c.takePending())
		}
		last := c.running == 0 && c.left != nil
		c.mu.Unlock()
		if last {
			c.life.end(errLeft)
		}
		release()
	}, nil
}

// begins returns the error that prevents new operations in ctx, and whether operations there belong to a clean-up: the
// call's cancellation was requested, and ctx outlives it. If nothing new may begin, the attempt ends here. The result
// may change during a round trip.
//
// cleanUp ends contexts before it sets life.cleaning, and this function reads them in the opposite order, so that it
// cannot mistake another operation for a clean-up. It reads the reasons to end the attempt last, so that the handler
// never sees the error of a stopping worker.
func (c *course) begins(ctx context.Context) (cleansUp bool, err error) {
	cleansUp = c.life.cleansUp()
	err = cmp.Or(context.Cause(c.life.whole), context.Cause(ctx))
	if exit := c.ends(); exit != nil {
		c.leave(exit)
	}
	return cleansUp, err
}

// ends returns the end of the attempt if nothing new may begin, or nil.
func (c *course) ends() *Exit {
	cause := context.Cause(c.life.whole)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.left != nil || c.stopped:
		return &Exit{Why: NotHeld} // leave ignores it
	case errors.Is(cause, ErrNotHeld):
		return &Exit{Why: NotHeld}
	case errors.Is(cause, ErrStopping) || c.options.Stopping():
		return &Exit{Why: Released}
	}
	return c.journal.full(c.options.Tool.Name)
}

// leave ends the attempt before the handler has returned; nil keeps an earlier end. It does not return, so that the
// handler never sees an error that it could ignore. Before a retry, other running steps end first.
func (c *course) leave(exit *Exit) {
	c.mu.Lock()
	if c.left == nil && !c.stopped {
		c.left = exit
	}
	wait := c.left != nil && c.left.Why == Retried && c.running > 0
	c.mu.Unlock()
	if !wait {
		c.life.end(errLeft)
	}
	runtime.Goexit()
}

// stop returns the end of the attempt if it ended before the handler had returned, or nil.
func (c *course) stop() *Exit {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	rest := c.takePending()
	if c.tx != nil {
		rest.DBWrites = nil
		_ = c.tx.Rollback()
	}
	if c.running > 0 {
		c.tried.Add(rest)
	} else {
		c.outside.Add(rest)
	}
	return c.left
}

// tries records the effects of a step whose end is not written into the journal.
func (c *course) tries(effects receipts.HandlerEffects) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tried.Add(effects)
}

// takePending returns the effects since the end of the last step. c.mu is locked.
func (c *course) takePending() receipts.HandlerEffects {
	effects := c.pending
	effects.Add(c.options.Call.TakeEffects())
	c.pending = receipts.HandlerEffects{}
	return effects
}

// wrote records an event that was written. The count of attempts and the timeout start again here.
func (c *course) wrote(event string, data *stepData, size int) {
	c.mu.Lock()
	c.journal.wrote(event, *data, size)
	c.progressed = true
	c.mu.Unlock()
	c.life.progress()
}

// counted records the number of events in the journal after a wait.
func (c *course) counted(events int) {
	c.mu.Lock()
	if events > c.journal.events {
		c.journal.events, c.progressed = events, true
	}
	c.mu.Unlock()
	c.life.progress()
}

// events returns the number of events of steps in the journal.
func (c *course) events() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.journal.events
}

// spent returns the number of attempts that were spent since the call's last progress.
func (c *course) spent() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.progressed {
		return 0
	}
	return c.options.Spent
}
