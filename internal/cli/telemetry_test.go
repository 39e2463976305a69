package cli

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	collectormetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectortraces "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// collector takes what a worker sends over OTLP.
type collector struct {
	*httptest.Server
	mu      sync.Mutex
	spans   []string // their names, and what they link to
	metrics []string
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the worker is gone
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		var traces collectortraces.ExportTraceServiceRequest
		var metrics collectormetrics.ExportMetricsServiceRequest
		switch r.URL.Path {
		case "/v1/traces":
			err = proto.Unmarshal(body, &traces)
		case "/v1/metrics":
			err = proto.Unmarshal(body, &metrics)
		}
		if err != nil {
			t.Error(err)
		}
		for _, resource := range traces.ResourceSpans {
			for _, span := range resource.ScopeSpans[0].Spans {
				c.spans = append(c.spans, span.Name)
				for _, link := range span.Links {
					c.spans = append(c.spans, fmt.Sprintf("a link to %x %x", link.TraceId, link.SpanId))
				}
			}
		}
		for _, resource := range metrics.ResourceMetrics {
			for _, m := range resource.ScopeMetrics[0].Metrics {
				c.metrics = append(c.metrics, m.Name)
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// insertNote makes a call that succeeds, and waits for its receipt.
func insertNote(t *testing.T, url string) {
	t.Helper()
	got := gemWith(t, []string{"DATABASE_URL=" + url}, "call", "os.create_note",
		`{"domain": "both", "title": "a", "content": "b"}`, "--wait", "--timeout", "1m")
	got.wantCode(t, 0)
}

// never is an interval in which nothing is sent but at the end.
const never = "3600000"

func TestWorkerSendsTracesAndMetricsBeforeItEnds(t *testing.T) {
	t.Parallel()
	url, c := newDatabase(t), newCollector(t)
	p := startWorker(t, url, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.URL, "OTEL_BSP_SCHEDULE_DELAY="+never,
		"OTEL_METRIC_EXPORT_INTERVAL="+never)
	testdb.Exec(t, testdb.Pool(t, url), `insert into core_tool_calls (tool_name, traceparent)
		values ('os.health_check', '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01')`)
	insertNote(t, url)
	p.stop(t)
	wants(t, p.stderr.String(), "telemetry is on", "worker stopped")
	c.mu.Lock()
	defer c.mu.Unlock()
	wants(t, strings.Join(c.spans, "\n"), "execute_tool os.health_check", "execute_tool os.create_note",
		"a link to 4bf92f3577b34da6a3ce929d0e0e4736 00f067aa0ba902b7")
	wants(t, strings.Join(c.metrics, "\n"), "gem.call.ended", "gem.call.duration", "gem.call.queue_wait",
		"gem.worker.calls", "gem.claim.duration")
}

func TestWorkerSendsNothingUnasked(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	for name, env := range map[string][]string{
		"no variable":      nil,
		"the SDK disabled": {"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL, "OTEL_SDK_DISABLED=true"},
		"none of either": {"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL, "OTEL_TRACES_EXPORTER=none",
			"OTEL_METRICS_EXPORTER=none"},
	} {
		url := newDatabase(t)
		p := startWorker(t, url, env...)
		insertNote(t, url)
		p.stop(t)
		if strings.Contains(p.stderr.String(), "telemetry") {
			t.Errorf("%s:\n%s", name, &p.stderr)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.spans)+len(c.metrics) > 0 {
		t.Errorf("%v %v", c.spans, c.metrics)
	}
}

// Neither one that refuses connections nor one that takes them and says nothing slows a call, or keeps the worker from
// ending.
func TestACollectorThatCanNotBeReachedCostsNothing(t *testing.T) {
	t.Parallel()
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mute.Close() })
	for name, address := range map[string]string{"refuses": closedAddress(t), "says nothing": mute.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := newDatabase(t)
			p := startWorker(t, url, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+address, "OTEL_BSP_SCHEDULE_DELAY=1",
				"OTEL_METRIC_EXPORT_INTERVAL=5",
				"OTEL_BSP_EXPORT_TIMEOUT="+never, "OTEL_METRIC_EXPORT_TIMEOUT="+never, "OTEL_EXPORTER_OTLP_TIMEOUT="+never)
			for range 3 {
				insertNote(t, url)
			}
			p.stop(t)
			if warned := strings.Count(p.stderr.String(), "telemetry could not be sent"); warned < 1 || warned > 3 {
				t.Errorf("got %d warnings, want one a minute, in:\n%s", warned, &p.stderr)
			}
		})
	}
}

func TestWorkerRefusesWhatItCanNotSend(t *testing.T) {
	t.Parallel()
	got := gemWith(t, []string{"DATABASE_URL=postgres://nowhere.invalid/x",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, "worker")
	got.wantCode(t, exitUsage)
	wants(t, got.stderr, `OTEL_EXPORTER_OTLP_PROTOCOL is "grpc": use http/protobuf`)
}

func TestSpansOnTheConsole(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	p := startWorker(t, url, "OTEL_TRACES_EXPORTER=console")
	insertNote(t, url)
	p.stop(t)
	wants(t, p.stdout.String(), `"execute_tool os.create_note"`)
}
