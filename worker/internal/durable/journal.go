package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
)

// Journal has the events of a call's journal that its handler needs, and the names that the current run has reached. It
// does not access the database. Only one goroutine may use it at a time.
type Journal struct {
	// Key is the computed key that the call holds; empty for none.
	Key string
	// Ruling has the verdicts of the rules before the first step; nil without verdicts.
	Ruling *receipts.Rules

	events       int // of steps and waits
	bytes        int
	seen         int // the last event that was read
	began, ended map[string]stepData
	endedAt      map[string]int // the places at which steps ended
	children     map[string]child
	arrived      map[string]handlers.Arrival
	until        map[string]string       // the time limit of each name
	cancelled    map[string]bool         // the waits that a cancellation ended, by the names of their events
	large        map[string]string       // the calls whose results were too large to read with the journal, by name
	shown        string                  // the name among these whose result was read last; empty for none
	seqs         map[string]int          // the names that earlier runs reached, and their places in the journal
	used         map[string]int          // how often this run reached each name
	read         map[string]bool         // the names that this run reached
	kept         receipts.HandlerEffects // of steps that ended, and of earlier attempts
}

// child is a call that the handler made, or is about to make.
type child struct {
	ID, Tool string
}

// first is the place of a refused call: before all others, because the refusal is known at once.
const first = -1

// Read returns the journal with these events. steps is the number of events of steps and waits when the call was
// claimed. An event that cannot be read ends the attempt.
func Read(steps int, events []store.Event) (*Journal, *Exit) {
	j := &Journal{events: steps, began: map[string]stepData{}, ended: map[string]stepData{},
		endedAt:  map[string]int{},
		children: map[string]child{}, arrived: map[string]handlers.Arrival{}, until: map[string]string{},
		cancelled: map[string]bool{}, large: map[string]string{}, seqs: map[string]int{}, used: map[string]int{},
		read: map[string]bool{}}
	for _, e := range events {
		if err := j.take(e); err != nil {
			return j, &Exit{Why: WaitingForCode, Misfit: store.Misfit{Seq: e.Seq,
				Message: fmt.Sprintf("An event of the journal cannot be read: %v", err)}}
		}
	}
	return j, nil
}

// Summary is the summary of a journal on a receipt.
type Summary struct {
	Steps   int // events of steps and waits
	Effects receipts.HandlerEffects
	Durable *receipts.Durable
}

// Summary returns the receipt's summary of the journal if the handler has not run.
func (j *Journal) Summary() Summary {
	s := Summary{Steps: j.events, Durable: &receipts.Durable{Calls: len(j.children)}}
	for _, ended := range j.ended {
		if ended.Kind != codeVersion {
			s.Durable.Steps++
		}
	}
	s.Effects.Add(j.kept)
	return s
}

// HasEffects reports whether steps had effects, including steps whose end was not written.
func (j *Journal) HasEffects() bool { return string(encodeEffects(j.kept)) != "{}" }

// take adds an event of the journal.
func (j *Journal) take(e store.Event) error {
	j.seen = e.Seq
	j.bytes += len(e.Data)
	var data stepData
	if err := json.Unmarshal(e.Data, &data); err != nil {
		return err
	}
	j.kept.Add(data.effects())
	switch e.Event {
	case store.Holds:
		j.Key = data.Key
		return nil
	case store.Ruled:
		j.Ruling = new(receipts.Rules)
		return json.Unmarshal(e.Data, j.Ruling)
	case store.StepBegan, store.StepEnded, store.Called:
		if data.Kind == cancelledWait {
			j.cancelled[data.Name] = true
			return nil
		}
		j.passed(data.Name, e.Seq)
	}
	switch e.Event {
	case store.StepBegan:
		j.began[data.Name] = data
	case store.StepEnded:
		if data.Kind == refusedCall {
			j.takeRefused(data)
		} else {
			j.ended[data.Name], j.endedAt[data.Name] = data, e.Seq
		}
	default:
		return j.takeWait(e)
	}
	return nil
}

// takeWait adds an event of a wait.
func (j *Journal) takeWait(e store.Event) error {
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
		j.children[data.Name] = child{ID: data.CallID, Tool: data.Tool}
	case store.Parked:
		for _, name := range data.For {
			j.passed(name, e.Seq)
		}
		for name, at := range data.Until {
			if _, known := j.until[name]; !known {
				j.until[name] = at
			}
		}
	case store.TimedOut:
		for _, name := range data.Names {
			j.passed(name, e.Seq)
			j.arrives(name, handlers.Arrival{Seq: e.Seq, Err: handlers.ErrTimeout})
		}
	case store.Answered:
		j.arrives(data.Name, handlers.Arrival{Seq: e.Seq, Result: e.Data})
	case store.Returned:
		arrival := handlers.Arrival{Seq: e.Seq, InputDiffers: e.InputDiffers}
		if _, known := j.arrived[data.Name]; known {
			return nil
		}
		if e.Large {
			j.large[data.Name] = data.CallID
		} else {
			arrival.Result, arrival.Err = outcomeOf(e.Status, e.Result)
		}
		j.arrives(data.Name, arrival)
	}
	return nil
}

// arrives records an arrival under a name. The first arrival counts.
func (j *Journal) arrives(name string, arrival handlers.Arrival) {
	if _, ok := j.arrived[name]; !ok {
		j.arrived[name] = arrival
	}
}

// takeRefused adds a call that was refused.
func (j *Journal) takeRefused(data stepData) {
	_, err := data.outcome()
	j.children[data.Name] = child{Tool: data.Tool}
	j.arrived[data.Name] = handlers.Arrival{Seq: first, Err: err}
}

