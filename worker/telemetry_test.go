package worker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// recording is what workers tell OpenTelemetry.
type recording struct {
	spans  *tracetest.InMemoryExporter
	reader *sdkmetric.ManualReader

	tracer *sdktrace.TracerProvider
	meter  *sdkmetric.MeterProvider
}

func listen(o ...sdktrace.TracerProviderOption) *recording {
	l := &recording{spans: tracetest.NewInMemoryExporter(), reader: sdkmetric.NewManualReader()}
	l.tracer = sdktrace.NewTracerProvider(append(o, sdktrace.WithSyncer(l.spans))...)
	l.meter = sdkmetric.NewMeterProvider(sdkmetric.WithReader(l.reader))
	return l
}

func (l *recording) to(o *worker.Options) {
	o.Tracer, o.Meter = l.tracer.Tracer("test"), l.meter.Meter("test")
}

// spanSummary is what the tests compare of a span.
type spanSummary struct {
	Tool, Outcome, Error string
	Attempt              int64
	Status               codes.Code
	Hit                  bool
}

// attempts waits for as many spans and returns those of one call, by attempt.
func (l *recording) attempts(t *testing.T, env *handlertest.Env, callID string, n int) []spanSummary {
	t.Helper()
	var found []spanSummary
	env.Until(fmt.Sprint(n, " spans of call ", callID), func() bool {
		found = nil
		for _, s := range l.spans.GetSpans() {
			a := attributes(s.Attributes)
			if a["gem.call.id"].AsString() == callID {
				found = append(found, spanSummary{Tool: a["gen_ai.tool.name"].AsString(), Outcome: a["gem.call.outcome"].AsString(),
					Error: a["error.type"].AsString(), Attempt: a["gem.call.attempt"].AsInt64(), Status: s.Status.Code,
					Hit: a["gem.call.idempotency.hit"].AsBool()})
			}
		}
		return len(found) >= n
	})
	slices.SortFunc(found, func(a, b spanSummary) int { return int(a.Attempt - b.Attempt) })
	return found
}

func attributes(all []attribute.KeyValue) map[attribute.Key]attribute.Value {
	m := map[attribute.Key]attribute.Value{}
	for _, a := range all {
		m[a.Key] = a.Value
	}
	return m
}

func TestASpanSaysHowItsAttemptEnded(t *testing.T) {
	t.Parallel()
	l := listen()
	env, _ := startLab(t, l.to, tool{name: "lab.write"}, tool{name: "lab.send"}, tool{name: "lab.unbuilt"},
		tool{name: "lab.star", mode: "keyed", keyField: "key"}, tool{name: "lab.nothing", timeout: time.Second})
	w := env.StartWorker()
	ok, failed := codes.Unset, codes.Error
	for _, c := range []struct {
		tool, input string
		want        []spanSummary
	}{
		{"lab.write", task(Task{Text: "x"}), []spanSummary{{Outcome: "succeeded", Status: ok}}},
		{"lab.send", task(Task{Text: "x"}), []spanSummary{{Outcome: "succeeded", Status: ok}}},
		{"lab.write", task(Task{Text: "x", Then: "fail"}),
			[]spanSummary{{Outcome: "failed", Error: "execution_error", Status: failed}}},
		{"lab.send", task(Task{Text: "x", Then: "fail with details"}),
			[]spanSummary{{Outcome: "failed", Error: "out_of_paper", Status: failed}}},
		{"lab.send", task(Task{Text: "x", Then: "panic"}),
			[]spanSummary{{Outcome: "failed", Error: "panic", Status: failed}}},
		{"lab.nothing", task(Task{Text: "x", Then: "ignore the context"}),
			[]spanSummary{{Outcome: "failed", Error: "timeout", Status: failed}}},
		{"lab.send", `{}`, []spanSummary{{Outcome: "failed", Error: "validation_error", Status: failed}}},
		{"lab.unbuilt", task(Task{Text: "x"}), []spanSummary{{Outcome: "not_configured", Status: ok}}},
		{"no.such_tool", `{}`, []spanSummary{{Tool: "_OTHER", Outcome: "failed", Error: "unknown_tool", Status: failed}}},
		{"lab.write", task(Task{Text: "x", Then: "transient once"}), []spanSummary{
			{Outcome: "retried", Error: "execution_error", Status: failed}, {Attempt: 2, Outcome: "succeeded", Status: ok}}},
		{"lab.star", task(Task{Text: "x", Key: "a"}), []spanSummary{{Outcome: "succeeded", Status: ok}}},
		{"lab.star", task(Task{Text: "x", Key: "a"}), []spanSummary{{Outcome: "succeeded", Status: ok, Hit: true}}},
	} {
		id := env.Insert(handlertest.Call{Tool: c.tool, Input: c.input})
		for i := range c.want {
			c.want[i].Attempt = max(c.want[i].Attempt, 1)
			if c.want[i].Tool == "" {
				c.want[i].Tool = c.tool
			}
		}
		env.Await(id) // the next may depend on it
		if diff := cmp.Diff(c.want, l.attempts(t, env, id, len(c.want))); diff != "" {
			t.Errorf("%s %s: %s", c.tool, c.input, diff)
		}
	}
	for _, s := range l.spans.GetSpans() {
		a := attributes(s.Attributes)
		if s.SpanKind != trace.SpanKindConsumer || s.Name != "execute_tool "+a["gen_ai.tool.name"].AsString() ||
			s.Parent.IsValid() ||
			a["gem.worker.id"].AsString() != w.ID() || s.EndTime.Before(s.StartTime) {
			t.Errorf("%+v", s)
		}
	}
}

