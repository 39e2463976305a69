package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// The lab has tools that take long, fail and ask, under the names of the official conformance suite.

type (
	lab      struct{}
	slow     struct{}
	failing  struct{}
	protocol struct{}
	confirm  struct{}
	multi    struct{}
	test     struct{}

	labInput struct {
		Name, Filename, Tool string
		Seconds              float64
		Until                time.Time
		By                   []string
	}
	labOutput struct {
		Text string `json:"text"`
	}
)

// labMoment is longer, on any machine, than the server waits before a call becomes a task.
const labMoment = 2500 * time.Millisecond

func (lab) Greet(_ context.Context, _ *handlers.Call, in labInput) (labOutput, error) {
	return labOutput{"Hello, " + in.Name + "!"}, nil
}

// Compute takes longer than requested, which the suite does not check.
func (slow) Compute(ctx context.Context, _ *handlers.Call, in labInput) (labOutput, error) {
	return labOutput{"computed"}, pause(ctx, time.Duration(in.Seconds*float64(labMoment)))
}

func (failing) Job(ctx context.Context, _ *handlers.Call, _ labInput) (out labOutput, err error) {
	if err := pause(ctx, labMoment); err != nil {
		return out, err
	}
	return out, handlers.Fail("lab", "It always fails.")
}

// ErrorJob ends like a call to a tool that the worker's registry does not have: only that is a protocol error.
func (protocol) ErrorJob(ctx context.Context, _ *handlers.Call, _ labInput) (out labOutput, err error) {
	if err := pause(ctx, labMoment); err != nil {
		return out, err
	}
	return out, &handlers.Failure{Code: "unknown_tool", Message: "There is no such tool."}
}

type person struct {
	Name    *string `json:"name"`
	Confirm *bool   `json:"confirm"`
}

func (p person) String() string {
	text, _ := json.Marshal(p)
	return string(text)
}

func (confirm) Delete(ctx context.Context, call *handlers.Durable, in labInput) (out labOutput, err error) {
	if err := handlers.Sleep(ctx, call, "a moment", labMoment); err != nil {
		return out, err
	}
	p, err := handlers.Ask[person](call, "confirm", handlers.Question{Text: "Delete " + in.Filename + "?"}).Wait(ctx)
	return labOutput{p.String()}, err
}

func (multi) Input(ctx context.Context, call *handlers.Durable, _ labInput) (out labOutput, err error) {
	if err := handlers.Sleep(ctx, call, "a moment", labMoment); err != nil {
		return out, err
	}
	one := handlers.Ask[person](call, "one", handlers.Question{Text: "The first?"})
	two := handlers.Ask[person](call, "two", handlers.Question{Text: "The second?"})
	if err := handlers.All(ctx, one, two); err != nil {
		return out, err
	}
	a, err := one.Wait(ctx)
	if err != nil {
		return out, err
	}
	b, err := two.Wait(ctx)
	return labOutput{a.String() + b.String()}, err
}

func (test) ToolWithTask(ctx context.Context, call *handlers.Durable, _ labInput) (out labOutput, err error) {
	p, err := handlers.Ask[person](call, "user_name", handlers.Question{Text: "Who are you?"}).Wait(ctx)
	if err == nil {
		err = handlers.Sleep(ctx, call, "a moment", labMoment)
	}
	return labOutput{p.String()}, err
}

// Ask asks for a number.
func (lab) Ask(ctx context.Context, call *handlers.Durable, in labInput) (out labOutput, err error) {
	n, err := handlers.Ask[int](call, "number", handlers.Question{Text: "How many?", By: in.By,
		Schema: json.RawMessage(`{"type":"integer","minimum":1,"maximum":9}`)}).Wait(ctx)
	return labOutput{fmt.Sprint(n)}, err
}

