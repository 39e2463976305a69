package worker_test

import (
	"cmp"
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/worker"
	"go.opentelemetry.io/otel/trace"
)

// Lab is the domain of these tests. A call's input is a [Task], in a small language:
//
//	tool          what it does first
//	lab.write     writes a row with the text, in the transaction of its receipt
//	lab.send      sends the text outside
//	lab.star      writes a row, and asks for all columns there are
//	lab.nothing   takes the transaction, and runs no statement in it
//	lab.bomb      passes an argument that panics when it is encoded
//	lab.hasty     cancels its first statement at the gate, and then uses the statement's argument for something else
//
//	text          a name for the call: in its row, in what is sent, and in awaitBegin
//	key           the value of the key field, for a tool that is keyed
//	gate          where the handler waits: awaitBegin returns when it does, tell lets it continue, or fail with the
//	              order's error
//	then          what it does last; empty: it succeeds with the text
//
//	then, the error           nil failure · wrapped nil · error that panics · error that panics later ·
//	                          details that panic · Is panics · Is, As, Unwrap or Error never returns ·
//	                          swallow an argument whose Is panics · fail · fail with details · poison error · transient · transient once (in the first attempt) ·
//	                          transient after a minute · transient after a minute once · transient after an hour ·
//	                          serialization failure once · nothing sent four times
//	then, the goroutine       panic · panic with poison · panic with panic · panic with a cycle · goexit ·
//	                          ignore the context · ignore the context in a statement · take a while
//	then, the output          nan · nul · huge number · duplicate keys · lone surrogate · invalid utf-8 ·
//	                          broken json · wrong type
//	then, the transaction     another statement · commit · rollback · swallow (an error) · leave rows open ·
//	                          read rows after the end · deferred constraint · give the call back ·
//	                          forget (all prepared statements, in the first attempt)
//	then, telemetry           trace (begins a span of its own)
type Lab struct {
	mu    sync.Mutex
	sent  []string              // what was sent, in order
	gates map[string]chan Order // a call whose input names a gate says that it runs, and waits for its order
	began chan string
	// trespasses counts uses of an argument that was its handler's again.
	trespasses atomic.Int64
}

// Order tells a waiting handler what to do.
type Order struct{ Err error }

type Task struct {
	Text string `json:"text"`
	Then string `json:"then"` // what goes wrong
	Gate string `json:"gate"` // where to wait
	Key  string `json:"key"`
}

type Done struct {
	Text  string `json:"text"`
	Extra any    `json:"extra,omitempty"`
}

func NewLab() *Lab { return &Lab{gates: map[string]chan Order{}, began: make(chan string, 1000)} }

func (l *Lab) Write(ctx context.Context, tx handlers.Tx, call *handlers.Call, in Task) (Done, error) {
	var id string
	if err := tx.QueryRow(ctx, "insert into lab_rows (text) values ($1) returning id::text",
		in.Text).Scan(&id); err != nil {
		return Done{}, err
	}
	call.Wrote("lab_rows", handlers.Insert, id)
	return l.then(ctx, tx, call, in)
}

func (l *Lab) Send(ctx context.Context, call *handlers.Call, in Task) (Done, error) {
	l.mu.Lock()
	l.sent = append(l.sent, in.Text)
	l.mu.Unlock()
	call.Sent("test", in.Text, call.ID)
	return l.then(ctx, nil, call, in)
}

// Star asks for whatever columns there are.
func (l *Lab) Star(ctx context.Context, tx handlers.Tx, call *handlers.Call, in Task) (Done, error) {
	if _, err := tx.Exec(ctx, "insert into lab_rows (text) values ($1) returning *", in.Text); err != nil {
		return Done{}, err
	}
	return l.then(ctx, tx, call, in)
}

// Bomb passes an argument that panics when it is encoded.
func (l *Lab) Bomb(ctx context.Context, tx handlers.Tx, _ *handlers.Call, _ Task) (Done, error) {
	_, err := tx.Exec(ctx, "insert into lab_rows (text) values ($1)", bomb{})
	return Done{}, err
}

