package llm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/worker"
	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// recording is what a worker and its domains tell OpenTelemetry.
type recording struct {
	spans  *tracetest.InMemoryExporter
	reader *sdkmetric.ManualReader
}

// listen returns a recording, and the change of options that fills it.
func listen() (*recording, func(*handlertest.Options)) {
	l := &recording{spans: tracetest.NewInMemoryExporter(), reader: sdkmetric.NewManualReader()}
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(l.spans)).Tracer("test")
	meter := sdkmetric.NewMeterProvider(sdkmetric.WithReader(l.reader)).Meter("test")
	return l, func(o *handlertest.Options) {
		o.Meter = meter
		o.Worker = func(o *worker.Options) { o.Concurrency, o.Tracer, o.Meter = 8, tracer, meter }
	}
}

// named returns the spans whose names begin so, in the order of their ends.
func (l *recording) named(prefix string) (all tracetest.SpanStubs) {
	for _, s := range l.spans.GetSpans() {
		if strings.HasPrefix(s.Name, prefix) {
			all = append(all, s)
		}
	}
	return all
}

func (l *recording) data(t *testing.T) (data metricdata.ResourceMetrics) {
	t.Helper()
	if err := l.reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	return data
}

// metrics returns, by name, the attributes of each series with what it counted: of a histogram its sum for tokens,
// otherwise how often.
func (l *recording) metrics(t *testing.T) map[string]map[string]float64 {
	t.Helper()
	all := map[string]map[string]float64{}
	for _, scope := range l.data(t).ScopeMetrics {
		for _, m := range scope.Metrics {
			series := map[string]float64{}
			all[m.Name] = series
			put := func(set attribute.Set, v float64) { series[set.Encoded(attribute.DefaultEncoder())] = v }
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					put(p.Attributes, float64(p.Value))
				}
			case metricdata.Sum[float64]:
				for _, p := range d.DataPoints {
					put(p.Attributes, p.Value)
				}
			case metricdata.Gauge[int64]:
				for _, p := range d.DataPoints {
					put(p.Attributes, float64(p.Value))
				}
			case metricdata.Histogram[int64]:
				for _, p := range d.DataPoints {
					put(p.Attributes, float64(p.Sum))
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					put(p.Attributes, float64(p.Count))
				}
			}
		}
	}
	return all
}

// attributes returns the attributes of a span as text, except times.
func attributes(s tracetest.SpanStub) map[string]string {
	all := map[string]string{}
	for _, a := range s.Attributes {
		if a.Key != "gen_ai.response.time_to_first_chunk" {
			all[string(a.Key)] = a.Value.String()
		}
	}
	return all
}

