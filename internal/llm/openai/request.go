package openai

import (
	"crypto/sha256"
	"encoding/json"
	"regexp"
	"strings"

	sdk "github.com/sashabaranov/go-openai"

	"github.com/gemworker/gem/internal/llm"
)

// request is what is sent. The library's own leaves out a temperature of 0 and an empty result of a tool, cannot hold thoughts and
// signatures, and refuses some models by their names.
type request struct {
	Model               string                            `json:"model"`
	Messages            []message                         `json:"messages"`
	Stream              bool                              `json:"stream"`
	StreamOptions       *sdk.StreamOptions                `json:"stream_options,omitempty"`
	MaxTokens           int                               `json:"max_tokens,omitempty"`
	MaxCompletionTokens int                               `json:"max_completion_tokens,omitempty"`
	Temperature         *float64                          `json:"temperature,omitempty"`
	TopP                *float64                          `json:"top_p,omitempty"`
	Stop                []string                          `json:"stop,omitempty"`
	ReasoningEffort     llm.Effort                        `json:"reasoning_effort,omitempty"`
	Tools               []sdk.Tool                        `json:"tools,omitempty"`
	ToolChoice          llm.ToolChoice                    `json:"tool_choice,omitempty"`
	ResponseFormat      *sdk.ChatCompletionResponseFormat `json:"response_format,omitempty"`
}

type message struct {
	Role string `json:"role"`
	// Content is a text, null beside calls of tools, or a list of parts.
	Content          any           `json:"content"`
	Reasoning        string        `json:"reasoning,omitempty"`
	ReasoningContent string        `json:"reasoning_content,omitempty"`
	ToolCalls        []requestCall `json:"tool_calls,omitempty"`
	ToolCallID       string        `json:"tool_call_id,omitempty"`
}

type requestCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
	ExtraContent *extraContent `json:"extra_content,omitempty"`
}

// body returns the request in JSON.
func (w ways) body(r *llm.Request) ([]byte, error) {
	out := request{
		Model: r.Model, Stream: true,
		Temperature: r.Temperature, TopP: r.TopP, Stop: r.Stop,
	}
	if !w.noStreamOptions {
		out.StreamOptions = &sdk.StreamOptions{IncludeUsage: true}
	}
	if w.completionTokens {
		out.MaxCompletionTokens = r.MaxOutputTokens
	} else {
		out.MaxTokens = r.MaxOutputTokens
	}
	if r.Thinks && r.Effort != llm.EffortAuto {
		out.ReasoningEffort = r.Effort
	}
	if r.System != "" {
		out.Messages = append(out.Messages, message{Role: sdk.ChatMessageRoleSystem, Content: r.System})
	}
	for i := range r.Messages {
		out.Messages = append(out.Messages, w.messages(&r.Messages[i], r.Arm)...)
	}
	for _, t := range r.Tools {
		out.Tools = append(out.Tools, sdk.Tool{Type: sdk.ToolTypeFunction, Function: &sdk.FunctionDefinition{
			Name: t.Name, Description: t.Description, Parameters: t.Parameters,
		}})
	}
	if len(r.Tools) > 0 {
		out.ToolChoice = r.ToolChoice
	}
	if len(r.Schema) > 0 {
		name := r.SchemaName
		if name == "" {
			name = "answer"
		}
		out.ResponseFormat = &sdk.ChatCompletionResponseFormat{
			Type:       sdk.ChatCompletionResponseFormatTypeJSONSchema,
			JSONSchema: &sdk.ChatCompletionResponseFormatJSONSchema{Name: name, Schema: r.Schema, Strict: fitsStrict(r.Schema)},
		}
	}
	return json.Marshal(out)
}

// messages returns what stands for a message: results of tools are messages of their own, and come first, since they answer the calls of
// the message before.
func (w ways) messages(m *llm.Message, arm string) []message {
	var out []message
	var text, thought strings.Builder
	var calls []requestCall
	for i := range m.Content {
		p := &m.Content[i]
		own := p.Arm != "" && p.Arm == arm
		switch p.Type {
		case llm.Text:
			text.WriteString(p.Text)
		case llm.Thinking:
			if own && !p.Redacted {
				thought.WriteString(p.Text)
			}
		case llm.ToolCall:
			c := requestCall{ID: w.id(p.ID), Type: "function"}
			c.Function.Name, c.Function.Arguments = p.Name, "{}"
			if len(p.Arguments) > 0 {
				c.Function.Arguments = string(p.Arguments)
			}
			if own && p.Signature != "" {
				c.ExtraContent = &extraContent{}
				c.ExtraContent.Google.ThoughtSignature = p.Signature
			}
			calls = append(calls, c)
		case llm.ToolResult:
			content := p.Content
			if p.IsError {
				content = "Error: " + content
			}
			out = append(out, message{Role: sdk.ChatMessageRoleTool, Content: content, ToolCallID: w.id(p.ToolCallID)})
		}
	}
	role := sdk.ChatMessageRoleUser
	if m.Role == llm.Assistant {
		role = sdk.ChatMessageRoleAssistant
	}
	switch {
	case len(calls) > 0:
		said := message{Role: role, ToolCalls: calls}
		if text.Len() > 0 {
			said.Content = text.String()
		}
		w.think(&said, thought.String(), text.String())
		out = append(out, said)
	case text.Len() > 0:
		out = append(out, message{Role: role, Content: text.String()})
	}
	return out
}