// Hasty waits for its first statement until the test cancels it, and then uses the argument for something else.
func (l *Lab) Hasty(ctx context.Context, tx handlers.Tx, _ *handlers.Call, in Task) (Done, error) {
	ctx, cancel := context.WithCancel(ctx)
	go func() { <-l.gate(in.Gate); cancel() }()
	arg := &watchedArgument{lab: l, text: in.Text}
	_, err := tx.Exec(ctx, "insert into lab_rows (text) values ($1) returning 'hasty'", arg)
	arg.mine.Store(true)
	l.began <- in.Text
	return Done{}, err
}

// watchedArgument counts its encodings after its handler took it back.
type watchedArgument struct {
	lab  *Lab
	text string
	mine atomic.Bool
}

func (a *watchedArgument) Value() (driver.Value, error) {
	if a.mine.Load() {
		a.lab.trespasses.Add(1)
	}
	return a.text, nil
}

type bomb struct{}

func (bomb) Value() (driver.Value, error) { panic("the argument has a bug") }

// Nothing runs no statement at all.
func (l *Lab) Nothing(ctx context.Context, _ handlers.Tx, call *handlers.Call, in Task) (Done, error) {
	return l.then(ctx, nil, call, in)
}

func (l *Lab) then(ctx context.Context, tx handlers.Tx, call *handlers.Call, in Task) (Done, error) {
	if in.Gate != "" {
		gate := l.gate(in.Gate)
		l.began <- in.Text
		select {
		case order := <-gate:
			if order.Err != nil {
				return Done{}, order.Err
			}
		case <-ctx.Done():
			return Done{}, ctx.Err()
		}
	}
	switch in.Then {
	case "fail":
		return Done{}, errors.New("it failed")
	case "fail with details":
		return Done{}, &handlers.Failure{Code: "out_of_paper", Message: "There is no paper.",
			Details: map[string]int{"trays": 2}}
	case "transient":
		return Done{}, handlers.Transient(errors.New("come back later"))
	case "transient after a minute", "transient after an hour":
		after := time.Minute
		if in.Then == "transient after an hour" {
			after = time.Hour
		}
		return Done{}, handlers.TransientAfter(&handlers.Failure{Code: "busy", Message: "come back later"}, after)
	case "transient once":
		if call.Attempt == 1 {
			return Done{}, handlers.Transient(errors.New("come back later"))
		}
	case "transient after a minute once":
		if call.Attempt == 1 {
			return Done{}, handlers.TransientAfter(errors.New("come back later"), time.Minute)
		}
	case "nothing sent four times":
		if call.Attempt <= 4 {
			return Done{}, handlers.NothingSent(errors.New("nobody listens"), 0)
		}
	case "serialization failure once":
		if call.Attempt == 1 {
			_, err := tx.Exec(ctx, "do $$ begin raise serialization_failure; end $$")
			return Done{}, fmt.Errorf("update: %w", err)
		}
	case "swallow":
		_, _ = tx.Exec(ctx, "select 1/0")
	case "another statement":
		if _, err := tx.Exec(ctx, "select 'another statement'"); err != nil {
			return Done{}, fmt.Errorf("another statement: %w", err)
		}
	case "commit", "rollback":
		if _, err := tx.Exec(ctx, in.Then); err != nil {
			return Done{}, err
		}
	case "forget":
		if call.Attempt == 1 {
			if _, err := tx.Exec(ctx, "deallocate all"); err != nil {
				return Done{}, err
			}
		}
	case "trace":
		_, span := trace.SpanFromContext(ctx).TracerProvider().Tracer("lab").Start(ctx, "inside "+call.Tool)
		span.End()
	case "take a while":
		time.Sleep(20 * time.Millisecond)
	case "leave rows open":
		_, _ = tx.Query(ctx, "select generate_series(1, 3)") //nolint:sqlclosecheck // that is the point
	case "panic":
		panic("the handler has a bug")
	case "panic with a cycle":
		cycle := map[string]any{}
		cycle["self"] = cycle
		panic(cycle)
	case "panic with panic":
		panic(odd{"Error", func() { panic(panicking{}) }})
	case "error that panics later":
		reads := 0
		return Done{}, odd{"Error", func() {
			if reads++; reads > 1 {
				panic("the error has a bug")
			}
		}}
	case "Is panics":
		return Done{}, odd{"Is", func() { panic("the error has a bug") }}
	case "Is never returns", "As never returns", "Unwrap never returns", "Error never returns":
		return Done{}, odd{strings.Fields(in.Then)[0], func() { <-l.gate("never") }}
	case "swallow an argument whose Is panics":
		_, _ = tx.Exec(ctx, "select $1::text", oddArgument{odd{"Is", func() { panic("the error has a bug") }}})
	case "panic with poison":
		panic("nul \x00 and \xff")
	case "poison error":
		return Done{}, &handlers.Failure{Code: "c\x00", Message: "nul \x00 and \xff",
			Details: map[string]string{"\x00": "\x00"}}
	case "nil failure":
		return Done{}, (*handlers.Failure)(nil)
	case "wrapped nil":
		return Done{}, fmt.Errorf("wrapped: %w", (*handlers.NotConfigured)(nil))
	case "error that panics":
		return Done{}, panicking{}
	case "details that panic":
		return Done{}, &handlers.Failure{Message: "no", Details: panicking{}}
	case "read rows after the end":
		rows, err := tx.Query(context.Background(), "select repeat('x', 10000) from generate_series(1, 100000)")
		if err != nil {
			return Done{}, err
		}
		go func() {
			<-l.gate("late")
			for rows.Next() { // to the end
			}
			close(l.gate("read"))
		}()
	case "goexit":
		runtime.Goexit()
	case "nan":
		return Done{Extra: math.NaN()}, nil
	case "nul":
		return Done{Text: "a\x00b"}, nil
	case "huge number":
		return Done{Extra: json.Number("1e10000000")}, nil
	case "duplicate keys":
		return Done{Extra: json.RawMessage(`{"a": 1, "a": 2}`)}, nil
	case "lone surrogate":
		return Done{Extra: json.RawMessage(`"\ud800"`)}, nil
	case "invalid utf-8":
		return Done{Extra: json.RawMessage("\"\xff\"")}, nil
	case "broken json":
		return Done{Extra: json.RawMessage(`{`)}, nil
	case "wrong type":
		return Done{Text: in.Text, Extra: 1}, nil
	case "ignore the context":
		<-l.gate("never")
	case "ignore the context in a statement":
		_, err := tx.Exec(context.Background(), "select pg_sleep(60)")
		return Done{}, err
	case "give the call back":
		_, err := tx.Exec(ctx, "select gem.release(id, attempt, claimed_by) from core_tool_calls where id = $1", call.ID)
		return Done{}, err
	case "duplicate":
		_, err := tx.Exec(ctx, "insert into lab_customers (mail) values ($1)", in.Text)
		return Done{}, fmt.Errorf("add %s: %w", "a customer", err)
	case "no number":
		_, err := tx.Exec(ctx, "select $1::text::integer", in.Text)
		return Done{}, err
	case "raise":
		_, err := tx.Exec(ctx, "select lab_raise($1)", in.Text)
		return Done{}, err
	case "dynamic":
		_, err := tx.Exec(ctx, "select lab_run($1)", in.Text)
		return Done{}, err
	case "duplicate that the author reports":
		if _, err := tx.Exec(ctx, "insert into lab_customers (mail) values ($1)", in.Text); err != nil {
			return Done{}, handlers.Fail("known", "This customer is known.")
		}
	case "deferred constraint":
		_, err := tx.Exec(ctx, "insert into lab_children (parent) values (-1)")
		return Done{}, err
	}
	return Done{Text: in.Text}, nil
}

