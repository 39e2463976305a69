package agent_test

import (
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/worker"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

func TestEachAttemptOfAnAgentHasASpanAboveItsRequests(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	s := newScene(t, func(o *handlertest.Options) {
		o.Worker = func(o *worker.Options) {
			o.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("test")
		}
	})
	s.says(wants("os_health_check", "{}"), llmtest.Say("done"))
	s.answered(s.Run(run(object{"name": "Chaser 2", "tools": []string{"os.health_check"}})))
	s.says(wants("os_health_check", "{}"))
	s.Run(run(object{"max_turns": 1, "tools": []string{"os.health_check"}}))
	var all tracetest.SpanStubs
	s.Until("both calls have the span of their last attempt", func() bool {
		all = spans.GetSpans()
		ended := 0
		for _, span := range all {
			for _, a := range span.Attributes {
				if span.Name == "execute_tool agent.run" && a.Key == "gem.call.outcome" &&
					(a.Value.AsString() == "succeeded" || a.Value.AsString() == "failed") {
					ended++
				}
			}
		}
		return ended == 2
	})
	attempts, agents := map[trace.SpanID]bool{}, map[trace.SpanID]tracetest.SpanStub{}
	for _, span := range all {
		attempts[span.SpanContext.SpanID()] = span.Name == "execute_tool agent.run"
	}
	named, failed := 0, 0
	for _, span := range all {
		said := map[attribute.Key]string{}
		for _, a := range span.Attributes {
			said[a.Key] = a.Value.AsString()
		}
		if said["gen_ai.operation.name"] != "invoke_agent" {
			continue
		}
		agents[span.SpanContext.SpanID()] = span
		switch name := said["gen_ai.agent.name"]; {
		case name == "Chaser 2" && span.Name == "invoke_agent Chaser 2":
			named++
		case name != "" || span.Name != "invoke_agent":
			t.Errorf("%s of %q", span.Name, name)
		}
		if span.Status.Code == codes.Error && said["error.type"] == "turn_limit" {
			failed++
		}
		if !attempts[span.Parent.SpanID()] || span.SpanKind != trace.SpanKindInternal {
			t.Errorf("%+v", span)
		}
	}
	if named == 0 || failed != 1 { // how many attempts a call takes depends on how fast its tools are
		t.Errorf("of the agents' attempts %d have the name, and %d failed", named, failed)
	}
	for _, span := range all {
		if _, below := agents[span.Parent.SpanID()]; span.Name == "chat model-a" && !below {
			t.Errorf("a request is not below its agent: %+v", span)
		}
	}
}
