package anthropic

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/packages/param"

	"github.com/gemworker/gem/internal/llm"
)

func params(r *llm.Request) (*sdk.MessageNewParams, error) {
	p := &sdk.MessageNewParams{Model: r.Model, MaxTokens: int64(r.MaxOutputTokens), StopSequences: r.Stop}
	if r.System != "" {
		p.System = []sdk.TextBlockParam{{Text: r.System}}
	}
	p.Messages = messages(r)
	for _, t := range r.Tools {
		schema := t.Parameters
		if len(schema) == 0 {
			schema = json.RawMessage(`{"type":"object"}`)
		}
		if !json.Valid(schema) {
			return nil, fmt.Errorf("the parameters of the tool %s are no JSON", t.Name)
		}
		tool := &sdk.ToolParam{Name: t.Name, InputSchema: param.Override[sdk.ToolInputSchemaParam](schema)}
		if t.Description != "" {
			tool.Description = sdk.String(t.Description)
		}
		p.Tools = append(p.Tools, sdk.ToolUnionParam{OfTool: tool})
	}
	if len(r.Tools) > 0 {
		switch r.ToolChoice {
		case llm.ChooseAuto:
			p.ToolChoice.OfAuto = &sdk.ToolChoiceAutoParam{}
		case llm.ChooseRequired:
			p.ToolChoice.OfAny = &sdk.ToolChoiceAnyParam{}
		case llm.ChooseNone:
			p.ToolChoice.OfNone = &sdk.ToolChoiceNoneParam{}
		}
	}
	think(p, r)
	// A model that thinks takes no other temperature than its own.
	if thinks := p.Thinking.OfEnabled != nil || p.Thinking.OfAdaptive != nil; !thinks {
		if r.Temperature != nil {
			p.Temperature = sdk.Float(*r.Temperature)
		}
		if r.TopP != nil {
			p.TopP = sdk.Float(*r.TopP)
		}
	}
	if len(r.Schema) > 0 {
		schema, err := llm.Subset(r.Schema, subset)
		if err != nil {
			return nil, fmt.Errorf("the schema: %w", err)
		}
		p.OutputConfig.Format = param.Override[sdk.JSONOutputFormatParam](llm.Object([]llm.Member{
			{Name: "type", Value: json.RawMessage(`"json_schema"`)}, {Name: "schema", Value: schema},
		}))
	}
	return p, nil
}

// messages returns the turns. Messages of one side that follow each other are one turn, and the results of tools stand at its beginning:
// the API wants all results of a turn's calls there.
func messages(r *llm.Request) []sdk.MessageParam {
	var turns []sdk.MessageParam
	for _, m := range r.Messages {
		role := sdk.MessageParamRoleUser
		if m.Role == llm.Assistant {
			role = sdk.MessageParamRoleAssistant
		}
		blocks := blocks(m.Content, r.Arm)
		if len(blocks) == 0 {
			continue
		}
		if n := len(turns); n > 0 && turns[n-1].Role == role {
			turns[n-1].Content = append(turns[n-1].Content, blocks...)
			continue
		}
		turns = append(turns, sdk.MessageParam{Role: role, Content: blocks})
	}
	for i := range turns {
		if turns[i].Role == sdk.MessageParamRoleUser {
			slices.SortStableFunc(turns[i].Content, func(a, b sdk.ContentBlockParamUnion) int { return rank(a) - rank(b) })
		}
	}
	return turns
}

func rank(b sdk.ContentBlockParamUnion) int {
	if b.OfToolResult != nil {
		return 0
	}
	return 1
}

func blocks(content llm.Content, arm string) []sdk.ContentBlockParamUnion {
	var blocks []sdk.ContentBlockParamUnion
	for i := range content {
		switch p := &content[i]; p.Type {
		case llm.Text:
			if p.Text != "" { // the API refuses empty ones
				blocks = append(blocks, sdk.NewTextBlock(p.Text))
			}
		case llm.Thinking:
			switch {
			case p.Arm != arm, p.Signature == "": // the API takes no thought that it cannot check
			case p.Redacted:
				blocks = append(blocks, sdk.NewRedactedThinkingBlock(p.Signature))
			default:
				blocks = append(blocks, sdk.NewThinkingBlock(p.Signature, p.Text))
			}
		case llm.ToolCall:
			input := p.Arguments
			if len(input) == 0 || !json.Valid(input) {
				input = json.RawMessage("{}")
			}
			blocks = append(blocks, sdk.NewToolUseBlock(p.ID, input, p.Name))
		case llm.ToolResult:
			result := &sdk.ToolResultBlockParam{ToolUseID: p.ToolCallID}
			if p.Content != "" {
				result.Content = []sdk.ToolResultBlockParamContentUnion{{OfText: &sdk.TextBlockParam{Text: p.Content}}}
			}
			if p.IsError {
				result.IsError = sdk.Bool(true)
			}
			blocks = append(blocks, sdk.ContentBlockParamUnion{OfToolResult: result})
		}
	}
	return blocks
}

