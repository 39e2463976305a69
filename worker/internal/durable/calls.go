package durable

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker/internal/plain"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

// The limits of a call's children.
const (
	maxChildren   = 4000
	maxChildInput = 1 << 20 // bytes of JSON
	maxStartBytes = 4 << 20 // of inputs in one statement
)

// Start implements [handlers.Journal].
func (r *Run) Start(name, tool string, chosen bool, input func() (json.RawMessage, error)) (unique, id string,
	err error) {
	if err := checkName(name); err != nil {
		return "", "", err
	}
	r.course.mu.Lock()
	unique, made, found, misfit := r.options.Journal.findChild(name, tool)
	r.course.mu.Unlock()
	if misfit != "" {
		r.DoesNotFit(unique, misfit)
	}
	if found {
		return unique, made.ID, nil
	}
	return unique, r.start(unique, tool, chosen, input), nil
}

// start begins a call that is not in the journal. It returns the id of the call, or "" if the call is refused.
func (r *Run) start(unique, tool string, chosen bool, input func() (json.RawMessage, error)) (id string) {
	encoded, refusal := r.inputOf(tool, chosen, input)
	start := store.Start{ID: uuid.Must(uuid.NewV7()).String(), Name: unique, Tool: tool, Input: encoded, Chosen: chosen}
	if refusal == nil && r.options.Open != nil {
		start.OpenMS = r.options.Open(start.ID, tool, encoded).Milliseconds()
	}
	if r.options.Traceparent != nil {
		start.Traceparent = r.options.Traceparent()
	}
	return r.calls.add(start, refusal)
}

// inputOf returns the input of a call that the handler makes, or the error that prevents the call. A call that the
// handler's code did not choose must be open to the user.
func (r *Run) inputOf(tool string, chosen bool, input func() (json.RawMessage, error)) (json.RawMessage, error) {
	encoded, err := input()
	if err == nil {
		err = r.mayCall(tool)
	}
	if err == nil && chosen && r.options.Call.SignedIn {
		why := "is not in the registry of this worker" // the registry of another worker may close it
		if entry, known := r.options.Registry.Tool(tool); known {
			why = r.closed(entry)
		}
		if why != "" {
			err = failWith(receipts.NotAllowed, fmt.Sprintf("The user may not call %s: it %s.", tool, why))
		}
	}
	if err == nil && tool == approval {
		err = r.checkApproval(encoded)
	}
	if err == nil && len(encoded) > maxChildInput {
		err = failWith(receipts.ValidationError, fmt.Sprintf("The input takes %d bytes as JSON, and may take %d.",
			len(encoded), maxChildInput))
	}
	return encoded, err
}

// checkApproval returns an error if a request for an approval has the digest of another call.
func (r *Run) checkApproval(encoded json.RawMessage) error {
	var asked struct {
		handlers.Request
		Digest string `json:"digest"`
	}
	_ = json.Unmarshal(encoded, &asked)
	if asked.Digest == "" {
		return nil // the input's schema decides
	}
	if digest, err := r.Digest(asked.Tool, asked.Input); err != nil || digest != asked.Digest {
		return failWith(receipts.NotAllowed, "The digest of the approval is not that of its tool and input.")
	}
	return nil
}

// mayCall returns an error if the handler may not call the tool.
func (r *Run) mayCall(tool string) error {
	if r.options.Tool.MayCall(tool) {
		return nil
	}
	return failWith(receipts.NotAllowed, fmt.Sprintf(
		"%s may not call %s: the registry does not list it in the `calls` of its entry.", r.options.Tool.Name, tool))
}

// Tools implements [handlers.Journal].
func (r *Run) Tools() (all []handlers.Tool) {
	for _, t := range r.options.Registry.Tools() {
		if !r.options.Tool.MayCall(t.Name) {
			continue
		}
		all = append(all, handlers.Tool{Name: t.Name, Description: t.Description, InputSchema: t.InputSchema,
			Closed: r.closed(t)})
	}
	return all
}

// closed returns the reason why the user of the handler's call may not call a tool, or "".
func (r *Run) closed(t *registry.Tool) string {
	if !r.options.Call.SignedIn {
		return ""
	}
	return t.ClosedBecause()
}

// Digest implements [handlers.Journal].
func (r *Run) Digest(tool string, input json.RawMessage) (string, error) {
	entry, known := r.options.Registry.Tool(tool)
	if !known {
		return "", failWith(receipts.UnknownTool, fmt.Sprintf("The registry %s has no tool %q.",
			r.options.Registry.Version, receipts.Shorten(tool, 200)))
	}
	if err := r.mayCall(tool); err != nil {
		return "", err
	}
	digest, err := entry.Digest(input)
	if err != nil {
		return "", failWith(receipts.ValidationError, fmt.Sprintf("The input of %s cannot be approved: %v", tool, err))
	}
	return digest, nil
}

// calls holds the children that the handler began and that were not sent yet. course.mu guards its fields.
type calls struct {
	course  *course
	pen     *pen
	unsent  []store.Start
	refused []stepData // calls that cannot be made, which the journal does not record yet
}

