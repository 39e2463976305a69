package dashboard

import (
	"encoding/json"
	"fmt"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/prose"
	"github.com/gemworker/gem/receipts"
)

// openSentence describes the state of an open call to a user who can only see the views.
func openSentence(w *view.Whole) string {
	says := standing(w)
	if w.Call.CancelRequested {
		says += " Someone asked to cancel it."
	}
	return says
}

func standing(w *view.Whole) string {
	c := &w.Call
	switch {
	case c.Scheduled:
		return fmt.Sprintf("It is scheduled to run no earlier than %s.", prose.Moment(c.RunAt))
	case c.Status == "queued":
		return fmt.Sprintf("It has been queued since %s. A worker claims it when it is next in line and a slot is free.",
			prose.Moment(c.UpdatedAt))
	case c.Status == "running":
		return fmt.Sprintf("It has been running on %s since %s, in attempt %d.", c.WorkerID, prose.Moment(c.ClaimedAt),
			c.Attempt)
	case c.WaitsFor == "key" && w.KeyHolder != nil:
		return fmt.Sprintf("It waits for call %s, which holds the same key, %s, and is %s. If that call succeeds, its "+
			"result is repeated; otherwise this one runs.",
			w.KeyHolder.ID, c.Key, w.KeyHolder.Status)
	case c.WaitsFor == "key":
		return fmt.Sprintf("It waits for its key, %s, whose holder no longer runs. A worker claims it within seconds.", c.Key)
	case c.WaitsFor == "answer":
		return "It is waiting for an answer."
	case c.WaitsFor == "code":
		return "It is waiting for a program that can continue it."
	case c.WaitsFor == "place":
		return "It is waiting for a place: as many calls run as a rule allows at the same time."
	case c.WaitsFor == "time":
		return fmt.Sprintf("Its handler is sleeping and continues at %s.", prose.Moment(c.WakeAt))
	}
	return "Its handler is waiting for calls that it made, or for people."
}

// explained returns the end of a call in the form that package prose expects.
func explained(w *view.Whole) *client.Explanation {
	c := &w.Call
	r := &receipts.Receipt{ID: c.ReceiptID, CallID: c.ID, ToolName: c.Tool, Status: receipts.Status(c.Status),
		CreatedAt: c.EndedAt, Attempt: c.Attempt, WorkerID: c.WorkerID,
		RegistryVersion: c.RegistryVersion, IdempotencyKey: c.Key, ReplayOf: c.ReplayOf}
	if c.DurationMS != nil {
		r.DurationMS = *c.DurationMS
	}
	switch {
	case r.Status == receipts.Succeeded: // the page shows the result
		if w.Payload != nil && !w.Payload.Effects.Cut {
			r.Effects = json.RawMessage(w.Payload.Effects.Text)
		}
	case w.Payload != nil && !w.Payload.Result.Cut && !w.Payload.Effects.Cut:
		r.Result, r.Effects = json.RawMessage(w.Payload.Result.Text), json.RawMessage(w.Payload.Effects.Text)
	case r.Status == receipts.Failed:
		r.Result, _ = json.Marshal(map[string]any{"error": map[string]string{"error_code": c.ErrorCode,
			"message": c.Message}})
	case r.Status == receipts.NotConfigured:
		r.Result, _ = json.Marshal(map[string]string{"reason": c.Message})
	}
	e := &client.Explanation{Call: client.Call{ID: c.ID, Tool: c.Tool, Status: c.Status, CreatedAt: c.CreatedAt,
		Attempt: c.Attempt, Retries: c.Retries, Losses: c.Losses,
		WorkerID: c.WorkerID}, At: w.At, Receipt: r,
		AgainOf: w.AgainOf, Again: w.Again, Cancel: w.Cancel}
	if w.Repeats != nil {
		e.RepeatedCall = w.Repeats.ID
	}
	return e
}

// answeredBy returns who answered a question, as far as its journal was read, and "" for other calls.
func (p *callPage) answeredBy() (by string) {
	if !prose.IsQuestion(p.Call.Tool) {
		return ""
	}
	for _, e := range p.Journal {
		if e.Event.Event == "answered" {
			by = prose.DataOf(e.Event).By
		}
	}
	return by
}

// answered describes the end of a question. Only operators see a decision.
func (p *callPage) answered() string {
	decision := "answered it"
	if p.Payload != nil && p.Call.Tool == approvalTool {
		switch decisionOf(p.Payload.Result.Text) {
		case "approved":
			decision = "approved the call"
		case "denied":
			decision = "denied the call"
		}
	}
	return fmt.Sprintf("This question has ended: %s %s at %s.", prose.Cut(p.answeredBy(), 100), decision,
		prose.Moment(p.Call.EndedAt))
}