func TestTheSpanOfARefusedCallIsNotAnError(t *testing.T) {
	t.Parallel()
	l := listen()
	env, _ := startLab(t, l.to, tool{name: "lab.nothing", mode: "safe-retry"})
	env.StartWorker()
	env.Await(env.Insert(handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "x"}), Key: "k"}))
	id := env.Insert(handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "y"}), Key: "k"})
	env.Await(id)
	want := []spanSummary{{Tool: "lab.nothing", Attempt: 1, Outcome: "refused", Error: "key_reused", Status: codes.Unset}}
	if diff := cmp.Diff(want, l.attempts(t, env, id, 1)); diff != "" {
		t.Error(diff)
	}
}

// An attempt may end while its call does not.
func TestTheSpanOfAnAttemptThatDoesNotEndItsCall(t *testing.T) {
	t.Parallel()
	l := listen()
	env, lab := startLab(t, l.to, tool{name: "lab.send", mode: "keyed", keyField: "key"}, tool{name: "lab.write"})
	w := env.StartWorker(func(o *worker.Options) { o.ShutdownGrace = 0 })
	first := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x", Key: "a", Gate: "send"})})
	lab.awaitBegin(t)
	second := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x", Key: "a"})})
	want := []spanSummary{{Tool: "lab.send", Outcome: "waiting", Attempt: 1}}
	if diff := cmp.Diff(want, l.attempts(t, env, second, 1)); diff != "" {
		t.Errorf("behind a key: %s", diff)
	}
	lab.tell(t, "send", Order{})
	env.Await(first)
	want = append(want, spanSummary{Tool: "lab.send", Outcome: "succeeded", Attempt: 2, Hit: true})
	if diff := cmp.Diff(want, l.attempts(t, env, second, 2)); diff != "" {
		t.Errorf("behind a key: %s", diff)
	}

	stopped := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x", Gate: "write"})})
	lab.awaitBegin(t)
	w.Stop()
	want = []spanSummary{{Tool: "lab.write", Outcome: "released", Attempt: 1}}
	if diff := cmp.Diff(want, l.attempts(t, env, stopped, 1)); diff != "" {
		t.Errorf("handed over: %s", diff)
	}

	mute := env.StartWorker(func(o *worker.Options) {
		o.HeartbeatInterval, o.DeadAfter, o.ListenURL = time.Hour, 2*time.Hour, ""
	})
	lab.awaitBegin(t)
	silence(t, env, mute.ID())
	env.StartWorker(func(o *worker.Options) { o.HeartbeatInterval = 20 * time.Millisecond })
	lab.awaitBegin(t)
	lab.tell(t, "write", Order{})
	lab.tell(t, "write", Order{})
	found := l.attempts(t, env, stopped, 3)
	want = append(want, spanSummary{Tool: "lab.write", Outcome: "not_held", Error: "not_held", Attempt: 2,
		Status: codes.Error},
		spanSummary{Tool: "lab.write", Outcome: "succeeded", Attempt: 3})
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("lost: %s", diff)
	}
}

