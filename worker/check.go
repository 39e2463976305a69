package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker/internal/plain"
)

// checkLimit limits the time of a check. No known check takes more than a few seconds, because its cost is estimated
// first.
const checkLimit = time.Minute

// alone admits one expensive check at a time in this process: ten at once could run out of memory.
var alone = make(chan struct{}, 1)

// checkAlone validates an input or an output that may be expensive to check, and reports whether the check finished.
// Waiting for other checks counts towards neither [checkLimit] nor the tool's timeout.
func (a *attempt) checkAlone(ctx context.Context, validate func(json.RawMessage, bool) ([]receipts.Fault, bool),
	doc json.RawMessage) (
	faults []receipts.Fault, checked bool) {
	a.worker.at("before", "turn")
	select {
	case alone <- struct{}{}:
	case <-ctx.Done():
		return nil, false
	}
	// An abandoned check uses memory until it ends.
	done := sync.OnceFunc(func() { <-alone })
	latest := time.AfterFunc(checkLimit, done)
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	var found []receipts.Fault
	if !a.worker.within(ctx, func() {
		defer func() { latest.Stop(); done() }()
		found, _ = validate(doc, true)
	}) {
		return nil, false
	}
	return found, true
}

// checkInput ends a call whose input does not match its schema.
func (a *attempt) checkInput(ctx context.Context) *end {
	var (
		faults []receipts.Fault
		left   bool
	)
	// It runs on another goroutine only because it grows the stack.
	checked := a.worker.within(ctx, func() { faults, left = a.tool.CheckInput(a.claim.Input, false) })
	if checked && left {
		faults, checked = a.checkAlone(ctx, a.tool.CheckInput, a.claim.Input)
	}
	switch {
	case checked && len(faults) == 0:
		return nil
	case checked:
		return a.invalidInput(faults)
	case ctx.Err() != nil:
		return a.endedBefore(ctx)
	}
	return failed(receipts.ValidationError, fmt.Sprintf(
		"The input could not be checked against the schema of %s within %s.",
		a.tool.Name, checkLimit), nil)
}

// askInput ends a call whose input reports an error: see [handlers.Checked].
func (a *attempt) askInput(ctx context.Context) *end {
	call := a.newCall()
	limited, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	err := error(&panicError{"the check ended its goroutine"})
	asked := a.worker.within(limited, func() {
		defer func() {
			if v := recover(); v != nil {
				err = &panicError{printed(v)}
			}
		}()
		err = plain.Error(a.handler.Check(call), a.claim.CallID)
	})
	switch {
	case asked && err == nil:
		return nil
	case asked:
		return ended(a.failure(err))
	case ctx.Err() != nil:
		return a.endedBefore(ctx)
	}
	return failed(receipts.ValidationError, fmt.Sprintf("%s could not check the input within %s.", a.handler.Func,
		checkLimit), nil)
}

// checkOutput returns the error of an output that does not match its schema or may be expensive to check. The handler
// has run, so the check continues after the call's timeout, a cancellation or an order to stop.
func (a *attempt) checkOutput(ctx context.Context, output json.RawMessage) error {
	faults, checked := a.checkAlone(context.WithoutCancel(ctx), a.tool.CheckOutput, output)
	if !checked {
		return &handlers.Failure{Message: fmt.Sprintf("The output of %s could not be checked against its schema within %s.",
			a.tool.Name, checkLimit)}
	}
	return a.unfit(faults)
}

// unfit returns the error for an output with faults, or nil if there are none.
func (a *attempt) unfit(faults []receipts.Fault) error {
	if len(faults) == 0 {
		return nil
	}
	return &invalidOutput{tool: a.tool.Name, faults: faults}
}
