package worker

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
)

// A question that a handler or the rules ask waits from the start, and no worker claims it: see gem.question_waits. The
// worker that asks checks and judges it first. If it is not certain that the question may be asked, it becomes an
// ordinary call, and the worker that claims it ends it, or records the verdicts.

// openHandlers returns the longest time for which a call that the handler makes waits for an answer without a claim, or
// 0 if it must be claimed: it is not a question, its input may be invalid, or rules have a verdict on it.
func (a *attempt) openHandlers(id, tool string, input json.RawMessage) time.Duration {
	asked := a.question(tool, input)
	if asked == nil || a.worker.judge.OnResult(asked) {
		return 0
	}
	judged := a.worker.judge.Judge(rules.Call{ID: id, Tool: asked, Input: input, SessionID: a.claim.SessionID,
		CreatedBy: a.claim.CreatedBy, SignedIn: a.claim.SignedIn, Child: true})
	if len(judged.Verdicts) > 0 || len(judged.Checks) > 0 {
		return 0
	}
	return asked.Deadline
}

// openOfRules returns the longest time for which the questions of checks wait without a claim, or 0 if they must be
// claimed, because the input of one may be invalid. No rule judges them.
func (a *attempt) openOfRules(checks []rules.Check) (open time.Duration) {
	for _, check := range checks {
		if check.Question == nil {
			continue
		}
		var input map[string]json.RawMessage
		if err := json.Unmarshal(check.Question, &input); err != nil {
			return 0
		}
		const moment = `"2000-01-01T00:00:00.000000Z"` // gem.ask adds these fields
		input["until"] = json.RawMessage(moment)
		input["before"] = json.RawMessage(`[{"tool": "a.b", "status": "failed", "error_code": "c", "at": ` + moment + `}]`)
		whole, err := json.Marshal(input)
		if err != nil {
			return 0
		}
		asked := a.question("wait.approval", whole)
		if asked == nil {
			return 0
		}
		open = asked.Deadline
	}
	return open
}

// question returns the tool of a question whose input is valid, and nil for any other call, or if the check would be
// expensive.
func (a *attempt) question(tool string, input json.RawMessage) *registry.Tool {
	if !slices.Contains(registry.Asking, tool) {
		return nil
	}
	entry, known := a.worker.options.Registry.Tool(tool)
	handler, bound := a.worker.options.Handlers.For(tool)
	if !known || !bound || !handler.Durable {
		return nil
	}
	if faults, left := entry.CheckInput(input, false); left || len(faults) > 0 {
		return nil
	}
	if handler.Check(&handlers.Call{Tool: tool, Input: input}) != nil { // a time that does not exist fits the schema
		return nil
	}
	return entry
}
