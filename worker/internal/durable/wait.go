package durable

import (
	"context"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/store"
)

// Receive implements [handlers.Journal]. Names that begin with # are names of answers: see
// migrations/functions/answers.sql.
func (r *Run) Receive(name string) (unique string, err error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	r.course.mu.Lock()
	defer r.course.mu.Unlock()
	return r.options.Journal.next("#" + name), nil
}

// Timer implements [handlers.Journal].
func (r *Run) Timer(name string) (unique string, err error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	r.course.mu.Lock()
	unique, misfit := r.options.Journal.findTime(name)
	r.course.mu.Unlock()
	if misfit {
		r.DoesNotFit(unique, "The journal has something else under this name, where the handler sleeps.")
	}
	return unique, nil
}

// Arrived implements [handlers.Journal].
func (r *Run) Arrived(name string) (handlers.Arrival, bool) {
	r.course.mu.Lock()
	defer r.course.mu.Unlock()
	arrival, ok := r.options.Journal.arrived[name]
	return arrival, ok
}

// Wait implements [handlers.Journal].
func (r *Run) Wait(ctx context.Context, need int, of []handlers.Await) error {
	if ctx.Value(inStep{}) != nil {
		return handlers.Fail("step_in_step", "A handler waits inside of a step: wait before it, or after.")
	}
	if err := r.cancellations.of(ctx, need, of); err != nil {
		return err
	}
	if r.waitFor(need, of).Need == 0 && !r.calls.has(of) {
		r.readResult(of)
		return nil
	}
	exit, err := r.enter(ctx, allTurns, "the wait for "+namesOf(of)) // running steps end first
	if err != nil {
		return r.cancellations.noted(need, of, err)
	}
	defer exit("")
	for {
		r.calls.send(ctx, of)
		wait := r.waitFor(need, of)
		if wait.Need == 0 {
			r.readResult(of)
			return nil // a call was refused
		}
		cleansUp, err := r.course.begins(ctx)
		if err != nil {
			return r.cancellations.noted(need, of, err)
		}
		if again, err := r.suspend(wait, cleansUp); err != nil {
			return err
		} else if again {
			continue // it waits again if its context is still alive
		}
		r.readResult(of)
		return nil
	}
}

// suspend records a wait. If something has arrived, suspend reads it; otherwise the attempt ends. again means that the
// call was cancelled meanwhile.
func (r *Run) suspend(wait store.Wait, cleansUp bool) (again bool, err error) {
	wait.Effects, wait.CleanUp = r.NotKept(), cleansUp
	switch verdict, err := r.pen.wait(wait); {
	case err != nil:
		return false, err
	case verdict == store.WaitParked:
		r.course.leave(&Exit{Why: Waiting})
	case verdict == store.WaitCancelled:
		r.life.asked(cleansUp)
		return true, nil
	}
	return false, r.readWhatCame()
}

func namesOf(of []handlers.Await) string {
	var names []string
	for _, one := range of {
		names = append(names, one.Name)
	}
	return strings.Join(names, ", ")
}

// waitFor returns the wait for the given names: see [Journal.waitFor].
func (r *Run) waitFor(need int, of []handlers.Await) store.Wait {
	r.course.mu.Lock()
	defer r.course.mu.Unlock()
	return r.options.Journal.waitFor(need, of, r.options.Tool.Deadline)
}

// readWhatCame reads the arrivals since the journal was last read.
func (r *Run) readWhatCame() error {
	r.course.mu.Lock()
	seen := r.options.Journal.seen
	r.course.mu.Unlock()
	events, err := r.pen.writer.arrivals(r.pen.open, seen)
	r.pen.leaveIfUnread(err)
	r.course.mu.Lock()
	defer r.course.mu.Unlock()
	for _, e := range events {
		if err := r.options.Journal.take(e); err != nil {
			return err
		}
	}
	return nil
}

// readResult reads the result of a name if the journal was read without it. For several names it does nothing: the
// handler waits for each name alone before it sees the result.
func (r *Run) readResult(of []handlers.Await) {
	if len(of) != 1 {
		return
	}
	r.course.mu.Lock()
	callID := r.options.Journal.unreadResult(of[0].Name)
	r.course.mu.Unlock()
	if callID == "" {
		return
	}
	result, err := r.pen.writer.result(r.pen.open, callID)
	r.pen.leaveIfUnread(err)
	r.course.mu.Lock()
	defer r.course.mu.Unlock()
	r.options.Journal.show(of[0].Name, result)
}
