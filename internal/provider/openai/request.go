package openai

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"strings"

	"github.com/gemworker/gem/internal/provider"
)

// request is the body of a request. Pointers keep a temperature of 0.
type request struct {
	Model               string              `json:"model"`
	Messages            []message           `json:"messages"`
	Stream              bool                `json:"stream"`
	StreamOptions       *streamOptions      `json:"stream_options,omitempty"`
	MaxTokens           int                 `json:"max_tokens,omitempty"`
	MaxCompletionTokens int                 `json:"max_completion_tokens,omitempty"`
	Temperature         *float64            `json:"temperature,omitempty"`
	TopP                *float64            `json:"top_p,omitempty"`
	Stop                []string            `json:"stop,omitempty"`
	ReasoningEffort     provider.Effort     `json:"reasoning_effort,omitempty"`
	Tools               []tool              `json:"tools,omitempty"`
	ToolChoice          provider.ToolChoice `json:"tool_choice,omitempty"`
	ResponseFormat      *responseFormat     `json:"response_format,omitempty"`
	PromptCacheKey      string              `json:"prompt_cache_key,omitempty"`
}

type message struct {
	Role string `json:"role"`
	// Content is a text, null next to calls to tools, or a list of parts.
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

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type tool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"function"`
}

type responseFormat struct {
	Type       string `json:"type"`
	JSONSchema struct {
		Name   string          `json:"name"`
		Schema json.RawMessage `json:"schema"`
		Strict bool            `json:"strict"`
	} `json:"json_schema"`
}

// body returns the request for a server with these quirks.
func (q quirks) body(r *provider.Request) *request {
	out := &request{
		Model: r.Model, Stream: true,
		Temperature: r.Temperature, TopP: r.TopP, Stop: r.Stop,
	}
	if !q.noStreamOptions {
		out.StreamOptions = &streamOptions{IncludeUsage: true}
	}
	if q.completionTokens {
		out.MaxCompletionTokens = r.MaxOutputTokens
	} else {
		out.MaxTokens = r.MaxOutputTokens
	}
	if r.Thinks && r.Effort != provider.EffortAuto {
		out.ReasoningEffort = r.Effort
	}
	if r.System != "" {
		out.Messages = append(out.Messages, message{Role: "system", Content: r.System})
	}
	for i := range r.Messages {
		out.Messages = append(out.Messages, q.messages(&r.Messages[i], r.Target)...)
	}
	for _, t := range r.Tools {
		offered := tool{Type: "function"}
		offered.Function.Name, offered.Function.Description, offered.Function.Parameters = t.Name, t.Description, t.Parameters
		out.Tools = append(out.Tools, offered)
	}
	if len(r.Tools) > 0 {
		out.ToolChoice = r.ToolChoice
	}
	if q.cacheKey && r.Cache {
		out.PromptCacheKey = cacheKey(r)
	}
	if len(r.Schema) > 0 {
		name := r.SchemaName
		if name == "" {
			name = "answer"
		}
		out.ResponseFormat = &responseFormat{Type: "json_schema"}
		schema := &out.ResponseFormat.JSONSchema
		schema.Name, schema.Schema, schema.Strict = name, r.Schema, fitsStrict(r.Schema)
	}
	return out
}

// cacheKey returns the key of what conversations with the same tools have in common: the tools and the system text.
func cacheKey(r *provider.Request) string {
	encoded, _ := json.Marshal([]any{r.System, r.Tools}) // it fails only for parameters that cannot be sent either
	sum := sha256.Sum256(encoded)
	return "gem-" + hex.EncodeToString(sum[:16])
}

// messages translates a message. Results of tools become separate messages, and come first, because they answer the
// calls of the previous message.
func (q quirks) messages(m *provider.Message, target string) []message {
	var out []message
	var text, thought strings.Builder
	var calls []requestCall
	for i := range m.Content {
		p := &m.Content[i]
		own := p.Target != "" && p.Target == target
		switch p.Type {
		case provider.Text:
			text.WriteString(p.Text)
		case provider.Thinking:
			if own && !p.Redacted {
				thought.WriteString(p.Text)
			}
		case provider.ToolCall:
			c := requestCall{ID: q.id(p.ID), Type: "function"}
			c.Function.Name, c.Function.Arguments = p.Name, "{}"
			if len(p.Arguments) > 0 {
				c.Function.Arguments = string(p.Arguments)
			}
			if own && p.Signature != "" {
				c.ExtraContent = &extraContent{}
				c.ExtraContent.Google.ThoughtSignature = p.Signature
			}
			calls = append(calls, c)
		case provider.ToolResult:
			content := p.Content
			if p.IsError {
				content = "Error: " + content
			}
			out = append(out, message{Role: "tool", Content: content, ToolCallID: q.id(p.ToolCallID)})
		}
	}
	role := "user"
	if m.Role == provider.Assistant {
		role = "assistant"
	}
	switch {
	case len(calls) > 0:
		said := message{Role: role, ToolCalls: calls}
		if text.Len() > 0 {
			said.Content = text.String()
		}
		q.think(&said, thought.String(), text.String())
		out = append(out, said)
	case text.Len() > 0:
		out = append(out, message{Role: role, Content: text.String()})
	}
	return out
}

// think sends a model its thoughts back, in the field of its server.
func (q quirks) think(m *message, thought, text string) {
	if thought == "" {
		return
	}
	switch q.thoughts {
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

// id returns the id of a call in a form that the server accepts: the same id for the same call.
func (q quirks) id(id string) string {
	if !q.shortIDs || nine.MatchString(id) {
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

// The limits of schemas that OpenAI accepts as strict.
const (
	maxStrictDepth      = 10
	maxStrictProperties = 5000
)

// strictWords are the keywords that OpenAI accepts in a strict schema. A schema with others is sent without strict: the
// model sees the schema, but the provider does not enforce it.
var strictWords = map[string]bool{
	"type": true, "properties": true, "required": true, "additionalProperties": true, "items": true, "enum": true,
	"const": true,
	"anyOf": true, "$ref": true, "$defs": true, "definitions": true, "title": true, "description": true, "pattern": true,
	"format":     true,
	"multipleOf": true, "minimum": true, "maximum": true, "exclusiveMinimum": true, "exclusiveMaximum": true,
	"minItems": true, "maxItems": true,
}

// fitsStrict reports whether OpenAI accepts the schema as strict: an object at the root, with all properties required
// and no others allowed.
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
