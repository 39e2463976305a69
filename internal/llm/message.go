// Package llm asks models of several providers for answers: one [Request], one pull [Stream], one [Answer] and one [Error], whatever the
// provider speaks. The dialects are the packages below this one; they know nothing of calls, prices and Postgres.
package llm

import (
	"context"
	"encoding/json"
)

// Provider is a service that has models. A dialect's New returns one.
type Provider interface {
	// Stream sends the request, and returns when the response has begun. Its error is an [*Error], or that of ctx.
	// Whoever got a stream must close it.
	Stream(ctx context.Context, r *Request) (Stream, error)
}

// Role says who a message is from.
type Role string

// The roles.
const (
	User      Role = "user"
	Assistant Role = "assistant"
	FromTool  Role = "tool"
)

// PartType says which of a [Part]'s fields have a meaning.
type PartType string

// The types of parts.
const (
	Text       PartType = "text"        // Text
	Thinking   PartType = "thinking"    // Text, Redacted
	ToolCall   PartType = "tool_call"   // ID, Name, Arguments
	ToolResult PartType = "tool_result" // ToolCallID, Content, IsError
)

// Message is a turn of a conversation.
type Message struct {
	Role    Role    `json:"role"`
	Content Content `json:"content"`
}

// Content is what a message holds. In JSON a plain string stands for one text.
type Content []Part

// UnmarshalJSON reads a string or a list of parts.
func (c *Content) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*c = Content{{Type: Text, Text: text}}
		return nil
	}
	return json.Unmarshal(data, (*[]Part)(c))
}

// Part is a piece of a message: its Type says which.
type Part struct {
	Type PartType `json:"type"`
	Text string   `json:"text,omitempty"`
	// Redacted: the provider keeps the thought to itself; Signature holds what it must be given back.
	Redacted bool `json:"redacted,omitempty"`
	// Signature must come back to its provider unchanged, byte for byte. A thought, a call of a tool and a text can have one.
	Signature string `json:"signature,omitempty"`
	// Arm is the arm that a thought or a signature is from. No other understands it.
	Arm string `json:"arm,omitempty"`

	ID   string `json:"id,omitempty"`
	Name string `json:"name,omitempty"`
	// Arguments is an object. What a model wrote and is none stands in RawArguments.
	Arguments    json.RawMessage `json:"arguments,omitempty"`
	RawArguments string          `json:"arguments_raw,omitempty"`

	ToolCallID string `json:"tool_call_id,omitempty"`
	Content    string `json:"content,omitempty"`
	IsError    bool   `json:"is_error,omitempty"`
}

// Tool is what a model may ask to call. Parameters is a JSON Schema of an object.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
}

// ToolChoice says whether a model has to call a tool.
type ToolChoice string

// The choices. Empty is auto.
const (
	ChooseAuto     ToolChoice = "auto"
	ChooseRequired ToolChoice = "required"
	ChooseNone     ToolChoice = "none"
)

// Effort says how long a model may think.
type Effort string

// The efforts. Auto, and empty, leave it to the provider.
const (
	EffortAuto   Effort = "auto"
	EffortLow    Effort = "low"
	EffortMedium Effort = "medium"
	EffortHigh   Effort = "high"
)

// Request asks a model for an answer.
type Request struct {
	Model    string
	System   string
	Messages []Message
	Tools    []Tool
	// ToolChoice has a meaning only with Tools.
	ToolChoice ToolChoice
	// MaxOutputTokens is at least 1; thoughts count.
	MaxOutputTokens   int
	Temperature, TopP *float64
	Stop              []string
	Effort            Effort
	// Thinks: the model can think, so that Effort may be sent.
	Thinks bool
	// Arm is the name under which thoughts and signatures of this model stand in Messages. Those of others are not sent.
	Arm string
	// Schema, if set, is what the answer's text must fit: the provider is asked for it, in the subset that it takes. It has a SchemaName.
	Schema     json.RawMessage
	SchemaName string
}
