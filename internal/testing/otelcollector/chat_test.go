package otelcollector_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/zap/zaptest"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers/handlertest"
	gemllm "github.com/gemworker/gem/handlers/llm"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/telemetry"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
)

func TestMain(m *testing.M) { testdb.Main(m) }

type attributes = map[string]any

// startReceiver starts the collector's receiver for OTLP, and returns its URL and what it passes on.
func startReceiver(t *testing.T) (url string, traces *consumertest.TracesSink, metrics *consumertest.MetricsSink) {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	config.Protocols.HTTP.GetOrInsertDefault().ServerConfig.NetAddr.Endpoint = address
	traces, metrics = &consumertest.TracesSink{}, &consumertest.MetricsSink{}
	settings := receivertest.NewNopSettings(factory.Type())
	receiver, err := factory.CreateTraces(t.Context(), settings, config, traces)
	if err != nil {
		t.Fatal(err)
	}
	// The same receiver, since it has the same configuration.
	if _, err := factory.CreateMetrics(t.Context(), settings, config, metrics); err != nil {
		t.Fatal(err)
	}
	if err := receiver.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := receiver.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return "http://" + address, traces, metrics
}

// chat runs a call to llm.chat on a worker that exports to the environment's collector, and then stops the worker.
func chat(t *testing.T) *receipts.Receipt {
	t.Helper()
	model := llmtest.Start(t, llmtest.Options{})
	model.Script("model-a", llmtest.Script{Parts: []provider.Part{{Type: provider.Text, Text: "the answer"}},
		RequestID: "req_a", Usage: &provider.Usage{Input: 100, Output: 20, CacheRead: 30, CacheWrite: 10, Known: true}})
	sent, err := telemetry.Start(t.Context(), telemetry.Options{Worker: "w", Version: "v1", Log: zaptest.NewLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	env := handlertest.Start(t, handlertest.Options{Registry: gem.BuiltInRegistry, Domains: []any{gemllm.Domain()},
		Environment: map[string]string{"LLM_ROUTES": `{"version": "1", "routes": {"default": {"targets": ["a"]}},
			"providers": {"p": {"dialect": "anthropic", "base_url": "` + model.URL + `", "local": true}},
			"targets": {"a": {"provider": "p", "model": "model-a", "context": 100000, "max_output": 10000,
				"capabilities": [], "usd_per_mtok": [{"input": "1", "output": "2", "cache_write": "1"}]}}}`},
		Meter: sent.Meter(), NoWorker: true,
		Worker: func(o *worker.Options) { o.Tracer, o.Meter = sent.Tracer(), sent.Meter() }})
	running := env.StartWorker()
	receipt := env.Run(handlertest.Call{Tool: "llm.chat",
		Input: `{"messages": [{"role": "user", "content": "the question"}], "max_output_tokens": 1000}`})
	if receipt.Status != receipts.Succeeded {
		t.Fatalf("%s: %s", receipt.Status, receipt.Result)
	}
	running.Stop()
	sent.Stop() // it sends the rest
	return receipt
}

// spans returns the spans with a name.
func spans(sink *consumertest.TracesSink, name string) (found []ptrace.Span) {
	for _, batch := range sink.AllTraces() {
		for _, resource := range batch.ResourceSpans().All() {
			for _, scope := range resource.ScopeSpans().All() {
				for _, span := range scope.Spans().All() {
					if span.Name() == name {
						found = append(found, span)
					}
				}
			}
		}
	}
	return found
}

// histogram returns the points of a histogram.
func histogram(sink *consumertest.MetricsSink, name string) (points []pmetric.HistogramDataPoint) {
	for _, batch := range sink.AllMetrics() {
		for _, resource := range batch.ResourceMetrics().All() {
			for _, scope := range resource.ScopeMetrics().All() {
				for _, m := range scope.Metrics().All() {
					if m.Name() == name {
						for _, point := range m.Histogram().DataPoints().All() {
							points = append(points, point)
						}
					}
				}
			}
		}
	}
	return points
}

// The names are those of docs/observability.md.
func TestTheCollectorAcceptsTheTraceAndTheMetricsOfAChat(t *testing.T) {
	testdb.Long(t, "TestARequestToAModelHasASpanBelowItsCalls")
	url, traces, metrics := startReceiver(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
	receipt := chat(t)

	calls, requests := spans(traces, "execute_tool llm.chat"), spans(traces, "chat model-a")
	if len(calls) != 1 || len(requests) != 1 {
		t.Fatalf("%d spans of calls and %d of requests", len(calls), len(requests))
	}
	request := requests[0]
	if id := strings.ReplaceAll(receipt.CallID, "-", ""); request.TraceID().String() != id ||
		request.ParentSpanID() != calls[0].SpanID() || request.Kind() != ptrace.SpanKindClient {
		t.Errorf("a %v of trace %v, below %v", request.Kind(), request.TraceID(), request.ParentSpanID())
	}
	got := request.Attributes().AsRaw()
	if late, ok := got["gen_ai.response.time_to_first_chunk"].(float64); !ok || late <= 0 {
		t.Errorf("the first content came after %v", got["gen_ai.response.time_to_first_chunk"])
	}
	delete(got, "gen_ai.response.time_to_first_chunk")
	want := attributes{"gen_ai.operation.name": "chat", "gen_ai.provider.name": "p", "server.address": "127.0.0.1",
		"gen_ai.request.model": "model-a", "gen_ai.request.stream": true, "gen_ai.request.max_tokens": int64(1000),
		"gen_ai.response.model": "model-a", "gen_ai.response.id": "req_a",
		"gen_ai.response.finish_reasons": []any{"end_turn"},
		"gen_ai.usage.input_tokens":      int64(100), "gen_ai.usage.output_tokens": int64(20),
		"gen_ai.usage.cache_read.input_tokens": int64(30), "gen_ai.usage.cache_write.input_tokens": int64(10),
		"gen_ai.usage.reasoning.output_tokens": int64(0),
		"gem.llm.route":                        "default", "gem.llm.target": "a", "gem.llm.request": int64(1)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	tokens := map[any]float64{}
	for _, point := range histogram(metrics, "gen_ai.client.token.usage") {
		by := point.Attributes().AsRaw()
		tokens[by["gen_ai.token.type"]] = point.Sum()
		if by["gen_ai.request.model"] != "model-a" || by["gen_ai.operation.name"] != "chat" {
			t.Errorf("tokens of %v", by)
		}
	}
	if diff := cmp.Diff(map[any]float64{"input": 100, "output": 20}, tokens); diff != "" {
		t.Error(diff)
	}
	for _, name := range []string{"gen_ai.client.operation.duration", "gen_ai.client.operation.time_to_first_chunk",
		"gen_ai.execute_tool.duration"} {
		if points := histogram(metrics, name); len(points) != 1 || points[0].Count() != 1 {
			t.Errorf("%s: %d points", name, len(points))
		}
	}
}
