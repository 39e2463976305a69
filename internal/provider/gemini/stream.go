package gemini

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/gemworker/gem/internal/provider"
)

// maxCalls is the maximum number of tool calls in an answer.
const maxCalls = 1024

// stream reads the events of one response.
type stream struct {
	provider.Queue
	ctx context.Context
	key string

	began   bool
	content bool
	calls   int
	reason  string // the last finishReason, or why the prompt was blocked
	blocked bool
	request string
}

// take reads an event of the response. It adds to the queue, or ends the stream.
func (s *stream) take(event provider.ServerEvent, err error) {
	switch {
	case err != nil:
		s.finish(err)
	case len(event.Data) == 0:
		s.send(provider.Event{Kind: provider.KeepAlive})
	default:
		s.read(event.Data)
	}
}

func (s *stream) garbled() *provider.Error {
	return s.wrong(provider.Garbled, "an event of the stream cannot be read")
}

func (s *stream) wrong(kind provider.ErrorKind, message string) *provider.Error {
	return &provider.Error{Kind: kind, Status: http.StatusOK, Message: message, RequestID: s.request}
}

// finish ends the stream after its last event. Some models give a finishReason with every event: the last one counts,
// and only if the body ends after a complete event.
func (s *stream) finish(err error) {
	if s.reason == "" || !errors.Is(err, io.EOF) || s.Events.Torn {
		if errors.Is(err, io.EOF) {
			err = &provider.Error{Kind: provider.Cut, Message: "the stream ended before its finishReason"}
			if s.Events.Torn {
				err = &provider.Error{Kind: provider.Cut, Message: "the stream ended in the middle of an event"}
			}
		}
		s.Fail(provider.InStream(provider.Broke(s.ctx, err, true, s.key), s.request))
		return
	}
	stop, err := s.stopped()
	if err != nil {
		s.Fail(err)
		return
	}
	s.send(provider.Event{Kind: provider.Ended, Stop: stop, ProviderStop: s.reason})
	s.Finish()
}

func (s *stream) stopped() (provider.Stop, error) {
	if s.blocked {
		return provider.Refusal, nil
	}
	switch s.reason {
	case "STOP":
		if s.calls > 0 {
			return provider.ToolUse, nil
		}
		return provider.EndTurn, nil
	case "MAX_TOKENS":
		return provider.MaxTokens, nil
	case "SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY",
		"IMAGE_PROHIBITED_CONTENT",
		"IMAGE_RECITATION":
		return provider.Refusal, nil
	case "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS":
		return "", s.wrong(provider.Unavailable, "the model failed to call a tool: "+s.reason)
	case "CONTINUATION":
		return "", s.wrong(provider.Cut, "the provider wants the stream to be continued by another request")
	}
	switch { // an unknown word, such as aimock's FUNCTION_CALL
	case s.calls > 0:
		return provider.ToolUse, nil
	case s.content:
		return provider.EndTurn, nil
	}
	return provider.Refusal, nil
}

// chunk is an event, with the needed fields.
type chunk struct {
	Error          json.RawMessage `json:"error"`
	ModelVersion   string          `json:"modelVersion"`
	ResponseID     string          `json:"responseId"`
	PromptFeedback struct {
		BlockReason string `json:"blockReason"`
	} `json:"promptFeedback"`
	Candidates []struct {
		Index   int `json:"index"`
		Content struct {
			Parts []answerPart `json:"parts"`
		} `json:"content"`
		FinishReason string `json:"finishReason"`
	} `json:"candidates"`
	Usage json.RawMessage `json:"usageMetadata"`
}

type answerPart struct {
	Text      string `json:"text"`
	Thought   bool   `json:"thought"`
	Signature string `json:"thoughtSignature"`
	Call      *struct {
		ID   string          `json:"id"`
		Name string          `json:"name"`
		Args json.RawMessage `json:"args"`
		// WillContinue announces further pieces of the arguments, which GEM does not ask for.
		WillContinue bool            `json:"willContinue"`
		PartialArgs  json.RawMessage `json:"partialArgs"`
	} `json:"functionCall"`
}

