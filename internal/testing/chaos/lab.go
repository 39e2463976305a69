//go:build !windows

package chaos

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gemworker/gem/handlers"
)

// The tools of a run, by what they test.
const (
	write     = "lab.write"      // a row in the call's transaction
	writeOnce = "lab.write_once" // the same, once per key
	send      = "lab.send"       // an effect outside that may not happen twice
	charge    = "lab.charge"     // an effect outside, once per key
	ping      = "lab.ping"       // an effect outside that may happen twice
	flow      = "lab.flow"       // steps of each kind, a call and a question
	chat      = "llm.chat"       // a request to a model
	tell      = "lab.tell"       // an effect outside that delivers notices of failures
	unbuilt   = "lab.unbuilt"    // registered, without a handler
	unknown   = "lab.unknown"    // not registered
)

// Lab is the domain of the tools. Its tables are in lab.sql.
type Lab struct {
	outside string // address of the server outside
	client  *http.Client
}

// Task is the input of each tool.
type Task struct {
	// Takes is the duration in milliseconds, one half before the effect and one half after it.
	Takes int `json:"takes_ms"`
	// Then is the ending: empty for success, or one of the words below.
	Then string `json:"then,omitempty"`
	Key  string `json:"key,omitempty"`
}

// The endings of a handler apart from success.
const (
	thenFail      = "fail"
	thenPanic     = "panic"
	thenTransient = "transient" // in the first two attempts; success from then on
)

// Done is the output of each tool. It names its call and attempt, so that a repeated result can be recognised.
type Done struct {
	CallID  string `json:"call_id"`
	Attempt int    `json:"attempt"`
}

// Write handles lab.write.
func (l Lab) Write(ctx context.Context, tx handlers.Tx, call *handlers.Call, in Task) (Done, error) {
	return l.do(ctx, call, in, func() error {
		var id string
		err := tx.QueryRow(ctx, "insert into lab_rows (call_id, attempt) values ($1, $2) returning id::text", call.ID,
			call.Attempt).Scan(&id)
		if err == nil {
			call.Wrote("lab_rows", handlers.Insert, id)
		}
		return err
	})
}

// WriteOnce handles lab.write_once.
func (l Lab) WriteOnce(ctx context.Context, tx handlers.Tx, call *handlers.Call, in Task) (Done, error) {
	return l.Write(ctx, tx, call, in)
}

// Send handles lab.send.
func (l Lab) Send(ctx context.Context, call *handlers.Call, in Task) (Done, error) {
	return l.do(ctx, call, in, func() error { return l.post(ctx, call, call.Tool, "") })
}

// Charge handles lab.charge.
func (l Lab) Charge(ctx context.Context, call *handlers.Call, in Task) (Done, error) {
	return l.do(ctx, call, in, func() error { return l.post(ctx, call, call.Tool, in.Key) })
}

// Ping handles lab.ping.
func (l Lab) Ping(ctx context.Context, call *handlers.Call, in Task) (Done, error) {
	return l.Send(ctx, call, in)
}

// Tell handles lab.tell.
func (l Lab) Tell(ctx context.Context, call *handlers.Call, in Task) (Done, error) {
	return l.Send(ctx, call, in)
}

// The two steps that a flow reports to the server outside: one that may run again, and one that may not.
const (
	flowStep = "flow.step"
	flowOnce = "flow.once"
)

