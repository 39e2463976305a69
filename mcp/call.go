package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/jackc/pgx/v5"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// call answers tools/call: the call is inserted, and awaited for a while.
func (d *Door) call(ctx context.Context, t *tool, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	c, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	r, err := d.read(t, c, req)
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(d.o.Wait)
	id, err := d.enqueue(ctx, c, r)
	if err != nil {
		return nil, err
	}
	s, err := d.wait(ctx, c, id, until)
	if err != nil {
		return nil, err
	}
	return d.result(s), nil
}

// request is what a tools/call asks for.
type request struct {
	tool  *tool
	id    string // of the row; empty: the database gives one
	key   string // under which the call can be made again; empty for none
	input json.RawMessage
}

// read makes a request of a tools/call.
func (d *Door) read(t *tool, c caller, req *sdk.CallToolRequest) (request, error) {
	r := request{tool: t, input: req.Params.Arguments}
	if len(r.input) == 0 || string(r.input) == "null" {
		r.input = json.RawMessage("{}")
	}
	r.key, _ = req.Params.Meta["io.github.gemworker/key"].(string)
	if r.key != "" {
		r.id = rowID(c.subject, t.Name, r.key)
	}
	return r, nil
}

// enqueue inserts the call and returns its id.
func (d *Door) enqueue(ctx context.Context, c caller, r request) (id string, err error) {
	err = d.as(context.WithoutCancel(ctx), c, func(db client.DB) error {
		return db.QueryRow(ctx, "select public.enqueue_tool_call(tool_name => $1, input => $2, id => $3)::text", r.tool.Name, string(r.input), nullable(r.id)).Scan(&id)
	})
	return id, err
}

func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// state is a call as its caller may see it.
type state struct {
	id, tool, status string
	receipt          json.RawMessage // nil while it has none
}

func (s state) ended() bool { return s.receipt != nil }

// state reads a call. That of another is not found.
func (d *Door) state(ctx context.Context, c caller, id string) (s state, err error) {
	err = d.as(ctx, c, func(db client.DB) error {
		return db.QueryRow(ctx, `select c.id::text, c.tool_name, c.status, public.get_receipt(c.id) from public.core_tool_calls c
			where c.id = $1 and c.created_by = (select public.gem_caller())`, id).Scan(&s.id, &s.tool, &s.status, &s.receipt)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf("there is no call %s of yours", id)}
	}
	return s, err
}

// wait returns the state of a call as soon as it has ended, and at the latest at a time, or when the door stops.
func (d *Door) wait(ctx context.Context, c caller, id string, until time.Time) (s state, err error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		if s, err = d.state(ctx, c, id); err != nil || s.ended() || time.Now().After(until) {
			return s, err
		}
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-d.stopping:
			return s, nil
		case <-time.After(pause):
		}
	}
}
