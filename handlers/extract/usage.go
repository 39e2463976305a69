package extract

import (
	"encoding/json"
	"errors"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/llm/ledger"
	"github.com/gemworker/gem/handlers/llm/models"
	"github.com/gemworker/gem/internal/llm"
)

// usage is what a shard, or a whole run, took and cost. What was answered before, and is not asked again, costs nothing.
type usage struct {
	LLMCalls     int        `json:"llm_calls"` // answers that models were asked for
	Requests     int64      `json:"requests"`  // all that it took to get them, by the ledger
	InputTokens  int64      `json:"input_tokens"`
	OutputTokens int64      `json:"output_tokens"`
	Cost         *llm.Money `json:"cost_usd"` // of all requests whose cost is known; null if none is
	Unknown      int64      `json:"unknown_requests"`
}

// answered adds an answer. Its total is of all requests of the call so far.
func (u *usage) answered(a *models.Usage) {
	u.InputTokens += a.Input
	u.OutputTokens += a.Output
	u.total(&a.Call)
}

func (u *usage) total(t *ledger.Total) { u.Requests, u.Cost, u.Unknown = t.Requests, t.Cost, t.Unknown }

func (u *usage) add(o *usage) {
	u.LLMCalls += o.LLMCalls
	u.Requests += o.Requests
	u.InputTokens += o.InputTokens
	u.OutputTokens += o.OutputTokens
	u.Unknown += o.Unknown
	if o.Cost != nil {
		sum := *o.Cost
		if u.Cost != nil {
			sum += *u.Cost
		}
		u.Cost = &sum
	}
}

// settle says of a run that asked nothing that it cost 0, which is known.
func (u *usage) settle() {
	if u.LLMCalls == 0 && u.Requests == 0 {
		u.Cost = new(llm.Money)
	}
}

// fail returns the failure of an answer that did not come, with what the call has used until then.
func (u *usage) fail(err error) error {
	failure, ok := errors.AsType[*handlers.Failure](err)
	if !ok {
		return err
	}
	if total := models.TotalOf(failure); total != nil {
		u.total(total)
	}
	details := map[string]json.RawMessage{}
	if encoded, err := json.Marshal(failure.Details); err == nil {
		_ = json.Unmarshal(encoded, &details)
	}
	details["usage"], _ = json.Marshal(u)
	return &handlers.Failure{Code: failure.Code, Message: failure.Message, Details: details}
}

// usageOf returns what a call that failed had used, as its receipt says; nil if it does not.
func usageOf(err error) *usage {
	failure, ok := errors.AsType[*handlers.Failure](err)
	if !ok {
		return nil
	}
	var told struct{ Usage *usage }
	if encoded, err := json.Marshal(failure.Details); err == nil {
		_ = json.Unmarshal(encoded, &told)
	}
	return told.Usage
}
