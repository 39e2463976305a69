// Package provider requests answers from the models of several providers. [Request], the pull [Stream], [Answer] and
// [Error] are the same for all providers. The packages below this one implement the dialects; they do not know calls,
// prices and Postgres.
package provider

import (
	"context"
	"encoding/json"
)

// Provider is a service that has models. A dialect's New returns one.
type Provider interface {
	// Stream sends the request, and returns when the response has begun. Its error is an [*Error], or the error of ctx.
	// The caller must close the stream.
	Stream(ctx context.Context, r *Request) (Stream, error)
}

// Role is the sender of a message.
type Role string

// The roles.
const (
	User      Role = "user"
	Assistant Role = "assistant"
	FromTool  Role = "tool"
)

// PartType determines which fields of a [Part] have a meaning.
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

// Content is the content of a message. In JSON it may be a plain string, which is one text.
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

// Part is a piece of a message, of the kind Type.
type Part struct {
	Type PartType `json:"type"`
	Text string   `json:"text,omitempty"`
	// Redacted means that the provider hides the thought; Signature has the data to send back.
	Redacted bool `json:"redacted,omitempty"`
	// Signature must be sent back to its provider unchanged, byte for byte. A thought, a call to a tool and a text can
	// have one.
	Signature string `json:"signature,omitempty"`
	// Target is the target that a thought or a signature comes from. Other targets do not understand it.
	Target string `json:"target,omitempty"`

	ID   string `json:"id,omitempty"`
	Name string `json:"name,omitempty"`
	// Arguments is an object. If the model wrote anything else, it is in RawArguments.
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

// ToolChoice determines whether a model must call a tool.
type ToolChoice string

// The choices. Empty is auto.
const (
	ChooseAuto     ToolChoice = "auto"
	ChooseRequired ToolChoice = "required"
	ChooseNone     ToolChoice = "none"
)

// Effort determines how long a model may think.
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
	// Thinks means that the model can think, so that Effort may be sent.
	Thinks bool
	// Cache means that the beginning of the conversation will be sent again, so that it is worth what a provider charges
	// for keeping it. Providers that keep it anyway ignore the field.
	Cache bool
	// Target is the name of this model in the thoughts and signatures of Messages. Thoughts and signatures of other
	// models are not sent.
	Target string
	// Schema, if set, is the schema of the answer's text. The provider gets the subset that it accepts. It has a
	// SchemaName.
	Schema     json.RawMessage
	SchemaName string
}
