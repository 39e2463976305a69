package llmtest

import (
	"encoding/json"
	"errors"

	"github.com/gemworker/gem/internal/provider"
)

func (r *Request) readOpenAI() error {
	var body struct {
		Model               string
		MaxTokens           int `json:"max_tokens"`
		MaxCompletionTokens int `json:"max_completion_tokens"`
		Stream              bool
		Temperature         *float64
		TopP                *float64 `json:"top_p"`
		Stop                words
		Messages            []struct {
			Role       string
			Content    text
			ToolCallID string `json:"tool_call_id"`
			ToolCalls  []struct {
				ID       string
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
			ReasoningContent string `json:"reasoning_content"`
			Reasoning        string
		}
		Tools []struct {
			Function struct {
				Name, Description string
				Parameters        json.RawMessage
			}
		}
		ToolChoice      any    `json:"tool_choice"`
		ReasoningEffort string `json:"reasoning_effort"`
		ResponseFormat  struct {
			JSONSchema struct {
				Name   string
				Schema json.RawMessage
			} `json:"json_schema"`
		} `json:"response_format"`
	}
	if err := json.Unmarshal(r.Body, &body); err != nil {
		return err
	}
	choice, _ := body.ToolChoice.(string)
	r.Asked = provider.Request{
		Model: body.Model, MaxOutputTokens: max(body.MaxTokens, body.MaxCompletionTokens), Temperature: body.Temperature,
		TopP: body.TopP,
		Stop: body.Stop, Effort: provider.Effort(body.ReasoningEffort), ToolChoice: provider.ToolChoice(choice),
		Schema: body.ResponseFormat.JSONSchema.Schema, SchemaName: body.ResponseFormat.JSONSchema.Name,
	}
	for _, t := range body.Tools {
		r.Asked.Tools = append(r.Asked.Tools, provider.Tool{Name: t.Function.Name, Description: t.Function.Description,
			Parameters: t.Function.Parameters})
	}
	for _, m := range body.Messages {
		var content provider.Content
		if thought := m.ReasoningContent + m.Reasoning; thought != "" {
			content = append(content, provider.Part{Type: provider.Thinking, Text: thought})
		}
		switch m.Role {
		case "system", "developer":
			r.Asked.System += string(m.Content)
			continue
		case "tool":
			content = append(content, provider.Part{Type: provider.ToolResult, ToolCallID: m.ToolCallID,
				Content: string(m.Content)})
		case "user", "assistant":
			if m.Content != "" {
				content = append(content, provider.Part{Type: provider.Text, Text: string(m.Content)})
			}
		default:
			return errors.New("no message has the role " + m.Role)
		}
		for _, c := range m.ToolCalls {
			p := provider.Part{Type: provider.ToolCall, ID: c.ID, Name: c.Function.Name,
				Arguments: json.RawMessage(c.Function.Arguments)}
			if !json.Valid(p.Arguments) {
				return errors.New("the arguments of a call are no JSON")
			}
			content = append(content, p)
		}
		r.Asked.Messages = append(r.Asked.Messages, provider.Message{Role: provider.Role(m.Role), Content: content})
	}
	if !body.Stream {
		return errors.New("stream: llmtest has streams alone")
	}
	return nil
}

// openAI writes the Chat Completions dialect.
type openAI struct{}

var openAIStops = map[provider.Stop]string{
	provider.EndTurn: "stop", provider.MaxTokens: "length", provider.ToolUse: "tool_calls", provider.StopSequence: "stop",
	provider.Refusal: "content_filter",
}

var openAIErrors = map[int]string{401: "authentication_error", 403: "permission_error", 429: "rate_limit_exceeded"}

func (openAI) chunk(a *spoken, choices ...any) object {
	if choices == nil {
		choices = []any{}
	}
	return object{"id": "chatcmpl-" + a.id, "object": "chat.completion.chunk", "created": 1700000000, "model": a.model,
		"choices": choices}
}

func (d openAI) event(a *spoken, delta object, finish any) event {
	return event{text: lines(d.chunk(a, object{"index": 0, "delta": delta, "finish_reason": finish}))}
}

func (d openAI) begin(a *spoken) []event {
	return []event{d.event(a, object{"role": "assistant", "content": ""}, nil)}
}

func (openAI) alive(*spoken) string { return ": keep-alive\n\n" }

func (d openAI) body(a *spoken) []event {
	var list []event
	delta := func(fields object) {
		e := d.event(a, fields, nil)
		e.delta = true
		list = append(list, e)
	}
	calls := 0
	for _, p := range a.Parts {
		switch p.Type {
		case provider.Text:
			for _, piece := range a.pieces(p.Text) {
				delta(object{"content": piece})
			}
		case provider.Thinking:
			for _, piece := range a.pieces(p.Text) {
				delta(object{"reasoning_content": piece})
			}
		case provider.ToolCall:
			function := object{"name": p.Name, "arguments": ""}
			list = append(list, d.event(a, object{"tool_calls": []any{object{"index": calls, "id": p.ID, "type": "function",
				"function": function}}}, nil))
			for _, piece := range a.pieces(arguments(&p)) {
				delta(object{"tool_calls": []any{object{"index": calls, "function": object{"arguments": piece}}}})
			}
			calls++
		}
	}
	return list
}

func (d openAI) usage(a *spoken) event {
	u, chunk := a.usage, d.chunk(a)
	prompt, completion := object{"cached_tokens": u.CacheRead}, object{"reasoning_tokens": u.Reasoning}
	if u.CacheWrite > 0 {
		prompt["cache_write_tokens"] = u.CacheWrite
	}
	usage := object{
		"prompt_tokens": u.Input, "completion_tokens": u.Output, "total_tokens": u.Input + u.Output,
		"prompt_tokens_details": prompt, "completion_tokens_details": completion,
	}
	if u.NoInput {
		delete(usage, "prompt_tokens")
	}
	if u.NoOutput {
		delete(usage, "completion_tokens")
	}
	if u.CostUSD != "" {
		usage["cost"] = json.Number(u.CostUSD)
	}
	chunk["usage"] = usage
	return event{text: lines(chunk)}
}

func (d openAI) end(a *spoken) []event {
	list := []event{d.event(a, object{}, a.word(openAIStops))}
	if a.usage != nil && a.asksForUsage() {
		list = append(list, d.usage(a))
	}
	return append(list, event{text: "data: [DONE]\n\n"})
}

// asksForUsage reports whether the request asks for usage. Streams of this dialect have no usage otherwise.
func (a *spoken) asksForUsage() bool {
	var body struct {
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	return json.Unmarshal(a.request.Body, &body) == nil && body.StreamOptions.IncludeUsage
}

func (d openAI) again(a *spoken) []event {
	end := d.end(a)
	return end[:len(end)-1] // [DONE] was already sent
}

func (openAI) failure(_ *spoken, status int, message string, f *Fault) string {
	kind := openAIErrors[status]
	switch {
	case kind != "":
	case status >= 500:
		kind = "server_error"
	default:
		kind = "invalid_request_error"
	}
	var code any
	if f != nil && f.Kind == TooLong {
		code = "context_length_exceeded"
	}
	body, _ := json.Marshal(object{"error": object{"message": message, "type": kind, "param": nil, "code": code}})
	return string(body)
}

func (openAI) failed(_ *spoken, status int, message string) string {
	return lines(object{"error": object{"message": message, "code": status}})
}

func (openAI) tooLong() string {
	return "This model's maximum context length is 128000 tokens. However, your messages resulted in 210000 tokens. " +
		"Please reduce the length of the messages."
}

func (openAI) data(text string) string { return "data: " + text + "\n\n" }
