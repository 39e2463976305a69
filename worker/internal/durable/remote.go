package durable

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/exchange"
	"github.com/gemworker/gem/internal/plainjson"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker/internal/plain"
)

// Remote is a [Run] whose handler is a service: it records operations that have run elsewhere.
type Remote struct{ *Run }

// Remote returns the run for a handler that is a service.
func (r *Run) Remote() exchange.Attempt { return Remote{r} }

// State implements [exchange.Attempt].
func (r Remote) State() exchange.State {
	return exchange.State{Steps: r.course.events(), Left: r.life.left(), Cancelled: r.life.cleansUp(),
		Replay: r.options.Replay}
}

// Token implements [exchange.Attempt].
func (r Remote) Token() (string, error) {
	token, err := r.pen.writer.token(r.pen.open)
	if err != nil {
		r.pen.leaveUnlessRefused(err)
	}
	return token, err
}

// Reread implements [exchange.Attempt].
func (r Remote) Reread() error {
	r.pen.writing.Lock()
	defer r.pen.writing.Unlock()
	r.pen.leaveIfClosed()
	steps, events, err := r.pen.writer.journal(r.pen.open)
	if err != nil {
		r.pen.leaveUnlessRefused(err)
		return err
	}
	r.course.mu.Lock()
	defer r.course.mu.Unlock()
	journal, exit := Read(steps, events)
	if exit != nil {
		return errors.New(exit.Misfit.Message)
	}
	if steps > r.course.journal.events {
		r.course.progressed = true
		defer r.life.progress()
	}
	journal.Key, journal.Ruling = r.course.journal.Key, r.course.journal.Ruling
	*r.course.journal = *journal
	return nil
}

// Entries implements [exchange.Attempt].
func (r Remote) Entries() (entries []exchange.Entry, complete bool) {
	r.course.mu.Lock()
	defer r.course.mu.Unlock()
	return r.options.Journal.entries(), len(r.options.Journal.large) == 0
}

// entries returns the entries of the journal, in the order of their events.
func (j *Journal) entries() (all []exchange.Entry) {
	at := func(seq int) *int { return &seq }
	add := func(e exchange.Entry, err error) {
		data := stepData{}
		if e.TimedOut = errors.Is(err, handlers.ErrTimeout); !e.TimedOut {
			data.describe(nil, err)
		}
		e.Error, e.NotConfigured = data.Error, data.Missing
		all = append(all, e)
	}
	for name, data := range j.ended {
		all = append(all, exchange.Entry{Name: name, Kind: exchange.Kind(data.Kind), Ended: at(j.endedAt[name]),
			Result: data.Result, Error: data.Error, NotConfigured: data.Missing})
	}
	for name := range j.began {
		if _, ended := j.ended[name]; !ended {
			add(exchange.Entry{Name: name, Kind: exchange.Once}, nil)
		}
	}
	for name := range j.cancelled {
		add(exchange.Entry{Name: name, Kind: exchange.Cancelled, Ended: at(0)}, nil)
	}
	waits := map[string]bool{} // for answers and times
	for name := range j.arrived {
		waits[name] = true
	}
	for name := range j.seqs {
		waits[name] = true
	}
	for name, made := range j.children {
		delete(waits, name)
		e := exchange.Entry{Name: name, Kind: exchange.Call, Tool: made.Tool}
		arrival, came := j.arrived[name]
		if came {
			e.Ended, e.Result = at(arrival.Seq), arrival.Result
		}
		add(e, arrival.Err)
	}
	for name := range waits {
		if j.isStep(name) {
			continue
		}
		e := exchange.Entry{Name: name, Kind: exchange.Time}
		if strings.HasPrefix(name, "#") {
			e.Kind = exchange.Answer
		}
		arrival, came := j.arrived[name]
		if came {
			e.Ended = at(arrival.Seq)
		}
		if came && e.Kind == exchange.Answer {
			_, reached := j.seqs[name]
			e.Result, e.Early = arrival.Result, !reached
		}
		add(e, arrival.Err)
	}
	slices.SortFunc(all, func(a, b exchange.Entry) int {
		return cmp.Or(cmp.Compare(j.seqs[a.Name], j.seqs[b.Name]), strings.Compare(a.Name, b.Name))
	})
	return all
}

