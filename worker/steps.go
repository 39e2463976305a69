package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/lanes"
	"github.com/gemworker/gem/internal/store"
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

// steps are those of a durable call: what its journal has of them, and what this attempt adds. It is the [handlers.Journal] of the
// handler.
type steps struct {
	*attempt
	ctx    context.Context // of the handler: it ends with life, and when someone asks for the call's end
	cancel context.CancelCauseFunc
	life   context.Context // of the attempt: it ends when the handler has made no progress for the tool's timeout
	end    context.CancelCauseFunc
	timer  *time.Timer         // of the tool's timeout
	turns  *semaphore.Weighted // a StepTx has all of it, so that the rows recorded meanwhile are its own; other steps share it

	// One event is written at a time, since each says how many there were before it, and only until the handler is no longer waited
	// for: stop ends open, and waits for the write under way.
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
	stopped    bool          // the handler is no longer waited for
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

// readSteps reads the steps of the attempts before this one.
func (a *attempt) readSteps(ctx context.Context) *end {
	var events []store.Event
	ctx, done := uncancelled(ctx)
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

// cleanUpTime is what a handler has to clean up after someone asked for its call's end: see gem.wait.
const cleanUpTime = time.Hour

// start returns the context of the handler. claimed is that of the call.
func (s *steps) start(claimed context.Context) context.Context {
	s.life, s.end = uncancelled(claimed)
	s.ctx, s.cancel = context.WithCancelCause(s.life)
	s.open, s.close = context.WithCancel(context.Background())
	s.timer = time.AfterFunc(s.tool.Timeout, func() { s.end(context.DeadlineExceeded) })
	s.limits = append(s.limits, time.AfterFunc(s.tool.Deadline-s.Age, func() { s.end(errDeadline) }))
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
		s.limits = append(s.limits, time.AfterFunc(cleanUpTime-s.CancelledFor, func() { s.end(errCancelled) }))
	}
}

// uncancelled returns a context that ends with another, but not since someone asked for the end of the call.
func uncancelled(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); !errors.Is(cause, errCancelled) {
			end(cause)
		}
	})
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

