package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/gemworker/gem/internal/pgpool"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/rules"
)

// judgeCall asks the rules for what the call shows of itself. The attempt ends if one of them blocks it. What is left to ask of the calls before it,
// and of people, is asked with the key: see [attempt.pass].
func (a *attempt) judgeCall() *end {
	if a.judge == nil || a.OfRules || a.Steps > 0 { // a call that made progress was judged before it
		return nil
	}
	if a.judge.OnResult(a.tool) && !a.handler.Transactional { // it may have been found after the start, which refuses such rules
		if rule, blocks := a.options.Rules.BlocksResult(a.tool); blocks {
			return failed(receipts.RuleError, fmt.Sprintf("The rule %s blocks results of %s, which lives in %s (%s), where its effects cannot be taken back: the call did not run. "+
				"Give the rule the action warn, or let it block calls by their input.", rule, a.tool.Name, a.handler.File, a.handler.Func), map[string]string{"rule": rule})
		}
	}
	a.judged = a.judge.Judge(a.ruledCall())
	if len(a.judged.Checks) > 0 {
		return nil
	}
	return a.ruledBy(rules.Answer{Outcome: rules.Passed})
}

func (a *attempt) ruledCall() rules.Call {
	return rules.Call{ID: a.CallID, Tool: a.tool, Input: a.Input, SessionID: a.SessionID, CreatedBy: a.CreatedBy, SignedIn: a.SignedIn, Child: a.Child}
}

// pass takes the key, if the call has one, and asks what the rules ask of the calls before it and of people.
func (a *attempt) pass(ctx context.Context, key, keyField string, refuse bool) (held store.Key, end *end, err error) {
	gate := store.Gate{Key: key, KeyField: keyField, Refuse: refuse, Checks: a.judged.Checks, Version: a.options.Rules.Version, Again: a.Number > 1}
	if a.handler.Durable {
		gate.Deadline = a.tool.Deadline
	}
	var answer rules.Answer
	err = a.persist(ctx, "ask what the rules ask", func(ctx context.Context) (err error) {
		return pgpool.ReadCommitted(ctx, a.options.Calls, func(db pgpool.Querier) (err error) {
			held, answer, err = gate.Do(ctx, db, a.Attempt)
			gate.Again = true
			return err
		})
	})
	switch {
	case store.IsRefusal(err):
		return held, failed(receipts.RuleError, "The rules could not be asked about this call: "+ownMessage(err), nil), nil
	case err != nil || answer.Outcome == "":
		return held, nil, err
	}
	return held, a.ruledBy(answer), nil
}

// ruledBy takes note of what the rules say, and returns how the attempt ends by that.
func (a *attempt) ruledBy(answer rules.Answer) *end {
	ruling := a.judged.Rule(a.options.Rules.Version, answer)
	if len(ruling.Verdicts) > 0 || len(answer.Approvals) > 0 {
		a.ruling = &receipts.Rules{Version: a.options.Rules.Version, Verdicts: ruling.Verdicts, Approvals: answer.Approvals, At: answer.At}
	}
	switch answer.Outcome {
	case rules.Delayed:
		return &end{how: delayed, again: time.Now().Add(answer.Turn.Sub(answer.At))}
	case rules.Asked:
		return &end{how: waiting}
	}
	if ruling.Code != "" {
		message := ruling.Message
		if a.Losses+a.Retries > 0 {
			message += " An earlier attempt had begun. " + a.mayHaveDone()
		}
		return failed(receipts.Code(ruling.Code), message, ruling.Details)
	}
	return nil
}

// noteRuling writes what the rules said into the journal of a durable call, which may end on a worker that has other rules.
func (a *attempt) noteRuling(ctx context.Context) *end {
	if a.ruling == nil || !a.handler.Durable || a.Steps > 0 {
		return nil
	}
	encoded, err := json.Marshal(a.ruling)
	if err != nil {
		return a.endOf(fmt.Errorf("what the rules said cannot be encoded: %w", err), nil)
	}
	err = a.persist(ctx, "write what the rules said", func(ctx context.Context) error {
		return store.NoteRuling(ctx, a.options.Calls, a.Attempt, receipts.CleanJSON(encoded))
	})
	if err != nil {
		if end := a.endedBefore(ctx); end != nil {
			return end
		}
		return a.endOf(err, nil)
	}
	return nil
}

// judgeResult asks the rules for what the handler returned and did. A handler whose rows can be taken back is rolled back if one of them blocks it.
func (a *attempt) judgeResult(output json.RawMessage) *end {
	if a.OfRules || !a.judge.OnResult(a.tool) {
		return nil
	}
	effects := a.call.Effects()
	if a.handler.Durable {
		effects = a.steps.effects()
	}
	encoded, err := json.Marshal(effects)
	if err != nil {
		encoded = []byte("{}")
	}
	verdicts := a.judge.JudgeResult(a.ruledCall(), output, encoded)
	if len(verdicts) == 0 {
		return nil
	}
	if a.ruling == nil {
		a.ruling = &receipts.Rules{Version: a.options.Rules.Version}
	}
	a.ruling.Verdicts = append(a.ruling.Verdicts, verdicts...)
	ruling := rules.Judgement{Verdicts: verdicts}.Rule(a.options.Rules.Version, rules.Answer{Outcome: rules.Passed})
	if ruling.Code == "" || !a.handler.Transactional { // the worker starts with no rule that blocks the result of another handler
		return nil
	}
	_ = a.rollback()
	return failed(receipts.Code(ruling.Code), ruling.Message, ruling.Details)
}

// checkRules refuses rules that this program cannot keep, or whose version was recorded with other contents, and records the others.
func (w *Worker) checkRules(ctx context.Context) error {
	ours := w.options.Rules
	if ours == nil {
		return nil
	}
	for _, t := range w.options.Registry.Tools() {
		rule, blocks := ours.BlocksResult(t)
		if h, bound := w.options.Handlers.For(t.Name); blocks && bound && !h.Transactional {
			return fmt.Errorf("the rule %s blocks results of %s, whose handler has effects that cannot be taken back: give it the action warn, or block "+
				"the call by its input", rule, t.Name)
		}
	}
	sha256, recorded, err := store.RecordRules(ctx, w.options.Control, ours.Version, ours.SHA256(), ours.JSON(), ours.Longest())
	switch {
	case err != nil:
		return fmt.Errorf("record the version of the rules: %w", err)
	case sha256 == ours.SHA256():
		return nil
	}
	earlier, err := rules.Parse(recorded)
	if err != nil {
		return fmt.Errorf("other rules were recorded as version %s, and this program cannot read them: raise the version", ours.Version)
	}
	return rules.CheckUpgrade(earlier, ours)
}
