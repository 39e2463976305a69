package gemini

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/genai"

	"github.com/gemworker/gem/internal/llm"
)

// request builds a request. The SDK reads JSON anew, with numbers as floats and members in the order of the alphabet, and leaves out what
// is empty. Therefore what has to arrive exactly is laid over the body that it has made.
type request struct {
	contents []*genai.Content
	over     map[*genai.Part]overlay
	tools    []json.RawMessage // parameters
	schema   json.RawMessage
}

// overlay is what a part has to hold besides what the SDK wrote.
type overlay struct {
	args      json.RawMessage // of a call
	text      bool            // the text is empty, and there
	signature string
}

func params(r *llm.Request) ([]*genai.Content, *genai.GenerateContentConfig, error) {
	q := &request{over: map[*genai.Part]overlay{}}
	q.turns(r)
	c := &genai.GenerateContentConfig{
		// Else the SDK would send further requests by itself.
		AutomaticContinuation: genai.Ptr(false),
		HTTPOptions:           &genai.HTTPOptions{Headers: http.Header{}, ExtrasRequestProvider: q.lay},
		MaxOutputTokens:       int32(min(r.MaxOutputTokens, math.MaxInt32)), //nolint:gosec // it is bounded
		Temperature:           float(r.Temperature),
		TopP:                  float(r.TopP),
		StopSequences:         r.Stop,
		ThinkingConfig:        thinking(r),
	}
	if r.System != "" {
		c.SystemInstruction = &genai.Content{Parts: []*genai.Part{{Text: r.System}}}
	}
	if len(r.Tools) > 0 {
		tool := &genai.Tool{}
		for _, t := range r.Tools {
			parameters := json.RawMessage(`{"type":"object"}`)
			if len(t.Parameters) > 0 {
				var err error
				if parameters, err = llm.Subset(t.Parameters, subset); err != nil {
					return nil, nil, fmt.Errorf("the parameters of the tool %s: %w", t.Name, err)
				}
			}
			q.tools = append(q.tools, parameters)
			tool.FunctionDeclarations = append(tool.FunctionDeclarations, &genai.FunctionDeclaration{Name: t.Name, Description: t.Description})
		}
		c.Tools = []*genai.Tool{tool}
		if mode := modes[r.ToolChoice]; mode != "" {
			c.ToolConfig = &genai.ToolConfig{FunctionCallingConfig: &genai.FunctionCallingConfig{Mode: mode}}
		}
	}
	if len(r.Schema) > 0 {
		var err error
		if q.schema, err = llm.Subset(r.Schema, subset); err != nil {
			return nil, nil, fmt.Errorf("the schema: %w", err)
		}
		c.ResponseMIMEType = "application/json"
	}
	return q.contents, c, nil
}

var modes = map[llm.ToolChoice]genai.FunctionCallingConfigMode{
	llm.ChooseAuto: genai.FunctionCallingConfigModeAuto, llm.ChooseRequired: genai.FunctionCallingConfigModeAny, llm.ChooseNone: genai.FunctionCallingConfigModeNone,
}

func float(f *float64) *float32 {
	if f == nil {
		return nil
	}
	return genai.Ptr(float32(*f))
}

// turns sets the contents. Messages of one side that follow each other are one turn, and the results of tools stand at its beginning.
func (q *request) turns(r *llm.Request) {
	names := map[string]string{} // of the tool that a call asked for
	for _, m := range r.Messages {
		role := genai.RoleUser
		if m.Role == llm.Assistant {
			role = genai.RoleModel
		}
		parts := q.parts(r, m.Content, names)
		if len(parts) == 0 {
			continue
		}
		if n := len(q.contents); n > 0 && q.contents[n-1].Role == role {
			q.contents[n-1].Parts = append(q.contents[n-1].Parts, parts...)
			continue
		}
		q.contents = append(q.contents, &genai.Content{Role: role, Parts: parts})
	}
	for _, c := range q.contents {
		slices.SortStableFunc(c.Parts, func(a, b *genai.Part) int { return rank(a) - rank(b) })
	}
}

func rank(p *genai.Part) int {
	if p.FunctionResponse != nil {
		return 0
	}
	return 1
}

// anySignature stands for a signature where a call of a tool has none of this model, as after another arm served the turn before. Models
// from Gemini 3 on refuse a turn whose first call has no signature, and take this one for none.
var anySignature = base64.StdEncoding.EncodeToString([]byte("skip_thought_signature_validator"))

var unsigned = regexp.MustCompile(`(^|/)gemini-[12]\b`)

