package telemetry_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gemworker/gem/internal/telemetry"
	"go.opentelemetry.io/otel/metric"
	collectormetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectortraces "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/protobuf/proto"
)

// These tests do not run in parallel, since they change the environment of the process.

// setenv sets these OTEL_* variables for a test, and clears all others.
func setenv(t *testing.T, variables map[string]string) {
	t.Helper()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "") // an empty variable counts as unset
		}
	}
	for name, value := range variables {
		t.Setenv(name, value)
	}
}

func start(t *testing.T, log *zap.Logger, console io.Writer) (*telemetry.Telemetry, error) {
	t.Helper()
	started, err := telemetry.Start(t.Context(), telemetry.Options{Worker: "mine", Version: "v1.2.3", Console: console,
		Log: log})
	t.Cleanup(started.Stop)
	return started, err
}

func TestTelemetryIsOnWhenAVariableAsksForIt(t *testing.T) {
	type variables = map[string]string
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for name, c := range map[string]struct {
		set             variables
		traces, metrics bool
	}{
		"nothing":               {},
		"an endpoint":           {set: variables{endpoint: "http://localhost:1"}, traces: true, metrics: true},
		"an endpoint of blanks": {set: variables{endpoint: "  "}},
		"an endpoint for traces": {set: variables{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:1/v1/traces"},
			traces: true},
		"an endpoint for metrics": {set: variables{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://localhost:1/v1/metrics"},
			metrics: true},
		"an exporter for traces":  {set: variables{"OTEL_TRACES_EXPORTER": "OTLP"}, traces: true},
		"an exporter for metrics": {set: variables{"OTEL_METRICS_EXPORTER": "console"}, metrics: true},
		"only settings of the SDK": {
			set: variables{"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_SAMPLER": "nonsense", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
		},
		"an endpoint, and no metrics": {
			set: variables{endpoint: "http://localhost:1", "OTEL_METRICS_EXPORTER": "none"}, traces: true,
		},
		"none of either": {
			set: variables{endpoint: "http://localhost:1", "OTEL_METRICS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": "none"},
		},
		"the SDK disabled": {
			set: variables{endpoint: "http://localhost:1", "OTEL_SDK_DISABLED": "True", "OTEL_TRACES_EXPORTER": "nonsense"},
		},
		"the SDK not disabled": {
			set: variables{endpoint: "http://localhost:1", "OTEL_SDK_DISABLED": "false"}, traces: true, metrics: true,
		},
		"the protocol that is built in": {
			set: variables{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, traces: true,
		},
		"a protocol of the signal that is off": {
			set: variables{"OTEL_TRACES_EXPORTER": "console", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"}, traces: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			setenv(t, c.set)
			got, err := start(t, zap.NewNop(), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			if (got.Tracer() != nil) != c.traces || (got.Meter() != nil) != c.metrics {
				t.Errorf("traces: %v, want %v; metrics: %v, want %v", got.Tracer() != nil, c.traces, got.Meter() != nil, c.metrics)
			}
			if !c.traces && !c.metrics && got != nil {
				t.Error("something was made")
			}
		})
	}
}

// These are read by the program itself.
func TestAWrongExporterOrProtocolIsRefused(t *testing.T) {
	for _, c := range []struct{ name, value, says string }{
		{"OTEL_SDK_DISABLED", "yes", `OTEL_SDK_DISABLED is "yes": use true or false`},
		{"OTEL_TRACES_EXPORTER", "jaeger", `OTEL_TRACES_EXPORTER is "jaeger": use otlp, console or none`},
		{"OTEL_METRICS_EXPORTER", "prometheus", `OTEL_METRICS_EXPORTER is "prometheus": use otlp, console or none`},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", `OTEL_EXPORTER_OTLP_PROTOCOL is "grpc": use http/protobuf`},
		{"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json",
			`OTEL_EXPORTER_OTLP_METRICS_PROTOCOL is "http/json": use http/protobuf`},
	} {
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			setenv(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1", c.name: c.value})
			got, err := start(t, zap.NewNop(), io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.says) || got != nil {
				t.Errorf("got %v, want an error that says %q", err, c.says)
			}
		})
	}
}

// The SDK reads these variables. It ignores a value that it cannot use, or uses a part of it.
func TestASettingThatTheSDKIgnoresIsAWarning(t *testing.T) {
	missing, notPEM := filepath.Join(t.TempDir(), "missing"), filepath.Join(t.TempDir(), "not.pem")
	if err := os.WriteFile(notPEM, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, value, says string }{
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://me:s3cret@[collector", "parse url: not a valid URL"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "s3cret", "parse headers: missing '="},
		{"OTEL_EXPORTER_OTLP_HEADERS", "api key=s3cret", "parse headers: invalid header key"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cret%", "escape header value: invalid URL escape"},
		{"OTEL_EXPORTER_OTLP_TIMEOUT", "10s", `parse duration: strconv.Atoi: parsing "10s": invalid syntax`},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE", missing, "read tls ca cert file: no such file or directory"},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE", notPEM, "create tls cert pool: failed to append certificate"},
		{"OTEL_EXPORTER_OTLP_CLIENT_KEY", "-----BEGIN PRIVATE KEY-----\ns3cret",
			"read tls client key: no such file or directory"},
		{"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "alpha", "_PREFERENCE is set to an invalid value"},
		{"OTEL_TRACES_SAMPLER", "some", "unsupported sampler: some"},
		{"OTEL_TRACES_SAMPLER_ARG", "2", "invalid trace ID ratio: greater than 1.0"},
		{"OTEL_BSP_SCHEDULE_DELAY", "soon", "OTEL_BSP_SCHEDULE_DELAY: Got invalid value, number value expected."},
		{"OTEL_METRIC_EXPORT_INTERVAL", "0", "OTEL_METRIC_EXPORT_INTERVAL: non-positive duration"},
		{"OTEL_RESOURCE_ATTRIBUTES", "production", "missing value: [production]"},
	} {
		t.Run(c.name+"="+filepath.Base(c.value), func(t *testing.T) {
			set := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1", c.name: c.value}
			switch c.name {
			case "OTEL_TRACES_SAMPLER_ARG":
				set["OTEL_TRACES_SAMPLER"] = "traceidratio"
			case "OTEL_EXPORTER_OTLP_CLIENT_KEY":
				set["OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"] = notPEM
			}
			setenv(t, set)
			core, logs := observer.New(zapcore.DebugLevel)
			got, err := start(t, zap.New(core), io.Discard)
			if err != nil || got.Tracer() == nil || got.Meter() == nil {
				t.Fatalf("it is not on: %v", err)
			}
			var said []string
			for _, line := range logs.FilterLevelExact(zapcore.WarnLevel).All() {
				said = append(said, fmt.Sprint(line.Message, ": ", line.ContextMap()["error"]))
			}
			text := strings.Join(said, "\n")
			if !strings.Contains(text, "ignores a setting") || !strings.Contains(text, c.says) ||
				strings.Contains(text, "s3cret") {
				t.Errorf("got warnings %q, want one that says %q", said, c.says)
			}
		})
	}
}

// The SDK would panic.
func TestAQueueThatCannotBeIsRefused(t *testing.T) {
	setenv(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1", "OTEL_BSP_MAX_QUEUE_SIZE": "-1"})
	got, err := start(t, zap.NewNop(), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "OTEL_BSP_MAX_QUEUE_SIZE") || got != nil {
		t.Errorf("got %v", err)
	}
}

// The SDK leaves out the parts of an endpoint that belong into headers.
func TestAPasswordInTheEndpointIsNotSent(t *testing.T) {
	c := newCollector(t)
	endpoint := strings.Replace(c.URL, "http://", "http://me:s3cret@", 1) + "/v1/traces?key=s3cret"
	setenv(t, map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint})
	core, logs := observer.New(zapcore.DebugLevel)
	got, err := start(t, zap.New(core), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	_, span := got.Tracer().Start(t.Context(), "x")
	span.End()
	got.Stop()
	if len(c.traces) != 1 || c.headers[0].Get("Authorization") != "" ||
		strings.Contains(fmt.Sprint(logs.All()), "s3cret") {
		t.Errorf("%d requests with %v; the log: %v", len(c.traces), c.headers, logs.All())
	}
}

func TestAllWrongValuesAreNamedAtOnce(t *testing.T) {
	setenv(t, map[string]string{"OTEL_TRACES_EXPORTER": "zipkin", "OTEL_METRICS_EXPORTER": "statsd"})
	_, err := start(t, zap.NewNop(), io.Discard)
	if text := fmt.Sprint(err); strings.Count(text, "\n") != 1 || !strings.Contains(text, "zipkin") ||
		!strings.Contains(text, "statsd") {
		t.Error(text)
	}
}

// collector receives OTLP over HTTP.
type collector struct {
	*httptest.Server
	mu      sync.Mutex
	headers []http.Header
	traces  []*collectortraces.ExportTraceServiceRequest
	metrics []*collectormetrics.ExportMetricsServiceRequest
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.headers = append(c.headers, r.Header)
		switch {
		case err != nil:
		case r.URL.Path == "/v1/traces":
			var request collectortraces.ExportTraceServiceRequest
			err = proto.Unmarshal(body, &request)
			c.traces = append(c.traces, &request)
		case r.URL.Path == "/v1/metrics":
			var request collectormetrics.ExportMetricsServiceRequest
			err = proto.Unmarshal(body, &request)
			c.metrics = append(c.metrics, &request)
		default:
			err = errors.New("no such path: " + r.URL.Path)
		}
		if err != nil {
			t.Error(err)
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	t.Cleanup(c.Close)
	return c
}

func attributes(all []*common.KeyValue) map[string]string {
	m := map[string]string{}
	for _, a := range all {
		m[a.Key] = a.Value.GetStringValue()
	}
	return m
}

func TestStopSendsTheRest(t *testing.T) {
	c := newCollector(t)
	setenv(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL, "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20s3cret",
		"OTEL_BSP_SCHEDULE_DELAY": "3600000", "OTEL_METRIC_EXPORT_INTERVAL": "3600000",
		"OTEL_RESOURCE_ATTRIBUTES": "team=crm",
	})
	got, err := start(t, zap.NewNop(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	_, span := got.Tracer().Start(t.Context(), "a span")
	span.End()
	counter, err := got.Meter().Int64Counter("a.counter", metric.WithUnit("{thing}"))
	if err != nil {
		t.Fatal(err)
	}
	counter.Add(t.Context(), 3)
	got.Stop()
	if len(c.traces) != 1 || len(c.metrics) != 1 {
		t.Fatalf("%d requests with traces, %d with metrics", len(c.traces), len(c.metrics))
	}
	spans, measured := c.traces[0].ResourceSpans[0], c.metrics[0].ResourceMetrics[0]
	if name := spans.ScopeSpans[0].Spans[0].Name; name != "a span" {
		t.Errorf("the span %q", name)
	}
	if m := measured.ScopeMetrics[0].Metrics[0]; m.Name != "a.counter" || m.GetSum().DataPoints[0].GetAsInt() != 3 {
		t.Errorf("the metric %v", m)
	}
	for _, who := range []map[string]string{attributes(spans.Resource.Attributes),
		attributes(measured.Resource.Attributes)} {
		if who["service.name"] != "gem-worker" || who["service.version"] != "v1.2.3" || who["gem.worker.name"] != "mine" ||
			who["team"] != "crm" || len(who["service.instance.id"]) != 36 {
			t.Errorf("the resource: %v", who)
		}
	}
	for _, h := range c.headers {
		if h.Get("Authorization") != "Bearer s3cret" {
			t.Errorf("the headers: %v", h)
		}
	}
}

func TestTwoProcessesOfOneNameAreTwoInstances(t *testing.T) {
	c := newCollector(t)
	setenv(t, map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": c.URL + "/v1/traces", "OTEL_SERVICE_NAME": "crm"})
	for range 2 {
		got, err := start(t, zap.NewNop(), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		_, span := got.Tracer().Start(t.Context(), "x")
		span.End()
		got.Stop()
	}
	if len(c.traces) != 2 {
		t.Fatalf("%d requests", len(c.traces))
	}
	one, two := attributes(c.traces[0].ResourceSpans[0].Resource.Attributes),
		attributes(c.traces[1].ResourceSpans[0].Resource.Attributes)
	if one["service.instance.id"] == two["service.instance.id"] || one["service.name"] != "crm" {
		t.Errorf("%v\n%v", one, two)
	}
}

func TestSpansOnTheConsole(t *testing.T) {
	setenv(t, map[string]string{"OTEL_TRACES_EXPORTER": "console"})
	var console bytes.Buffer
	got, err := start(t, zap.NewNop(), &console)
	if err != nil {
		t.Fatal(err)
	}
	_, span := got.Tracer().Start(t.Context(), "a span")
	span.End()
	got.Stop()
	if !strings.Contains(console.String(), "a span") {
		t.Errorf("%s", console.String())
	}
}

// The collector repeats the header that it was sent.
func TestNoHeaderReachesTheLog(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		header := r.Header.Get("Authorization")
		_, _ = io.WriteString(w, "refused: "+header+", and once more "+strings.Fields(header)[1])
	}))
	t.Cleanup(server.Close)
	setenv(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": server.URL,
		"OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20s3cret,x=y"})
	core, logs := observer.New(zapcore.DebugLevel)
	got, err := start(t, zap.New(core), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	_, span := got.Tracer().Start(t.Context(), "x")
	span.End()
	got.Stop()
	warned := logs.FilterLevelExact(zapcore.WarnLevel).All()
	if len(warned) != 1 {
		t.Fatalf("%d warnings: %v", len(warned), warned)
	}
	text := warned[0].ContextMap()["error"].(string)
	if strings.Contains(text, "s3cret") || !strings.Contains(text, "401") || !strings.Contains(text, "[set]") {
		t.Errorf("%s", text)
	}
}

func TestAWarningAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.DebugLevel)
		w := telemetry.NewWarnings(zap.New(core), nil)
		for range 100 {
			w.Handle(errors.New("no route"))
			time.Sleep(time.Second)
		}
		var withheld []int64
		for _, line := range logs.All() {
			withheld = append(withheld, line.ContextMap()["warnings_withheld"].(int64))
		}
		if len(withheld) != 2 || withheld[0] != 0 || withheld[1] != 59 {
			t.Errorf("warnings, with those withheld before: %v", withheld)
		}
	})
}

func TestNilIsOff(t *testing.T) {
	var off *telemetry.Telemetry
	if off.Tracer() != nil || off.Meter() != nil {
		t.Error("it is on")
	}
	off.Stop()
}
