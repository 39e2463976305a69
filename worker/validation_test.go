package worker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
)

// It is 60 KB, and would be tried against 300 alternatives at each of 7,000 places.
func TestAnInputThatIsTooExpensiveToCheckIsRefusedUnchecked(t *testing.T) {
	t.Parallel()
	alternatives := make([]string, 300)
	for i := range alternatives {
		alternatives[i] = fmt.Sprintf(`{"required": ["a%d"]}`, i)
	}
	schema := `{"type": "object", "properties": {"list": {"items": {"anyOf": [` + strings.Join(alternatives, ", ") +
		`]}}}}`
	env := handlertest.Start(t, handlertest.Options{
		Registry: []byte(`{"version": "1.0.0", "tools": [{"name": "lab.send", "input_schema": ` + schema +
			`, "output_schema": true,
			"idempotency": {"mode": "none"}, "timeout_ms": 60000}]}`),
		Domains: []any{NewLab()},
	})
	input := `{"list": [` + strings.Repeat(`{"q":1},`, 7000) + `{}]}`
	r := env.Run(handlertest.Call{Tool: "lab.send", Input: input})
	if r.Status != receipts.Failed || !strings.Contains(string(r.Result), `"validation_error"`) ||
		!strings.Contains(string(r.Result), "too expensive to check") {
		t.Errorf("%s: %.500s", r.Status, r.Result)
	}
}

func TestAFunctionThatGoesOnAfterItsTimeIsGivenUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	release := make(chan struct{})
	defer close(release)
	if worker.Within(ctx, func() { <-release }) {
		t.Error("it is said to have returned")
	}
	if !worker.Within(t.Context(), func() {}) {
		t.Error("one that returns is said not to have")
	}
}
