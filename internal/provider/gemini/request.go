package gemini

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/gemworker/gem/internal/provider"
)

type request struct {
	Contents          []*content       `json:"contents"`
	SystemInstruction *content         `json:"systemInstruction,omitempty"`
	Tools             []toolSet        `json:"tools,omitempty"`
	ToolConfig        *toolConfig      `json:"toolConfig,omitempty"`
	GenerationConfig  generationConfig `json:"generationConfig"`
}

type content struct {
	Role  string `json:"role,omitempty"`
	Parts []part `json:"parts"`
}

const (
	user  = "user"
	model = "model"
)

type part struct {
	Text             *string           `json:"text,omitempty"`
	Thought          bool              `json:"thought,omitempty"`
	FunctionCall     *functionCall     `json:"functionCall,omitempty"`
	FunctionResponse *functionResponse `json:"functionResponse,omitempty"`
	ThoughtSignature string            `json:"thoughtSignature,omitempty"`
}

type functionCall struct {
	ID   string          `json:"id,omitempty"`
	Name string          `json:"name"`
	Args json.RawMessage `json:"args,omitempty"`
}

type functionResponse struct {
	ID       string            `json:"id,omitempty"`
	Name     string            `json:"name"`
	Response map[string]string `json:"response"`
}

type toolSet struct {
	FunctionDeclarations []declaration `json:"functionDeclarations"`
}

type declaration struct {
	Name                 string          `json:"name"`
	Description          string          `json:"description,omitempty"`
	ParametersJSONSchema json.RawMessage `json:"parametersJsonSchema"`
}

type toolConfig struct {
	FunctionCallingConfig struct {
		Mode string `json:"mode"`
	} `json:"functionCallingConfig"`
}

type generationConfig struct {
	MaxOutputTokens    int             `json:"maxOutputTokens,omitempty"`
	Temperature        *float64        `json:"temperature,omitempty"`
	TopP               *float64        `json:"topP,omitempty"`
	StopSequences      []string        `json:"stopSequences,omitempty"`
	ThinkingConfig     *thinkingConfig `json:"thinkingConfig,omitempty"`
	ResponseMIMEType   string          `json:"responseMimeType,omitempty"`
	ResponseJSONSchema json.RawMessage `json:"responseJsonSchema,omitempty"`
}

type thinkingConfig struct {
	IncludeThoughts bool   `json:"includeThoughts"`
	ThinkingBudget  int    `json:"thinkingBudget,omitempty"`
	ThinkingLevel   string `json:"thinkingLevel,omitempty"`
}

// modelPath returns the path of a model below the API's version.
func modelPath(name string) (string, error) {
	if name == "" || strings.Contains(name, "..") || strings.ContainsAny(name, "?&#%") {
		return "", fmt.Errorf("%q is not the name of a model", name)
	}
	if strings.HasPrefix(name, "models/") || strings.HasPrefix(name, "tunedModels/") {
		return name, nil
	}
	return "models/" + name, nil
}

func params(r *provider.Request) (*request, error) {
	q := &request{
		Contents: contents(r),
		GenerationConfig: generationConfig{
			MaxOutputTokens: min(r.MaxOutputTokens, math.MaxInt32),
			Temperature:     r.Temperature,
			TopP:            r.TopP,
			StopSequences:   r.Stop,
			ThinkingConfig:  thinking(r),
		},
	}
	if r.System != "" {
		q.SystemInstruction = &content{Parts: []part{{Text: &r.System}}}
	}
	var tools toolSet
	for _, t := range r.Tools {
		parameters := json.RawMessage(`{"type":"object"}`)
		if len(t.Parameters) > 0 {
			var err error
			if parameters, err = provider.Subset(t.Parameters, subset); err != nil {
				return nil, fmt.Errorf("the parameters of the tool %s: %w", t.Name, err)
			}
		}
		tools.FunctionDeclarations = append(tools.FunctionDeclarations, declaration{t.Name, t.Description, parameters})
	}
	if len(r.Tools) > 0 {
		q.Tools = []toolSet{tools}
		if mode := modes[r.ToolChoice]; mode != "" {
			q.ToolConfig = &toolConfig{}
			q.ToolConfig.FunctionCallingConfig.Mode = mode
		}
	}
	if len(r.Schema) > 0 {
		schema, err := provider.Subset(r.Schema, subset)
		if err != nil {
			return nil, fmt.Errorf("the schema: %w", err)
		}
		q.GenerationConfig.ResponseMIMEType, q.GenerationConfig.ResponseJSONSchema = "application/json", schema
	}
	return q, nil
}

var modes = map[provider.ToolChoice]string{provider.ChooseAuto: "AUTO", provider.ChooseRequired: "ANY",
	provider.ChooseNone: "NONE"}

// contents returns the turns. Consecutive messages of one side become one turn, which begins with the results of tools.
func contents(r *provider.Request) []*content {
	turns := []*content{}
	names := map[string]string{} // the name of the called tool
	for _, m := range r.Messages {
		role := user
		if m.Role == provider.Assistant {
			role = model
		}
		parts := parts(r, m.Content, names)
		if len(parts) == 0 {
			continue
		}
		if n := len(turns); n > 0 && turns[n-1].Role == role {
			turns[n-1].Parts = append(turns[n-1].Parts, parts...)
			continue
		}
		turns = append(turns, &content{Role: role, Parts: parts})
	}
	for _, c := range turns {
		slices.SortStableFunc(c.Parts, func(a, b part) int { return rank(a) - rank(b) })
	}
	return turns
}

