package llmtest

import (
	"encoding/json"
	"errors"

	"github.com/gemworker/gem/internal/provider"
)

func (r *Request) readAnthropic() error {
	var body struct {
		Model         string
		System        text
		MaxTokens     int `json:"max_tokens"`
		Stream        bool
		Temperature   *float64
		TopP          *float64 `json:"top_p"`
		StopSequences []string `json:"stop_sequences"`
		Messages      []struct {
			Role    string
			Content json.RawMessage
		}
		Tools []struct {
			Name, Description string
			InputSchema       json.RawMessage `json:"input_schema"`
		}
		ToolChoice   struct{ Type string } `json:"tool_choice"`
		OutputConfig struct {
			Effort string
			Format struct {
				Type   string
				Schema json.RawMessage
			}
		} `json:"output_config"`
		CacheControl *cacheControl `json:"cache_control"`
	}
	if err := json.Unmarshal(r.Body, &body); err != nil {
		return err
	}
	var marked struct {
		System []struct {
			CacheControl *cacheControl `json:"cache_control"`
		}
	}
	_ = json.Unmarshal(r.Body, &marked) // a plain string has no marks
	r.Asked = provider.Request{
		Model: body.Model, System: string(body.System), MaxOutputTokens: body.MaxTokens, Temperature: body.Temperature,
		TopP: body.TopP,
		Stop: body.StopSequences, Effort: provider.Effort(body.OutputConfig.Effort), Schema: body.OutputConfig.Format.Schema,
		ToolChoice: map[string]provider.ToolChoice{"auto": provider.ChooseAuto, "any": provider.ChooseRequired,
			"none": provider.ChooseNone}[body.ToolChoice.Type],
	}
	for _, t := range body.Tools {
		r.Asked.Tools = append(r.Asked.Tools, provider.Tool{Name: t.Name, Description: t.Description,
			Parameters: t.InputSchema})
	}
	for _, m := range body.Messages {
		content, err := anthropicContent(m.Content)
		if err != nil {
			return err
		}
		role := provider.Role(m.Role)
		if len(content) > 0 && content[0].Type == provider.ToolResult {
			role = provider.FromTool
		}
		r.Asked.Messages = append(r.Asked.Messages, provider.Message{Role: role, Content: content})
	}
	if n := len(marked.System); n > 0 && marked.System[n-1].CacheControl != nil {
		r.CacheAt = append(r.CacheAt, len(body.Tools)+1)
	}
	if body.CacheControl != nil {
		r.CacheAt = append(r.CacheAt, len(pieces(&r.Asked)))
	}
	switch {
	case r.Header.Get("Anthropic-Version") == "":
		return errors.New("anthropic-version: header is required")
	case body.MaxTokens < 1:
		return errors.New("max_tokens: field required")
	case !body.Stream:
		return errors.New("stream: llmtest has streams alone")
	}
	return nil
}

type cacheControl struct{ Type string }

func anthropicContent(raw json.RawMessage) (provider.Content, error) {
	var plain string
	if json.Unmarshal(raw, &plain) == nil {
		return provider.Content{{Type: provider.Text, Text: plain}}, nil
	}
	var blocks []struct {
		Type, Text, Thinking, Signature, Data, ID, Name string
		Input                                           json.RawMessage
		ToolUseID                                       string `json:"tool_use_id"`
		Content                                         text
		IsError                                         bool `json:"is_error"`
	}
	if err := json.Unmarshal(raw, &blocks); err != nil {
		return nil, err
	}
	var content provider.Content
	for _, b := range blocks {
		switch b.Type {
		case "text":
			content = append(content, provider.Part{Type: provider.Text, Text: b.Text})
		case "thinking":
			content = append(content, provider.Part{Type: provider.Thinking, Text: b.Thinking, Signature: b.Signature})
		case "redacted_thinking":
			content = append(content, provider.Part{Type: provider.Thinking, Redacted: true, Signature: b.Data})
		case "tool_use":
			content = append(content, provider.Part{Type: provider.ToolCall, ID: b.ID, Name: b.Name, Arguments: b.Input})
		case "tool_result":
			content = append(content, provider.Part{Type: provider.ToolResult, ToolCallID: b.ToolUseID,
				Content: string(b.Content), IsError: b.IsError})
		default:
			return nil, errors.New("no content has the type " + b.Type)
		}
	}
	return content, nil
}

// anthropic writes the Messages dialect.
type anthropic struct{}