func TestARequestToAModelHasASpanBelowItsCalls(t *testing.T) {
	t.Parallel()
	l, heard := listen()
	s := newScene(t).target("a", llmtest.OpenAI, nil).target("b", llmtest.Anthropic, nil).route("default", "a", "b")
	s.providers["b"].(object)["name"] = "gcp.gemini"
	s.server.Always("/a", llmtest.Script{Fault: llmtest.Status(503), RequestID: "req_a"})
	s.server.Always("/b", llmtest.Script{Parts: []provider.Part{{Type: provider.Text, Text: "the answer"}},
		RequestID: "req_b",
		Usage:     &provider.Usage{Input: 100, Output: 20, CacheRead: 30, CacheWrite: 10, Known: true}})
	env := s.start(t, heard)
	id := env.Insert(asks("the question", object{"max_output_tokens": 1000, "system": "the system"}))
	succeeded(t, env.Await(id))
	var parents tracetest.SpanStubs
	env.Until("the span of the call", func() bool { parents = l.named("execute_tool llm.chat"); return len(parents) == 1 })
	spans := l.named("chat ")
	if len(spans) != 2 {
		t.Fatalf("%d spans", len(spans))
	}
	host := map[string]string{"gen_ai.operation.name": "chat", "server.address": "127.0.0.1", "gem.llm.route": "default",
		"gen_ai.request.stream": "true", "gen_ai.request.max_tokens": "1000"}
	want := []map[string]string{
		{"gen_ai.provider.name": "a", "gen_ai.request.model": "model-a", "gem.llm.target": "a", "gem.llm.request": "1",
			"gen_ai.response.id": "req_a", "error.type": "overloaded"},
		{"gen_ai.provider.name": "gcp.gemini", "gen_ai.request.model": "model-b", "gem.llm.target": "b",
			"gem.llm.request":       "2",
			"gen_ai.response.id":    "req_b",
			"gen_ai.response.model": "model-b", "gen_ai.response.finish_reasons": `["end_turn"]`,
			"gen_ai.usage.input_tokens": "100", "gen_ai.usage.output_tokens": "20",
			"gen_ai.usage.cache_read.input_tokens": "30", "gen_ai.usage.cache_write.input_tokens": "10",
			"gen_ai.usage.reasoning.output_tokens": "0"},
	}
	for i, span := range spans {
		for k, v := range host {
			want[i][k] = v
		}
		if diff := cmp.Diff(want[i], attributes(span)); diff != "" {
			t.Errorf("%s: %s", span.Name, diff)
		}
		if span.Name != "chat "+want[i]["gen_ai.request.model"] || span.SpanKind != trace.SpanKindClient ||
			span.Parent.SpanID() != parents[0].SpanContext.SpanID() ||
			(span.Status.Code == codes.Error) != (i == 0) || len(span.Events) > 0 || len(span.Links) > 0 {
			t.Errorf("%+v", span)
		}
	}
	for _, r := range s.server.Requests() {
		for _, name := range []string{"Traceparent", "Tracestate", "Baggage"} {
			if r.Header.Get(name) != "" {
				t.Errorf("the provider was sent %s", name)
			}
		}
	}

	const a, b = "gen_ai.operation.name=chat,gen_ai.provider.name=a,gen_ai.request.model=model-a",
		"gen_ai.operation.name=chat,gen_ai.provider.name=gcp.gemini,gen_ai.request.model=model-b,gen_ai.response.model=model-b"
	const at, in, out = ",server.address=127.0.0.1", ",gen_ai.token.type=input", ",gen_ai.token.type=output"
	got := l.metrics(t)
	for name, want := range map[string]map[string]float64{
		"gen_ai.client.token.usage":                   {b + in + at: 100, b + out + at: 20},
		"gen_ai.client.operation.duration":            {"error.type=overloaded," + a + at: 1, b + at: 1},
		"gen_ai.client.operation.time_to_first_chunk": {b + at: 1},
		"gem.llm.cost":                                {"gem.llm.target=a": 0, "gem.llm.target=b": 0.00014},
		"gem.llm.failover":                            {"gem.llm.target=a": 1},
		"gem.llm.target.cooling_down":                 {"gem.llm.target=a": 0, "gem.llm.target=b": 0},
	} {
		if diff := cmp.Diff(want, got[name]); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// A target in whose place no other is asked has not been failed over.
func TestOnlyATargetInWhosePlaceAnotherIsAskedIsFailedOver(t *testing.T) {
	t.Parallel()
	l, heard := listen()
	s := newScene(t).target("a", llmtest.OpenAI, nil).target("b", llmtest.OpenAI, nil).route("default", "a", "b")
	s.server.Always("/a", llmtest.Script{Fault: llmtest.Status(401)})
	s.server.Always("/b", llmtest.Script{Fault: llmtest.Status(403)})
	env := s.start(t, heard)
	failedWith(t, env.Run(asks("hello")), "provider_auth")
	failedWith(t, env.Run(asks("hello")), "provider_auth") // both cool down
	got := l.metrics(t)
	if diff := cmp.Diff(map[string]float64{"gem.llm.target=a": 1}, got["gem.llm.failover"]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]float64{"gem.llm.target=a": 1, "gem.llm.target=b": 1},
		got["gem.llm.target.cooling_down"]); diff != "" {
		t.Error(diff)
	}
	if spans := l.named("chat "); len(spans) != 2 {
		t.Errorf("%d spans", len(spans))
	}
}

// The models of a route are all there are in metrics, whatever an answer says of itself.
func TestAModelThatTheFileDoesNotNameIsOneOfOthersInMetrics(t *testing.T) {
	t.Parallel()
	l, heard := listen()
	s := newScene(t).target("a", llmtest.Gemini, nil).route("default", "a")
	env := s.start(t, heard)
	for i := range 3 {
		s.server.Script("/a", llmtest.Script{Parts: llmtest.Say("x").Parts, Model: fmt.Sprint("made-up-", i)})
		succeeded(t, env.Run(asks("hello")))
	}
	for name, all := range l.metrics(t) {
		for series := range all {
			if strings.Contains(series, "made-up") || strings.HasPrefix(name, "gen_ai.") &&
				strings.Contains(series, "response.model") && !strings.Contains(series, "_OTHER") {
				t.Errorf("%s %s", name, series)
			}
		}
	}
	for i, span := range l.named("chat ") {
		if attributes(span)["gen_ai.response.model"] != fmt.Sprint("made-up-", i) {
			t.Errorf("%v", span.Attributes)
		}
	}
}

// What is asked and answered stays with the call.
func TestSpansAndMetricsHaveNothingOfWhatIsAskedAndAnswered(t *testing.T) {
	t.Parallel()
	const secret = "hunter22"
	for _, d := range llmtest.Dialects {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			l, heard := listen()
			s := newScene(t).target("a", d, nil).route("default", "a")
			s.server.Script("/a",
				llmtest.Script{Parts: []provider.Part{{Type: provider.Thinking, Text: secret, Signature: secret},
					{Type: provider.Text, Text: secret},
					{Type: provider.ToolCall, ID: secret, Name: secret, Arguments: []byte(`{"a": "` + secret + `"}`)}}},
				llmtest.Script{Fault: llmtest.Fault{Kind: llmtest.FailedStatus, Status: 400, Message: secret}},
				llmtest.Script{Fault: llmtest.Fault{Kind: llmtest.ErrorFirst, Status: 400, Message: secret}})
			env := s.start(t, heard)
			for range 3 {
				call := asks(secret, object{"system": secret, "stop": []string{secret}, "metadata": object{secret: secret},
					"tools": []any{object{"name": secret, "description": secret,
						"parameters": object{"type": "object", "description": secret}}}})
				call.Key, call.Session, call.CreatedBy = "", secret, secret
				env.Run(call)
			}
			env.Until("the spans", func() bool { return len(l.named("execute_tool")) >= 3 })
			if text := fmt.Sprintf("%+v %+v", l.spans.GetSpans(), l.data(t)); strings.Contains(text, secret) {
				t.Error(text)
			}
			for _, line := range env.Logs.All() {
				if text := fmt.Sprintf("%+v %v", line.Entry, line.ContextMap()); strings.Contains(text, secret) {
					t.Error(text)
				}
			}
		})
	}
}
