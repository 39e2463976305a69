package llmtest

import (
	"encoding/json"
	"errors"
	"net/http"
	"path"
	"strings"

	"github.com/gemworker/gem/internal/provider"
)

func (r *Request) readGemini(hr *http.Request) error {
	type part struct {
		Text             string
		Thought          bool
		ThoughtSignature string
		FunctionCall     *struct {
			ID, Name string
			Args     json.RawMessage
		}
		FunctionResponse *struct {
			ID, Name string
			Response json.RawMessage
		}
	}
	type content struct {
		Role  string
		Parts []part
	}
	var body struct {
		Contents          []content
		SystemInstruction content
		Tools             []struct {
			FunctionDeclarations []struct {
				Name, Description    string
				Parameters           json.RawMessage
				ParametersJSONSchema json.RawMessage `json:"parametersJsonSchema"`
			}
		}
		ToolConfig struct {
			FunctionCallingConfig struct{ Mode string }
		}
		GenerationConfig struct {
			MaxOutputTokens    int
			Temperature, TopP  *float64
			StopSequences      []string
			ResponseSchema     json.RawMessage
			ResponseJSONSchema json.RawMessage `json:"responseJsonSchema"`
			ThinkingConfig     struct{ ThinkingLevel string }
		}
	}
	if err := json.Unmarshal(r.Body, &body); err != nil {
		return err
	}
	model, _, _ := strings.Cut(path.Base(r.Path), ":")
	config := body.GenerationConfig
	mode := body.ToolConfig.FunctionCallingConfig.Mode
	r.Asked = provider.Request{
		Model: model, MaxOutputTokens: config.MaxOutputTokens, Temperature: config.Temperature, TopP: config.TopP,
		Stop: config.StopSequences,
		ToolChoice: map[string]provider.ToolChoice{"AUTO": provider.ChooseAuto, "ANY": provider.ChooseRequired,
			"NONE": provider.ChooseNone}[mode],
		Schema: config.ResponseJSONSchema, Effort: provider.Effort(strings.ToLower(config.ThinkingConfig.ThinkingLevel)),
	}
	if r.Asked.Schema == nil {
		r.Asked.Schema = config.ResponseSchema
	}
	for _, p := range body.SystemInstruction.Parts {
		r.Asked.System += p.Text
	}
	for _, list := range body.Tools {
		for _, f := range list.FunctionDeclarations {
			if f.ParametersJSONSchema == nil {
				f.ParametersJSONSchema = f.Parameters
			}
			r.Asked.Tools = append(r.Asked.Tools, provider.Tool{Name: f.Name, Description: f.Description,
				Parameters: f.ParametersJSONSchema})
		}
	}
	for _, c := range body.Contents {
		m := provider.Message{Role: provider.User}
		switch c.Role {
		case "model":
			m.Role = provider.Assistant
		case "user", "function", "":
		default:
			return errors.New("no content has the role " + c.Role)
		}
		for _, p := range c.Parts {
			switch {
			case p.FunctionCall != nil:
				m.Content = append(m.Content, provider.Part{Type: provider.ToolCall, ID: p.FunctionCall.ID,
					Name: p.FunctionCall.Name, Arguments: p.FunctionCall.Args, Signature: p.ThoughtSignature})
			case p.FunctionResponse != nil:
				m.Role = provider.FromTool
				m.Content = append(m.Content, geminiResult(p.FunctionResponse.ID, p.FunctionResponse.Name,
					p.FunctionResponse.Response))
			case p.Thought:
				m.Content = append(m.Content, provider.Part{Type: provider.Thinking, Text: p.Text, Signature: p.ThoughtSignature})
			default:
				m.Content = append(m.Content, provider.Part{Type: provider.Text, Text: p.Text, Signature: p.ThoughtSignature})
			}
		}
		r.Asked.Messages = append(r.Asked.Messages, m)
	}
	if hr.URL.Query().Get("alt") != "sse" {
		return errors.New("alt: llmtest has streams of events alone")
	}
	return nil
}

// geminiResult returns the result of a call, which is an object in this dialect. It returns its output, result or error
// if there is one, otherwise the whole object.
func geminiResult(id, name string, response json.RawMessage) provider.Part {
	p := provider.Part{Type: provider.ToolResult, ToolCallID: id, Name: name, Content: string(response)}
	var known struct{ Output, Result, Error *string }
	if json.Unmarshal(response, &known) == nil {
		for _, text := range []*string{known.Output, known.Result, known.Error} {
			if text != nil {
				p.Content, p.IsError = *text, text == known.Error
			}
		}
	}
	return p
}

