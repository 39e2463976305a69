package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker/internal/plain"
)

// judgeCall applies the rules that need only the call itself. The attempt ends if one of them blocks it. Rules about
// earlier calls and about people are checked with the key: see [attempt.pass].
func (a *attempt) judgeCall() *end {
	if a.worker.judge == nil || a.claim.OfRules() {
		return nil
	}
	if a.claim.Steps > 0 { // it was judged before its first step, but needs its places again
		if !a.claim.Cancelled {
			a.judged = a.worker.judge.Places(a.ruledCall())
		}
		return nil
	}
	// the handler may have been added after the start, which refuses such rules
	if a.worker.judge.OnResult(a.tool) && !a.handler.Transactional {
		if rule, blocks := a.worker.options.Rules.BlocksResult(a.tool); blocks {
			return failed(receipts.RuleError, fmt.Sprintf("The rule %s blocks results of %s, which lives in %s (%s). Its "+
				"effects cannot be undone, so the call did not run. Give the rule the action warn, or let it block calls by "+
				"their input.", rule, a.tool.Name, a.handler.File,
				a.handler.Func), map[string]string{"rule": rule})
		}
	}
	a.judged = a.worker.judge.Judge(a.ruledCall())
	if len(a.judged.Checks) > 0 {
		return nil
	}
	return a.ruledBy(rules.Answer{Outcome: rules.Passed})
}

func (a *attempt) ruledCall() rules.Call {
	return rules.Call{ID: a.claim.CallID, Tool: a.tool, Input: a.claim.Input, SessionID: a.claim.SessionID,
		CreatedBy: a.claim.CreatedBy,
		SignedIn:  a.claim.SignedIn, Child: a.claim.Child()}
}

// pass takes the key, if the call has one. If the call is gated, it also applies the rules about earlier calls and
// about people.
func (a *attempt) pass(ctx context.Context, gate store.Gate, gated bool) (held store.Key, end *end, err error) {
	what, doing := "key", "take the idempotency key"
	if gated {
		what, doing = "gate", "check the rules"
	}
	if a.handler.Durable {
		gate.Deadline = a.tool.Deadline
	}
	gate.Open = a.openOfRules(gate.Checks)
	var admission store.Admission
	item, err := gate.Item(a.claim.Attempt)
	if err != nil {
		return held, nil, err
	}
	a.worker.at("before", what)
	err = a.persist(ctx, doing, func(ctx context.Context) (err error) {
		if item != "" {
			var sent bool
			admission, sent, err = a.worker.admissions.Do(ctx, item)
			if admission.Decided || ctx.Err() != nil {
				return err
			}
			item, gate.Again = "", sent && err != nil // from now on alone
		}
		// The statements search twice, for a success or a denial. The second search must see new commits.
		return pgpool.ReadCommitted(ctx, a.worker.options.Calls, func(db pgpool.Querier) (err error) {
			if !gated {
				admission.Key, err = store.HoldKey(ctx, db, a.claim.Attempt, gate.Key, gate.KeyField, gate.Refuse)
				return err
			}
			admission.Key, admission.Answer, err = gate.Do(ctx, db, a.claim.Attempt)
			gate.Again = true
			return err
		})
	})
	a.worker.at("after", what)
	switch {
	case store.IsRefusal(err) && gated:
		return held, failed(receipts.RuleError, "The rules could not be checked for this call: "+plain.OwnMessage(err), nil),
			nil
	case err != nil || admission.Answer.Outcome == "":
		return admission.Key, nil, err
	}
	return admission.Key, a.ruledBy(admission.Answer), nil
}

// admit admits calls in one statement. An attempt waits for each of them.
func (w *Worker) admit(gates []string) (all []store.Admission, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), w.tryTimeout())
	defer cancel()
	what := "admission"
	if len(gates) > 1 {
		what = "admission of several"
	}
	w.at("before", what)
	if w.telemetry != nil {
		w.telemetry.admitted.Record(ctx, int64(len(gates)))
	}
	err = pgpool.ReadCommitted(ctx, w.options.Calls, func(db pgpool.Querier) (err error) {
		all, err = store.Admit(ctx, db, w.id, w.rulesVersion(), gates)
		return err
	})
	w.at("after", what)
	return all, err
}