// byBudget finds the models that think by a budget of tokens: all before 4.6, and those of other makers that speak this dialect.
// Later ones decide themselves, by the effort.
var byBudget = regexp.MustCompile(`^claude-(\d|(opus|sonnet|haiku)-4($|[-@](0|1|5|\d{8})($|\D)))`)

// The least budget that the API takes, and what the efforts stand for.
const minBudget = 1024

var budgets = map[llm.Effort]int{llm.EffortLow: 2048, llm.EffortMedium: 8192, llm.EffortHigh: 24576}

var efforts = map[llm.Effort]sdk.OutputConfigEffort{
	llm.EffortLow: sdk.OutputConfigEffortLow, llm.EffortMedium: sdk.OutputConfigEffortMedium, llm.EffortHigh: sdk.OutputConfigEffortHigh,
}

// think asks for thoughts. They are part of max_tokens, so that a budget takes at most half of it. Where the API would refuse thoughts, for
// a call of a tool that is required or one whose own thoughts are not there, there are none.
func think(p *sdk.MessageNewParams, r *llm.Request) {
	if !r.Thinks || efforts[r.Effort] == "" {
		return
	}
	required := p.ToolChoice.OfAny != nil
	if !isBudget(r.Model) {
		p.OutputConfig.Effort = efforts[r.Effort]
		if !required {
			p.Thinking.OfAdaptive = &sdk.ThinkingConfigAdaptiveParam{Display: sdk.ThinkingConfigAdaptiveDisplaySummarized}
		}
		return
	}
	budget := min(budgets[r.Effort], r.MaxOutputTokens/2)
	if budget < minBudget || required || thoughtless(p.Messages) {
		return
	}
	p.Thinking.OfEnabled = &sdk.ThinkingConfigEnabledParam{BudgetTokens: int64(budget)}
}

func isBudget(model string) bool {
	return byBudget.MatchString(model) || len(model) < 7 || model[:7] != "claude-"
}

// thoughtless reports whether the turn that goes on has calls of tools and does not begin with a thought.
func thoughtless(turns []sdk.MessageParam) bool {
	for i := len(turns) - 1; i >= 0; i-- {
		t := turns[i]
		if t.Role == sdk.MessageParamRoleUser {
			if t.Content[0].OfToolResult == nil {
				return false
			}
			continue
		}
		return t.Content[0].OfThinking == nil && t.Content[0].OfRedactedThinking == nil
	}
	return false
}

// kept are the keywords of JSON Schema that output_config.format takes.
var kept = []string{
	"$defs", "definitions", "type", "anyOf", "allOf", "description", "title", "enum", "const", "properties", "additionalProperties", "required",
	"items", "minItems", "format", "pattern",
}

var formats = []string{`"date-time"`, `"time"`, `"date"`, `"duration"`, `"email"`, `"hostname"`, `"uri"`, `"ipv4"`, `"ipv6"`, `"uuid"`}

// subset rewrites one schema to what output_config.format takes: objects are closed, oneOf is anyOf, there are no bounds of numbers and lengths.
func subset(schema []llm.Member) []llm.Member {
	has := func(name string) bool {
		return slices.ContainsFunc(schema, func(m llm.Member) bool { return m.Name == name })
	}
	ref, anyOf := has("$ref"), has("anyOf")
	var keep, dropped []llm.Member
	object := has("properties")
	for _, m := range schema {
		value := string(m.Value)
		switch {
		case ref && m.Name != "$ref" && m.Name != "$defs" && m.Name != "definitions": // the API takes nothing else beside it
		case m.Name == "$ref":
			keep = append(keep, m)
		case m.Name == "oneOf" && !anyOf:
			keep = append(keep, llm.Member{Name: "anyOf", Value: m.Value})
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
		keep = append(keep, llm.Member{Name: "additionalProperties", Value: json.RawMessage("false")})
	}
	return llm.Noted(keep, dropped)
}
