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

// check checks an input or an output, and reports whether it came to an end before ctx and [checkLimit]. The wait for other
// checks counts for neither the limit nor the tool's timeout.
func (a *attempt) check(ctx context.Context, validate func(json.RawMessage, bool) ([]registry.Fault, bool), doc json.RawMessage) (
	faults []registry.Fault, checked bool) {
	limited := func(f func()) bool {
		ctx, cancel := context.WithTimeout(ctx, checkLimit)
		defer cancel()
		return a.within(ctx, f)
	}
	var (
		first, second []registry.Fault
		left          bool
	)
	if !limited(func() { first, left = validate(doc, false) }) {
		return nil, false
	}
	if !left {
		return first, true
	}
	a.at("before", "turn")
	select {
	case alone <- struct{}{}:
	case <-ctx.Done():
		return nil, false
	}
	// A check that is given up takes memory until its end.
	done := sync.OnceFunc(func() { <-alone })
	latest := time.AfterFunc(checkLimit, done)
	if !limited(func() {
		defer func() { latest.Stop(); done() }()
		second, _ = validate(doc, true)
	}) {
		return nil, false
	}
	return second, true
}

// checkInput ends a call whose input does not fit.
func (a *attempt) checkInput(ctx context.Context) *end {
	faults, checked := a.check(ctx, a.tool.CheckInput, a.Input)
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

// checkOutput returns the error of an output that does not fit. The handler has run: neither the end of the call's time, nor a wish to
// cancel it, nor a worker that stops takes its output away.
func (a *attempt) checkOutput(ctx context.Context, output json.RawMessage) error {
	faults, checked := a.check(context.WithoutCancel(ctx), a.tool.CheckOutput, output)
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
