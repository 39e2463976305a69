package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/google/uuid"
)

// The limits of a call's children.
const (
	maxChildren   = 4000
	maxChildInput = 1 << 20 // bytes of JSON
	maxStartBytes = 4 << 20 // of inputs in one statement
)

// child is a call that the handler made, or is about to make.
type child struct {
	ID, Tool string
}

// waits are what a durable call made and waits for. steps.mu guards them.
type waits struct {
	children map[string]child
	unsent   []store.Start
	refused  []stepData // calls that cannot be made, which the journal does not have yet
	came     map[string]handlers.Came
	until    map[string]string // when the time of a name is over, as the journal has it
	seen     int               // the last event of the journal that was read
	large    map[string]string // the calls whose results were too large to be read with the journal, by name
}

func newWaits() waits {
	return waits{children: map[string]child{}, came: map[string]handlers.Came{}, until: map[string]string{}, large: map[string]string{}}
}

// first is the place of a call that was refused: before all others, since it is told at once.
const first = -1

// Start is that of [handlers.Journal].
func (s *steps) Start(name, tool string, input func() (json.RawMessage, error)) (unique, id string, err error) {
	if err := checkName(name); err != nil {
		return "", "", err
	}
	unique, made, found, misfit := s.findChild(name, tool)
	if misfit != "" {
		s.DoesNotFit(unique, misfit)
	}
	if found {
		return unique, made.ID, nil
	}
	encoded, refusal := s.inputOf(tool, input)
	made = child{ID: uuid.Must(uuid.NewV7()).String(), Tool: tool}
	start := store.Start{ID: made.ID, Name: unique, Tool: tool, Input: encoded}
	if s.span != nil {
		start.Traceparent = s.span.traceparent()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.children[unique] = made
	if refusal == nil && len(s.children) > maxChildren {
		refusal = failWith(receipts.JournalFull, fmt.Sprintf("%s has made %d calls, and may make no more.", s.tool.Name, maxChildren))
	}
	if refusal != nil {
		s.refuse(start, refusal)
		return unique, "", nil
	}
	s.unsent = append(s.unsent, start)
	return unique, made.ID, nil
}

// inputOf returns the input of a call that the handler makes, or the error for which it cannot.
func (s *steps) inputOf(tool string, input func() (json.RawMessage, error)) (json.RawMessage, error) {
	if err := s.mayCall(tool); err != nil {
		return nil, err
	}
	encoded, err := input()
	if err == nil && len(encoded) > maxChildInput {
		err = failWith(receipts.ValidationError, fmt.Sprintf("The input takes %d bytes as JSON, and may take %d.", len(encoded), maxChildInput))
	}
	return encoded, err
}

// findChild returns the call to which the run comes next under a name, and whether there is one, or was to be one. misfit says
// that the journal has something else.
func (s *steps) findChild(name, tool string) (unique string, made child, found bool, misfit string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	unique = s.next(name)
	made, found = s.children[unique]
	switch {
	case found && made.Tool != tool:
		misfit = fmt.Sprintf("The journal has a call of %s under this name, and the handler makes one of %s.", made.Tool, tool)
	case !found && s.isStep(unique):
		misfit = "The journal has a step under this name, and the handler makes a call."
	case !found && s.seqs[unique] > 0:
		misfit = "The journal has a time under this name, and the handler makes a call."
	}
	return unique, made, found, misfit
}

// mayCall returns the error of a call that the handler may not make.
func (s *steps) mayCall(tool string) error {
	if s.tool.MayCall(tool) {
		return nil
	}
	return failWith(receipts.NotAllowed, fmt.Sprintf("%s may not call %s: the registry does not list it in the `calls` of its entry.", s.tool.Name, tool))
}

// Digest is that of [handlers.Journal].
func (s *steps) Digest(tool string, input json.RawMessage) (string, error) {
	entry, known := s.options.Registry.Tool(tool)
	if !known {
		return "", failWith(receipts.UnknownTool, fmt.Sprintf("The registry %s has no tool %q.", s.options.Registry.Version, value.Shorten(tool, 200)))
	}
	if err := s.mayCall(tool); err != nil {
		return "", err
	}
	digest, err := entry.Digest(input)
	if err != nil {
		return "", failWith(receipts.ValidationError, fmt.Sprintf("The input of %s cannot be approved: %v", tool, err))
	}
	return digest, nil
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
		s.readResults(of)
		return nil
	}
	exit, err := s.enter(ctx, allTurns, "the wait for "+namesOf(of)) // what is under way comes to its end first
	if err != nil {
		return err
	}
	defer exit("")
	s.send()
	wait := s.waitFor(need, of)
	if wait.Need == 0 {
		s.readResults(of)
		return nil // a call was refused
	}
	wait.Effects = s.notKept()
	verdict, err := s.wait(wait)
	if verdict == store.WaitCancelled { // which is news, or the time to clean up is over
		s.cleanUp()
		if wait.CleanUp = context.Cause(ctx) == nil; wait.CleanUp {
			verdict, err = s.wait(wait)
		}
	}
	switch {
	case err != nil:
		return err
	case verdict == store.WaitParked:
		s.leave(&end{how: waiting})
	case verdict == store.WaitCancelled:
		return errCancelled
	}
	if err := s.readWhatCame(); err != nil {
		return err
	}
	s.readResults(of)
	return nil
}

