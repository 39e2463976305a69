package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
)

// readSteps reads the steps of the attempts before this one.
func (a *attempt) readSteps(ctx context.Context) *end {
	var events []store.Event
	ctx, done := a.uncancelled(ctx)
	defer done(nil)
	err := a.persist(ctx, "read the journal", func(ctx context.Context) (err error) {
		events, err = store.Steps(ctx, a.options.Calls, a.CallID)
		return err
	})
	switch {
	case err == nil:
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), errNotHeld):
		return &end{how: notHeld}
	default:
		return &end{how: released} // and whoever claims it next reads them
	}
	return a.takeSteps(events)
}

// takeSteps takes the journal into account.
func (a *attempt) takeSteps(events []store.Event) *end {
	a.steps = newSteps(a)
	for _, e := range events {
		if err := a.steps.take(e); err != nil {
			return &end{how: waitingForCode, misfit: store.Misfit{Seq: e.Seq, Message: fmt.Sprintf("An event of the journal cannot be read: %v", err)}}
		}
	}
	return nil
}

// take takes an event of the journal into account.
func (s *steps) take(e store.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = e.Seq
	s.bytes += len(e.Data)
	var data stepData
	if err := json.Unmarshal(e.Data, &data); err != nil {
		return err
	}
	s.kept.Add(data.effects())
	switch e.Event {
	case store.Holds:
		s.key = data.Key
		return nil
	case store.Ruled:
		s.ruling = new(receipts.Rules)
		return json.Unmarshal(e.Data, s.ruling)
	case store.StepBegan, store.StepEnded, store.Called:
		s.passed(data.Name, e.Seq)
	}
	switch e.Event {
	case store.StepBegan:
		s.began[data.Name] = data
	case store.StepEnded:
		if data.Kind == refusedCall {
			s.takeRefused(data)
		} else {
			s.ended[data.Name] = data
		}
	default:
		return s.readWait(e)
	}
	return nil
}

// readWait takes an event of a wait into account. s.mu is locked.
func (s *steps) readWait(e store.Event) error {
	var data struct {
		Name   string
		CallID string `json:"call_id"`
		Tool   string
		Names  []string
		For    []string
		Until  map[string]string
	}
	if err := json.Unmarshal(e.Data, &data); err != nil {
		return err
	}
	switch e.Event {
	case store.Called:
		s.children[data.Name] = child{ID: data.CallID, Tool: data.Tool}
	case store.Parked:
		for _, name := range data.For {
			s.passed(name, e.Seq)
		}
		for name, at := range data.Until {
			if _, known := s.until[name]; !known {
				s.until[name] = at
			}
		}
	case store.TimedOut:
		for _, name := range data.Names {
			s.passed(name, e.Seq)
			s.comes(name, handlers.Came{Seq: e.Seq, Err: handlers.ErrTimeout})
		}
	case store.Answered:
		s.comes(data.Name, handlers.Came{Seq: e.Seq, Result: e.Data})
	case store.Returned:
		came := handlers.Came{Seq: e.Seq}
		if _, known := s.came[data.Name]; known {
			return nil
		}
		if e.Large {
			s.large[data.Name] = data.CallID
		} else {
			came.Result, came.Err = outcomeOf(e.Status, e.Result)
		}
		s.comes(data.Name, came)
	}
	return nil
}

// comes takes note of what came first under a name: it stays.
func (s *steps) comes(name string, came handlers.Came) {
	if _, ok := s.came[name]; !ok {
		s.came[name] = came
	}
}

// outcomeOf is what a child's receipt says to its parent. A time has no error for [handlers.Sleep].
func outcomeOf(status string, result json.RawMessage) (json.RawMessage, error) {
	switch receipts.Status(status) {
	case receipts.Succeeded:
		return result, nil
	case receipts.NotConfigured:
		missing := &handlers.NotConfigured{}
		if err := json.Unmarshal(result, missing); err != nil {
			return nil, err
		}
		return nil, missing
	case receipts.Failed:
		told, _ := (&receipts.Receipt{Status: receipts.Failed, Result: result}).Error()
		return nil, &handlers.Failure{Code: string(told.Code), Message: told.Message, Details: told.Details}
	}
	return nil, errors.New("the call has ended, and its receipt is not there")
}

// readWhatCame reads what came since the journal was last read.
func (s *steps) readWhatCame() error {
	var events []store.Event
	err := s.persist(s.open, "read what came", func(ctx context.Context) (err error) {
		events, err = store.Came(ctx, s.options.Calls, s.CallID, s.seen)
		return err
	})
	s.leaveIf(err)
	for _, e := range events {
		if err := s.take(e); err != nil {
			return err
		}
	}
	return nil
}