// add adds a call that the handler begins. It returns the id of the call, or "" if the call is refused.
func (c *calls) add(start store.Start, refusal error) (id string) {
	journal, options := c.course.journal, c.course.options
	c.course.mu.Lock()
	defer c.course.mu.Unlock()
	journal.children[start.Name] = child{ID: start.ID, Tool: start.Tool}
	if refusal == nil && len(journal.children) > maxChildren {
		refusal = failWith(receipts.JournalFull, fmt.Sprintf("%s has made %d calls, and may make no more.",
			options.Tool.Name, maxChildren))
	}
	if refusal != nil {
		c.refuse(start, refusal)
		return ""
	}
	c.unsent = append(c.unsent, start)
	return start.ID
}

// send makes the calls that are not made yet, and records the refused ones, so that the next run gets the same
// refusals, even if the registry has changed by then. After the call's cancellation was requested, only a clean-up
// makes calls, and only the calls that it waits for.
func (c *calls) send(ctx context.Context, of []handlers.Await) {
	defer c.writeRefused()
	for alone := 0; ; alone-- {
		batch, cleansUp := c.next(ctx, of, alone > 0)
		if len(batch) == 0 {
			return
		}
		verdict, err := c.pen.wait(store.Wait{Start: batch, What: "call", CleanUp: cleansUp})
		switch {
		case err != nil && len(batch) > 1: // one by one, to find out which of them Postgres rejects
			alone = len(batch) + 1
			continue
		case err != nil:
			c.refusedByPostgres(batch[0], err)
		case verdict == store.WaitCancelled:
			c.course.life.asked(cleansUp)
			continue
		}
		c.sent(batch)
	}
}

// next returns the calls to make in the next statement, as many as fit, and whether a clean-up makes them.
func (c *calls) next(ctx context.Context, of []handlers.Await, alone bool) (batch []store.Start, cleansUp bool) {
	c.course.mu.Lock()
	defer c.course.mu.Unlock()
	cleansUp = c.course.life.cleansUp()
	if cleansUp && cmp.Or(context.Cause(c.course.life.whole), context.Cause(ctx)) != nil {
		return nil, false
	}
	size := 0
	for _, start := range c.unsent {
		if cleansUp && !slices.ContainsFunc(of, func(one handlers.Await) bool { return one.Name == start.Name }) {
			continue
		}
		if size += len(start.Input); len(batch) > 0 && (alone || size > maxStartBytes) {
			break
		}
		batch = append(batch, start)
	}
	return batch, cleansUp
}

// sent records that the calls of a batch were made or refused.
func (c *calls) sent(batch []store.Start) {
	c.course.mu.Lock()
	defer c.course.mu.Unlock()
	c.unsent = slices.DeleteFunc(c.unsent, func(start store.Start) bool {
		if len(batch) == 0 || start.ID != batch[0].ID {
			return false
		}
		batch = batch[1:] // both are in the order in which the handler began them
		return true
	})
}

// has reports whether some of the names belong to calls that are not made yet, or whose refusal the journal does not
// record yet.
func (c *calls) has(of []handlers.Await) bool {
	c.course.mu.Lock()
	defer c.course.mu.Unlock()
	return slices.ContainsFunc(of, func(one handlers.Await) bool {
		return slices.ContainsFunc(c.unsent, func(start store.Start) bool { return one.Name == start.Name }) ||
			slices.ContainsFunc(c.refused, func(call stepData) bool { return one.Name == call.Name })
	})
}

// refusedByPostgres records a call that Postgres rejects.
func (c *calls) refusedByPostgres(start store.Start, err error) {
	failure := failWith(receipts.ValidationError, fmt.Sprintf("Postgres refuses the call %s of %s: %s", start.Name,
		start.Tool, plain.OwnMessage(err)))
	var refused *pgconn.PgError
	if store.IsRefusedQuestion(err) && errors.As(err, &refused) {
		failure = failWith(receipts.NotAllowed, fmt.Sprintf("The question was refused: %s. %s", refused.Message,
			refused.Hint))
	}
	if store.IsTooDeep(err) {
		failure = failWith(receipts.NotAllowed, fmt.Sprintf(
			"%s may make no call: it is the child of a child, eight times over.", c.course.options.Tool.Name))
	}
	c.course.mu.Lock()
	defer c.course.mu.Unlock()
	c.refuse(start, failure)
}

// refuse records a call that cannot be made. course.mu is locked.
func (c *calls) refuse(start store.Start, err error) {
	data := stepData{Name: start.Name, Kind: refusedCall, Tool: start.Tool}
	data.describe(nil, plain.Error(err, c.course.options.Call.ID))
	c.course.journal.takeRefused(data)
	c.refused = append(c.refused, data)
}

func (c *calls) writeRefused() {
	for {
		c.course.mu.Lock()
		if len(c.refused) == 0 {
			c.course.mu.Unlock()
			return
		}
		next := c.refused[0]
		c.course.mu.Unlock()
		_ = c.pen.write(store.StepEnded, &next) // it has only texts, which Postgres accepts
		c.course.mu.Lock()
		c.refused = c.refused[1:]
		c.course.mu.Unlock()
	}
}

func failWith(code receipts.Code, message string) error {
	return &handlers.Failure{Code: string(code), Message: message}
}