// Soon asks for a number, and continues without it once the question or the handler's wait has expired.
func (lab) Soon(ctx context.Context, call *handlers.Durable, in labInput) (labOutput, error) {
	number := handlers.Ask[int](call, "number", handlers.Question{Text: "How many?", By: []string{"user:bob"},
		Until: in.Until})
	if in.Seconds > 0 {
		number.Within(time.Duration(in.Seconds * float64(time.Second)))
	}
	if _, err := number.Wait(ctx); err == nil || ctx.Err() != nil {
		return labOutput{}, err
	}
	return labOutput{"without"}, nil
}

// Receive waits for a system's event.
func (lab) Receive(ctx context.Context, call *handlers.Durable, _ labInput) (labOutput, error) {
	text, err := handlers.Receive[string](call, "sent").Wait(ctx)
	return labOutput{text}, err
}

// Nest makes another call that asks.
func (lab) Nest(ctx context.Context, call *handlers.Durable, _ labInput) (labOutput, error) {
	return handlers.Start[labOutput](call, "inner", "lab.ask", map[string]any{}).Wait(ctx)
}

// Approve asks for the approval of a call.
func (lab) Approve(ctx context.Context, call *handlers.Durable, in labInput) (out labOutput, err error) {
	decision, err := handlers.Approve(call, "approval",
		handlers.Approval{Tool: "lab.greet", Input: map[string]string{"name": "Ada"}, By: in.By, OwnerToo: true}).Wait(ctx)
	return labOutput{fmt.Sprint(decision.Approved)}, err
}

// Both asks for a number, and waits for an event.
func (lab) Both(ctx context.Context, call *handlers.Durable, _ labInput) (out labOutput, err error) {
	number := handlers.Ask[int](call, "number", handlers.Question{Text: "How many?",
		Schema: json.RawMessage(`{"type":"integer"}`)})
	event := handlers.Start[json.RawMessage](call, "event", "wait.event", map[string]any{"by": []string{"owner"}})
	return labOutput{"both"}, handlers.All[handlers.Awaited](ctx, number, event)
}