func (l *Lab) gate(name string) chan Order {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gates[name] == nil {
		l.gates[name] = make(chan Order)
	}
	return l.gates[name]
}

// tell lets a waiting handler continue.
func (l *Lab) tell(t *testing.T, gate string, o Order) {
	t.Helper()
	select {
	case l.gate(gate) <- o:
	case <-time.After(time.Minute):
		t.Fatalf("no handler waits at %s", gate)
	}
}

// awaitBegin waits until a handler with a gate runs, and returns its text.
func (l *Lab) awaitBegin(t *testing.T) string {
	t.Helper()
	select {
	case text := <-l.began:
		return text
	case <-time.After(time.Minute):
		t.Fatal("no handler began")
		return ""
	}
}

func (l *Lab) sentSoFar() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string{}, l.sent...)
}

// tool is a registry entry of the lab. Empty fields are a plain entry's.
type tool struct {
	name     string
	mode     string // none
	keyField string
	onOther  string
	timeout  time.Duration // ten minutes: none is to be hit unless a test says so
	deadline time.Duration // thirty days
	attempts int           // 3
	calls    []string

	permissions []string
}

func labRegistry(version string, tools ...tool) []byte {
	type object = map[string]any
	entries := []object{}
	for _, tl := range tools {
		if tl.mode == "" {
			tl.mode = "none"
		}
		if tl.timeout == 0 {
			tl.timeout = 10 * time.Minute
		}
		if tl.attempts == 0 {
			tl.attempts = 3
		}
		idempotency := object{"mode": tl.mode}
		required := []string{"text"}
		if tl.keyField != "" {
			idempotency["key_field"] = tl.keyField
			if tl.keyField != "text" {
				required = append(required, tl.keyField)
			}
		}
		if tl.onOther != "" {
			idempotency["on_other_input"] = tl.onOther
		}
		text := object{"type": "string"}
		entries = append(entries, object{
			"name": tl.name,
			"input_schema": object{"type": "object", "required": required, "additionalProperties": false,
				"properties": object{"text": text, "then": text, "gate": text, "key": text}},
			"output_schema": object{"type": "object", "required": []string{"text"},
				"properties": object{"text": text, "extra": object{"not": object{"const": 1}}}},
			"idempotency": idempotency, "timeout_ms": tl.timeout.Milliseconds(),
			"permissions": append([]string{}, tl.permissions...),
			"calls":       append([]string{}, tl.calls...), "deadline_ms": cmp.Or(tl.deadline, 24*time.Hour*30).Milliseconds(),
			"retry": object{"max_attempts": tl.attempts, "backoff_ms": 1},
		})
	}
	encoded, err := json.Marshal(object{"version": version, "tools": entries})
	if err != nil {
		panic(err)
	}
	return encoded
}

