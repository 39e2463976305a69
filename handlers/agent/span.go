package agent

import (
	"context"
	"errors"
	"strings"

	"github.com/gemworker/gem/handlers"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// span starts the span of one attempt to run the agent, as OpenTelemetry's conventions for generative AI name it.
func (in *task) span(ctx context.Context) (context.Context, trace.Span) {
	said := []attribute.KeyValue{attribute.String("gen_ai.operation.name", "invoke_agent")}
	if in.Name != "" {
		said = append(said, attribute.String("gen_ai.agent.name", in.Name))
	}
	return trace.SpanFromContext(ctx).TracerProvider().Tracer("github.com/gemworker/gem").Start(ctx,
		strings.TrimSuffix("invoke_agent "+in.Name, " "), trace.WithAttributes(said...))
}

// endSpan ends the span of an attempt with the code of its failure, if it failed.
func endSpan(span trace.Span, err error) {
	if err != nil {
		code := "execution_error"
		if failure, ok := errors.AsType[*handlers.Failure](err); ok {
			code = failure.Code
		}
		span.SetStatus(codes.Error, code)
		span.SetAttributes(attribute.String("error.type", code))
	}
	span.End()
}