// What was claimed ahead of the slots, and is handed over before it began, has a span too.
func TestWhatIsHandedOverBeforeItBeganHasASpan(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]spanSummary{
		"handed over":            {Outcome: "released"},
		"the database went away": {Outcome: "left_to_recovery", Error: "left_to_recovery", Status: codes.Error},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := listen()
			env, _ := startLab(t, l.to, tool{name: "lab.write"})
			id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})})
			ctx, stop := context.WithCancel(t.Context())
			w := env.NewWorker(func(o *worker.Options) {
				worker.SetHook(o, func(point string) {
					switch {
					case point == "after claim":
						stop()
					case point == "before released" && want.Outcome != "released":
						o.Control.Close()
					}
				})
			})
			if err := w.Run(ctx); err != nil {
				t.Fatal(err)
			}
			want.Tool, want.Attempt = "lab.write", 1
			if diff := cmp.Diff([]spanSummary{want}, l.attempts(t, env, id, 1)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTheSpanLinksToTheFrontendsTrace(t *testing.T) {
	t.Parallel()
	l := listen()
	env, _ := startLab(t, l.to, tool{name: "lab.write"})
	env.StartWorker()
	const traceID, spanID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	for traceparent, want := range map[string]string{
		"00-" + traceID + "-" + spanID + "-01":                 traceID + " " + spanID,
		"00-" + strings.Repeat("0", 32) + "-" + spanID + "-01": "",
		"": "",
	} {
		var id string
		err := env.DB.QueryRow(t.Context(), "insert into core_tool_calls (tool_name, input, traceparent) values "+
			"('lab.write', '{\"text\": \"x\"}', nullif($1, '')) returning id::text", traceparent).Scan(&id)
		if err != nil {
			t.Fatal(err)
		}
		l.attempts(t, env, id, 1)
		for _, s := range l.spans.GetSpans() {
			got := ""
			for _, link := range s.Links {
				got += link.SpanContext.TraceID().String() + " " + link.SpanContext.SpanID().String()
			}
			if attributes(s.Attributes)["gem.call.id"].AsString() == id &&
				(got != want || s.SpanContext.TraceID().String() != strings.ReplaceAll(id, "-", "")) {
				t.Errorf("%q: got the links %q, want %q, of trace %s", traceparent, got, want, s.SpanContext.TraceID())
			}
		}
	}
}

func TestTheAttemptsOfACallAndOfItsChildrenAreOneTrace(t *testing.T) {
	t.Parallel()
	l := listen()
	env, _ := startTree(t, l.to)
	env.StartWorker()
	id := env.Insert(handlertest.Call{Tool: "tree.run",
		Input: task(Task{Text: "step a; start b lab.send; wait b; start c lab.send; wait c"})})
	env.Await(id)
	var spans tracetest.SpanStubs
	env.Until("the last attempt has a span", func() bool {
		spans = l.spans.GetSpans()
		return slices.ContainsFunc(spans, func(s tracetest.SpanStub) bool {
			return s.Name == "execute_tool tree.run" && attributes(s.Attributes)["gem.call.outcome"].AsString() == "succeeded"
		})
	})
	slices.SortFunc(spans, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
	var attempts []trace.SpanID
	for _, s := range spans {
		if s.SpanContext.TraceID().String() != strings.ReplaceAll(id, "-", "") {
			t.Errorf("%s is in the trace %s, and the call is %s", s.Name, s.SpanContext.TraceID(), id)
		}
		switch {
		case s.Name == "execute_tool tree.run":
			attempts = append(attempts, s.SpanContext.SpanID())
			if s.Parent.IsValid() {
				t.Errorf("%s has the parent %v", s.Name, s.Parent)
			}
		case s.Parent.SpanID() != attempts[len(attempts)-1]:
			t.Errorf("%s has the parent %s, which is not the attempt that made it", s.Name, s.Parent.SpanID())
		}
	}
	env.Until("both tools' whole calls were measured", func() bool {
		return len(l.metrics(t)["gen_ai.execute_tool.duration"]) == 2
	})
	if children := len(spans) - len(attempts); children != 2 {
		t.Errorf("%d children have spans", children)
	}
}

func TestAHandlersContextCarriesTheSpan(t *testing.T) {
	t.Parallel()
	l := listen()
	env, _ := startLab(t, l.to, tool{name: "lab.write"}, tool{name: "lab.send"})
	env.StartWorker()
	for _, name := range []string{"lab.write", "lab.send"} {
		id := env.Insert(handlertest.Call{Tool: name, Input: task(Task{Text: "x", Then: "trace"})})
		l.attempts(t, env, id, 1)
		spans := map[string]tracetest.SpanStub{}
		for _, s := range l.spans.GetSpans() {
			spans[s.Name] = s
		}
		if parent := spans["execute_tool "+name].SpanContext; !parent.IsValid() ||
			spans["inside "+name].Parent.SpanID() != parent.SpanID() {
			t.Errorf("%s: %+v", name, spans)
		}
	}
}

// The contents of a call belong to its caller.
func TestSpansAndMetricsTellNothingOfWhatACallIsAbout(t *testing.T) {
	t.Parallel()
	l := listen()
	env, _ := startLab(t, l.to, tool{name: "lab.send", mode: "keyed", keyField: "key"})
	env.StartWorker()
	const secret = "hunter2"
	for _, c := range []handlertest.Call{
		{Tool: "lab.send", Input: task(Task{Text: secret, Key: secret}), Key: secret, Session: secret, CreatedBy: secret},
		{Tool: "lab.send", Input: task(Task{Text: secret, Key: secret})}, // the hit repeats the output
		{Tool: "lab.send", Input: fmt.Sprintf(`{"text": "x", %q: %q}`, secret, secret)},
		{Tool: secret},
	} {
		id := env.Insert(c)
		env.Await(id)
		l.attempts(t, env, id, 1)
	}
	for _, s := range l.spans.GetSpans() {
		if text := fmt.Sprintf("%+v", s); strings.Contains(text, secret) {
			t.Error(text)
		}
	}
	if text := fmt.Sprintf("%+v", l.metrics(t)); strings.Contains(text, secret) {
		t.Error(text)
	}
}

// metrics collects: by name, the attributes of each series with what it counted.
func (l *recording) metrics(t *testing.T) map[string]map[string]int64 {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := l.reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]int64{}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			series := map[string]int64{}
			all[m.Name] = series
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					series[p.Attributes.Encoded(attribute.DefaultEncoder())] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					series[p.Attributes.Encoded(attribute.DefaultEncoder())] = int64(p.Count)
				}
			case metricdata.Histogram[int64]:
				for _, p := range d.DataPoints {
					series[p.Attributes.Encoded(attribute.DefaultEncoder())] = p.Sum
				}
			default:
				t.Errorf("%s is a %T", m.Name, d)
			}
		}
	}
	return all
}

