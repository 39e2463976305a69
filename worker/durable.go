package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/lanes"
	"github.com/gemworker/gem/receipts"
	"golang.org/x/sync/semaphore"
)

// The limits of a call's steps.
const (
	maxStepName   = 200      // characters
	maxStepResult = 1 << 20  // bytes of JSON
	maxSteps      = 10_000   // events
	maxStepBytes  = 64 << 20 // of JSON, of all of them
)

// steps holds the steps of a durable call: those in its journal, and those that this attempt adds. It is the [handlers.Journal] of the
// handler.
type steps struct {
	*attempt
	ctx    context.Context // of the handler: it ends with life, and when someone asks for the call's end
	cancel context.CancelCauseFunc
	life   context.Context // of the attempt: it ends when the handler has made no progress for the tool's timeout
	end    context.CancelCauseFunc
	timer  *time.Timer         // of the tool's timeout
	turns  *semaphore.Weighted // a StepTx has all of it, so that the rows recorded meanwhile are its own; other steps share it

	// One event is written at a time, since each says how many there were before it, and only while the attempt waits for the handler:
	// stop ends open, and waits for the write under way.
	writing sync.Mutex
	open    context.Context
	close   context.CancelFunc

	mu           sync.Mutex
	began, ended map[string]stepData
	events       int
	bytes        int
	used         map[string]int   // how often this run came to a name
	read         map[string]bool  // the names to which this run came
	seqs         map[string]int   // the names to which earlier runs came, and where the journal has them
	running      int              // steps
	kept         handlers.Effects // of steps whose end is in the journal, and of earlier attempts
	tried        handlers.Effects // of steps that were not kept: they are written with the end of the attempt
	outside      handlers.Effects // recorded outside of steps: the journal has none of them, since each run records them again
	pending      handlers.Effects // of the step that is being kept
	tx           *lanes.Tx        // of the StepTx that runs
	waits
	progressed bool          // in this attempt
	cleaning   bool          // someone asked for the call's end
	limits     []*time.Timer // the deadline, and the end of cleaning up
	replaying  bool          // nothing is to be written
	stopped    bool          // the attempt no longer waits for the handler
	left       *end          // how the attempt ends, though the handler has not returned
}

// allTurns is more than a call has goroutines.
const allTurns = 1 << 30

// errLeft ends the context of a handler whose attempt ends in the middle of a step.
var errLeft = errors.New("the attempt has ended in the middle of a step")

func newSteps(a *attempt) *steps {
	return &steps{attempt: a, turns: semaphore.NewWeighted(allTurns), began: map[string]stepData{}, ended: map[string]stepData{},
		used: map[string]int{}, read: map[string]bool{}, seqs: map[string]int{}, events: a.Steps, waits: newWaits()}
}

// cleanUpTime is what a handler has to clean up after someone asked for its call's end: see gem.wait.
const cleanUpTime = time.Hour

// start returns the context of the handler. claimed is that of the call.
func (s *steps) start(claimed context.Context) context.Context {
	s.life, s.end = s.uncancelled(claimed)
	s.ctx, s.cancel = context.WithCancelCause(s.life)
	s.open, s.close = context.WithCancel(context.Background())
	s.timer = time.AfterFunc(s.tool.Timeout, func() { s.end(context.DeadlineExceeded) })
	s.endIn(s.tool.Deadline-s.Age, errDeadline)
	context.AfterFunc(claimed, func() {
		if errors.Is(context.Cause(claimed), errCancelled) {
			s.cleanUp()
		}
	})
	if s.Cancelled {
		s.cleanUp()
	}
	return s.ctx
}

// cleanUp ends the handler's context, and leaves it some time to clean up.
func (s *steps) cleanUp() {
	s.cancel(errCancelled)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.cleaning && !s.stopped {
		s.cleaning = true
		s.endIn(cleanUpTime-s.CancelledFor, errCancelled)
	}
}