// think gives a model its thoughts back, in the field of its server.
func (w ways) think(m *message, thought, text string) {
	if thought == "" {
		return
	}
	switch w.thoughts {
	case thoughtsLong:
		m.ReasoningContent = thought
	case thoughtsShort:
		m.Reasoning = thought
	case thoughtsContent:
		type piece = map[string]any
		parts := []piece{{"type": "thinking", "thinking": []piece{{"type": "text", "text": thought}}}}
		if text != "" {
			parts = append(parts, piece{"type": "text", "text": text})
		}
		m.Content = parts
	}
}

var nine = regexp.MustCompile(`^[a-zA-Z0-9]{9}$`)

// id returns the id of a call as the server takes it: the same one for the same call.
func (w ways) id(id string) string {
	if !w.shortIDs || nine.MatchString(id) {
		return id
	}
	const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	short := make([]byte, 9)
	for i, b := range sha256.Sum256([]byte(id)) {
		if i == len(short) {
			break
		}
		short[i] = digits[int(b)%len(digits)]
	}
	return string(short)
}

// The bounds of what OpenAI takes as strict.
const (
	maxStrictDepth      = 10
	maxStrictProperties = 5000
)

// strictWords are the keywords that OpenAI takes in a strict schema. One with others is sent, and not called strict: the model is told,
// and not held to it.
var strictWords = map[string]bool{
	"type": true, "properties": true, "required": true, "additionalProperties": true, "items": true, "enum": true, "const": true,
	"anyOf": true, "$ref": true, "$defs": true, "definitions": true, "title": true, "description": true, "pattern": true, "format": true,
	"multipleOf": true, "minimum": true, "maximum": true, "exclusiveMinimum": true, "exclusiveMaximum": true, "minItems": true, "maxItems": true,
}

// fitsStrict reports whether OpenAI takes the schema as strict: an object at the root, all properties required and no others allowed.
func fitsStrict(schema json.RawMessage) bool {
	var root map[string]any
	if json.Unmarshal(schema, &root) != nil || root["type"] != "object" || root["anyOf"] != nil {
		return false
	}
	properties := 0
	return strict(root, 0, &properties) && properties <= maxStrictProperties
}

func strict(schema any, depth int, properties *int) bool {
	s, ok := schema.(map[string]any)
	if !ok || depth > maxStrictDepth {
		return false
	}
	for word := range s {
		if !strictWords[word] {
			return false
		}
	}
	if ref, has := s["$ref"]; has {
		if to, ok := ref.(string); !ok || !strings.HasPrefix(to, "#") {
			return false
		}
	}
	inside, _ := s["properties"].(map[string]any)
	if has(s["type"], "object") || s["properties"] != nil {
		required, _ := s["required"].([]any)
		if s["additionalProperties"] != false || len(required) != len(inside) {
			return false
		}
		for name := range inside {
			if !has(required, name) {
				return false
			}
		}
	}
	if has(s["type"], "array") && s["items"] == nil {
		return false
	}
	*properties += len(inside)
	for _, sub := range inside {
		if !strict(sub, depth+1, properties) {
			return false
		}
	}
	for _, word := range []string{"$defs", "definitions"} {
		defs, _ := s[word].(map[string]any)
		for _, sub := range defs {
			if !strict(sub, depth, properties) {
				return false
			}
		}
	}
	if choices, has := s["anyOf"]; has {
		subs, ok := choices.([]any)
		if !ok || len(subs) == 0 {
			return false
		}
		for _, sub := range subs {
			if !strict(sub, depth+1, properties) {
				return false
			}
		}
	}
	return s["items"] == nil || strict(s["items"], depth+1, properties)
}

// has reports whether a value is the word, or a list that has it.
func has(value any, word string) bool {
	if list, ok := value.([]any); ok {
		for _, v := range list {
			if v == word {
				return true
			}
		}
	}
	return value == word
}
