// Package telemetry sends traces and metrics to an OpenTelemetry collector when the standard variables of the environment
// ask for it (see environment.go), and else makes nothing at all. What it can not send is lost, and costs no call anything.
package telemetry

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"sync"
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
	// flushTime is what the end of a process may take longer for what is still to be sent.
	flushTime = 2 * time.Second
	// scope names whose spans and metrics these are.
	scope = "github.com/gemworker/gem/worker"
)

// Options says who sends.
type Options struct {
	// Worker is the worker's name, and Version that of the program. They stand in the resource.
	Worker, Version string
	// Console is where the exporter `console` writes. Two goroutines may write at once.
	Console io.Writer
	// Log is told what could not be sent, at most once a minute.
	Log *zap.Logger
}

// Telemetry sends what its tracer and its meter are given. Nil sends nothing, and may be used like any other.
type Telemetry struct {
	version string
	warn    *warnings
	traces  *sdktrace.TracerProvider // nil when traces are off
	metrics *sdkmetric.MeterProvider // nil when metrics are off
}

// Start sets up what the environment asks for, and returns nil when that is nothing. Its error says which variables are
// wrong, and what they may be. It does not connect. A process has one at a time: OpenTelemetry's errors go to one place.
func Start(ctx context.Context, o Options) (_ *Telemetry, err error) {
	env, err := readEnvironment()
	if env == nil || err != nil {
		return nil, err
	}
	t := &Telemetry{version: o.Version, warn: newWarnings(o.Log, env.secrets)}
	otel.SetErrorHandler(t.warn)
	// The SDK's own log shows values of variables, among them headers. What it would say, readEnvironment has checked.
	otel.SetLogger(logr.Discard())
	defer func() {
		if err != nil {
			t.Stop()
		}
	}()

	who, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", "gem-worker"),
		attribute.String("service.version", o.Version),
		attribute.String("service.instance.id", newUUID()), // two workers must not write into one series
		attribute.String("gem.worker.name", o.Worker),
	), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("describe the worker to OpenTelemetry: %w", err)
	}
	spans, err := env.spanExporter(ctx, o.Console)
	if err != nil {
		return nil, fmt.Errorf("set up OpenTelemetry's traces: %w", err)
	}
	if spans != nil {
		t.traces = sdktrace.NewTracerProvider(sdktrace.WithResource(who), sdktrace.WithBatcher(spans))
	}
	measurements, err := env.metricExporter(ctx, o.Console)
	if err != nil {
		return nil, fmt.Errorf("set up OpenTelemetry's metrics: %w", err)
	}
	if measurements != nil {
		t.metrics = sdkmetric.NewMeterProvider(sdkmetric.WithResource(who), sdkmetric.WithReader(sdkmetric.NewPeriodicReader(measurements)))
	}
	o.Log.Info("telemetry is on", zap.String("traces", env.traces), zap.String("metrics", env.metrics))
	return t, nil
}

// Tracer is for the worker's spans; nil when traces are off.
func (t *Telemetry) Tracer() trace.Tracer {
	if t == nil || t.traces == nil {
		return nil
	}
	return t.traces.Tracer(scope, trace.WithInstrumentationVersion(t.version))
}

// Meter is for what the worker measures; nil when metrics are off.
func (t *Telemetry) Meter() metric.Meter {
	if t == nil || t.metrics == nil {
		return nil
	}
	return t.metrics.Meter(scope, metric.WithInstrumentationVersion(t.version))
}

// Stop sends what is left, in at most two seconds.
func (t *Telemetry) Stop() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	var flushing sync.WaitGroup
	flush := func(shutdown func(context.Context) error) {
		flushing.Go(func() {
			if err := shutdown(ctx); err != nil {
				t.warn.Handle(fmt.Errorf("at the end: %w", err))
			}
		})
	}
	if t.traces != nil {
		flush(t.traces.Shutdown)
	}
	if t.metrics != nil {
		flush(t.metrics.Shutdown)
	}
	flushed := make(chan struct{})
	go func() { flushing.Wait(); close(flushed) }()
	select {
	case <-flushed:
	case <-time.After(flushTime + 500*time.Millisecond): // the SDK keeps to its context, or is left behind
	}
}

func (e *environment) spanExporter(ctx context.Context, console io.Writer) (sdktrace.SpanExporter, error) {
	switch e.traces {
	case toOTLP:
		var o []otlptracehttp.Option
		if !endpointSet("TRACES") {
			o = append(o, otlptracehttp.WithInsecure()) // http://localhost:4318, as the specification has it
		}
		return otlptracehttp.New(ctx, o...)
	case toConsole:
		return stdouttrace.New(stdouttrace.WithWriter(console))
	}
	return nil, nil
}

func (e *environment) metricExporter(ctx context.Context, console io.Writer) (sdkmetric.Exporter, error) {
	switch e.metrics {
	case toOTLP:
		var o []otlpmetrichttp.Option
		if !endpointSet("METRICS") {
			o = append(o, otlpmetrichttp.WithInsecure())
		}
		return otlpmetrichttp.New(ctx, o...)
	case toConsole:
		return stdoutmetric.New(stdoutmetric.WithWriter(console))
	}
	return nil, nil
}

// newUUID returns a random UUID, version 4.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
