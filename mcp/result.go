package mcp

import (
	"encoding/json"
	"fmt"

	"github.com/gemworker/gem/receipts"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// result is the answer to a tools/call whose call is in a state, for clients without tasks.
func (d *Door) result(s state) *sdk.CallToolResult {
	if !s.ended() {
		return pending(s)
	}
	var r receipts.Receipt
	if err := json.Unmarshal(s.receipt, &r); err != nil {
		return text(fmt.Sprintf("the receipt of call %s cannot be read", s.id), true)
	}
	if r.Status == receipts.Succeeded {
		result := text(string(r.Result), false)
		result.StructuredContent = r.Result
		return result
	}
	return text(string(r.Result), true)
}

func pending(s state) *sdk.CallToolResult {
	content, _ := json.Marshal(map[string]any{"gem_pending": map[string]string{"call_id": s.id, "state": s.status,
		"message": fmt.Sprintf("The call has been accepted and goes on. Call gem_result with call_id %s for its result; do not call %s again.", s.id, s.tool)}})
	result := text(string(content), false)
	result.StructuredContent = json.RawMessage(content)
	return result
}

func text(s string, isError bool) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: s}}, IsError: isError}
}
