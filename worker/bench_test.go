package worker_test

import (
	"context"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/worker"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// withoutTelemetry leaves telemetry off.
func withoutTelemetry(testing.TB) func(*worker.Options) { return nil }

// discarded has everything traced and measured, and sent nowhere.
func discarded(b testing.TB) func(*worker.Options) {
	traces := sdktrace.NewTracerProvider(sdktrace.WithBatcher(tracetest.NewNoopExporter()))
	metrics := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	b.Cleanup(func() { _ = traces.Shutdown(context.Background()) })
	return func(o *worker.Options) { o.Tracer, o.Meter = traces.Tracer("bench"), metrics.Meter("bench") }
}

// BenchmarkCall is a call from its claim to its receipt, on a worker that has enough to do, against a Postgres that
// does not wait for its disk. The module bench measures the same with one that does, and compares other systems.
func BenchmarkCall(b *testing.B) {
	for _, bench := range []struct {
		name, tool string
		telemetry  func(testing.TB) func(*worker.Options)
	}{
		{"lab.write", "lab.write", withoutTelemetry},
		{"lab.send", "lab.send", withoutTelemetry},
		{"lab.send, traced and measured", "lab.send", discarded},
	} {
		b.Run(bench.name, func(b *testing.B) {
			lab := NewLab()
			env := handlertest.Start(b, handlertest.Options{
				Registry: labRegistry("1.0.0", tool{name: bench.tool}),
				Domains:  []any{lab},
				NoWorker: true,
				Worker:   bench.telemetry(b),
			})
			_, err := env.DB.Exec(b.Context(), "create table lab_rows (id bigint generated always as identity primary key, "+
				"text text)")
			if err != nil {
				b.Fatal(err)
			}
			_, err = env.DB.Exec(b.Context(), `insert into core_tool_calls (tool_name, input) select $1, '{"text": "x"}'
				from generate_series(1, $2::int)`, bench.tool, b.N)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			env.StartWorker()
			env.Until("all to end", func() bool {
				var left int
				err := env.DB.QueryRow(b.Context(), "select count(*) from core_tool_calls where status in ('queued', 'running')").
					Scan(&left)
				return err == nil && left == 0
			})
		})
	}
}
