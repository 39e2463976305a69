package gemini

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"google.golang.org/genai"

	"github.com/gemworker/gem/internal/llm"
)

// maxCalls is how many calls of tools an answer may have.
const maxCalls = 1024

// stream reads the events of one response.
type stream struct {
	ctx    context.Context
	cancel context.CancelFunc
	x      *llm.Exchange
	key    string

	using sync.Mutex // of next and stop, since Close may come in the midst of Next
	next  func() (*genai.GenerateContentResponse, error, bool)
	stop  func()

	queue []llm.Event
	cur   llm.Event
	err   error
	done  bool

	began   bool
	content bool
	calls   int
	reason  string // the last finishReason, or why the prompt was blocked
	blocked bool
	request string
}

func (s *stream) Next() bool {
	for len(s.queue) == 0 {
		if s.done {
			return false
		}
		s.fetch()
	}
	s.cur, s.queue = s.queue[0], s.queue[1:]
	return true
}

func (s *stream) Current() llm.Event { return s.cur }
func (s *stream) Err() error         { return s.err }

func (s *stream) Close() error {
	s.cancel()
	s.using.Lock()
	defer s.using.Unlock()
	defer func() { _ = recover() }() // the SDK's panic is that of Next
	s.stop()
	return nil
}

func (s *stream) fail(err error) {
	s.err, s.done, s.queue = err, true, nil
	s.cancel()
}

// fetch reads an event. It adds to the queue, or ends the stream.
func (s *stream) fetch() {
	s.using.Lock()
	defer s.using.Unlock()
	defer func() {
		if r := recover(); r == nil {
			return
		}
		// The SDK asserts the types of JSON that it has not checked.
		if s.x.Header == nil {
			s.fail(&llm.Error{Kind: llm.BadRequest, Message: "the request cannot be written"})
			return
		}
		s.fail(s.garbled())
	}()
	chunk, err, ok := s.next()
	switch {
	case !ok:
		s.finish()
	case err != nil:
		s.fail(s.broke(err))
	default:
		s.read(chunk, s.x.Data())
	}
}

func (s *stream) garbled() *llm.Error {
	return s.wrong(llm.Garbled, "an event of the stream cannot be read")
}

func (s *stream) wrong(kind llm.ErrorKind, message string) *llm.Error {
	return &llm.Error{Kind: kind, Status: http.StatusOK, Message: message, RequestID: s.request}
}

// finish ends the stream after its last event. Some models give a finishReason with every event: the last one counts.
func (s *stream) finish() {
	if s.reason == "" {
		err := s.x.Err()
		if err == nil {
			err = &llm.Error{Kind: llm.Cut, Message: "the stream ended before its finishReason"}
		}
		err = llm.Broke(s.ctx, err, true, s.key)
		if e, ok := errors.AsType[*llm.Error](err); ok {
			with := *e
			with.Status, with.RequestID = http.StatusOK, s.request
			err = &with
		}
		s.fail(err)
		return
	}
	stop, err := s.stopped()
	if err != nil {
		s.fail(err)
		return
	}
	s.send(llm.Event{Kind: llm.Ended, Stop: stop, ProviderStop: s.reason})
	s.done = true
	s.cancel()
}

func (s *stream) stopped() (llm.Stop, error) {
	if s.blocked {
		return llm.Refusal, nil
	}
	switch genai.FinishReason(s.reason) {
	case genai.FinishReasonStop:
		if s.calls > 0 {
			return llm.ToolUse, nil
		}
		return llm.EndTurn, nil
	case genai.FinishReasonMaxTokens:
		return llm.MaxTokens, nil
	case genai.FinishReasonSafety, genai.FinishReasonRecitation, genai.FinishReasonLanguage, genai.FinishReasonBlocklist,
		genai.FinishReasonProhibitedContent, genai.FinishReasonSPII, genai.FinishReasonImageSafety, genai.FinishReasonImageProhibitedContent,
		genai.FinishReasonImageRecitation:
		return llm.Refusal, nil
	case genai.FinishReasonMalformedFunctionCall, genai.FinishReasonUnexpectedToolCall, genai.FinishReasonTooManyToolCalls:
		return "", s.wrong(llm.Unavailable, "the model failed to call a tool: "+s.reason)
	case genai.FinishReasonContinuation:
		return "", s.wrong(llm.Cut, "the provider wants the stream to be continued by another request")
	}
	switch { // a word that nobody here knows, such as aimock's FUNCTION_CALL
	case s.calls > 0:
		return llm.ToolUse, nil
	case s.content:
		return llm.EndTurn, nil
	}
	return llm.Refusal, nil
}

// exact is what of an event the SDK changes or leaves out: it reads numbers as floats, and figures that are absent as 0.
type exact struct {
	Error      json.RawMessage `json:"error"`
	Candidates []struct {
		Content struct {
			Parts []*struct {
				Signature string `json:"thoughtSignature"`
				Call      *struct {
					Args json.RawMessage `json:"args"`
				} `json:"functionCall"`
			} `json:"parts"`
		} `json:"content"`
	} `json:"candidates"`
	Usage *struct {
		Prompt     *int64 `json:"promptTokenCount"`
		Candidates *int64 `json:"candidatesTokenCount"`
		Thoughts   *int64 `json:"thoughtsTokenCount"`
		Total      *int64 `json:"totalTokenCount"`
	} `json:"usageMetadata"`
}

