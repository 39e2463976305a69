package telemetry

import (
	"encoding/binary"
	"fmt"
	"strconv"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// randomBits are the last bits of a trace id. They are random in W3C's Trace Context, level 2, and in a UUID.
const randomBits = 56

// sampling returns the sampler of the environment if that samples a share of all traces. The SDK reads all others.
func sampling() []sdktrace.TracerProviderOption {
	_, name := firstSet("OTEL_TRACES_SAMPLER")
	if name != "traceidratio" && name != "parentbased_traceidratio" {
		return nil
	}
	_, arg := firstSet("OTEL_TRACES_SAMPLER_ARG")
	share, err := strconv.ParseFloat(arg, 64)
	if err != nil || !(share >= 0 && share < 1) { // the SDK warns about a wrong value, and otherwise samples all
		return nil
	}
	var sampler sdktrace.Sampler = byRatio{share}
	if name == "parentbased_traceidratio" {
		sampler = sdktrace.ParentBased(sampler)
	}
	return []sdktrace.TracerProviderOption{sdktrace.WithSampler(sampler)}
}

// byRatio samples a share of all traces by the random bits of their ids. The SDK's TraceIDRatioBased reads two bits
// more, which are the same in all UUIDs: of traces with the ids of calls it would sample none at a share below a half.
type byRatio struct{ share float64 }

func (r byRatio) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	result := sdktrace.SamplingResult{Decision: sdktrace.Drop,
		Tracestate: trace.SpanContextFromContext(p.ParentContext).TraceState()}
	if bits := binary.BigEndian.Uint64(p.TraceID[8:]) & (1<<randomBits - 1); float64(bits) < r.share*(1<<randomBits) {
		result.Decision = sdktrace.RecordAndSample
	}
	return result
}

func (r byRatio) Description() string { return fmt.Sprintf("TraceIDRatioBased{%g}", r.share) }