// usage is cumulative: each event's figures replace the earlier ones.
type usage struct {
	Prompt     *provider.Count `json:"promptTokenCount"`
	ToolPrompt provider.Count  `json:"toolUsePromptTokenCount"`
	Cached     provider.Count  `json:"cachedContentTokenCount"`
	Candidates *provider.Count `json:"candidatesTokenCount"`
	Thoughts   *provider.Count `json:"thoughtsTokenCount"`
	Total      *provider.Count `json:"totalTokenCount"`
}

func (s *stream) read(data []byte) {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		s.Fail(s.garbled())
		return
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		s.Fail(s.late(data))
		return
	}
	before := s.Waiting()
	if !s.began && (c.ModelVersion != "" || c.ResponseID != "") {
		s.began, s.request = true, provider.RequestID(http.Header{"Request-Id": {c.ResponseID}}, s.key)
		s.send(provider.Event{Kind: provider.Began, Model: c.ModelVersion, RequestID: s.request})
	}
	if reason := c.PromptFeedback.BlockReason; reason != "" {
		s.reason, s.blocked = reason, true
	}
	for _, candidate := range c.Candidates {
		if candidate.Index != 0 {
			continue
		}
		for i := range candidate.Content.Parts {
			s.part(&candidate.Content.Parts[i])
		}
		if reason := candidate.FinishReason; reason != "" && reason != "FINISH_REASON_UNSPECIFIED" && !s.blocked {
			s.reason = reason
		}
	}
	s.use(c.Usage)
	if s.Waiting() == before && !s.Done() {
		s.send(provider.Event{Kind: provider.KeepAlive})
	}
}

func (s *stream) send(e provider.Event) {
	if s.Err() != nil {
		return
	}
	s.content = s.content || e.IsContent()
	s.Send(e)
}

func (s *stream) part(p *answerPart) {
	signature := p.Signature
	switch {
	case p.Call != nil:
		if s.calls >= maxCalls {
			s.Fail(s.wrong(provider.AnswerTooBig, fmt.Sprintf("the answer has more than %d calls to tools", maxCalls)))
			return
		}
		if p.Call.WillContinue || len(p.Call.PartialArgs) > 0 {
			s.Fail(s.wrong(provider.Garbled, "a call to a tool is in pieces"))
			return
		}
		id, args := p.Call.ID, p.Call.Args
		if id == "" {
			id = fmt.Sprintf("%s%d", ourID, s.calls)
		}
		if len(args) == 0 || string(args) == "null" {
			args = json.RawMessage("{}")
		}
		s.send(provider.Event{Kind: provider.CallBegan, Index: s.calls, ID: id, Name: p.Call.Name, Signature: signature})
		s.send(provider.Event{Kind: provider.ArgumentsDelta, Index: s.calls, Delta: string(args)})
		s.calls++
	case p.Thought:
		if p.Text != "" || signature != "" {
			s.send(provider.Event{Kind: provider.ThinkingDelta, Delta: p.Text, Signature: signature})
		}
	case p.Text != "" || signature != "":
		s.send(provider.Event{Kind: provider.TextDelta, Delta: p.Text, Signature: signature})
	}
}

// use ignores a usage with a figure that is not a number: the answer is complete without it.
func (s *stream) use(raw json.RawMessage) {
	var u usage
	if json.Unmarshal(raw, &u) != nil || u.Prompt == nil && u.Candidates == nil && u.Thoughts == nil {
		return
	}
	s.send(provider.Event{Kind: provider.UsageSeen, Usage: provider.Usage{
		Input:     u.Prompt.Int() + int64(u.ToolPrompt),
		Output:    u.Candidates.Int() + u.Thoughts.Int(),
		CacheRead: int64(u.Cached),
		Reasoning: u.Thoughts.Int(),
		Known:     true,
		NoInput:   u.Prompt == nil,
		NoOutput:  u.Candidates == nil,
	}})
}

// ourID is the prefix of ids that GEM generates if the provider gives none.
const ourID = "call_"

// isOurs reports whether GEM generated an id, which the provider does not know.
func isOurs(id string) bool {
	n, ok := strings.CutPrefix(id, ourID)
	return ok && len(n) > 0 && len(n) <= len("1023") && strings.Trim(n, "0123456789") == ""
}