// Event waits for an event.
func (lab) Event(ctx context.Context, call *handlers.Durable, _ labInput) (out labOutput, err error) {
	_, err = handlers.Start[json.RawMessage](call, "event", "wait.event",
		map[string]any{"text": "the bank's transfer", "by": []string{"owner"}}).Wait(ctx)
	return labOutput{"came"}, err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// labRegistry returns the lab's tools and the tools that ask.
func labRegistry(t testing.TB) []byte {
	t.Helper()
	var all struct {
		Version string            `json:"version"`
		Include []string          `json:"include"`
		Tools   []json.RawMessage `json:"tools"`
	}
	all.Version, all.Include = "lab", []string{"wait.event"}
	for _, name := range []string{"lab.greet", "slow.compute", "failing.job", "protocol.error_job", "confirm.delete",
		"multi.input", "test.tool_with_task",
		"lab.ask", "lab.nest", "lab.approve", "lab.event", "lab.both", "lab.soon", "lab.receive"} {
		all.Tools = append(all.Tools, json.RawMessage(fmt.Sprintf(
			`{"name": %q, "description": "A tool of the lab.", "permissions": ["read:db"],
			"input_schema": {"type": "object", "properties": {"name": {"type": "string"}, "filename": {"type": "string"}, "tool": {"type": "string"},
				"seconds": {"type": "number"}, "label": {"type": "string"}, "by": {"type": "array", "items": {"type": "string"}}}},
			"output_schema": {"type": "object", "properties": {"text": {"type": "string"}}},
			"idempotency": {"mode": "none"}, "timeout_ms": 100000, "calls": ["wait.answer", "wait.approval", "wait.event", "lab.greet", "lab.ask"], "receipt_fields": []}`, name)))
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// labEnv is a lab: a database, a worker, and a server.
type labEnv struct {
	*handlertest.Env
	server     *Server
	t          testing.TB
	statements atomic.Int64 // that the server has sent
}

// TraceQueryStart counts statements.
func (l *labEnv) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	l.statements.Add(1)
	return ctx
}

func (l *labEnv) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// newLab starts a lab. ruled are the rules of its worker.
func newLab(t testing.TB, o Options, ruled ...string) *labEnv {
	t.Helper()
	text := labRegistry(t)
	e := handlertest.Start(t, handlertest.Options{Domains: []any{lab{}, slow{}, failing{}, protocol{}, confirm{}, multi{},
		test{}}, Registry: text,
		Worker: func(o *worker.Options) {
			for _, text := range ruled {
				var err error
				if o.Rules, err = rules.Parse([]byte(text)); err != nil {
					t.Fatal(err)
				}
			}
		}})
	var err error
	if o.Registry, err = registry.Parse(text); err != nil {
		t.Fatal(err)
	}
	l := &labEnv{Env: e, t: t}
	o.Pool = func(ctx context.Context) (*pgxpool.Pool, error) {
		config, err := pgxpool.ParseConfig(e.URL)
		if err != nil {
			return nil, err
		}
		config.ConnConfig.Tracer = l
		return pgxpool.NewWithConfig(context.WithoutCancel(ctx), config)
	}
	if l.server, err = New(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.server.Close)
	return l
}

// connect returns a client's session over a pipe, like stdio. capabilities are the client's, and o may answer
// questions.
func (l *labEnv) connect(version string, capabilities *sdk.ClientCapabilities,
	o *sdk.ClientOptions) *sdk.ClientSession {
	l.t.Helper()
	if o == nil {
		o = &sdk.ClientOptions{}
	}
	o.Capabilities = capabilities
	here, there := sdk.NewInMemoryTransports()
	server, err := l.server.sdk.Connect(withCaller(context.Background(), caller{subject: "ada"}), there, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o).Connect(l.t.Context(), here,
		&sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		_ = session.Close()
		_ = server.Wait()
	})
	return session
}

// raw is a client that sends requests of the newest protocol over a pipe, and reads the raw answers.
type raw struct {
	t   testing.TB
	out net.Conn
	in  *bufio.Scanner
	// capabilities are sent with each request.
	capabilities string
	id           int
}

func (l *labEnv) raw(subject, capabilities string) *raw {
	l.t.Helper()
	here, there := net.Pipe()
	server, err := l.server.sdk.Connect(withCaller(context.Background(), caller{subject: subject}),
		&sdk.IOTransport{Reader: there, Writer: there}, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		_ = here.Close()
		_ = server.Wait()
	})
	r := &raw{t: l.t, out: here, in: bufio.NewScanner(here), capabilities: capabilities}
	r.in.Buffer(nil, 4<<20)
	return r
}