// Step is that of [handlers.Journal].
func (s *steps) Step(ctx context.Context, kind handlers.StepKind, name string,
	do func(context.Context, handlers.Tx) (json.RawMessage, error)) (json.RawMessage, error) {
	if ctx.Value(inStep{}) != nil {
		return nil, handlers.Fail("step_in_step", fmt.Sprintf("The step %s was begun inside of another step: begin it after that one.", name))
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	name, ended, found := s.find(name)
	if found {
		if ended.Kind != kind {
			s.DoesNotFit(name, fmt.Sprintf("The journal has a step of the kind %s, and the handler asks for one of the kind %s.", ended.Kind, kind))
		}
		return ended.outcome()
	}
	if has := s.kindOf(name); has != "" && (has != startedStep || kind != handlers.AtMostOnce) {
		s.DoesNotFit(name, fmt.Sprintf("The journal has a %s under this name, and the handler asks for a step of the kind %s.", has, kind))
	}
	turns := int64(1)
	if kind == handlers.WithItsRows {
		turns = allTurns
	}
	exit, err := s.enter(ctx, turns, "the step "+name)
	if err != nil {
		return nil, err
	}
	defer exit(name)
	s.send()
	data := stepData{Name: name, Kind: kind}
	if kind == handlers.AtMostOnce {
		if s.kindOf(name) == startedStep {
			return s.keep(ctx, data, nil, handlers.ErrUnknown)
		}
		if err := s.write(store.StepBegan, &stepData{Name: name}); err != nil {
			return nil, err
		}
	}
	ctx, done := s.within(ctx)
	defer done()
	if kind == handlers.WithItsRows {
		return s.runTx(ctx, data, do)
	}
	s.at("before", "work")
	result, err := do(ctx, nil)
	s.at("after", "work")
	return s.keep(ctx, data, result, err)
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
		has = "step of the kind " + string(data.Kind)
	}
	if has != "" {
		s.DoesNotFit(name, fmt.Sprintf("The journal has a %s under this name, and the handler asks for a version.", has))
	}
	if len(s.unread()) > 0 { // an earlier run has gone on from here
		return 0
	}
	exit, err := s.enter(context.Background(), 1, "the version "+name)
	if err != nil {
		return current // nothing comes after it
	}
	defer exit(name)
	s.send()
	_ = s.write(store.StepEnded, &stepData{Name: name, Kind: codeVersion, Result: json.RawMessage(strconv.Itoa(current))})
	return current
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
const startedStep = "step that began, and must not run twice,"

// kindOf says what the journal has under the name of something that has not ended; nothing: "".
func (s *steps) kindOf(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, begun := s.began[name]; begun {
		return startedStep
	}
	if _, made := s.children[name]; made {
		return "call"
	}
	if _, passed := s.seqs[name]; passed {
		return "time"
	}
	return ""
}

// enter waits until a step may run, alone if it takes all turns, and returns what is to be called when the step of a name has ended. An
// attempt that is to begin nothing new ends here.
func (s *steps) enter(ctx context.Context, turns int64, what string) (exit func(name string), err error) {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	if err := s.turns.Acquire(waiting, turns); err != nil {
		turns = 0
	}
	release := func() { s.turns.Release(turns) }
	if end := s.ends(); end != nil {
		release()
		s.leave(end)
	}
	if err := cmp.Or(context.Cause(s.life), context.Cause(ctx)); err != nil {
		release()
		return nil, err
	}
	if s.replaying {
		release()
		s.leave(&end{how: replayed, misfit: store.Misfit{Message: what}})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == 0 {
		s.outside.Add(s.call.TakeEffects())
	}
	s.running++
	return func(name string) {
		s.mu.Lock()
		s.running--
		if _, kept := s.ended[name]; !kept && !s.stopped {
			s.tried.Add(s.takePending())
		}
		last := s.running == 0 && s.left != nil
		s.mu.Unlock()
		if last {
			s.end(errLeft)
		}
		release()
	}, nil
}

// takePending returns what was recorded since the last step ended. s.mu is locked.
func (s *steps) takePending() handlers.Effects {
	effects := s.pending
	effects.Add(s.call.TakeEffects())
	s.pending = handlers.Effects{}
	return effects
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

// inStep is the key of a context's mark that a step runs.
type inStep struct{}

// within returns the context of a step: it ends with that of the handler, and says that a step runs.
func (s *steps) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, inStep{}, true))
	stop := context.AfterFunc(s.life, func() { cancel(context.Cause(s.life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// runTx runs a step in a transaction, and commits it with the step's result.
func (s *steps) runTx(ctx context.Context, data stepData, do func(context.Context, handlers.Tx) (json.RawMessage, error)) (json.RawMessage, error) {
	ctx, tx := s.lanes.Begin(ctx, s.tool.Timeout)
	s.mu.Lock()
	s.tx = tx
	stopped := s.stopped
	s.mu.Unlock()
	ended := false
	defer func() {
		if !ended { // the step panicked, or ended its goroutine
			_ = s.rollback(tx)
		}
	}()
	if stopped {
		s.leave(nil)
	}
	s.at("before", "work")
	result, err := do(ctx, tx)
	s.at("after", "work")
	err = s.fit(data, result, err)
	if err == nil && tx.Open() {
		if err = s.commit(tx, &data, result); err == nil {
			ended = true
			return data.outcome()
		}
	}
	ended = true
	if broken := s.rollback(tx); err != nil && isTransient(broken) {
		err = handlers.Transient(err)
	}
	return s.keep(ctx, data, result, err)
}

// rollback ends a transaction that did not commit, and forgets the rows that were recorded for it.
func (s *steps) rollback(tx *lanes.Tx) error {
	broken := tx.Rollback()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tx = nil
	if !s.stopped {
		s.pending = s.takePending()
		s.pending.DBWrites = nil
	}
	return broken
}

// fit returns the error of a step, plain, or that of a result that is too large.
func (s *steps) fit(data stepData, result json.RawMessage, err error) error {
	if err == nil && len(result) > maxStepResult {
		return &handlers.Failure{Code: string(receipts.OutputInvalid),
			Message: fmt.Sprintf("The result of the step %s takes %d bytes as JSON, and may take %d.", data.Name, len(result), maxStepResult)}
	}
	return plain(err)
}

// keep writes what a step came to into the journal, and returns it. An attempt that is to end, or to run again after a pause,
// ends here.
func (s *steps) keep(ctx context.Context, data stepData, result json.RawMessage, err error) (json.RawMessage, error) {
	err = s.fit(data, result, err)
	if s.open.Err() != nil { // the handler was given up
		s.leave(nil)
	}
	cause := context.Cause(s.life)
	if errors.Is(context.Cause(ctx), errCancelled) {
		cause = errCancelled
	}
	if err != nil && cause != nil { // it could not go on to its end, and says nothing about the next attempt
		if end := s.ends(); end != nil {
			s.leave(end)
		}
		return nil, cause
	}
	if err != nil && isTransient(err) && s.spent()+1 < s.tool.Retry.MaxAttempts && data.Kind != handlers.AtMostOnce {
		s.leave(&end{how: retried, reason: err})
	}
	data.describe(result, err)
	s.mu.Lock()
	effects := s.takePending()
	s.kept.Add(effects)
	s.mu.Unlock()
	data.Effects = encodeEffects(effects)
	refused := s.write(store.StepEnded, &data)
	if refused != nil {
		data.describe(nil, refused)
		if refused = s.write(store.StepEnded, &data); refused != nil { // this is storable: an effect is not
			data.Effects = nil
			refused = s.write(store.StepEnded, &data)
		}
	}
	if refused != nil {
		return nil, refused
	}
	return data.outcome()
}

// write writes an event of a step in a transaction of its own, and returns the error of data that Postgres refuses.
func (s *steps) write(event string, data *stepData) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.open.Err() != nil {
		s.leave(nil)
	}
	encoded, before, tries := data.encode(), s.before(), 0
	s.at("before", event)
	err := s.persist(s.open, "write a step", func(ctx context.Context) error {
		tries++
		return s.lanes.Write(ctx, store.Step{Event: event, Data: encoded}.Statement(s.Attempt, before, tries > 1))
	})
	s.at("after", event)
	if err == nil {
		s.progress(event, data, len(encoded))
		return nil
	}
	s.leaveUnlessRefused(err)
	return s.unstorable(data, err)
}

// leaveUnlessRefused ends the attempt after an error of a statement that moves its call. It returns only if Postgres refuses the values.
func (s *steps) leaveUnlessRefused(err error) {
	switch {
	case store.IsNotHeld(err):
		s.leave(&end{how: notHeld})
	case s.open.Err() != nil:
		s.leave(nil)
	case !store.IsRefusal(err):
		s.leave(&end{how: leftToRecovery, reason: err})
	}
}

func (s *steps) unstorable(data *stepData, err error) error {
	return &handlers.Failure{Code: string(receipts.OutputInvalid),
		Message: fmt.Sprintf("Postgres cannot store the result of the step %s: %s", data.Name, publicMessage(err))}
}

// commit writes the end of a step and commits its transaction. It returns the error for which that did not happen.
func (s *steps) commit(tx *lanes.Tx, data *stepData, result json.RawMessage) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.open.Err() != nil {
		s.leave(nil)
	}
	data.describe(result, nil)
	s.mu.Lock()
	effects := s.takePending()
	s.pending = effects // until the step is kept
	s.mu.Unlock()
	data.Effects = encodeEffects(effects)
	encoded := data.encode()
	s.at("before", store.StepEnded)
	written, err := tx.Finish(store.Step{Event: store.StepEnded, Data: encoded}.Statement(s.Attempt, s.before(), false))
	s.at("after", store.StepEnded)
	if err == nil {
		s.committed(data, len(encoded))
		return nil
	}
	broken := tx.Rollback()
	switch {
	case store.IsNotHeld(err):
		s.leave(&end{how: notHeld})
	case !written && store.IsRefusal(err):
		err = s.unstorable(data, err)
	case written && store.IsRefusal(err): // a deferred constraint
		err = plain(err)
	case errors.Is(err, lanes.ErrBroken) && !isTransient(broken):
		err = plain(fmt.Errorf("the step %s %w: %w", data.Name, lanes.ErrBroken, broken))
	case errors.Is(err, lanes.ErrStatementOpen) || errors.Is(broken, lanes.ErrNoTransaction):
		err = plain(fmt.Errorf("the step %s: %w", data.Name, errors.Join(err, broken)))
	case s.isThere(data.Name):
		s.committed(data, len(encoded))
		return nil
	default: // if it commits all the same, it finds another event in its place, or another attempt, and is refused
		err = handlers.Transient(plain(err))
	}
	return err
}

// committed takes note of a step that committed with its transaction.
func (s *steps) committed(data *stepData, size int) {
	s.mu.Lock()
	s.kept.Add(s.takePending())
	s.tx = nil
	s.mu.Unlock()
	s.progress(store.StepEnded, data, size)
}

// before is how many events of steps the journal has.
func (s *steps) before() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events
}

// isThere asks the database whether a step has committed, after its answer was lost.
func (s *steps) isThere(name string) (there bool) {
	err := s.persist(s.open, "look for a step", func(ctx context.Context) (err error) {
		there, err = store.HasStep(ctx, s.options.Calls, s.Attempt, name)
		return err
	})
	switch {
	case store.IsNotHeld(err):
		s.leave(&end{how: notHeld})
	case s.open.Err() != nil:
		s.leave(nil)
	case err != nil:
		s.leave(&end{how: leftToRecovery, reason: err})
	}
	return there
}

// progress takes note of an event that was written: attempts and time count from here.
func (s *steps) progress(event string, data *stepData, size int) {
	s.mu.Lock()
	if event == store.StepBegan {
		s.began[data.Name] = *data
	} else if data.Kind != refusedCall {
		s.ended[data.Name] = *data
	}
	s.events++
	s.bytes += size
	s.progressed = true
	s.mu.Unlock()
	s.timer.Reset(s.tool.Timeout)
}

// effects are those of all steps, and what was recorded outside of them.
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