// startLab starts a worker with the lab's tools, on a database with the lab's tables.
func startLab(t *testing.T, change func(*worker.Options), tools ...tool) (*handlertest.Env, *Lab) {
	t.Helper()
	lab := NewLab()
	env := handlertest.Start(t, handlertest.Options{
		Registry: labRegistry("1.0.0", tools...),
		Domains:  []any{lab},
		Worker:   change,
		NoWorker: true,
	})
	_, err := env.DB.Exec(t.Context(), `
		create table lab_rows (id bigint generated always as identity primary key, text text);
		create table lab_children (parent bigint references lab_rows (id) deferrable initially deferred);`)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(lab.gate("never")) }) // handlers that ignore their context end with the test
	return env, lab
}

// task is the input of a call to the lab.
func task(in Task) string {
	fields := map[string]string{"text": in.Text}
	for name, value := range map[string]string{"then": in.Then, "gate": in.Gate, "key": in.Key} {
		if value != "" {
			fields[name] = value
		}
	}
	encoded, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return string(encoded)
}

func rowsWith(t *testing.T, env *handlertest.Env, text string) int {
	t.Helper()
	var n int
	if err := env.DB.QueryRow(t.Context(), "select count(*) from lab_rows where text = $1", text).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// panicking panics when it is read.
type panicking struct{}

func (panicking) Error() string                { panic("the error has a bug") }
func (panicking) MarshalJSON() ([]byte, error) { panic("the details have a bug") }

// odd is an error one of whose methods does something else first.
type odd struct {
	method string
	first  func()
}

func (o odd) in(method string) {
	if o.method == method {
		o.first()
	}
}
func (o odd) Error() string { o.in("Error"); return "odd" }
func (o odd) Is(error) bool { o.in("Is"); return false }
func (o odd) As(any) bool   { o.in("As"); return false }
func (o odd) Unwrap() error { o.in("Unwrap"); return nil }

// oddArgument gives an error when it is encoded.
type oddArgument struct{ odd }

func (a oddArgument) Value() (driver.Value, error) { return nil, a.odd }