var anthropicStops = map[provider.Stop]string{
	provider.EndTurn: "end_turn", provider.MaxTokens: "max_tokens", provider.ToolUse: "tool_use",
	provider.StopSequence: "stop_sequence", provider.Refusal: "refusal",
}

var anthropicErrors = map[int]string{
	400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
	404: "not_found_error",
	413: "request_too_large", 422: "invalid_request_error", 429: "rate_limit_error", 504: "timeout_error",
	503: "overloaded_error", 529: "overloaded_error",
}

func (anthropic) event(name string, fields object) event {
	fields["type"] = name
	return event{text: "event: " + name + "\n" + lines(fields)}
}

func (anthropic) usage(u *provider.Usage, output int64) object {
	usage := object{
		"input_tokens": u.Input - u.CacheRead - u.CacheWrite, "cache_read_input_tokens": u.CacheRead,
		"cache_creation_input_tokens": u.CacheWrite,
		"output_tokens":               output,
	}
	if u.NoInput {
		delete(usage, "input_tokens")
	}
	if u.NoOutput {
		delete(usage, "output_tokens")
	}
	return usage
}

func (d anthropic) begin(a *spoken) []event {
	message := object{
		"id": "msg_" + a.id, "type": "message", "role": "assistant", "model": a.model, "content": []any{}, "stop_reason": nil,
		"stop_sequence": nil,
	}
	if a.usage != nil {
		message["usage"] = d.usage(a.usage, min(1, a.usage.Output)) // what is known so far; the last one counts
	}
	return []event{d.event("message_start", object{"message": message}), {text: d.alive(a)}}
}

func (anthropic) alive(*spoken) string { return "event: ping\ndata: {\"type\": \"ping\"}\n\n" }

func (d anthropic) body(a *spoken) []event {
	var list []event
	for i, p := range a.Parts {
		start := func(block object) {
			list = append(list, d.event("content_block_start", object{"index": i, "content_block": block}))
		}
		delta := func(kind, field, text string) {
			e := d.event("content_block_delta", object{"index": i, "delta": object{"type": kind, field: text}})
			e.delta = true
			list = append(list, e)
		}
		switch p.Type {
		case provider.Text:
			start(object{"type": "text", "text": ""})
			for _, piece := range a.pieces(p.Text) {
				delta("text_delta", "text", piece)
			}
		case provider.Thinking:
			if p.Redacted {
				start(object{"type": "redacted_thinking", "data": p.Signature})
				list[len(list)-1].delta = true
				break
			}
			start(object{"type": "thinking", "thinking": "", "signature": ""})
			for _, piece := range a.pieces(p.Text) {
				delta("thinking_delta", "thinking", piece)
			}
			if p.Signature != "" {
				delta("signature_delta", "signature", p.Signature)
			}
		case provider.ToolCall:
			start(object{"type": "tool_use", "id": p.ID, "name": p.Name, "input": object{}})
			list = append(list, d.event("content_block_delta",
				object{"index": i, "delta": object{"type": "input_json_delta", "partial_json": ""}}))
			for _, piece := range a.pieces(arguments(&p)) {
				delta("input_json_delta", "partial_json", piece)
			}
		}
		list = append(list, d.event("content_block_stop", object{"index": i}))
	}
	return list
}

func (d anthropic) end(a *spoken) []event {
	delta := object{"delta": object{"stop_reason": a.word(anthropicStops), "stop_sequence": nil}}
	if a.usage != nil {
		delta["usage"] = d.usage(a.usage, a.usage.Output)
	}
	return []event{d.event("message_delta", delta), d.event("message_stop", object{})}
}

func (d anthropic) again(a *spoken) []event { return d.end(a) }

func (d anthropic) failure(a *spoken, status int, message string, _ *Fault) string {
	kind := anthropicErrors[status]
	if kind == "" {
		kind = "api_error"
	}
	body, _ := json.Marshal(object{"type": "error", "error": object{"type": kind, "message": message}, "request_id": a.id})
	return string(body)
}

func (d anthropic) failed(a *spoken, status int, message string) string {
	return "event: error\ndata: " + d.failure(a, status, message, nil) + "\n\n"
}

func (anthropic) tooLong() string { return "prompt is too long: 210000 tokens > 200000 maximum" }

func (anthropic) data(text string) string {
	return "event: content_block_delta\ndata: " + text + "\n\n"
}