func TestWhatIsMeasured(t *testing.T) {
	t.Parallel()
	l := listen(sdktrace.WithSampler(sdktrace.NeverSample())) // what is measured does not depend on what is traced
	env, lab := startLab(t, l.to, tool{name: "lab.write"}, tool{name: "lab.send"},
		tool{name: "lab.nothing", mode: "safe-retry"})
	env.StartWorker(one)
	for _, c := range []handlertest.Call{
		{Tool: "lab.nothing", Input: task(Task{Text: "x"}), Key: "k"},
		{Tool: "lab.nothing", Input: task(Task{Text: "y"}), Key: "k"},
		{Tool: "lab.write", Input: task(Task{Text: "x"})},
		{Tool: "lab.write", Input: task(Task{Text: "x"})},
		{Tool: "lab.write", Input: task(Task{Text: "x", Then: "transient once"})},
		{Tool: "lab.send", Input: task(Task{Text: "x", Then: "fail with details"})},
		{Tool: "lab.send"},
		{Tool: "made.up_1"},
		{Tool: "made.up_2"},
	} {
		env.Await(env.Insert(c))
	}
	env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x", Gate: "g"})})
	lab.awaitBegin(t) // and so all before it have been measured
	got := l.metrics(t)
	lab.tell(t, "g", Order{})

	const write, send, nothing = "gem.call.outcome=succeeded,gen_ai.tool.name=lab.write", "gen_ai.tool.name=lab.send",
		"gen_ai.tool.name=lab.nothing"
	want := map[string]map[string]int64{
		"gem.call.ended": {
			write:                                   3,
			"gem.call.outcome=succeeded," + nothing: 1,
			"error.type=key_reused,gem.call.outcome=refused," + nothing:               1,
			"error.type=_OTHER,gem.call.outcome=failed," + send:                       1,
			"error.type=validation_error,gem.call.outcome=failed," + send:             1,
			"error.type=unknown_tool,gem.call.outcome=failed,gen_ai.tool.name=_OTHER": 2,
		},
		"gen_ai.execute_tool.duration": {
			"gen_ai.tool.name=lab.write":                      3,
			nothing:                                           1,
			"error.type=key_reused," + nothing:                1,
			"error.type=_OTHER," + send:                       1,
			"error.type=validation_error," + send:             1,
			"error.type=unknown_tool,gen_ai.tool.name=_OTHER": 2,
		},
		"gem.call.duration": {
			write:                                   3,
			"gem.call.outcome=succeeded," + nothing: 1,
			"error.type=key_reused,gem.call.outcome=refused," + nothing:                      1,
			"error.type=execution_error,gem.call.outcome=retried,gen_ai.tool.name=lab.write": 1,
			"error.type=_OTHER,gem.call.outcome=failed," + send:                              1,
			"error.type=validation_error,gem.call.outcome=failed," + send:                    1,
			"error.type=unknown_tool,gem.call.outcome=failed,gen_ai.tool.name=_OTHER":        2,
		},
		"gem.call.queue_wait": {"gen_ai.tool.name=lab.write": 4, send: 3, nothing: 2, "gen_ai.tool.name=_OTHER": 2},
		"gem.worker.calls":    {"gem.call.state=running": 1, "gem.call.state=ready": 0},
		"gem.admission.calls": {"": 2},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreMapEntries(func(name string, _ map[string]int64) bool {
		return name == "gem.claim.duration"
	})); diff != "" {
		t.Error(diff)
	}
	if claims := got["gem.claim.duration"]; claims["gem.claim.result=calls"] == 0 ||
		claims["gem.claim.result=none"] == 0 || claims["gem.claim.result=error"] != 0 {
		t.Errorf("claims: %v", claims)
	}
	if spans := l.spans.GetSpans(); len(spans) != 0 {
		t.Errorf("%d spans, of calls that are not sampled", len(spans))
	}
}