// endIn ends what the handler does after some time: before it begins to, if none is left.
func (s *steps) endIn(left time.Duration, cause error) {
	if left <= 0 {
		s.end(cause)
		return
	}
	s.limits = append(s.limits, time.AfterFunc(left, func() { s.end(cause) }))
}

// uncancelled returns a context with the values of another that ends with the attempt, even after someone has asked for the end of the call.
func (c *claimedCall) uncancelled(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	context.AfterFunc(c.life, func() { end(context.Cause(c.life)) })
	return life, end
}

// stop ends what the handler began and has not ended, and returns how the attempt ends if it ends in the middle of a step. Nothing
// more is written for the steps of this attempt then.
func (s *steps) stop() *end {
	s.timer.Stop()
	s.end(nil)
	s.close()
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, limit := range s.limits {
		limit.Stop()
	}
	s.stopped = true
	rest := s.takePending()
	if s.tx != nil {
		rest.DBWrites = nil
		_ = s.tx.Rollback()
	}
	if s.running > 0 {
		s.tried.Add(rest)
	} else {
		s.outside.Add(rest)
	}
	return s.left
}

// leave ends the attempt in the middle of a step. It does not return: what the handler would make of an error counts for nothing.
// Before an attempt that is to be tried again, other steps that run come to their end.
func (s *steps) leave(e *end) {
	s.mu.Lock()
	if s.left == nil && !s.stopped {
		s.left = e
	}
	wait := s.left != nil && s.left.how == retried && s.running > 0
	s.mu.Unlock()
	if !wait {
		s.end(errLeft)
	}
	runtime.Goexit()
}

// ends returns how the attempt ends if it is to begin nothing new.
func (s *steps) ends() *end {
	cause := context.Cause(s.life)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.left != nil || s.stopped:
		return &end{how: notHeld} // which counts for nothing
	case errors.Is(cause, errNotHeld):
		return &end{how: notHeld}
	case errors.Is(cause, errStopping) || s.giveUpAt.Load() != 0:
		return &end{how: released}
	case s.events >= maxSteps || s.bytes >= maxStepBytes:
		return failed(receipts.JournalFull, fmt.Sprintf("%s has made %d steps of %d bytes, and may make %d of %d MiB.", s.tool.Name, s.events, s.bytes,
			maxSteps, maxStepBytes>>20), nil)
	}
	return nil
}

// takePending returns what was recorded since the last step ended. s.mu is locked.
func (s *steps) takePending() handlers.Effects {
	effects := s.pending
	effects.Add(s.call.TakeEffects())
	s.pending = handlers.Effects{}
	return effects
}

// effects returns the effects of all steps, and those recorded outside of them.
func (s *steps) effects() (all handlers.Effects) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, part := range []handlers.Effects{s.kept, s.tried, s.outside} {
		all.Add(part)
	}
	return all
}

// summary is what the receipt says of the journal.
func (s *steps) summary() *receipts.Durable {
	var unread []string
	if s.call != nil { // it ran
		unread = s.unread()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	steps := 0
	for _, ended := range s.ended {
		if ended.Kind != codeVersion {
			steps++
		}
	}
	return &receipts.Durable{Steps: steps, Calls: len(s.children), Unread: unread[:min(len(unread), maxUnread)]}
}

// maxUnread limits the names on a receipt.
const maxUnread = 100

// notKept are the effects that the journal lacks, and that no later run records again; nil if there are none.
func (a *attempt) notKept() json.RawMessage {
	if a.steps == nil {
		return nil
	}
	a.steps.mu.Lock()
	defer a.steps.mu.Unlock()
	if encoded := encodeEffects(a.steps.tried); string(encoded) != "{}" {
		return encoded
	}
	return nil
}

// spent counts the attempts that are gone since the last progress.
func (a *attempt) spent() int {
	if a.steps == nil {
		return a.Spent()
	}
	a.steps.mu.Lock()
	defer a.steps.mu.Unlock()
	if a.steps.progressed {
		return 0
	}
	return a.Spent()
}
