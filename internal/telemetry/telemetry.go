// Package telemetry sends traces and metrics to an OpenTelemetry collector if the standard environment variables ask
// for it. Otherwise it sets nothing up. Data that cannot be sent is dropped, and delays no call.
package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
)

const (
	// flushTimeout limits how long the end of a process may wait for unsent data.
	flushTimeout = 2 * time.Second
	// scope is the instrumentation scope of all spans and metrics.
	scope = "github.com/gemworker/gem/worker"
)

// Options describe the program that sends.
type Options struct {
	// Worker is the name of the worker, and Version the version of the program. Both are attributes of the resource.
	Worker, Version string
	// Console is where the exporter "console" writes, from several goroutines at once.
	Console io.Writer
	// Log gets a warning for each setting that the SDK ignores, and at most one a minute about data that could not be
	// sent.
	Log *zap.Logger
}

// Telemetry exports what its tracer and its meter record. A nil Telemetry is valid and exports nothing.
type Telemetry struct {
	tracer   trace.Tracer // nil if traces are off
	meter    metric.Meter // nil if metrics are off
	shutdown []func(context.Context) error
	warnings *warnings
}

// Start sets up what the environment asks for, without connecting. It returns nil if that is nothing. Its error names
// the wrong variables. A process may have only one Telemetry at a time, since OpenTelemetry's error handler is global.
func Start(ctx context.Context, o Options) (_ *Telemetry, err error) {
	traces, metrics, err := exporters()
	if err != nil || traces == none && metrics == none {
		return nil, err
	}
	t := &Telemetry{warnings: newWarnings(o.Log, headerSecrets())}
	settings := settings{slog.DiscardHandler, o.Log}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(settings.ignored))
	otel.SetLogger(logr.FromSlogHandler(settings))
	defer func() {
		if v := recover(); v != nil { // the SDK makes a queue of any size it is asked for
			err = fmt.Errorf("OpenTelemetry cannot use a setting of the environment, such as OTEL_BSP_MAX_QUEUE_SIZE: %v", v)
		}
		otel.SetErrorHandler(t.warnings)
		otel.SetLogger(logr.Discard())
		if err != nil {
			t.Stop()
		}
	}()

	// WithService adds a service.instance.id, so that two workers never write into one series.
	resource, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithService(), resource.WithAttributes(
		attribute.String("service.name", "gem-worker"),
		attribute.String("service.version", o.Version),
		attribute.String("gem.worker.name", o.Worker),
	), resource.WithFromEnv())
	if err != nil {
		settings.ignored(err) // the resource has what was right
	}
	if traces != none {
		exporter, err := spanExporter(ctx, traces, o.Console)
		if err != nil {
			return nil, fmt.Errorf("set up OpenTelemetry's traces: %w", err)
		}
		provider := sdktrace.NewTracerProvider(append(sampling(),
			sdktrace.WithResource(resource), sdktrace.WithBatcher(exporter))...)
		t.tracer = provider.Tracer(scope, trace.WithInstrumentationVersion(o.Version))
		t.shutdown = append(t.shutdown, provider.Shutdown)
	}
	if metrics != none {
		exporter, err := metricExporter(ctx, metrics, o.Console)
		if err != nil {
			return nil, fmt.Errorf("set up OpenTelemetry's metrics: %w", err)
		}
		provider := sdkmetric.NewMeterProvider(sdkmetric.WithResource(resource),
			sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter)))
		t.meter = provider.Meter(scope, metric.WithInstrumentationVersion(o.Version))
		t.shutdown = append(t.shutdown, provider.Shutdown)
	}
	o.Log.Info("telemetry is on", zap.String("traces", traces), zap.String("metrics", metrics))
	return t, nil
}

// Tracer returns the tracer for the worker's spans, or nil if traces are off.
func (t *Telemetry) Tracer() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.tracer
}

// Meter returns the meter for the worker's metrics, or nil if metrics are off.
func (t *Telemetry) Meter() metric.Meter {
	if t == nil {
		return nil
	}
	return t.meter
}

// Stop sends what has not been sent yet, within two seconds.
func (t *Telemetry) Stop() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	flushed := make(chan error, len(t.shutdown))
	for _, shutdown := range t.shutdown {
		go func() { flushed <- shutdown(ctx) }()
	}
	late := time.After(flushTimeout + 500*time.Millisecond) // an exporter that ignores its context is abandoned
	for range t.shutdown {
		select {
		case err := <-flushed:
			if err != nil {
				t.warnings.Handle(fmt.Errorf("at the end: %w", err))
			}
		case <-late:
			return
		}
	}
}

func spanExporter(ctx context.Context, name string, w io.Writer) (sdktrace.SpanExporter, error) {
	switch {
	case name == console:
		return stdouttrace.New(stdouttrace.WithWriter(w))
	case !endpointSet("TRACES"): // the specification's default is http://localhost:4318
		return otlptracehttp.New(ctx, otlptracehttp.WithInsecure())
	}
	return otlptracehttp.New(ctx)
}

func metricExporter(ctx context.Context, name string, w io.Writer) (sdkmetric.Exporter, error) {
	switch {
	case name == console:
		return stdoutmetric.New(stdoutmetric.WithWriter(w))
	case !endpointSet("METRICS"):
		return otlpmetrichttp.New(ctx, otlpmetrichttp.WithInsecure())
	}
	return otlpmetrichttp.New(ctx)
}