func namesOf(of []handlers.Await) string {
	var names []string
	for _, one := range of {
		names = append(names, one.Name)
	}
	return strings.Join(names, ", ")
}

// readResults reads the results that the journal was read without.
func (s *steps) readResults(of []handlers.Await) {
	s.mu.Lock()
	large := map[string]string{}
	for _, one := range of {
		if id, ok := s.large[one.Name]; ok {
			large[one.Name] = id
		}
	}
	s.mu.Unlock()
	if len(large) == 0 {
		return
	}
	var found map[string]store.Event
	err := s.persist(s.open, "read results", func(ctx context.Context) (err error) {
		found, err = store.Results(ctx, s.options.Calls, slices.Collect(maps.Values(large)))
		return err
	})
	s.leaveIf(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, id := range large {
		came := s.came[name]
		came.Result, came.Err = outcomeOf(found[id].Status, found[id].Result)
		s.came[name] = came
		delete(s.large, name)
	}
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
	w := store.Wait{What: "time", Until: map[string]any{}, CleanUp: s.cleaning, Deadline: s.tool.Deadline}
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

// send makes the calls that the handler began and that are not made yet, and writes down which of them were refused: the next run is told the
// same, whatever the registry says by then.
func (s *steps) send() {
	defer s.writeRefused()
	for {
		s.mu.Lock()
		n, size := 0, 0
		for n < len(s.unsent) && (n == 0 || size+len(s.unsent[n].Input) <= maxStartBytes) {
			size += len(s.unsent[n].Input)
			n++
		}
		batch := s.unsent[:n:n]
		s.mu.Unlock()
		if n == 0 {
			return
		}
		_, err := s.wait(store.Wait{Start: batch, What: "call"})
		for i := 0; err != nil && n > 1 && i < n; i++ { // one by one, to know which of them it is
			if _, one := s.wait(store.Wait{Start: batch[i : i+1], What: "call"}); one != nil {
				s.refusedByPostgres(batch[i], one)
			}
		}
		if err != nil && n == 1 {
			s.refusedByPostgres(batch[0], err)
		}
		s.mu.Lock()
		s.unsent = s.unsent[n:]
		s.mu.Unlock()
	}
}

// refusedByPostgres takes note of a call that Postgres does not take.
func (s *steps) refusedByPostgres(start store.Start, err error) {
	failure := failWith(receipts.ValidationError, fmt.Sprintf("Postgres refuses the call %s of %s: %s", start.Name, start.Tool, publicMessage(err)))
	if store.IsTooDeep(err) {
		failure = failWith(receipts.NotAllowed, fmt.Sprintf("%s may make no call: it is the child of a child, eight times over.", s.tool.Name))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse(start, failure)
}

// refuse takes note of a call that cannot be made. s.mu is locked.
func (s *steps) refuse(start store.Start, err error) {
	data := stepData{Name: start.Name, Kind: refusedCall, Tool: start.Tool}
	data.describe(nil, plain(err))
	s.takeRefused(data)
	s.refused = append(s.refused, data)
}

// takeRefused takes a call that was refused into account. s.mu is locked.
func (s *steps) takeRefused(data stepData) {
	_, err := data.outcome()
	s.children[data.Name] = child{Tool: data.Tool}
	s.came[data.Name] = handlers.Came{Seq: first, Err: err}
}

func (s *steps) writeRefused() {
	for {
		s.mu.Lock()
		if len(s.refused) == 0 {
			s.mu.Unlock()
			return
		}
		next := s.refused[0]
		s.mu.Unlock()
		_ = s.write(store.StepEnded, &next) // of texts alone, which Postgres takes
		s.mu.Lock()
		s.refused = s.refused[1:]
		s.mu.Unlock()
	}
}

// wait makes calls and waits, in one statement, and returns the error of what Postgres refuses.
func (s *steps) wait(w store.Wait) (verdict store.WaitVerdict, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.open.Err() != nil {
		s.leave(nil)
	}
	var count int
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

func failWith(code receipts.Code, message string) error {
	return &handlers.Failure{Code: string(code), Message: message}
}

// checkName returns the error of a name that cannot be one in a journal.
func checkName(name string) error {
	if name == "" || len([]rune(name)) > maxStepName || strings.ToValidUTF8(name, "") != name || strings.ContainsAny(name, "#\x00") {
		return handlers.Fail("step_name", fmt.Sprintf("A name has 1 to %d characters, and no # among them: %.100q cannot be one.", maxStepName, name))
	}
	return nil
}