func (s *stream) read(chunk *genai.GenerateContentResponse, data []byte) {
	var raw exact
	if err := json.Unmarshal(data, &raw); err != nil {
		s.fail(s.garbled())
		return
	}
	if len(raw.Error) > 0 && string(raw.Error) != "null" {
		s.fail(s.late(data)) // the SDK passes over an error that is no object
		return
	}
	before := len(s.queue)
	if !s.began && (chunk.ModelVersion != "" || chunk.ResponseID != "") {
		s.began, s.request = true, llm.RequestID(http.Header{"Request-Id": {chunk.ResponseID}}, s.key)
		s.send(llm.Event{Kind: llm.Began, Model: chunk.ModelVersion, RequestID: s.request})
	}
	if f := chunk.PromptFeedback; f != nil && f.BlockReason != "" {
		s.reason, s.blocked = string(f.BlockReason), true
	}
	for i, c := range chunk.Candidates {
		if c == nil || c.Index != 0 {
			continue
		}
		if c.Content != nil {
			for j, part := range c.Content.Parts {
				if p := raw.Candidates[i].Content.Parts[j]; part != nil && p != nil {
					var args json.RawMessage
					if p.Call != nil {
						args = p.Call.Args
					}
					s.part(part, p.Signature, args)
				}
			}
		}
		if c.FinishReason != "" && c.FinishReason != genai.FinishReasonUnspecified && !s.blocked {
			s.reason = string(c.FinishReason)
		}
	}
	if u := raw.Usage; u != nil && (u.Prompt != nil || u.Candidates != nil || u.Thoughts != nil || u.Total != nil) {
		s.use(chunk.UsageMetadata)
	}
	if len(s.queue) == before && !s.done {
		s.send(llm.Event{Kind: llm.KeepAlive})
	}
}

func (s *stream) send(e llm.Event) {
	if s.err != nil {
		return
	}
	s.content = s.content || e.IsContent()
	s.queue = append(s.queue, e)
}

func (s *stream) part(p *genai.Part, signature string, args json.RawMessage) {
	switch {
	case p.FunctionCall != nil:
		if s.calls >= maxCalls {
			s.fail(s.wrong(llm.AnswerTooBig, fmt.Sprintf("the answer has more than %d calls of tools", maxCalls)))
			return
		}
		id := p.FunctionCall.ID
		if id == "" {
			id = fmt.Sprintf("%s%d", ourID, s.calls)
		}
		if len(args) == 0 || string(args) == "null" {
			args = json.RawMessage("{}")
		}
		s.send(llm.Event{Kind: llm.CallBegan, Index: s.calls, ID: id, Name: p.FunctionCall.Name, Signature: signature})
		s.send(llm.Event{Kind: llm.ArgumentsDelta, Index: s.calls, Delta: string(args)})
		s.calls++
	case p.Thought:
		if p.Text != "" || signature != "" {
			s.send(llm.Event{Kind: llm.ThinkingDelta, Delta: p.Text, Signature: signature})
		}
	case p.Text != "" || signature != "":
		s.send(llm.Event{Kind: llm.TextDelta, Delta: p.Text, Signature: signature})
	}
}

func (s *stream) use(u *genai.GenerateContentResponseUsageMetadata) {
	n := func(count int32) int64 { return max(int64(count), 0) }
	s.send(llm.Event{Kind: llm.UsageSeen, Usage: llm.Usage{
		Input:     n(u.PromptTokenCount) + n(u.ToolUsePromptTokenCount),
		Output:    n(u.CandidatesTokenCount) + n(u.ThoughtsTokenCount),
		CacheRead: n(u.CachedContentTokenCount),
		Reasoning: n(u.ThoughtsTokenCount),
		Known:     true,
	}})
}

// ourID begins the ids that are made here, where the provider gives none.
const ourID = "call_"

// isOurs reports whether an id was made here: the provider does not know it.
func isOurs(id string) bool {
	n, ok := strings.CutPrefix(id, ourID)
	return ok && len(n) > 0 && len(n) <= len("1023") && strings.Trim(n, "0123456789") == ""
}

// broke says why there is no response, or no further event.
func (s *stream) broke(err error) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	if e, ok := errors.AsType[*llm.Error](err); ok {
		return e
	}
	if _, ok := errors.AsType[*url.Error](err); ok {
		return llm.Broke(s.ctx, err, s.x.Header != nil, s.key)
	}
	if s.x.Header == nil {
		return &llm.Error{Kind: llm.BadRequest, Message: "the SDK refuses the request: " + llm.Clean(err.Error(), s.key)}
	}
	var raw exact
	if data := s.x.Data(); json.Unmarshal(data, &raw) == nil && len(raw.Error) > 0 {
		return s.late(data)
	}
	return s.garbled()
}