// readResult reads the result of a name if the journal was read without it, and forgets the one that was read so before: all of them together may
// not fit into memory. Where several names were waited for, the handler waits for each alone before it sees what came.
func (s *steps) readResult(of []handlers.Await) {
	if len(of) != 1 {
		return
	}
	name := of[0].Name
	s.mu.Lock()
	id, large := s.large[name]
	s.mu.Unlock()
	if !large || s.shown == name {
		return
	}
	var found map[string]store.Event
	err := s.persist(s.open, "read a result", func(ctx context.Context) (err error) {
		found, err = store.Results(ctx, s.options.Calls, []string{id})
		return err
	})
	s.leaveIf(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shown != "" {
		s.came[s.shown] = handlers.Came{Seq: s.came[s.shown].Seq}
	}
	s.shown = name
	came := s.came[name]
	came.Result, came.Err = outcomeOf(found[id].Status, found[id].Result)
	s.came[name] = came
}

// leaveIf ends the attempt if the journal could not be read: whoever claims the call next reads it.
func (s *steps) leaveIf(err error) {
	if s.open.Err() != nil {
		s.leave(nil)
	}
	if err != nil {
		s.leave(&end{how: released})
	}
}

// unread are the names which the journal has, from earlier runs, and to which this run has not come.
func (s *steps) unread() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.seqs {
		if !s.read[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// seqOf is where the journal first has a name; 0 if it does not.
func (s *steps) seqOf(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seqs[name]
}

// passed takes note of a name of the journal to which an earlier run came. s.mu is locked.
func (s *steps) passed(name string, seq int) {
	if _, known := s.seqs[name]; !known {
		s.seqs[name] = seq
	}
}

// isStep reports whether the journal has a step of a name. s.mu is locked.
func (s *steps) isStep(name string) bool {
	_, began := s.began[name]
	_, ended := s.ended[name]
	return began || ended
}

// startedStep is what the journal has of a step that must not run twice and whose end it lacks.
const startedStep = "the beginning of a StepOnce"

// kindOf says what the journal has under the name of something that has not ended; nothing: "".
func (s *steps) kindOf(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, begun := s.began[name]; begun {
		return startedStep
	}
	if _, made := s.children[name]; made {
		return "a call"
	}
	if _, passed := s.seqs[name]; passed {
		return "a time"
	}
	return ""
}

// find returns what the journal has of the step to which the run comes next under a name: the second of one name is name#2.
func (s *steps) find(name string) (unique string, data stepData, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name = s.next(name)
	data, found = s.ended[name]
	return name, data, found
}

// next is the name under which the run comes to something next. s.mu is locked.
func (s *steps) next(name string) string {
	s.used[name]++
	if n := s.used[name]; n > 1 {
		name = fmt.Sprintf("%s#%d", name, n)
	}
	s.read[name] = true
	return name
}

// DoesNotFit is that of [handlers.Journal].
func (s *steps) DoesNotFit(name, why string) {
	s.leave(&end{how: waitingForCode, misfit: store.Misfit{Name: name, Seq: s.seqOf(name), Message: why}})
}

// Version is that of [handlers.Journal].
func (s *steps) Version(name string, current int) (version int) {
	if err := checkName(name); err != nil {
		panic(err)
	}
	name, data, found := s.find(name)
	if found && data.Kind == codeVersion && json.Unmarshal(data.Result, &version) == nil {
		return version
	}
	has := s.kindOf(name)
	if found {
		has = data.kind()
	}
	if has != "" {
		s.DoesNotFit(name, fmt.Sprintf("The journal has %s under this name, and the handler asks for a Version.", has))
	}
	if len(s.unread()) > 0 { // an earlier run has gone on from here
		return 0
	}
	ctx := context.Background()
	exit, err := s.enter(ctx, 1, "the version "+name)
	if err != nil {
		return current // nothing comes after it
	}
	defer exit(name)
	s.send(ctx, nil)
	_ = s.write(store.StepEnded, &stepData{Name: name, Kind: codeVersion, Result: json.RawMessage(strconv.Itoa(current))})
	return current
}

// checkName returns the error of a name that cannot be one in a journal.
func checkName(name string) error {
	if name == "" || len([]rune(name)) > maxStepName || strings.ToValidUTF8(name, "") != name || strings.ContainsAny(name, "#\x00") {
		return handlers.Fail("step_name", fmt.Sprintf("A name has 1 to %d characters, and no # among them: %.100q cannot be one.", maxStepName, name))
	}
	return nil
}
