package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
)

// checkLimit ends a check. None is known that takes more than a few seconds, since its cost is counted first.
const checkLimit = time.Minute

// alone admits one expensive check at a time in this process: ten at once could take more memory than there is.
var alone = make(chan struct{}, 1)

// checkAlone checks an input or an output that may be expensive to check, and reports whether it came to an end. The wait for
// other checks counts for neither [checkLimit] nor the tool's timeout.
func (a *attempt) checkAlone(ctx context.Context, validate func(json.RawMessage, bool) ([]registry.Fault, bool), doc json.RawMessage) (
	faults []registry.Fault, checked bool) {
	a.at("before", "turn")
	select {
	case alone <- struct{}{}:
	case <-ctx.Done():
		return nil, false
	}
	// A check that is given up takes memory until its end.
	done := sync.OnceFunc(func() { <-alone })
	latest := time.AfterFunc(checkLimit, done)
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	var found []registry.Fault
	if !a.within(ctx, func() {
		defer func() { latest.Stop(); done() }()
		found, _ = validate(doc, true)
	}) {
		return nil, false
	}
	return found, true
}

// checkInput ends a call whose input does not fit.
func (a *attempt) checkInput(ctx context.Context) *end {
	var (
		faults []registry.Fault
		left   bool
	)
	// It would not need to run apart, but for the stack that it grows.
	checked := a.within(ctx, func() { faults, left = a.tool.CheckInput(a.Input, false) })
	if checked && left {
		faults, checked = a.checkAlone(ctx, a.tool.CheckInput, a.Input)
	}
	switch {
	case checked && len(faults) == 0:
		return nil
	case checked:
		return a.invalidInput(faults)
	case ctx.Err() != nil:
		return a.endedBefore(ctx)
	}
	return failed(receipts.ValidationError, fmt.Sprintf("The input could not be checked against the schema of %s within %s.",
		a.tool.Name, checkLimit), nil)
}

// askInput ends a call whose input refuses itself: see [handlers.Checked].
func (a *attempt) askInput(ctx context.Context) *end {
	call := a.newCall()
	limited, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	err := error(&panicked{"the check ended its goroutine"})
	asked := a.within(limited, func() {
		defer func() {
			if v := recover(); v != nil {
				err = &panicked{printed(v)}
			}
		}()
		err = plain(a.handler.Check(call), a.CallID)
	})
	switch {
	case asked && err == nil:
		return nil
	case asked:
		return ended(a.failure(err))
	case ctx.Err() != nil:
		return a.endedBefore(ctx)
	}
	return failed(receipts.ValidationError, fmt.Sprintf("The input could not be asked by %s within %s.", a.handler.Func, checkLimit), nil)
}

// checkOutput returns the error of an output that does not fit, and may be expensive to check. The handler has run: neither the end
// of the call's time, nor a wish to cancel it, nor a worker that stops takes its output away.
func (a *attempt) checkOutput(ctx context.Context, output json.RawMessage) error {
	faults, checked := a.checkAlone(context.WithoutCancel(ctx), a.tool.CheckOutput, output)
	if !checked {
		return &handlers.Failure{Message: fmt.Sprintf("The output of %s could not be checked against its schema within %s.",
			a.tool.Name, checkLimit)}
	}
	return a.unfit(faults)
}

// unfit is the error of an output with faults; nil if there are none.
func (a *attempt) unfit(faults []registry.Fault) error {
	if len(faults) == 0 {
		return nil
	}
	return &invalidOutput{tool: a.tool.Name, faults: faults}
}