// A wait is the time since a call was due, by the clock that said so.
func TestTheQueueWaitIsFromWhenTheCallWasDue(t *testing.T) {
	t.Parallel()
	l := listen()
	env, _ := startLab(t, l.to, tool{name: "lab.write"})
	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})})
	if _, err := env.DB.Exec(t.Context(),
		"update core_tool_calls set run_at = run_at - interval '1 day 1 hour'"); err != nil {
		t.Fatal(err)
	}
	env.StartWorker()
	l.attempts(t, env, id, 1)
	for _, s := range l.spans.GetSpans() {
		if got := attributes(s.Attributes)["gem.call.queue_wait"].AsFloat64(); got < 25*3600 || got > 26*3600 {
			t.Errorf("%v s, want 25 hours", got)
		}
	}
}

func TestEitherTracesOrMetrics(t *testing.T) {
	t.Parallel()
	l := listen()
	env, _ := startLab(t, nil, tool{name: "lab.write"})
	w := env.StartWorker(func(o *worker.Options) { o.Tracer = l.tracer.Tracer("test") })
	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})})
	l.attempts(t, env, id, 1)
	if got := l.metrics(t); len(got) != 0 {
		t.Errorf("without a meter: %v", got)
	}
	w.Stop()
	l.spans.Reset()

	env.StartWorker(func(o *worker.Options) { o.Meter = l.meter.Meter("test") })
	if r := env.Run(handlertest.Call{Tool: "lab.write",
		Input: task(Task{Text: "x", Then: "trace"})}); r.Status != receipts.Succeeded {
		t.Errorf("%s", r.Result)
	}
	env.Until("the call to be counted", func() bool { return len(l.metrics(t)["gem.call.ended"]) == 1 })
	if spans := l.spans.GetSpans(); len(spans) != 0 {
		t.Errorf("without a tracer: %v", spans)
	}
}

