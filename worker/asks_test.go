package worker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
)

// Wary is a domain whose input may refuse itself.
type Wary struct{}

// WaryTask refuses its input on demand.
type WaryTask struct{ Task }

func (t WaryTask) Check(call *handlers.Call) error {
	switch t.Then {
	case "refuse":
		return &handlers.Failure{Code: "no_match", Message: "They do not match.", Details: call.CreatedBy}
	case "err":
		return errors.New("odd")
	case "panic":
		panic("oh")
	}
	return nil
}

func (Wary) Write(_ context.Context, _ handlers.Tx, _ *handlers.Call, in WaryTask) (Done, error) {
	return Done{Text: in.Text}, nil
}

func TestAnInputThatRefusesItselfHasNoKey(t *testing.T) {
	t.Parallel()
	env := handlertest.Start(t, handlertest.Options{Domains: []any{Wary{}},
		Registry: labRegistry("1.0.0", tool{name: "wary.write", mode: "keyed", keyField: "key"})})
	run := func(then string) *receipts.Receipt {
		return env.Run(handlertest.Call{Tool: "wary.write", Input: task(Task{Text: "x", Then: then, Key: "k"}),
			CreatedBy: "ada"})
	}
	for _, won := range []bool{false, true} { // also once there is something to repeat
		for then, code := range map[string]receipts.Code{"refuse": "no_match", "err": receipts.ExecutionError,
			"panic": receipts.Panic} {
			r := run(then)
			if e := handlertest.ErrorOf(t, r); e.Code != code || r.ReplayOf != "" || then == "refuse" &&
				string(e.Details) != `"ada"` {
				t.Errorf("%s: %s", then, r.Result)
			}
		}
		if r := run(""); r.Status != receipts.Succeeded || (r.ReplayOf != "") != won {
			t.Errorf("%+v", r)
		}
	}
}