func rank(p part) int {
	if p.FunctionResponse != nil {
		return 0
	}
	return 1
}

// anySignature is the signature of a tool call without a signature of this model, for example because another model
// served the previous turn. Models from Gemini 3 on reject a turn whose first call has no signature, and ignore this
// one.
var anySignature = base64.StdEncoding.EncodeToString([]byte("skip_thought_signature_validator"))

var unsigned = regexp.MustCompile(`(^|/)gemini-[12]\b`)

func parts(r *provider.Request, content provider.Content, names map[string]string) []part {
	var parts []part
	first := true
	for i := range content {
		p := &content[i]
		signature := p.Signature
		if p.Target != r.Target {
			signature = ""
		}
		switch p.Type {
		case provider.Text:
			if p.Text != "" || signature != "" {
				parts = append(parts, part{Text: &p.Text, ThoughtSignature: signature})
			}
		case provider.Thinking:
			if signature != "" { // without a signature it is a summary, which the model cannot use
				parts = append(parts, part{Text: &p.Text, Thought: true, ThoughtSignature: signature})
			}
		case provider.ToolCall:
			if first && signature == "" && !unsigned.MatchString(r.Model) {
				signature = anySignature
			}
			first = false
			names[p.ID] = p.Name
			args := p.Arguments
			if len(args) == 0 || !json.Valid(args) {
				args = json.RawMessage("{}")
			}
			parts = append(parts, part{FunctionCall: &functionCall{theirs(p.ID), p.Name, args}, ThoughtSignature: signature})
		case provider.ToolResult:
			name := names[p.ToolCallID]
			if name == "" {
				name = p.ToolCallID
			}
			as := "output"
			if p.IsError {
				as = "error"
			}
			parts = append(parts, part{FunctionResponse: &functionResponse{theirs(p.ToolCallID), name,
				map[string]string{as: p.Content}}})
		}
	}
	return parts
}

func theirs(id string) string {
	if isOurs(id) {
		return ""
	}
	return id
}

var (
	byBudget = regexp.MustCompile(`(^|/)gemini-2\.5\b`)
	twoOnly  = regexp.MustCompile(`(^|/)gemini-3-pro\b`)
	older    = regexp.MustCompile(`(^|/)gemini-(1|2\.0)\b`)

	budgets = map[provider.Effort]int{provider.EffortLow: 1024, provider.EffortMedium: 8192, provider.EffortHigh: 24576}
	levels  = map[provider.Effort]string{provider.EffortLow: "LOW", provider.EffortMedium: "MEDIUM",
		provider.EffortHigh: "HIGH"}
)

// minBudget is the smallest budget that all models with a thinking budget accept.
const minBudget = 512

// thinking returns the setting for thinking: up to Gemini 2.5 a budget of at most half of the output, and later a
// level.
func thinking(r *provider.Request) *thinkingConfig {
	level := levels[r.Effort]
	switch {
	case !r.Thinks || level == "" || older.MatchString(r.Model):
		return nil
	case byBudget.MatchString(r.Model):
		budget := min(budgets[r.Effort], r.MaxOutputTokens/2)
		if budget < minBudget {
			return nil
		}
		return &thinkingConfig{IncludeThoughts: true, ThinkingBudget: budget}
	case level == levels[provider.EffortMedium] && twoOnly.MatchString(r.Model):
		level = levels[provider.EffortHigh] // it knows only low and high
	}
	return &thinkingConfig{IncludeThoughts: true, ThinkingLevel: level}
}

// kept are the keywords of JSON Schema that the API accepts.
var kept = []string{
	"$id", "$defs", "$ref", "$anchor", "type", "format", "title", "description", "enum", "items", "prefixItems",
	"minItems", "maxItems", "minimum",
	"maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required", "propertyOrdering",
}

// subset rewrites one schema to the keywords that the API accepts.
func subset(schema []provider.Member) []provider.Member {
	ref := slices.ContainsFunc(schema, func(m provider.Member) bool { return m.Name == "$ref" })
	var keep, dropped []provider.Member
	for _, m := range schema {
		switch m.Name {
		case "definitions":
			m.Name = "$defs"
		case "$ref":
			m.Value = json.RawMessage(strings.Replace(string(m.Value), "#/definitions/", "#/$defs/", 1))
		case "const":
			m = provider.Member{Name: "enum", Value: json.RawMessage("[" + string(m.Value) + "]")}
		}
		switch {
		case ref && !strings.HasPrefix(m.Name, "$"): // the API accepts nothing else next to it
		case m.Name == "enum" && !plain(m.Value):
			dropped = append(dropped, m)
		case slices.Contains(kept, m.Name):
			keep = append(keep, m)
		case !strings.HasPrefix(m.Name, "$") && m.Name != "default" && m.Name != "examples":
			dropped = append(dropped, m)
		}
	}
	return provider.Noted(keep, dropped)
}

// plain reports whether all values of an enum are strings or numbers.
func plain(enum json.RawMessage) bool {
	var values []any
	if json.Unmarshal(enum, &values) != nil {
		return false
	}
	return !slices.ContainsFunc(values, func(v any) bool {
		switch v.(type) {
		case string, float64:
			return false
		}
		return true
	})
}