// wrote adds an event that this run wrote.
func (j *Journal) wrote(event string, data stepData, size int) {
	if event == store.StepBegan {
		j.began[data.Name] = data
	} else if data.Kind != refusedCall && data.Kind != cancelledWait {
		j.ended[data.Name], j.endedAt[data.Name] = data, j.seen+1 // or later
	}
	j.events++
	j.bytes += size
}

// full returns the end of the attempt if the journal accepts no more events, or nil.
func (j *Journal) full(tool string) *Exit {
	if j.events < maxSteps && j.bytes < maxStepBytes {
		return nil
	}
	return &Exit{Why: Ended, Outcome: receipts.Failure(receipts.JournalFull, fmt.Sprintf(
		"%s has made %d steps of %d bytes, and may make %d of %d MiB.", tool, j.events, j.bytes, maxSteps,
		maxStepBytes>>20), nil)}
}

// unread returns the names that the journal has from earlier runs, and that this run has not reached.
func (j *Journal) unread() (names []string) {
	for name := range j.seqs {
		if !j.read[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// passed records a name that an earlier run reached.
func (j *Journal) passed(name string, seq int) {
	if _, known := j.seqs[name]; !known {
		j.seqs[name] = seq
	}
}

// isStep reports whether the journal has a step with this name.
func (j *Journal) isStep(name string) bool {
	_, began := j.began[name]
	_, ended := j.ended[name]
	return began || ended
}

// startedStep describes a step that must not run twice, and that has begun but not ended according to the journal.
const startedStep = "the beginning of a StepOnce"

// kindOf describes the journal's entry under the name of an operation that has not ended, or returns "" if there is
// none.
func (j *Journal) kindOf(name string) string {
	if _, begun := j.began[name]; begun {
		return startedStep
	}
	if _, made := j.children[name]; made {
		return "a call"
	}
	if _, passed := j.seqs[name]; passed {
		return "a time"
	}
	return ""
}

// find returns the journal's data of the step that the run reaches next under a name, and the unique name of that step:
// the second step with a name is name#2.
func (j *Journal) find(name string) (unique string, data stepData, found bool) {
	name = j.next(name)
	data, found = j.ended[name]
	return name, data, found
}

// next returns the unique name of the operation that the run reaches next under a name.
func (j *Journal) next(name string) string {
	j.used[name]++
	if n := j.used[name]; n > 1 {
		name = fmt.Sprintf("%s#%d", name, n)
	}
	j.read[name] = true
	return name
}

// findChild returns the call that the run reaches next under a name, and whether it was made or refused. misfit is set
// if the journal has another operation there.
func (j *Journal) findChild(name, tool string) (unique string, made child, found bool, misfit string) {
	unique = j.next(name)
	made, found = j.children[unique]
	switch {
	case found && made.Tool != tool:
		misfit = fmt.Sprintf("The journal has a call to %s under this name, and the handler makes one of %s.", made.Tool,
			tool)
	case !found && j.isStep(unique):
		misfit = "The journal has a step under this name, and the handler makes a call."
	case !found && j.seqs[unique] > 0:
		misfit = "The journal has a time under this name, and the handler makes a call."
	}
	return unique, made, found, misfit
}

// findTime returns the unique name of the time that the run reaches next under a name, and whether the journal has
// another operation under it.
func (j *Journal) findTime(name string) (unique string, misfit bool) {
	unique = j.next(name)
	_, made := j.children[unique]
	return unique, made || j.isStep(unique)
}

// waitFor returns the wait for the given names, according to the part of the journal that this attempt has read. Its
// Need is 0 if enough has arrived.
func (j *Journal) waitFor(need int, of []handlers.Await, deadline time.Duration) store.Wait {
	w := store.Wait{What: "time", Until: map[string]any{}, Deadline: deadline}
	known := map[string]bool{}
	for _, one := range of {
		if known[one.Name] {
			continue
		}
		known[one.Name] = true
		if j.arrived[one.Name].Seq == first {
			need--
			continue
		}
		switch _, child := j.children[one.Name]; {
		case strings.HasPrefix(one.Name, "#"):
			w.What = "answer"
		case child && w.What == "time":
			w.What = "call"
		}
		w.For = append(w.For, one.Name)
		if until, ok := j.until[one.Name]; ok {
			w.Until[one.Name] = until
		} else if one.Until != nil {
			w.Until[one.Name] = *one.Until
		} else if one.Within > 0 {
			w.Until[one.Name] = store.In(one.Within)
		}
	}
	have := 0
	for _, name := range w.For {
		if _, ok := j.arrived[name]; ok {
			have++
		}
	}
	if need = min(need, len(w.For)); have < need {
		w.Need = need
	}
	return w
}

// unreadResult returns the call whose result arrived under a name but was too large to read with the journal, or "" if
// there is none, or if its result was read last.
func (j *Journal) unreadResult(name string) (callID string) {
	if j.shown == name {
		return ""
	}
	return j.large[name]
}

// show adds such a result, and drops the previous one, because all of them together may not fit into memory.
func (j *Journal) show(name string, result store.Event) {
	if j.shown != "" {
		j.arrived[j.shown] = handlers.Arrival{Seq: j.arrived[j.shown].Seq, InputDiffers: j.arrived[j.shown].InputDiffers}
	}
	j.shown = name
	arrival := j.arrived[name]
	arrival.Result, arrival.Err = outcomeOf(result.Status, result.Result)
	j.arrived[name] = arrival
}

// outcomeOf returns the outcome of a child for its parent.
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
		failure, _ := (&receipts.Receipt{Status: receipts.Failed, Result: result}).Error()
		return nil, &handlers.Failure{Code: string(failure.Code), Message: failure.Message, Details: failure.Details}
	}
	return nil, errors.New("the call has ended, and its receipt is not there")
}