// Record implements [exchange.Attempt].
func (r Remote) Record(operations []exchange.Operation) error {
	var again error // of the first step that may run again
	var cleaned []handlers.Await
	var begins []exchange.Operation
	for _, op := range operations {
		if err := r.fits(op); err != nil {
			return err
		}
		op.CleanUp = op.CleanUp && r.life.cleansUp()
		var err error
		switch op.Do {
		case exchange.End:
			if op.Kind == exchange.Tx && op.Err == nil {
				return fmt.Errorf("only keep_tool_step may end %s, with its rows", op.Name)
			}
			if plain.IsTransient(op.Err) && op.Kind != exchange.Once && r.course.spent()+1 < r.options.MaxAttempts {
				if again == nil {
					again = op.Err
				}
				r.course.tries(op.Effects)
				continue
			}
			err = r.ended(op)
		case exchange.Begin:
			begins = append(begins, op)
		case exchange.RecordVersion:
			err = r.pen.write(store.StepEnded, &stepData{Name: op.Name, Kind: codeVersion, Result: op.Result})
		case exchange.ListTools:
			tools, _ := plainjson.Encode(toolsOf(r.Tools()))
			err = r.ended(exchange.Operation{Name: op.Name, Kind: exchange.Step, Result: tools})
		case exchange.Cancel:
			if err = r.pen.write(store.StepEnded, &stepData{Name: op.Name, Kind: cancelledWait}); err == nil {
				r.course.mu.Lock()
				r.options.Journal.cancelled[op.Name] = true
				r.course.mu.Unlock()
			}
		case exchange.Make, exchange.Approve:
			if r.life.cleansUp() && !op.CleanUp {
				continue // the next exchange reports the cancellation to the service
			}
			r.make(op)
			if op.CleanUp {
				cleaned = append(cleaned, handlers.Await{Name: op.Name})
			}
		default:
			err = fmt.Errorf("%q is no operation", receipts.Shorten(string(op.Do), 50))
		}
		if err != nil {
			return err
		}
	}
	r.calls.send(r.scope(len(cleaned) > 0), cleaned)
	if again != nil {
		r.course.leave(&Exit{Why: Retried, Err: again})
	}
	if exit := r.course.ends(); exit != nil {
		r.course.leave(exit)
	}
	// Beginnings come last: if the attempt ended after one, its step would never run.
	for _, op := range begins {
		if r.life.cleansUp() && !op.CleanUp {
			continue
		}
		if err := r.pen.write(store.StepBegan, &stepData{Name: op.Name}); err != nil {
			return err
		}
	}
	return nil
}

// scope returns the context of the handler or, for a clean-up, of the whole run.
func (r Remote) scope(cleanUp bool) context.Context {
	if cleanUp {
		return r.life.whole
	}
	return r.life.handler
}

// fits returns an error for an operation that does not fit the journal.
func (r Remote) fits(op exchange.Operation) error {
	name, number, numbered := strings.Cut(op.Name, "#")
	if op.Do == exchange.Cancel {
		if r.isCancelled(op.Name) {
			return fmt.Errorf("the journal has %.100q already", op.Name)
		}
		if !strings.HasPrefix(op.Name, "cancelled#") || len([]rune(op.Name)) > maxStepName ||
			strings.ToValidUTF8(op.Name, "") != op.Name || strings.ContainsRune(op.Name, 0) {
			return fmt.Errorf("%.100q cannot be the name of a wait that was cancelled", op.Name)
		}
		return nil
	}
	if n, err := strconv.Atoi(number); numbered && (err != nil || n < 2 || strconv.Itoa(n) != number) {
		return fmt.Errorf("%.100q cannot be a name: the second operation with a name has the suffix #2", op.Name)
	}
	if err := checkName(name); err != nil {
		return err
	}
	r.course.mu.Lock()
	defer r.course.mu.Unlock()
	j := r.options.Journal
	_, ended := j.ended[op.Name]
	has := j.kindOf(op.Name)
	if ended || has != "" && (has != startedStep || op.Do != exchange.End || op.Kind != exchange.Once) {
		return fmt.Errorf("the journal has %s already", op.Name)
	}
	if op.Do == exchange.End && op.Kind == exchange.Once && has != startedStep {
		return fmt.Errorf("the beginning of %s is not in the journal, and it must not run twice", op.Name)
	}
	return nil
}

// isCancelled reports whether the journal has a wait that a cancellation ended.
func (r Remote) isCancelled(name string) bool {
	r.course.mu.Lock()
	defer r.course.mu.Unlock()
	return r.options.Journal.cancelled[name]
}

// ended writes the end of a step.
func (r Remote) ended(op exchange.Operation) error {
	s := &step{run: r.Run, data: stepData{Name: op.Name, Kind: handlers.StepKind(op.Kind)}}
	result, err := s.fit(op.Result, op.Err)
	r.course.mu.Lock()
	r.course.pending.Add(op.Effects)
	r.course.mu.Unlock()
	return s.write(result, err)
}

