package telemetry_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
)

// All UUIDs have the same two bits at the place from which the SDK's own sampler counts.
func TestAShareOfTheTracesOfCallsIsSampled(t *testing.T) {
	for sampler, arg := range map[string]string{"traceidratio": "0.25", "parentbased_traceidratio": "0.25",
		"parentbased_always_on": "", "TraceIdRatio": "0"} {
		setenv(t, map[string]string{"OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "none",
			"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": arg})
		started, err := start(t, zap.NewNop(), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		const calls = 2000
		sampled := 0
		for i := range calls {
			id := uuid.NewSHA1(uuid.Nil, bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 4)) // the same in each run
			inTrace := trace.ContextWithSpanContext(context.Background(),
				trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID(id)}))
			_, span := started.Tracer().Start(inTrace, "call")
			_, again := started.Tracer().Start(inTrace, "call")
			if span.IsRecording() != again.IsRecording() || span.SpanContext().TraceID() != trace.TraceID(id) {
				t.Errorf("%s: two attempts of %s differ", sampler, id)
			}
			if span.IsRecording() {
				sampled++
			}
		}
		low, high := calls/5, calls*3/10
		switch {
		case strings.Contains(sampler, "always"):
			low, high = calls, calls
		case arg == "0":
			low, high = 0, 0
		}
		if sampled < low || sampled > high {
			t.Errorf("%s %s: %d of %d traces were sampled", sampler, arg, sampled, calls)
		}
		started.Stop()
	}
}