// tasksAndForms, and so on, are capabilities of a client.
const (
	nothing       = `{}`
	onlyTasks     = `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	onlyForms     = `{"elicitation":{}}`
	tasksAndForms = `{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	formsAndLinks = `{"elicitation":{"form":{},"url":{}}}`
	tasksAndLinks = `{"elicitation":{"form":{},"url":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}}`
)

// said is an answer, with the fields that tests read.
type said struct {
	ResultType, TaskID, Status, StatusMessage, CreatedAt, LastUpdatedAt, RequestState string
	TTLMs                                                                             json.RawMessage
	PollIntervalMs                                                                    int
	InputRequests                                                                     map[string]struct {
		Method string
		Params struct {
			Mode, Message, URL string
			RequestedSchema    json.RawMessage
		}
	}
	Result            *said
	Content           []struct{ Text string }
	StructuredContent json.RawMessage
	IsError           bool
	Error             *struct {
		Code    int
		Message string
		Data    json.RawMessage
	}
	whole string
}

// text returns the text for a model.
func (s *said) text() string {
	var all []string
	for _, c := range s.Content {
		all = append(all, c.Text)
	}
	return strings.Join(all, "\n")
}

// question is the key of the only question.
func (s *said) question(t testing.TB) string {
	t.Helper()
	if len(s.InputRequests) != 1 {
		t.Fatalf("got %s, want one question", s.whole)
	}
	for key := range s.InputRequests {
		return key
	}
	return ""
}

// ask sends a request. A protocol error is in the answer's Error.
func (r *raw) ask(method, params string) *said {
	r.t.Helper()
	r.id++
	var p map[string]any
	if err := json.Unmarshal([]byte(params), &p); err != nil {
		r.t.Fatalf("%s: %v", params, err)
	}
	meta, _ := p["_meta"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
	}
	meta[sdk.MetaKeyProtocolVersion], meta[sdk.MetaKeyClientInfo] = "2026-07-28",
		map[string]string{"name": "test", "version": "1"}
	meta[sdk.MetaKeyClientCapabilities] = json.RawMessage(r.capabilities)
	p["_meta"] = meta
	request, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": r.id, "method": method, "params": p})
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.out.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.out.Write(append(request, '\n')); err != nil {
		r.t.Fatal(err)
	}
	for r.in.Scan() {
		var message struct {
			ID     int
			Result json.RawMessage
			Error  json.RawMessage
		}
		if err := json.Unmarshal(r.in.Bytes(), &message); err != nil {
			r.t.Fatal(err)
		}
		if message.ID != r.id {
			continue // a notification
		}
		s := &said{whole: r.in.Text()}
		if message.Error != nil {
			err = json.Unmarshal(message.Error, &s.Error)
		} else {
			err = json.Unmarshal(message.Result, s)
		}
		if err != nil {
			r.t.Fatalf("%s: %v", r.in.Text(), err)
		}
		return s
	}
	r.t.Fatalf("no answer to %s: %v", method, r.in.Err())
	return nil
}

// close ends the client.
func (r *raw) close() { _ = r.out.Close() }

// call sends a tools/call.
func (r *raw) call(tool, arguments string) *said {
	r.t.Helper()
	return r.ask("tools/call", fmt.Sprintf(`{"name": %q, "arguments": %s}`, tool, arguments))
}

// pending makes a call, and asks for its result until the pending answer contains a text.
func (r *raw) pending(tool, arguments, text string) *said {
	r.t.Helper()
	s := r.call(tool, arguments)
	var of struct {
		Pending struct {
			CallID string `json:"call_id"`
		} `json:"gem_pending"`
	}
	if err := json.Unmarshal(s.StructuredContent, &of); err != nil || of.Pending.CallID == "" {
		r.t.Fatalf("got %s, want a call that is pending", s.whole)
	}
	for until := time.Now().Add(time.Minute); !strings.Contains(s.text(), text); time.Sleep(20 * time.Millisecond) {
		if s = r.call("gem_result", fmt.Sprintf(`{"call_id": %q}`, of.Pending.CallID)); time.Now().After(until) ||
			!strings.Contains(s.text(), "gem_pending") {
			r.t.Fatalf("got %s, want a pending call that says %s", s.whole, text)
		}
	}
	return s
}

// says polls a task until its message contains a text.
func (r *raw) says(id, text string) *said {
	r.t.Helper()
	for until := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if s := r.ask("tasks/get", fmt.Sprintf(`{"taskId": %q}`, id)); strings.Contains(s.StatusMessage, text) {
			return s
		} else if time.Now().After(until) || s.Error != nil {
			r.t.Fatalf("got %s, want a task that says %s", s.whole, text)
		}
	}
}

// task polls a task until it has a status.
func (r *raw) task(id, status string) *said {
	r.t.Helper()
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		s := r.ask("tasks/get", fmt.Sprintf(`{"taskId": %q}`, id))
		if s.Status == status {
			return s
		}
		if s.Error != nil || s.Status != "working" && s.Status != "input_required" {
			r.t.Fatalf("got %s, want a task that is %s", s.whole, status)
		}
	}
	r.t.Fatalf("task %s is not %s after a minute", id, status)
	return nil
}

// textOf returns the text for a model.
func textOf(r *sdk.CallToolResult) string {
	var all []string
	for _, c := range r.Content {
		if text, ok := c.(*sdk.TextContent); ok {
			all = append(all, text.Text)
		}
	}
	return strings.Join(all, "\n")
}