func (q *request) parts(r *llm.Request, content llm.Content, names map[string]string) []*genai.Part {
	var parts []*genai.Part
	add := func(p *genai.Part, o overlay) {
		parts = append(parts, p)
		q.over[p] = o
	}
	first := true
	for i := range content {
		p := &content[i]
		signature := p.Signature
		if p.Arm != r.Arm {
			signature = ""
		}
		switch p.Type {
		case llm.Text:
			if p.Text != "" || signature != "" {
				add(&genai.Part{Text: p.Text}, overlay{text: p.Text == "", signature: signature})
			}
		case llm.Thinking:
			if signature != "" { // without one it is a summary, which the model has no use for
				add(&genai.Part{Text: p.Text, Thought: true}, overlay{text: p.Text == "", signature: signature})
			}
		case llm.ToolCall:
			if first && signature == "" && !unsigned.MatchString(r.Model) {
				signature = anySignature
			}
			first = false
			names[p.ID] = p.Name
			args := p.Arguments
			if len(args) == 0 || !json.Valid(args) {
				args = json.RawMessage("{}")
			}
			add(&genai.Part{FunctionCall: &genai.FunctionCall{ID: theirs(p.ID), Name: p.Name}}, overlay{args: args, signature: signature})
		case llm.ToolResult:
			name := names[p.ToolCallID]
			if name == "" {
				name = p.ToolCallID
			}
			as := "output"
			if p.IsError {
				as = "error"
			}
			add(&genai.Part{FunctionResponse: &genai.FunctionResponse{
				ID: theirs(p.ToolCallID), Name: name, Response: map[string]any{as: p.Content},
			}}, overlay{})
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

// lay completes the body that the SDK has made. It knows how that is built: another version of the SDK fails the tests.
func (q *request) lay(body map[string]any) map[string]any {
	if len(q.contents) > 0 {
		contents := body["contents"].([]map[string]any)
		for i, c := range q.contents {
			parts := contents[i]["parts"].([]map[string]any)
			for j, p := range c.Parts {
				o, part := q.over[p], parts[j]
				if o.args != nil {
					part["functionCall"].(map[string]any)["args"] = o.args
				}
				if o.text {
					part["text"] = ""
				}
				if o.signature != "" {
					part["thoughtSignature"] = o.signature
				}
			}
		}
	}
	if system, ok := body["systemInstruction"].(map[string]any); ok {
		delete(system, "role")
	}
	if len(q.tools) > 0 {
		declarations := body["tools"].([]map[string]any)[0]["functionDeclarations"].([]any)
		for i, parameters := range q.tools {
			declarations[i].(map[string]any)["parametersJsonSchema"] = parameters
		}
	}
	if q.schema != nil {
		body["generationConfig"].(map[string]any)["responseJsonSchema"] = q.schema
	}
	return body
}

var (
	byBudget = regexp.MustCompile(`(^|/)gemini-2\.5\b`)
	twoOnly  = regexp.MustCompile(`(^|/)gemini-3-pro\b`)
	older    = regexp.MustCompile(`(^|/)gemini-(1|2\.0)\b`)

	budgets = map[llm.Effort]int{llm.EffortLow: 1024, llm.EffortMedium: 8192, llm.EffortHigh: 24576}
	levels  = map[llm.Effort]genai.ThinkingLevel{
		llm.EffortLow: genai.ThinkingLevelLow, llm.EffortMedium: genai.ThinkingLevelMedium, llm.EffortHigh: genai.ThinkingLevelHigh,
	}
)

// minBudget is the least that all models which think by a budget take.
const minBudget = 512

// thinking says how long to think: by a budget, of at most half of the output, up to Gemini 2.5, and by a level after.
func thinking(r *llm.Request) *genai.ThinkingConfig {
	level := levels[r.Effort]
	switch {
	case !r.Thinks || level == "" || older.MatchString(r.Model):
		return nil
	case byBudget.MatchString(r.Model):
		budget := min(budgets[r.Effort], r.MaxOutputTokens/2)
		if budget < minBudget {
			return nil
		}
		return &genai.ThinkingConfig{IncludeThoughts: true, ThinkingBudget: genai.Ptr(int32(budget))} //nolint:gosec // it is bounded
	case level == genai.ThinkingLevelMedium && twoOnly.MatchString(r.Model):
		level = genai.ThinkingLevelHigh // it knows low and high alone
	}
	return &genai.ThinkingConfig{IncludeThoughts: true, ThinkingLevel: level}
}

// kept are the keywords of JSON Schema that the API takes.
var kept = []string{
	"$id", "$defs", "$ref", "$anchor", "type", "format", "title", "description", "enum", "items", "prefixItems", "minItems", "maxItems", "minimum",
	"maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required", "propertyOrdering",
}

// subset rewrites one schema to what the API takes.
func subset(schema []llm.Member) []llm.Member {
	ref := slices.ContainsFunc(schema, func(m llm.Member) bool { return m.Name == "$ref" })
	var keep, dropped []llm.Member
	for _, m := range schema {
		switch m.Name {
		case "definitions":
			m.Name = "$defs"
		case "$ref":
			m.Value = json.RawMessage(strings.Replace(string(m.Value), "#/definitions/", "#/$defs/", 1))
		case "const":
			m = llm.Member{Name: "enum", Value: json.RawMessage("[" + string(m.Value) + "]")}
		}
		switch {
		case ref && !strings.HasPrefix(m.Name, "$"): // the API takes nothing else beside it
		case m.Name == "enum" && !plain(m.Value):
			dropped = append(dropped, m)
		case slices.Contains(kept, m.Name):
			keep = append(keep, m)
		case !strings.HasPrefix(m.Name, "$") && m.Name != "default" && m.Name != "examples":
			dropped = append(dropped, m)
		}
	}
	return llm.Noted(keep, dropped)
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