// gemini writes the generateContent dialect.
type gemini struct{}

var geminiStops = map[provider.Stop]string{
	provider.EndTurn: "STOP", provider.MaxTokens: "MAX_TOKENS", provider.ToolUse: "STOP", provider.StopSequence: "STOP",
	provider.Refusal: "SAFETY",
}

var geminiErrors = map[int]string{
	400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 408: "CANCELLED",
	413: "INVALID_ARGUMENT",
	422: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}

// event returns an event whose lines end in CRLF, like those of the provider.
func (gemini) event(fields object) string {
	return strings.ReplaceAll(lines(fields), "\n", "\r\n")
}

// chunk returns a piece of the answer. Each has the usage, and the last one counts.
func (d gemini) chunk(a *spoken, finish string, output int64, parts ...any) string {
	candidate := object{"index": 0}
	if parts != nil {
		candidate["content"] = object{"role": "model", "parts": parts}
	}
	if finish != "" {
		candidate["finishReason"] = finish
	}
	chunk := object{"candidates": []any{candidate}, "modelVersion": a.model, "responseId": a.id}
	if u := a.usage; u != nil {
		usage := object{"promptTokenCount": u.Input, "totalTokenCount": u.Input + output}
		if u.NoInput {
			delete(usage, "promptTokenCount")
		}
		if u.CacheRead > 0 {
			usage["cachedContentTokenCount"] = u.CacheRead
		}
		if finish != "" && !u.NoOutput {
			usage["candidatesTokenCount"] = u.Output - u.Reasoning
			if u.Reasoning > 0 {
				usage["thoughtsTokenCount"] = u.Reasoning
			}
		}
		chunk["usageMetadata"] = usage
	}
	return d.event(chunk)
}

func (gemini) begin(*spoken) []event { return nil }

func (d gemini) alive(a *spoken) string { return d.chunk(a, "", 0) }

func (d gemini) body(a *spoken) []event {
	var list []event
	add := func(part object, signature string) {
		if signature != "" {
			part["thoughtSignature"] = signature
		}
		list = append(list, event{text: d.chunk(a, "", 0, part), delta: true})
	}
	for _, p := range a.Parts {
		switch p.Type {
		case provider.Text, provider.Thinking:
			pieces := a.pieces(p.Text)
			if len(pieces) == 0 && p.Signature != "" {
				pieces = []string{""}
			}
			for i, piece := range pieces {
				part, signature := object{"text": piece}, ""
				if p.Type == provider.Thinking {
					part["thought"] = true
				}
				if i == len(pieces)-1 {
					signature = p.Signature
				}
				add(part, signature)
			}
		case provider.ToolCall: // complete, without an id
			if args := arguments(&p); json.Valid([]byte(args)) {
				add(object{"functionCall": object{"name": p.Name, "args": json.RawMessage(args)}}, p.Signature)
			}
		}
	}
	return list
}

func (d gemini) end(a *spoken) []event {
	var output int64
	if a.usage != nil {
		output = a.usage.Output
	}
	finish := a.word(geminiStops)
	for _, p := range a.Parts {
		if !json.Valid([]byte(arguments(&p))) && p.Type == provider.ToolCall {
			finish = "MALFORMED_FUNCTION_CALL" // the provider does not send such a call
		}
	}
	return []event{{text: d.chunk(a, finish, output, object{"text": ""})}}
}

func (d gemini) again(a *spoken) []event { return d.end(a) }

func (gemini) failure(_ *spoken, status int, message string, f *Fault) string {
	name := geminiErrors[status]
	if name == "" {
		name = "UNKNOWN"
	}
	fault := object{"code": status, "message": message, "status": name}
	if f != nil && f.RetryForm == InRetryInfo {
		fault["details"] = []any{object{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f.Retry.String()}}
	}
	body, _ := json.Marshal(object{"error": fault})
	return string(body)
}

func (d gemini) failed(a *spoken, status int, message string) string {
	return "data: " + d.failure(a, status, message, nil) + "\r\n\r\n"
}

func (gemini) tooLong() string {
	return "The input token count (1210000) exceeds the maximum number of tokens allowed (1048576)."
}

func (gemini) data(text string) string { return "data: " + text + "\r\n\r\n" }