// Flow handles lab.flow.
func (l Lab) Flow(ctx context.Context, d *handlers.Durable, in Task) (out Done, err error) {
	half := time.Duration(in.Takes) * time.Millisecond / 2
	_, err = handlers.Step(ctx, d, "step", func(ctx context.Context) (bool, error) {
		return sleep(ctx, half), l.post(ctx, d.Call, flowStep, "")
	})
	if err != nil {
		return out, err
	}
	_, err = handlers.StepTx(ctx, d, "row", func(ctx context.Context, tx handlers.Tx) (int, error) {
		_, err := tx.Exec(ctx, "insert into lab_steps (call_id) values ($1)", d.ID)
		return 1, err
	})
	if err != nil {
		return out, err
	}
	child := handlers.Start[Done](d, "child", write, Task{Takes: in.Takes})
	question := handlers.Ask[string](d, "question", handlers.Question{Text: "Well?"})
	_, err = handlers.StepOnce(ctx, d, "once", func(ctx context.Context) (bool, error) {
		return sleep(ctx, half), l.post(ctx, d.Call, flowOnce, "")
	})
	if err != nil {
		return out, err
	}
	if err := handlers.All[handlers.Awaited](ctx, child, question); err != nil {
		return out, err
	}
	if answer, err := question.Wait(ctx); err != nil || answer != rightAnswer {
		return out, fmt.Errorf("the answer is %q: %w", answer, err)
	}
	switch {
	case in.Then == thenFail:
		return out, errors.New("it was to fail")
	case in.Then == thenPanic:
		panic("it was to panic")
	case in.Then == thenTransient && d.Attempt < 3:
		return out, handlers.Transient(errors.New("it was to try again"))
	}
	return Done{CallID: d.ID, Attempt: d.Attempt}, nil
}

func (l Lab) do(ctx context.Context, call *handlers.Call, in Task, effect func() error) (Done, error) {
	half := time.Duration(in.Takes) * time.Millisecond / 2
	if !sleep(ctx, half) {
		return Done{}, ctx.Err()
	}
	if err := effect(); err != nil {
		return Done{}, err
	}
	if !sleep(ctx, half) {
		return Done{}, ctx.Err()
	}
	switch {
	case in.Then == thenFail:
		return Done{}, errors.New("it was to fail")
	case in.Then == thenPanic:
		panic("it was to panic")
	case in.Then == thenTransient && call.Attempt < 3:
		return Done{}, handlers.Transient(errors.New("it was to try again"))
	}
	return Done{CallID: call.ID, Attempt: call.Attempt}, nil
}

// post reports a call to the server outside.
func (l Lab) post(ctx context.Context, call *handlers.Call, what, key string) error {
	body, err := json.Marshal(arrival{CallID: call.ID, Attempt: call.Attempt, Tool: what, Key: key})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.outside, bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := l.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	call.Called("outside", l.outside, answer.StatusCode)
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the server outside said %s", answer.Status)
	}
	return nil
}

// labRules are the rules of a run with rules.
//
//go:embed rules.json
var labRules []byte

// labNotify reports failures of calls to the server outside.
const labNotify = `{"version": "1.0.0", "rules": [{"when": "failed", "to": ["outside"], "every": "1s"}],
	"channels": {"outside": {"tool": "lab.tell", "input": {"takes_ms": 0, "key": "{title}"}}}}`

// labRegistry returns the registry of the tools. It allows the maximum of attempts, so that kills do not use them up.
func labRegistry() []byte {
	type object = map[string]any
	text := object{"type": "string"}
	entry := func(name, mode string) object {
		idempotency, required := object{"mode": mode}, []string{"takes_ms"}
		if mode == "keyed" {
			idempotency["key_field"] = "key"
			required = append(required, "key")
		}
		timeout := 10_000
		// they use no connection that can go silent, and may be held by the server outside
		if name == send || name == charge || name == ping || name == tell {
			timeout = 60_000
		}
		if mode == "safe-retry" {
			idempotency["on_other_input"] = "replay" // calls with the same key have different inputs here
		}
		return object{
			"calls": []string{write}, "name": name, "permissions": []string{}, "timeout_ms": timeout, "idempotency": idempotency,
			"input_schema": object{"type": "object", "required": required, "additionalProperties": false,
				"properties": object{"takes_ms": object{"type": "integer"}, "then": text, "key": text}},
			"output_schema": object{"type": "object", "required": []string{"call_id", "attempt"}},
			"retry":         object{"max_attempts": 20, "backoff_ms": 10},
		}
	}
	encoded, err := json.Marshal(object{
		"version": "1.0.0", "include": []string{"wait", chat},
		"overrides": object{chat: object{"timeout_ms": 30_000, "retry": object{"max_attempts": 20, "backoff_ms": 10}}},
		"tools": []object{entry(write, "none"), entry(writeOnce, "keyed"), entry(send, "none"), entry(charge, "keyed"),
			entry(ping, "safe-retry"), entry(tell, "safe-retry"), entry(flow, "none"), entry(unbuilt, "none")},
	})
	if err != nil {
		panic(err)
	}
	return encoded
}
