package worker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/batch"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// telemetry reports calls to OpenTelemetry, but never their input, output or messages.
type telemetry struct {
	registry  *registry.Registry
	workerID  string
	tracer    trace.Tracer
	ended     metric.Int64Counter
	duration  metric.Float64Histogram
	queueWait metric.Float64Histogram
	executed  metric.Float64Histogram
	invoked   metric.Float64Histogram
	claims    metric.Float64Histogram
	admitted  metric.Int64Histogram
	verdicts  metric.Int64Counter
}

// The names of attributes: OpenTelemetry's conventional names if they exist, otherwise GEM's own.
const (
	attrOperation = attribute.Key("gen_ai.operation.name")
	attrTool      = attribute.Key("gen_ai.tool.name")
	attrError     = attribute.Key("error.type")
	attrCallID    = attribute.Key("gem.call.id")
	attrAttempt   = attribute.Key("gem.call.attempt")
	attrOutcome   = attribute.Key("gem.call.outcome")
	attrQueueWait = attribute.Key("gem.call.queue_wait")
	attrHit       = attribute.Key("gem.call.idempotency.hit")
	attrState     = attribute.Key("gem.call.state")
	attrWorkerID  = attribute.Key("gem.worker.id")
	attrClaim     = attribute.Key("gem.claim.result")
	attrRule      = attribute.Key("gem.rule.name")
	attrAction    = attribute.Key("gem.rule.action")
)

// other replaces unbounded values: names of tools that are in no registry, and error codes of handlers.
const other = "_OTHER"

// buckets are in seconds: a call that writes a row takes milliseconds, and a call to a slow service takes minutes.
var buckets = metric.WithExplicitBucketBoundaries(
	0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)

// wholeBuckets are in seconds, for whole calls: some wait for days.
var wholeBuckets = metric.WithExplicitBucketBoundaries(
	0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 300, 1800, 7200, 86400, 604800)

// agentTool is the tool whose calls are agents.
const agentTool = "agent.run"

// newTelemetry returns nil if there is neither a tracer nor a meter.
func newTelemetry(w *Worker) (*telemetry, error) {
	tracer, meter := w.options.Tracer, w.options.Meter
	if tracer == nil && meter == nil {
		return nil, nil
	}
	if tracer == nil {
		tracer = tracenoop.Tracer{}
	}
	if meter == nil {
		meter = metricnoop.Meter{}
	}
	t := &telemetry{registry: w.options.Registry, workerID: w.id, tracer: tracer}
	var errs [10]error
	t.ended, errs[0] = meter.Int64Counter("gem.call.ended", metric.WithUnit("{call}"),
		metric.WithDescription("Calls that ended with a receipt."))
	t.duration, errs[1] = meter.Float64Histogram("gem.call.duration", metric.WithUnit("s"), buckets,
		metric.WithDescription("Duration of an attempt, from its claim to its end."))
	t.queueWait, errs[2] = meter.Float64Histogram("gem.call.queue_wait", metric.WithUnit("s"), buckets,
		metric.WithDescription("How long a call had been due when it was claimed, by the clock of Postgres."))
	t.claims, errs[3] = meter.Float64Histogram("gem.claim.duration", metric.WithUnit("s"), buckets,
		metric.WithDescription("Duration of a claim."))
	claimed, err := meter.Int64ObservableUpDownCounter("gem.worker.calls", metric.WithUnit("{call}"),
		metric.WithDescription("Calls that the worker has claimed: running, and ready to run."))
	errs[4] = err
	_, errs[5] = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		w.mu.Lock()
		running, ready := w.busy, len(w.ready)
		w.mu.Unlock()
		o.ObserveInt64(claimed, int64(running), metric.WithAttributes(attrState.String("running")))
		o.ObserveInt64(claimed, int64(ready), metric.WithAttributes(attrState.String("ready")))
		return nil
	}, claimed)
	t.verdicts, errs[6] = meter.Int64Counter("gem.rules.verdicts", metric.WithUnit("{verdict}"),
		metric.WithDescription("Calls that rules blocked, warned about, asked about or delayed."))
	t.admitted, errs[7] = meter.Int64Histogram("gem.admission.calls", metric.WithUnit("{call}"), batch.Buckets,
		metric.WithDescription("Calls whose keys and rules one statement decided."))
	t.executed, errs[8] = meter.Float64Histogram("gen_ai.execute_tool.duration", metric.WithUnit("s"), wholeBuckets,
		metric.WithDescription("Duration of a call, from when it was due to its receipt."))
	t.invoked, errs[9] = meter.Float64Histogram("gen_ai.invoke_agent.duration", metric.WithUnit("s"), wholeBuckets,
		metric.WithDescription("Duration of a call of agent.run, from when it was due to its receipt."))
	return t, errors.Join(errs[:]...)
}

// claim records a claim.
func (t *telemetry) claim(began time.Time, found int, err error) {
	result := "calls"
	switch {
	case err != nil:
		result = "error"
	case found == 0:
		result = "none"
	}
	t.claims.Record(context.Background(), time.Since(began).Seconds(), metric.WithAttributes(attrClaim.String(result)))
}

