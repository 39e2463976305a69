package worker_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
)

// Numbers is a domain whose tools take numbers.
type Numbers struct{}

// Pay is numbers.pay.
func (Numbers) Pay(_ context.Context, _ *handlers.Call, in struct {
	Order json.RawMessage `json:"order"`
	N     int             `json:"n"`
}) (Done, error) {
	return Done{Text: string(in.Order)}, nil
}

// Give is numbers.give: it returns an integer as an SQL function might.
func (Numbers) Give(context.Context, *handlers.Call, struct{}) (map[string]json.RawMessage, error) {
	return map[string]json.RawMessage{"n": json.RawMessage("20.00")}, nil
}

// Take is numbers.take.
func (Numbers) Take(ctx context.Context, d *handlers.Durable, _ struct{}) (int, error) {
	given, err := handlers.Start[struct{ N int }](d, "give", "numbers.give", struct{}{}).Wait(ctx)
	if err != nil {
		return 0, err
	}
	n, err := handlers.Step(ctx, d, "step", func(context.Context) (json.RawMessage, error) {
		return json.RawMessage("2.0"), nil
	})
	if err != nil || string(n) == "" {
		return 0, err
	}
	return given.N, nil
}

const numbersRegistry = `{"version": "1.0.0", "tools": [
	{"name": "numbers.pay", "description": "Pay", "input_schema": {"type": "object", "required": ["order"], "properties": {
		"order": {}, "n": {"type": "integer"}}}, "output_schema": {"type": "object"}, "timeout_ms": 60000,
		"idempotency": {"mode": "keyed", "key_field": "order"}},
	{"name": "numbers.give", "description": "Give", "input_schema": {"type": "object"}, "output_schema": {"type": "object",
		"properties": {"n": {"type": "integer"}}}, "timeout_ms": 60000, "idempotency": {"mode": "none"}},
	{"name": "numbers.take", "description": "Take", "input_schema": {"type": "object"},
		"output_schema": {"type": "integer"}, "timeout_ms": 60000, "idempotency": {"mode": "none"},
		"calls": ["numbers.give"]}]}`

// 11 and 11.0 are one number, so that a caller cannot have a call with a key run once for each notation.
func TestTheNotationOfANumberChangesNothing(t *testing.T) {
	t.Parallel()
	env := handlertest.Start(t, handlertest.Options{Registry: []byte(numbersRegistry), Domains: []any{Numbers{}}})
	for order, hits := range map[string][]string{
		`11`: {`11.0`, `11.000`, `1.1e1`}, `0`: {`0.0`, `-0.0`}, `[1, "1.0\"2.0", {"a": 2.5}]`: {`[1.0, "1.0\"2.0", {"a": 2.50}]`},
		`10.10`: {`10.1`}, `"1.0"`: nil, `"1"`: nil,
	} {
		first := env.Run(handlertest.Call{Tool: "numbers.pay", Input: `{"order": ` + order + `, "n": 3.0}`})
		handlertest.Output[Done](t, first)
		if first.ReplayOf != "" {
			t.Errorf("%s repeats another", order)
		}
		for _, again := range hits {
			if r := env.Run(handlertest.Call{Tool: "numbers.pay", Input: `{"order": ` + again + `}`}); r.ReplayOf != first.ID {
				t.Errorf("%s ran again as %s: %s", order, again, r.IdempotencyKey)
			}
		}
	}
	if got, _ := handlertest.Do[int](env, "numbers.take", `{}`); got != 20 {
		t.Errorf("a handler got %d", got)
	}
	sound(t, env)
}