// ruledBy records the verdicts of the rules, and returns how they end the attempt, or nil.
func (a *attempt) ruledBy(answer rules.Answer) *end {
	ruling := a.judged.Rule(a.worker.rulesVersion(), answer)
	if len(ruling.Verdicts) > 0 || len(answer.Approvals) > 0 {
		a.ruling = &receipts.Rules{Version: a.worker.rulesVersion(), Verdicts: rules.OnReceipt(ruling.Verdicts),
			Approvals: answer.Approvals,
			At:        answer.At}
	}
	switch answer.Outcome {
	case rules.Delayed:
		return &end{how: delayed, again: time.Now().Add(answer.StartsAt.Sub(answer.At))}
	case rules.Asked, rules.Parked:
		return &end{how: waiting}
	}
	if ruling.Code != "" {
		message := ruling.Message
		if a.claim.Losses+a.claim.Retries > 0 {
			message += " An earlier attempt had begun. " + a.mayHaveDone()
		}
		return failed(receipts.Code(ruling.Code), message, ruling.Details)
	}
	return nil
}

// noteRuling writes the verdicts to the journal of a durable call, which may end on a worker with other rules.
func (a *attempt) noteRuling(ctx context.Context) *end {
	if a.ruling == nil || !a.handler.Durable || a.claim.Steps > 0 {
		return nil
	}
	encoded, err := json.Marshal(a.ruling)
	if err != nil {
		return a.endOf(fmt.Errorf("encode the verdicts of the rules: %w", err), nil)
	}
	err = a.persist(ctx, "write the verdicts of the rules", func(ctx context.Context) error {
		return store.NoteRuling(ctx, a.worker.options.Calls, a.claim.Attempt, receipts.CleanJSON(encoded))
	})
	if err != nil {
		if end := a.endedBefore(ctx); end != nil {
			return end
		}
		return a.endOf(err, nil)
	}
	return nil
}

// judgeResult applies the rules about the handler's result and effects. If one of them blocks the call, a transactional
// handler is rolled back.
func (a *attempt) judgeResult(output json.RawMessage) *end {
	if a.claim.OfRules() || !a.worker.judge.OnResult(a.tool) {
		return nil
	}
	effects := a.call.Effects()
	if a.handler.Durable {
		effects = a.steps.Summary().Effects
	}
	encoded, err := json.Marshal(effects)
	if err != nil {
		encoded = []byte("{}")
	}
	verdicts := a.worker.judge.JudgeResult(a.ruledCall(), output, encoded)
	if len(verdicts) == 0 {
		return nil
	}
	if a.ruling == nil {
		a.ruling = &receipts.Rules{Version: a.worker.rulesVersion()}
	}
	a.ruling.Verdicts = append(a.ruling.Verdicts, rules.OnReceipt(verdicts)...)
	ruling := rules.Judgement{Verdicts: verdicts}.Rule(a.worker.rulesVersion(), rules.Answer{Outcome: rules.Passed})
	// the worker starts with no rule that blocks the result of another handler
	if ruling.Code == "" || !a.handler.Transactional {
		return nil
	}
	_ = a.rollback()
	return failed(receipts.Code(ruling.Code), ruling.Message, ruling.Details)
}

// checkRules returns an error for rules that this program cannot enforce, or whose version was recorded with other
// contents. It records all others.
func (w *Worker) checkRules(ctx context.Context) error {
	ours := w.options.Rules
	if ours == nil {
		return nil
	}
	for _, t := range w.options.Registry.Tools() {
		rule, blocks := ours.BlocksResult(t)
		if h, bound := w.options.Handlers.For(t.Name); blocks && bound && !h.Transactional {
			return fmt.Errorf("the rule %s blocks results of %s, whose handler has effects that cannot be undone: give it "+
				"the action warn, or block the call by its input", rule, t.Name)
		}
	}
	sha256, recorded, err := store.RecordRules(ctx, w.options.Control, ours.Version, ours.SHA256(), ours.JSON(),
		ours.Longest())
	switch {
	case err != nil:
		return fmt.Errorf("record the version of the rules: %w", err)
	case sha256 == ours.SHA256():
		return nil
	}
	earlier, err := rules.Parse(recorded)
	if err != nil {
		return fmt.Errorf("other rules were recorded as version %s, and this program cannot read them: raise the version",
			ours.Version)
	}
	return rules.CheckUpgrade(earlier, ours)
}
