package extract

import (
	"encoding/json"
	"errors"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/ledger"
	"github.com/gemworker/gem/internal/provider/router"
)

// usage has the answers, tokens and cost of a shard or a whole run. Earlier answers that are reused cost nothing.
type usage struct {
	LLMCalls     int             `json:"llm_calls"` // requested answers
	Requests     int64           `json:"requests"`  // all requests for these answers, by the ledger
	InputTokens  int64           `json:"input_tokens"`
	OutputTokens int64           `json:"output_tokens"`
	Cost         *provider.Money `json:"cost_usd"` // of all requests with known cost; null without one
	Unknown      int64           `json:"unknown_requests"`
}

// answered adds an answer. Its total is of all requests of the call so far.
func (u *usage) answered(a *router.Usage) {
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

// settle sets the cost of a run without requests to 0, which is known.
func (u *usage) settle() {
	if u.LLMCalls == 0 && u.Requests == 0 {
		u.Cost = new(provider.Money)
	}
}

// fail returns the failure of an answer that did not arrive, with the call's usage so far.
func (u *usage) fail(err error) error {
	failure, ok := errors.AsType[*handlers.Failure](err)
	if !ok {
		return err
	}
	if total := router.TotalOf(failure); total != nil {
		u.total(total)
	}
	details := map[string]json.RawMessage{}
	if encoded, err := json.Marshal(failure.Details); err == nil {
		_ = json.Unmarshal(encoded, &details)
	}
	details["usage"], _ = json.Marshal(u)
	return &handlers.Failure{Code: failure.Code, Message: failure.Message, Details: details}
}

// usageOf returns the usage of a failed call from its receipt, or nil if the receipt has none.
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
