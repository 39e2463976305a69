package worker

import (
	"context"
	"slices"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/store"
)

// waits are what a durable call made and waits for. steps.mu guards them.
type waits struct {
	children map[string]child
	unsent   []store.Start
	refused  []stepData // calls that cannot be made, which the journal does not have yet
	came     map[string]handlers.Came
	until    map[string]string // when the time of a name is over, as the journal has it
	seen     int               // the last event of the journal that was read
	large    map[string]string // the calls whose results were too large to be read with the journal, by name
	shown    string            // whose result of these was read last; empty: none was
}

func newWaits() waits {
	return waits{children: map[string]child{}, came: map[string]handlers.Came{}, until: map[string]string{}, large: map[string]string{}}
}

// Receive is that of [handlers.Journal]. A name that begins with # is that of an answer: see migrations/functions/answers.sql.
func (s *steps) Receive(name string) (unique string, err error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next("#" + name), nil
}

// Timer is that of [handlers.Journal].
func (s *steps) Timer(name string) (unique string, err error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	s.mu.Lock()
	unique = s.next(name)
	_, made := s.children[unique]
	misfit := made || s.isStep(unique)
	s.mu.Unlock()
	if misfit {
		s.DoesNotFit(unique, "The journal has something else under this name, where the handler sleeps.")
	}
	return unique, nil
}

// Came is that of [handlers.Journal].
func (s *steps) Came(name string) (handlers.Came, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	came, ok := s.came[name]
	return came, ok
}

// Wait is that of [handlers.Journal].
func (s *steps) Wait(ctx context.Context, need int, of []handlers.Await) error {
	if ctx.Value(inStep{}) != nil {
		return handlers.Fail("step_in_step", "A handler waits inside of a step: wait before it, or after.")
	}
	if s.waitFor(need, of).Need == 0 && !s.unsentAmong(of) {
		s.readResult(of)
		return nil
	}
	exit, err := s.enter(ctx, allTurns, "the wait for "+namesOf(of)) // what is under way comes to its end first
	if err != nil {
		return err
	}
	defer exit("")
	for {
		s.send(ctx, of)
		wait := s.waitFor(need, of)
		if wait.Need == 0 {
			s.readResult(of)
			return nil // a call was refused
		}
		cleansUp, err := s.begins(ctx)
		if err != nil {
			return err
		}
		wait.Effects, wait.CleanUp = s.notKept(), cleansUp
		switch verdict, err := s.wait(wait); {
		case err != nil:
			return err
		case verdict == store.WaitParked:
			s.leave(&end{how: waiting})
		case verdict == store.WaitCancelled:
			s.asked(cleansUp)
			continue // it waits again if its context is still alive
		}
		if err := s.readWhatCame(); err != nil {
			return err
		}
		s.readResult(of)
		return nil
	}
}

// asked records that Postgres did nothing because someone asked for the call's end. For a clean-up, that means its time is over.
func (s *steps) asked(cleansUp bool) {
	s.cleanUp()
	if cleansUp {
		s.end(errCancelled)
	}
}

func namesOf(of []handlers.Await) string {
	var names []string
	for _, one := range of {
		names = append(names, one.Name)
	}
	return strings.Join(names, ", ")
}

// unsentAmong reports whether some of the names are of calls that are not made, or not known to the journal to be refused.
func (s *steps) unsentAmong(of []handlers.Await) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(of, func(one handlers.Await) bool {
		return slices.ContainsFunc(s.unsent, func(start store.Start) bool { return one.Name == start.Name }) ||
			slices.ContainsFunc(s.refused, func(call stepData) bool { return one.Name == call.Name })
	})
}

// waitFor says what is to be waited for, as far as this attempt has read the journal: its Need is 0 if enough has come.
func (s *steps) waitFor(need int, of []handlers.Await) store.Wait {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := store.Wait{What: "time", Until: map[string]any{}, Deadline: s.tool.Deadline}
	known := map[string]bool{}
	for _, one := range of {
		if known[one.Name] {
			continue
		}
		known[one.Name] = true
		if s.came[one.Name].Seq == first {
			need--
			continue
		}
		switch _, child := s.children[one.Name]; {
		case strings.HasPrefix(one.Name, "#"):
			w.What = "answer"
		case child && w.What == "time":
			w.What = "call"
		}
		w.For = append(w.For, one.Name)
		if until, ok := s.until[one.Name]; ok {
			w.Until[one.Name] = until
		} else if one.Until != nil {
			w.Until[one.Name] = *one.Until
		} else if one.Within > 0 {
			w.Until[one.Name] = store.In(one.Within)
		}
	}
	have := 0
	for _, name := range w.For {
		if _, ok := s.came[name]; ok {
			have++
		}
	}
	if need = min(need, len(w.For)); have < need {
		w.Need = need
	}
	return w
}

// wait makes calls and waits, in one statement, and returns the error of what Postgres refuses.
func (s *steps) wait(w store.Wait) (verdict store.WaitVerdict, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.open.Err() != nil {
		s.leave(nil)
	}
	var count int
	w.Steps = s.before()
	s.at("before", "wait")
	err = s.persist(s.open, "wait", func(ctx context.Context) (err error) {
		verdict, count, err = w.Do(ctx, s.options.Calls, s.Attempt)
		return err
	})
	s.at("after", "wait")
	if err != nil {
		s.leaveUnlessRefused(err)
		return "", err
	}
	s.mu.Lock()
	if count > s.events {
		s.events, s.progressed = count, true
	}
	s.mu.Unlock()
	s.timer.Reset(s.tool.Timeout)
	return verdict, nil
}
