package anthropic

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"

	"github.com/gemworker/gem/internal/provider"
)

type request struct {
	Model         string        `json:"model"`
	MaxTokens     int           `json:"max_tokens"`
	Stream        bool          `json:"stream"`
	System        []any         `json:"system,omitempty"`
	Messages      []turn        `json:"messages"`
	StopSequences []string      `json:"stop_sequences,omitempty"`
	Temperature   *float64      `json:"temperature,omitempty"`
	TopP          *float64      `json:"top_p,omitempty"`
	Tools         []tool        `json:"tools,omitempty"`
	ToolChoice    *choice       `json:"tool_choice,omitempty"`
	Thinking      *thinking     `json:"thinking,omitempty"`
	OutputConfig  *outputConfig `json:"output_config,omitempty"`
	CacheControl  *cacheControl `json:"cache_control,omitempty"` // caches the request up to its last block
}

type turn struct {
	Role    string `json:"role"`
	Content []any  `json:"content"` // text, thought, redacted, toolUse, toolResult
}

const (
	user      = "user"
	assistant = "assistant"
)

type text struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// cachedText is a text up to which the provider caches the request.
type cachedText struct {
	text
	CacheControl cacheControl `json:"cache_control"`
}

type cacheControl struct {
	Type string `json:"type"`
}

type thought struct {
	Type      string `json:"type"`
	Thinking  string `json:"thinking"`
	Signature string `json:"signature"`
}

type redacted struct {
	Type string `json:"type"`
	Data string `json:"data"`
}

type toolUse struct {
	Type  string          `json:"type"`
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
}

type toolResult struct {
	Type      string `json:"type"`
	ToolUseID string `json:"tool_use_id"`
	Content   []text `json:"content,omitempty"`
	IsError   bool   `json:"is_error,omitempty"`
}

type tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	InputSchema json.RawMessage `json:"input_schema"`
}

type choice struct {
	Type string `json:"type"`
}

type thinking struct {
	Type         string `json:"type"`
	BudgetTokens int    `json:"budget_tokens,omitempty"`
	Display      string `json:"display,omitempty"`
}

type outputConfig struct {
	Effort string  `json:"effort,omitempty"`
	Format *format `json:"format,omitempty"`
}

type format struct {
	Type   string          `json:"type"`
	Schema json.RawMessage `json:"schema"`
}

var choices = map[provider.ToolChoice]string{provider.ChooseAuto: "auto", provider.ChooseRequired: "any",
	provider.ChooseNone: "none"}

var cacheFiveMinutes = cacheControl{"ephemeral"}

func params(r *provider.Request) (*request, error) {
	p := &request{Model: r.Model, MaxTokens: r.MaxOutputTokens, Stream: true, StopSequences: r.Stop, Messages: messages(r)}
	switch {
	case r.Cache && r.System != "": // requests with the same tools and system share the beginning up to here
		p.System = []any{cachedText{text{"text", r.System}, cacheFiveMinutes}}
	case r.System != "":
		p.System = []any{text{"text", r.System}}
	}
	if r.Cache {
		p.CacheControl = &cacheFiveMinutes
	}
	for _, t := range r.Tools {
		schema := t.Parameters
		if len(schema) == 0 {
			schema = json.RawMessage(`{"type":"object"}`)
		}
		if !json.Valid(schema) {
			return nil, fmt.Errorf("the parameters of the tool %s are not JSON", t.Name)
		}
		p.Tools = append(p.Tools, tool{t.Name, t.Description, schema})
	}
	if kind := choices[r.ToolChoice]; kind != "" && len(r.Tools) > 0 {
		p.ToolChoice = &choice{kind}
	}
	var output outputConfig
	p.Thinking, output.Effort = think(p, r)
	if p.Thinking == nil { // a model that thinks accepts only its own temperature
		p.Temperature, p.TopP = r.Temperature, r.TopP
	}
	if len(r.Schema) > 0 {
		schema, err := provider.Subset(r.Schema, subset)
		if err != nil {
			return nil, fmt.Errorf("the schema: %w", err)
		}
		output.Format = &format{"json_schema", schema}
	}
	if output != (outputConfig{}) {
		p.OutputConfig = &output
	}
	return p, nil
}

// messages returns the turns. Consecutive messages of one side become one turn, which begins with the results of tools:
// the API requires all results of a turn's calls there.
func messages(r *provider.Request) []turn {
	var turns []turn
	for _, m := range r.Messages {
		role := user
		if m.Role == provider.Assistant {
			role = assistant
		}
		blocks := blocks(m.Content, r.Target)
		if len(blocks) == 0 {
			continue
		}
		if n := len(turns); n > 0 && turns[n-1].Role == role {
			turns[n-1].Content = append(turns[n-1].Content, blocks...)
			continue
		}
		turns = append(turns, turn{role, blocks})
	}
	for i := range turns {
		if turns[i].Role == user {
			slices.SortStableFunc(turns[i].Content, func(a, b any) int { return rank(a) - rank(b) })
		}
	}
	return turns
}

func rank(block any) int {
	if _, ok := block.(toolResult); ok {
		return 0
	}
	return 1
}

