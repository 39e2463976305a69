package telemetry_test

import (
	"bytes"
	"errors"
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

// The environment is the process's: these tests do not run in parallel.

// setenv makes the environment of a test hold these variables of OpenTelemetry, and no others.
func setenv(t *testing.T, variables map[string]string) {
	t.Helper()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "") // what is set to nothing is not set
		}
	}
	for name, value := range variables {
		t.Setenv(name, value)
	}
}

func start(t *testing.T, log *zap.Logger, console io.Writer) (*telemetry.Telemetry, error) {
	t.Helper()
	started, err := telemetry.Start(t.Context(), telemetry.Options{Worker: "mine", Version: "v1.2.3", Console: console, Log: log})
	t.Cleanup(started.Stop)
	return started, err
}

func TestItIsOnWhenAVariableAsksForIt(t *testing.T) {
	type variables = map[string]string
	for name, c := range map[string]struct {
		set             variables
		traces, metrics bool
	}{
		"nothing":                        {},
		"only how":                       {set: variables{"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_SAMPLER": "nonsense", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}},
		"an endpoint":                    {set: variables{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1"}, traces: true, metrics: true},
		"an endpoint of blanks":          {set: variables{"OTEL_EXPORTER_OTLP_ENDPOINT": "  "}},
		"an endpoint for traces":         {set: variables{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:1/v1/traces"}, traces: true},
		"an endpoint for metrics":        {set: variables{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://localhost:1/v1/metrics"}, metrics: true},
		"an exporter for traces":         {set: variables{"OTEL_TRACES_EXPORTER": "OTLP"}, traces: true},
		"an exporter for metrics":        {set: variables{"OTEL_METRICS_EXPORTER": "console"}, metrics: true},
		"an endpoint, and no metrics":    {set: variables{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1", "OTEL_METRICS_EXPORTER": "none"}, traces: true},
		"none of either":                 {set: variables{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1", "OTEL_METRICS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": "none"}},
		"the SDK disabled":               {set: variables{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1", "OTEL_SDK_DISABLED": "True", "OTEL_TRACES_EXPORTER": "nonsense"}},
		"the SDK not disabled":           {set: variables{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1", "OTEL_SDK_DISABLED": "false"}, traces: true, metrics: true},
		"the protocol that is spoken":    {set: variables{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, traces: true},
		"what only the other signal has": {set: variables{"OTEL_TRACES_EXPORTER": "console", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"}, traces: true},
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

func TestAWrongValueIsRefusedWithWhatItMayBe(t *testing.T) {
	missing, notPEM := filepath.Join(t.TempDir(), "missing"), filepath.Join(t.TempDir(), "not.pem")
	if err := os.WriteFile(notPEM, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, value, says string }{
		{"OTEL_SDK_DISABLED", "yes", `OTEL_SDK_DISABLED is "yes"; it may be true or false`},
		{"OTEL_TRACES_EXPORTER", "jaeger", `OTEL_TRACES_EXPORTER is "jaeger"; it may be otlp, console or none`},
		{"OTEL_METRICS_EXPORTER", "prometheus", `OTEL_METRICS_EXPORTER is "prometheus"; it may be otlp, console or none`},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", `OTEL_EXPORTER_OTLP_PROTOCOL is "grpc"; it may be http/protobuf`},
		{"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json", "it may be http/protobuf"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4318", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set to what it can not be"},
		{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://me:s3cret@collector/v1/metrics", "credentials belong to OTEL_EXPORTER_OTLP_METRICS_HEADERS"},
		{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://collector/v1/metrics?key=s3cret", "credentials belong to"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "s3cret", "OTEL_EXPORTER_OTLP_HEADERS is set to what it can not be (its value is not shown); it may be a list"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "api key=s3cret", "it may be a list"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cret%", "it may be a list"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cret%0A", "it may be a list"},
		{"OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "it may be gzip or none"},
		{"OTEL_EXPORTER_OTLP_TIMEOUT", "10s", `OTEL_EXPORTER_OTLP_TIMEOUT is "10s"; it may be a whole number of milliseconds`},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE", missing, "the path of a file with certificates in PEM"},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE", notPEM, "the path of a file with certificates in PEM"},
		{"OTEL_EXPORTER_OTLP_CLIENT_KEY", notPEM, "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY are not"},
		{"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "alpha", "it may be cumulative, delta or lowmemory"},
		{"OTEL_TRACES_SAMPLER", "some", "it may be always_on, always_off, traceidratio"},
		{"OTEL_TRACES_SAMPLER_ARG", "2", "the share of calls that are traced, from 0 to 1"},
		{"OTEL_BSP_MAX_QUEUE_SIZE", "-1", "it may be a whole number from 1 to 1000000"},
		{"OTEL_BSP_SCHEDULE_DELAY", "soon", "a whole number of milliseconds"},
		{"OTEL_METRIC_EXPORT_INTERVAL", "0", "a whole number of milliseconds"},
		{"OTEL_RESOURCE_ATTRIBUTES", "production", "a list such as"},
	} {
		t.Run(c.name+"="+filepath.Base(c.value), func(t *testing.T) {
			set := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1", c.name: c.value}
			if c.name == "OTEL_TRACES_SAMPLER_ARG" {
				set["OTEL_TRACES_SAMPLER"] = "traceidratio"
			}
			setenv(t, set)
			got, err := start(t, zap.NewNop(), io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "s3cret") || got != nil {
				t.Errorf("got %v, want an error that says %q", err, c.says)
			}
		})
	}
}

func TestEveryWrongValueIsNamedAtOnce(t *testing.T) {
	setenv(t, map[string]string{"OTEL_TRACES_EXPORTER": "zipkin", "OTEL_METRICS_EXPORTER": "statsd"})
	_, err := start(t, zap.NewNop(), io.Discard)
	if err == nil || strings.Count(err.Error(), "\n") != 1 || !strings.Contains(err.Error(), "zipkin") || !strings.Contains(err.Error(), "statsd") {
		t.Errorf("%v", err)
	}
}

// collector takes what is sent over OTLP.
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

func TestTheEndSendsWhatIsLeft(t *testing.T) {
	c := newCollector(t)
	setenv(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL, "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20s3cret",
		"OTEL_BSP_SCHEDULE_DELAY": "3600000", "OTEL_METRIC_EXPORT_INTERVAL": "3600000", "OTEL_RESOURCE_ATTRIBUTES": "team=crm",
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
	for _, who := range []map[string]string{attributes(spans.Resource.Attributes), attributes(measured.Resource.Attributes)} {
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
	one, two := attributes(c.traces[0].ResourceSpans[0].Resource.Attributes), attributes(c.traces[1].ResourceSpans[0].Resource.Attributes)
	if one["service.instance.id"] == two["service.instance.id"] || one["service.name"] != "crm" {
		t.Errorf("%v\n%v", one, two)
	}
}

func TestTheConsoleIsForLookingAtIt(t *testing.T) {
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

// A collector that answers with what it was sent gives nothing away.
func TestNoHeaderReachesTheLog(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, "refused: "+r.Header.Get("Authorization")+", and once more "+strings.Fields(r.Header.Get("Authorization"))[1])
	}))
	t.Cleanup(server.Close)
	setenv(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": server.URL, "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20s3cret,x=y"})
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
	if text := warned[0].ContextMap()["error"].(string); strings.Contains(text, "s3cret") || !strings.Contains(text, "401") || !strings.Contains(text, "[set]") {
		t.Errorf("%s", text)
	}
}

// The bubble's clock stands still but for the sleeps.
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
