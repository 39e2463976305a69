package router

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"time"

	"github.com/gemworker/gem/internal/batch"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/ledger"
	"github.com/gemworker/gem/internal/provider/routes"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Telemetry has the measurements of requests, by OpenTelemetry's conventions for generative AI if they define one. No
// span and no measurement has a prompt, an answer or a key.
type Telemetry struct {
	tokens    metric.Int64Histogram
	duration  metric.Float64Histogram
	first     metric.Float64Histogram
	cost      metric.Float64Counter
	failovers metric.Int64Counter
	cooldown  metric.Int64Gauge
	begun     metric.Int64Histogram
}

// The buckets of the conventions.
var (
	tokenBuckets = metric.WithExplicitBucketBoundaries(1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576,
		4194304, 16777216, 67108864)
	timeBuckets = metric.WithExplicitBucketBoundaries(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24,
		20.48, 40.96, 81.92)
)

// NewTelemetry makes the instruments.
func NewTelemetry(meter metric.Meter) (*Telemetry, error) {
	t := &Telemetry{}
	var errs [7]error
	t.tokens, errs[0] = meter.Int64Histogram("gen_ai.client.token.usage", metric.WithUnit("{token}"), tokenBuckets,
		metric.WithDescription("Tokens of a request to a model."))
	t.duration, errs[1] = meter.Float64Histogram("gen_ai.client.operation.duration", metric.WithUnit("s"), timeBuckets,
		metric.WithDescription("Duration of a request to a model."))
	t.first, errs[2] = meter.Float64Histogram("gen_ai.client.operation.time_to_first_chunk", metric.WithUnit("s"),
		timeBuckets, metric.WithDescription("How long the first content of an answer took."))
	t.cost, errs[3] = meter.Float64Counter("gem.llm.cost", metric.WithUnit("{USD}"),
		metric.WithDescription("What requests to models cost, by the prices of the routes file."))
	t.failovers, errs[4] = meter.Int64Counter("gem.llm.failover", metric.WithUnit("{request}"),
		metric.WithDescription("Requests after which another target was asked."))
	t.cooldown, errs[5] = meter.Int64Gauge("gem.llm.target.cooling_down", metric.WithUnit("{target}"),
		metric.WithDescription("1 while a target is cooling down, as this worker last saw it."))
	t.begun, errs[6] = meter.Int64Histogram("gem.llm.begin.requests", metric.WithUnit("{request}"), batch.Buckets,
		metric.WithDescription("Requests to models that one statement began."))
	return t, errors.Join(errs[:]...)
}

// other replaces the names of models that are not in the routes file.
const other = "_OTHER"

// request is the span of one request, and the values that are measured at its end.
type request struct {
	*Telemetry
	ctx    context.Context
	span   trace.Span
	labels []attribute.KeyValue
	target attribute.KeyValue
	model  string
}

func (r *round) span(ctx context.Context, begun ledger.Begun, c routes.Candidate) (context.Context, *request) {
	s := &request{Telemetry: r.Telemetry, target: attribute.String("gem.llm.target", c.Target.Name), model: c.Model}
	s.labels = []attribute.KeyValue{attribute.String("gen_ai.operation.name", "chat"),
		attribute.String("gen_ai.provider.name", c.Provider.Label), attribute.String("gen_ai.request.model", c.Model)}
	if u, err := url.Parse(c.Provider.BaseURL); err == nil {
		s.labels = append(s.labels, attribute.String("server.address", u.Hostname()))
	}
	s.ctx, s.span = trace.SpanFromContext(ctx).TracerProvider().Tracer("github.com/gemworker/gem").Start(ctx,
		"chat "+c.Model, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(s.labels...), trace.WithAttributes(s.target, attribute.String("gem.llm.route", r.route.Name),
			attribute.Int("gem.llm.request", begun.N),
			attribute.Bool("gen_ai.request.stream", true), attribute.Int("gen_ai.request.max_tokens", r.q.MaxOutputTokens)))
	s.cooldown.Record(ctx, 0, metric.WithAttributes(s.target))
	return s.ctx, s
}

// coolsDown records that a target was skipped because it is cooling down.
func (t *Telemetry) coolsDown(ctx context.Context, target string) {
	t.cooldown.Record(ctx, 1, metric.WithAttributes(attribute.String("gem.llm.target", target)))
}

// end ends the span with the outcome of the request.
func (s *request) end(e *ledger.End, answer *provider.Answer) {
	defer s.span.End()
	labels := slices.Clone(s.labels)
	for key, said := range map[string]string{"gen_ai.response.model": e.Model, "gen_ai.response.id": e.RequestID} {
		if said != "" {
			s.span.SetAttributes(attribute.String(key, said))
		}
	}
	switch e.Model {
	case "":
	case s.model:
		labels = append(labels, attribute.String("gen_ai.response.model", e.Model))
	default:
		labels = append(labels, attribute.String("gen_ai.response.model", other))
	}
	if e.Usage.Known || e.Status != ledger.Failed {
		s.span.SetAttributes(attribute.Int64("gen_ai.usage.input_tokens", e.Usage.Input),
			attribute.Int64("gen_ai.usage.output_tokens", e.Usage.Output),
			attribute.Int64("gen_ai.usage.cache_read.input_tokens", e.Usage.CacheRead),
			attribute.Int64("gen_ai.usage.cache_write.input_tokens", e.Usage.CacheWrite),
			attribute.Int64("gen_ai.usage.reasoning.output_tokens", e.Usage.Reasoning))
	}
	if answer.ProviderStop != "" {
		s.span.SetAttributes(attribute.StringSlice("gen_ai.response.finish_reasons", []string{answer.ProviderStop}))
	}
	if e.FirstContent > 0 {
		s.span.SetAttributes(attribute.Float64("gen_ai.response.time_to_first_chunk", e.FirstContent.Seconds()))
		s.first.Record(s.ctx, e.FirstContent.Seconds(), metric.WithAttributes(labels...))
	}
	for kind, n := range map[string]int64{"input": e.Usage.Input, "output": e.Usage.Output} {
		if !e.Estimated {
			s.tokens.Record(s.ctx, n, metric.WithAttributes(
				append(slices.Clip(labels), attribute.String("gen_ai.token.type", kind))...))
		}
	}
	if e.Status != ledger.Done {
		what := string(e.Status)
		if e.Kind != "" {
			what = string(e.Kind)
		}
		failed := attribute.String("error.type", what)
		s.span.SetStatus(codes.Error, what)
		s.span.SetAttributes(failed)
		labels = append(labels, failed)
	}
	s.duration.Record(s.ctx, e.Took.Round(time.Microsecond).Seconds(), metric.WithAttributes(labels...))
	if e.Cost != nil {
		s.cost.Add(s.ctx, float64(*e.Cost)/float64(provider.USD), metric.WithAttributes(s.target))
	}
}

// failedOver counts a failover from this target to another. Without a request it counts nothing.
func (s *request) failedOver() {
	if s != nil {
		s.failovers.Add(s.ctx, 1, metric.WithAttributes(s.target))
	}
}