func blocks(content provider.Content, target string) []any {
	var blocks []any
	for i := range content {
		switch p := &content[i]; p.Type {
		case provider.Text:
			if p.Text != "" { // the API refuses empty ones
				blocks = append(blocks, text{"text", p.Text})
			}
		case provider.Thinking:
			switch {
			case p.Target != target, p.Signature == "": // the API rejects thoughts that it cannot verify
			case p.Redacted:
				blocks = append(blocks, redacted{"redacted_thinking", p.Signature})
			default:
				blocks = append(blocks, thought{"thinking", p.Text, p.Signature})
			}
		case provider.ToolCall:
			input := p.Arguments
			if len(input) == 0 || !json.Valid(input) {
				input = json.RawMessage("{}")
			}
			blocks = append(blocks, toolUse{"tool_use", p.ID, p.Name, input})
		case provider.ToolResult:
			result := toolResult{Type: "tool_result", ToolUseID: p.ToolCallID, IsError: p.IsError}
			if p.Content != "" {
				result.Content = []text{{"text", p.Content}}
			}
			blocks = append(blocks, result)
		}
	}
	return blocks
}

// byBudget matches the models that think by a budget of tokens: all before 4.6, and models of other providers of this
// dialect. Later models decide themselves, by the effort.
var byBudget = regexp.MustCompile(`^claude-(\d|(opus|sonnet|haiku)-4($|[-@](0|1|5|\d{8})($|\D)))`)

// The smallest budget that the API accepts, and the budget of each effort.
const minBudget = 1024

var budgets = map[provider.Effort]int{provider.EffortLow: 2048, provider.EffortMedium: 8192, provider.EffortHigh: 24576}

var efforts = map[provider.Effort]string{provider.EffortLow: "low", provider.EffortMedium: "medium",
	provider.EffortHigh: "high"}

// think requests thoughts, by a budget or an effort. They are part of max_tokens, so a budget takes at most half of it.
// It requests none if the API would reject them: with a required tool, and after a tool call whose own thoughts are
// missing.
func think(p *request, r *provider.Request) (*thinking, string) {
	effort := efforts[r.Effort]
	if !r.Thinks || effort == "" {
		return nil, ""
	}
	required := p.ToolChoice != nil && p.ToolChoice.Type == "any"
	if !isBudget(r.Model) {
		if required {
			return nil, effort
		}
		return &thinking{Type: "adaptive", Display: "summarized"}, effort
	}
	budget := min(budgets[r.Effort], r.MaxOutputTokens/2)
	if budget < minBudget || required || thoughtless(p.Messages) {
		return nil, ""
	}
	return &thinking{Type: "enabled", BudgetTokens: budget}, ""
}

func isBudget(model string) bool {
	return byBudget.MatchString(model) || len(model) < 7 || model[:7] != "claude-"
}

// thoughtless reports whether the current turn has calls to tools and does not begin with a thought.
func thoughtless(turns []turn) bool {
	for i := len(turns) - 1; i >= 0; i-- {
		switch turns[i].Content[0].(type) {
		case toolResult: // the call's own turn is before it
		case thought, redacted:
			return false
		default:
			return turns[i].Role == assistant
		}
	}
	return false
}

// kept are the keywords of JSON Schema that output_config.format accepts.
var kept = []string{
	"$defs", "definitions", "type", "anyOf", "allOf", "description", "title", "enum", "const", "properties",
	"additionalProperties", "required",
	"items", "minItems", "format", "pattern",
}

var formats = []string{`"date-time"`, `"time"`, `"date"`, `"duration"`, `"email"`, `"hostname"`, `"uri"`, `"ipv4"`,
	`"ipv6"`, `"uuid"`}

// subset rewrites a schema to the keywords that output_config.format accepts. It closes objects, replaces oneOf with
// anyOf, and drops limits of numbers and lengths.
func subset(schema []provider.Member) []provider.Member {
	has := func(name string) bool {
		return slices.ContainsFunc(schema, func(m provider.Member) bool { return m.Name == name })
	}
	ref, anyOf := has("$ref"), has("anyOf")
	var keep, dropped []provider.Member
	object := has("properties")
	for _, m := range schema {
		value := string(m.Value)
		switch {
		case ref && m.Name != "$ref" && m.Name != "$defs" && m.Name != "definitions":
			// the API accepts nothing else next to it
		case m.Name == "$ref":
			keep = append(keep, m)
		case m.Name == "oneOf" && !anyOf:
			keep = append(keep, provider.Member{Name: "anyOf", Value: m.Value})
		case m.Name == "additionalProperties":
		case m.Name == "format" && !slices.Contains(formats, value), m.Name == "minItems" && value != "0" && value != "1":
			dropped = append(dropped, m)
		case slices.Contains(kept, m.Name):
			object = object || m.Name == "type" && value == `"object"`
			keep = append(keep, m)
		case m.Name[:min(1, len(m.Name))] != "$" && m.Name != "default" && m.Name != "examples":
			dropped = append(dropped, m)
		}
	}
	if object && !ref {
		keep = append(keep, provider.Member{Name: "additionalProperties", Value: json.RawMessage("false")})
	}
	return provider.Noted(keep, dropped)
}