// A verdict of a rule is counted once for a call, whatever was judged again meanwhile.
func TestWhatRulesSayIsMeasured(t *testing.T) {
	t.Parallel()
	l := listen()
	env := startRuled(t, ruledBy(t, asks,
		`{"name": "no_secrets", "tools": ["lab.send"], "action": "block", "when": {"input": {"text": {"const": "secret"}}}}`,
		`{"name": "hm", "tools": ["lab.*"], "action": "warn", "unless": {"input": {"text": {"const": "quiet"}}}}`,
		`{"name": "one", "tools": ["lab.pay"], "action": "block", "limit": {"max": 1, "within": "1h"}}`,
		`{"name": "pace", "tools": ["lab.nothing"], "action": "wait", "limit": {"max": 1, "within": "1s"}}`,
		`{"name": "large", "tools": ["lab.write"], "action": "warn", "when": {"result": {"text": {"const": "large"}}}}`))
	financed(t, env)
	w := env.StartWorker(l.to)
	asked := env.Insert(inSession("", "lab.write", "dear")) // judged again once it is approved
	if err := answerAs(t, env, "carol", questionOf(t, env, asked), map[string]any{"approved": true}, ""); err != nil {
		t.Fatal(err)
	}
	env.Await(asked)
	unanswered := env.Insert(inSession("", "lab.write", "dear"))
	questionOf(t, env, unanswered)
	for _, c := range []handlertest.Call{
		inSession("", "lab.send", "secret"),
		inSession("", "lab.send", "quiet"),
		inSession("", "lab.write", "large"),
		{Tool: "lab.write", Input: task(Task{Text: "x", Then: "transient once"})}, // judged in two attempts
		{Tool: "lab.pay", Input: `{"text": "quiet", "amount": 1}`},
		{Tool: "lab.pay", Input: `{"text": "quiet", "amount": 1}`},
		{Tool: "lab.nothing", Input: task(Task{Text: "quiet", Key: "a"})},
	} {
		env.Run(c)
	}
	turned := env.Insert(handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "quiet", Key: "b"})})
	env.Await(turned)
	w.Stop() // and so all of it has been measured
	want := map[string]int64{
		"gem.rule.action=ask,gem.rule.name=dear":         1,
		"gem.rule.action=block,gem.rule.name=no_secrets": 1,
		"gem.rule.action=warn,gem.rule.name=hm":          4,
		"gem.rule.action=block,gem.rule.name=one":        1,
		"gem.rule.action=warn,gem.rule.name=large":       1,
	}
	if slices.Contains(env.Journal(turned), "delayed") { // it may have come after its turn
		want["gem.rule.action=wait,gem.rule.name=pace"] = 1
	}
	got := l.metrics(t)
	if diff := cmp.Diff(want, got["gem.rules.verdicts"]); diff != "" {
		t.Error(diff)
	}
	for series := range got["gem.call.ended"] {
		if strings.Contains(series, "_OTHER") {
			t.Errorf("an end of a rule's is counted as %s", series)
		}
	}
}