// tool is a tool in the result of a ListTools.
type tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
	Closed      string          `json:"closed,omitempty"`
}

func toolsOf(tools []handlers.Tool) []tool {
	all := make([]tool, len(tools))
	for i, t := range tools {
		all[i] = tool(t)
	}
	return all
}

// make makes a call, or asks for an approval. Approvals are checked as for handlers in Go.
func (r Remote) make(op exchange.Operation) {
	d := handlers.NewDurable(r.options.Call, named(r))
	switch {
	case op.Do == exchange.Approve:
		op.Approval.Tool, op.Approval.Input = op.Tool, op.Input
		handlers.Approve(d, op.Name, op.Approval)
	case op.Approved != "" && !r.hasApproval(op.Approved):
		r.start(op.Name, op.Tool, false, func() (json.RawMessage, error) {
			return nil, failWith(receipts.NotAllowed, fmt.Sprintf("The call %s of %s has no approval with the name %.100q.",
				op.Name, op.Tool, op.Approved))
		})
	case op.Approved != "":
		asked := handlers.Approve(d, op.Approved, handlers.Approval{Tool: op.Tool, Input: op.Input})
		_, _ = asked.Wait(r.life.whole) // it only marks the approval as awaited, or finds no decision
		handlers.StartApproved[json.RawMessage](d, op.Name, asked)
	default:
		handlers.Start[json.RawMessage](d, op.Name, op.Tool, op.Input)
	}
}

// hasApproval reports whether the journal has an approval of that name.
func (r Remote) hasApproval(name string) bool {
	r.course.mu.Lock()
	defer r.course.mu.Unlock()
	return r.options.Journal.children[name].Tool == approval
}

// approval is the tool of approvals.
const approval = "wait.approval"

// named is the journal of a run for operations that already have unique names.
type named struct{ *Run }

// Start implements [handlers.Journal].
func (n named) Start(name, tool string, chosen bool, input func() (json.RawMessage, error)) (string, string, error) {
	n.course.mu.Lock()
	made, found := n.options.Journal.children[name]
	n.course.mu.Unlock()
	if found {
		return name, made.ID, nil
	}
	return name, n.start(name, tool, chosen, input), nil
}

// Wait implements [handlers.Journal]: it returns at once.
func (n named) Wait(_ context.Context, need int, of []handlers.Await) error {
	if n.waitFor(need, of).Need > 0 {
		return errors.New("nobody has decided")
	}
	n.readResult(of)
	return nil
}

// Wait implements [exchange.Attempt].
func (r Remote) Wait(need int, of []handlers.Await, cleanUp bool) error {
	cleanUp = cleanUp && r.life.cleansUp()
	for _, one := range of {
		if name := strings.TrimPrefix(one.Name, "#"); name == "" || len([]rune(name)) > maxStepName+10 {
			return fmt.Errorf("%.100q cannot be a name", one.Name)
		}
	}
	for {
		r.calls.send(r.scope(cleanUp), of)
		wait := r.waitFor(need, of)
		if wait.Need == 0 {
			return nil
		}
		if exit := r.course.ends(); exit != nil {
			r.course.leave(exit)
		}
		if context.Cause(r.life.whole) != nil {
			r.course.leave(nil)
		}
		cancelled := r.life.cleansUp()
		if cancelled && !cleanUp {
			return nil
		}
		if again, err := r.suspend(wait, cancelled); err != nil || !again {
			return err
		}
	}
}

// Unanswered implements [exchange.Attempt].
func (r Remote) Unanswered(err error) error {
	if exit := r.course.ends(); exit != nil {
		r.course.leave(exit)
	}
	// the call's deadline has passed, or the time to clean up is over
	if cause := context.Cause(r.life.whole); errors.Is(cause, ErrDeadline) || errors.Is(cause, handlers.ErrCancelled) {
		return cause
	}
	if r.course.events() == 0 {
		return err
	}
	if r.course.spent()+1 < r.options.MaxAttempts {
		r.course.leave(&Exit{Why: Retried, Err: err})
	}
	r.DoesNotFit("", plain.Error(err, r.options.Call.ID).Error())
	return err
}

// Stopped implements [exchange.Attempt].
func (r Remote) Stopped(lacks string) { r.course.leave(&Exit{Why: Replayed, Lacks: lacks}) }

// Finished implements [exchange.Attempt].
func (r Remote) Finished(unread []string) {
	r.course.mu.Lock()
	defer r.course.mu.Unlock()
	j := r.options.Journal
	for name := range j.seqs {
		j.read[name] = !slices.Contains(unread, name)
	}
}