// attemptSpan is the span of an attempt, and the values that it measures at its end; nil without telemetry.
type attemptSpan struct {
	*telemetry
	ctx   context.Context // with the span, so that a measurement can name its trace
	span  trace.Span
	tool  attribute.KeyValue
	began time.Time
	due   time.Time // when the call was due first
}

// begin starts the span of an attempt at its claim, and returns the context that passes it to the handler.
func (t *telemetry) begin(ctx context.Context, c *claimedCall) (context.Context, *attemptSpan) {
	s := &attemptSpan{telemetry: t, tool: attrTool.String(other), began: c.claimedAt, due: c.claimedAt.Add(-max(c.Age, 0))}
	if _, known := t.registry.Tool(c.Tool); known {
		s.tool = attrTool.String(c.Tool)
	}
	wait := max(c.Waited, 0).Seconds()
	parent, links := placeInTrace(c)
	s.ctx, s.span = t.tracer.Start(trace.ContextWithRemoteSpanContext(ctx, parent),
		"execute_tool "+s.tool.Value.AsString(), trace.WithTimestamp(s.began),
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(links...),
		trace.WithAttributes(attrOperation.String("execute_tool"), s.tool, attrCallID.String(c.CallID),
			attrAttempt.Int(c.Number),
			attrWorkerID.String(t.workerID), attrQueueWait.Float64(wait)))
	t.queueWait.Record(s.ctx, wait, metric.WithAttributes(s.tool))
	return s.ctx, s
}

// placeInTrace returns the parent and the links of an attempt's span. The parent of a child is the attempt that made
// it. Every other call has a trace of its own, with the id of the call: its parent has only this id. It links to the
// frontend's span, which ended long ago and may have made many calls.
func placeInTrace(c *claimedCall) (parent trace.SpanContext, links []trace.Link) {
	made := trace.SpanContextFromContext(inTrace(context.Background(), c.Traceparent))
	if c.Child() && made.IsValid() {
		return made, nil
	}
	if made.IsValid() { // not if it is all zeros, which Postgres accepts
		links = []trace.Link{{SpanContext: made}}
	}
	id, err := trace.TraceIDFromHex(strings.ReplaceAll(c.CallID, "-", ""))
	if err != nil { // the zero id: the tracer chooses another
		return trace.SpanContext{}, links
	}
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: id}), links
}

// inTrace returns a context in the frontend's trace. Handlers pass it on if the worker has no span for them.
func inTrace(ctx context.Context, traceparent string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": traceparent})
}

// traceparent returns the W3C trace context of the span, or "" if the span is not recorded.
func (s *attemptSpan) traceparent() string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(s.ctx, carrier)
	return carrier["traceparent"]
}

// end ends the span of an attempt, and counts the attempt.
func (s *attemptSpan) end(e *end) {
	code := e.outcome.Code
	switch e.how {
	case retried:
		code = receipts.ExecutionError // as in the journal
	case notHeld, leftToRecovery:
		code = receipts.Code(e.how)
	}
	outcome := attrOutcome.String(e.name())
	var failure []attribute.KeyValue
	if code != "" {
		if code.Kind() == receipts.KindFailed {
			s.span.SetStatus(codes.Error, string(code))
		}
		s.span.SetAttributes(attrError.String(string(code)))
		failure = []attribute.KeyValue{attrError.String(known(code))}
	}
	s.span.SetAttributes(outcome, attrHit.Bool(e.outcome.ReplayOf != ""))
	s.span.End()

	as := metric.WithAttributeSet(attribute.NewSet(append(slices.Clip(failure), s.tool, outcome)...))
	s.duration.Record(s.ctx, time.Since(s.began).Seconds(), as)
	if e.how == receipted {
		s.ended.Add(s.ctx, 1, as)
		s.whole(failure)
	}
}

// whole measures a call that has ended.
func (s *attemptSpan) whole(failure []attribute.KeyValue) {
	took := time.Since(s.due).Seconds()
	s.executed.Record(s.ctx, took, metric.WithAttributes(s.tool), metric.WithAttributes(failure...))
	if s.tool.Value.AsString() == agentTool {
		s.invoked.Record(s.ctx, took, metric.WithAttributes(attrOperation.String("invoke_agent")),
			metric.WithAttributes(failure...))
	}
}

// ruled counts the verdicts on a call's receipt, and its delays. It counts each rule once per call, however often the
// call is judged. Labels are the names in the rules file.
func (s *attemptSpan) ruled(e *end, said *receipts.Rules) {
	if said == nil || e.how != receipted && e.how != delayed {
		return
	}
	for _, v := range said.Verdicts {
		if e.how == receipted || v.Action == rules.Wait {
			s.verdicts.Add(s.ctx, 1, metric.WithAttributes(attrRule.String(v.Rule), attrAction.String(string(v.Action))))
		}
	}
}

// known replaces the codes of handlers by one value.
func known(code receipts.Code) string {
	if code.OfGEM() || code == receipts.Code(notHeld) || code == receipts.Code(leftToRecovery) {
		return string(code)
	}
	return other
}
