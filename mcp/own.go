package mcp

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/prose"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// ownTool is one of GEM's own tools, for existing calls.
type ownTool struct {
	sdk.Tool
	answer func(*Server, context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error)
}

var ownTools = []*ownTool{{
	Tool: sdk.Tool{
		Name: "gem_result", Title: "Result of a call",
		Description: "Returns the receipt of a call that was answered with gem_pending, or its progress. It starts nothing.",
		InputSchema: json.RawMessage(`{"type":"object","additionalProperties":false,"required":["call_id"],"properties":{` +
			`"call_id":{"type":"string","description":"The id in gem_pending."},` +
			`"wait_seconds":{"type":"number","minimum":0,"maximum":45,"description":"How long to wait for the receipt; 0 by default."}}}`),
		OutputSchema: outputSchema(
			json.RawMessage(`{"type":"object","required":["call_id","tool_name","status","result"],"properties":{` +
				`"id":{"type":"string"},"call_id":{"type":"string"},"tool_name":{"type":"string"},` +
				`"status":{"enum":["succeeded","failed","not_configured"]},"result":{"type":"object"},"effects":{"type":"object"}}}`)),
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, OpenWorldHint: new(bool)},
	},
	answer: (*Server).answerResult,
}, {
	Tool: sdk.Tool{
		Name: "gem_cancel", Title: "Cancel a call",
		Description: "Ends a call that has not run, or asks the worker that runs it to end it. It cannot undo what the " +
			"call has done.",
		InputSchema: json.RawMessage(
			`{"type":"object","additionalProperties":false,"required":["call_id"],"properties":{"call_id":{"type":"string"}}}`),
		OutputSchema: json.RawMessage(
			`{"type":"object","required":["call_id","answer"],"properties":{"call_id":{"type":"string"},"answer":{"type":"string",` +
				`"description":"cancelled: it has ended. requested: its worker will end it. Otherwise the status with which it had already ended."}}}`),
		Annotations: &sdk.ToolAnnotations{IdempotentHint: true, OpenWorldHint: new(bool)},
	},
	answer: (*Server).answerCancel,
}}

// ownInput is the input of both tools.
type ownInput struct {
	CallID      string  `json:"call_id"`
	WaitSeconds float64 `json:"wait_seconds"`
}

func readOwn(req *sdk.CallToolRequest) (in ownInput, err error) {
	if err := json.Unmarshal(req.Params.Arguments, &in); err != nil || in.WaitSeconds < 0 || in.WaitSeconds > 45 {
		return in, invalid("%s takes call_id, a string, and wait_seconds, a number from 0 to 45", req.Params.Name)
	}
	if !value.IsUUID(in.CallID) {
		return in, noCall(prose.Cut(in.CallID, 100))
	}
	in.CallID = strings.ToLower(in.CallID)
	return in, nil
}

// answerResult implements gem_result. A failed call is not an error here: the caller asked for its receipt.
func (d *Server) answerResult(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	c, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	in, err := readOwn(req)
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(time.Duration(in.WaitSeconds * float64(time.Second)))
	s, err := d.state(ctx, c, in.CallID) // before any wait, whose end would reveal when another's call ends
	if err != nil && !again(err) {
		return nil, err
	}
	if err != nil || !s.ended() {
		stop := d.progress(ctx, c, req, in.CallID)
		defer stop()
		var answer *sdk.CallToolResult
		if s, answer, err = d.follow(ctx, c, req, nil, in.CallID, until, true); err != nil || answer != nil {
			return answer, err
		}
	}
	switch {
	case !s.ended():
		return annotated(pending(s), s), nil
	case len(s.Receipt.Result) > d.o.MaxResult:
		return annotated(large(s, d.o.MaxResult), s), nil
	}
	return annotated(structured(encode(s.Receipt)), s), nil
}

// answerCancel implements gem_cancel.
func (d *Server) answerCancel(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	c, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	in, err := readOwn(req)
	if err != nil {
		return nil, err
	}
	try, cancel := context.WithTimeout(context.WithoutCancel(ctx), oneTry)
	defer cancel()
	answer, err := d.cancel(try, c, in.CallID)
	if why, ok := refused(err); ok {
		return failed(why), nil
	} else if err != nil {
		return nil, err
	}
	return structured(encode(struct {
		CallID string              `json:"call_id"`
		Answer client.Cancellation `json:"answer"`
	}{in.CallID, answer})), nil
}
