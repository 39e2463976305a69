package mcpclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/receipts"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/propagation"
)

const (
	// maxResult is the maximum size of a tool's result, in bytes.
	maxResult = 1 << 20
	// maxMessageText is the maximum number of bytes of a server's text in an error.
	maxMessageText = 2000
	// keyMeta is the field with the call's id for the server. The id is the same in every attempt, so the server can use
	// it as an idempotency key.
	keyMeta = "io.github.gemworker/key"
)

// run is one attempt of a call.
func (s *server) run(ctx context.Context, call *handlers.Call, method string) (json.RawMessage, error) {
	output, err := s.try(ctx, call, method)
	stale := (*staleError)(nil)
	if !errors.As(err, &stale) || stale.sent && call.Attempt > 1 {
		return output, err
	}
	// The call need not wait for its next attempt, if there is one.
	output, err = s.try(ctx, call, method)
	if transient := (*handlers.TransientError)(nil); stale.sent && errors.As(err, &transient) && transient.NothingSent {
		err = s.forgot() // it was sent before, and a call is repeated at most once for a forgotten session
	}
	return output, err
}

// staleError is the error of a connection that ended before the call was sent, or of a call whose server reports that
// it forgot the session.
type staleError struct {
	error
	sent bool
}

func (e *staleError) Unwrap() error { return e.error }

// forgot is the error of a call whose server received it, and reports that it forgot the session.
func (s *server) forgot() error {
	return handlers.Transient(&handlers.Failure{
		Code: "outcome_unknown",
		Message: fmt.Sprintf("The MCP server %s got the call, and says that it forgot the session: whether the call took "+
			"effect is not known. Check whether it did.", s.domain),
		Details: map[string]string{"reason": "session_forgotten"},
	})
}

func (s *server) try(ctx context.Context, call *handlers.Call, method string) (json.RawMessage, error) {
	made, err := s.connected(ctx)
	if err != nil {
		return nil, err
	}
	tool, err := made.tool(ctx, method)
	if err != nil {
		return nil, err
	}
	params := &sdk.CallToolParams{Name: tool.Name, Arguments: call.Input, Meta: sdk.Meta{keyMeta: call.ID}}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	if parent := carrier["traceparent"]; parent != "" {
		params.Meta["traceparent"] = parent
	}

	var sending delivery
	type answer struct {
		result *sdk.CallToolResult
		err    error
	}
	answered := make(chan answer, 1)
	asks := made.asks.Load()
	go func() { // a program that does not read its input would hold this call beyond the end of its time
		result, err := made.CallTool(context.WithValue(ctx, deliveryKey{}, &sending), params)
		answered <- answer{result, err}
	}()
	var got answer
	select {
	case got = <-answered:
	case <-ctx.Done(): // the SDK tells the server
		got.err = ctx.Err()
	}
	wrote := sending.end()
	if wrote {
		call.Called(s.domain, made.shown(tool.Name), 0)
	}
	if made.input != nil {
		if wrote {
			made.input.answered()
		}
		if made.input.hung() {
			s.drop(made)
		}
	}
	var output json.RawMessage
	large := (*tooLargeError)(nil)
	switch {
	case errors.As(got.err, &large):
		err = made.tooLarge(tool, large.size)
	case got.err != nil:
		err = made.failure(ctx, got.err, wrote)
	default:
		output, err = made.output(tool, raw(got.result.Meta))
	}
	if asked := made.asked.Load(); err != nil && asked != nil && made.asks.Load() > asks {
		err = refusedRequest(*asked, err)
	}
	return output, err
}

// refusedRequest describes a request of the server that was refused while the call failed.
func refusedRequest(method string, err error) error {
	if failure := (*handlers.Failure)(nil); errors.As(err, &failure) {
		failure.Message = fmt.Sprintf("The server asked for %s, which GEM does not answer: its tools must do without. %s",
			method, failure.Message)
	}
	return err
}

// result is a tool's result in the server's form.
type result struct {
	Content           []json.RawMessage `json:"content"`
	StructuredContent json.RawMessage   `json:"structuredContent"`
	IsError           bool              `json:"isError"`
	ResultType        string            `json:"resultType"`
	Task              json.RawMessage   `json:"task"`
	InputRequests     map[string]struct {
		Method string `json:"method"`
	} `json:"inputRequests"`
}

// isTask reports whether a result describes a task and has nothing else.
func (r result) isTask() bool {
	return len(r.Content) == 0 && len(r.StructuredContent) == 0 && strings.HasPrefix(string(r.Task), "{")
}

// tooLarge returns the error of a call whose result has too many bytes.
func (s *session) tooLarge(tool Tool, size int) error {
	return &handlers.Failure{
		Message: fmt.Sprintf("%s of the MCP server %s was called, and its result has %d bytes; it may have %d (1 MiB). "+
			"Ask it for less.", s.shown(tool.Name), s.server.domain, size, maxResult),
		Details: map[string]any{"reason": "result_too_large", "bytes": size},
	}
}

// output makes an output of a result.
func (s *session) output(tool Tool, all json.RawMessage) (json.RawMessage, error) {
	if len(all) > maxResult {
		return nil, s.tooLarge(tool, len(all))
	}
	all = json.RawMessage(s.secrets.scrub(string(all)))
	var r result
	if err := json.Unmarshal(all, &r); err != nil {
		return nil, s.unreadable()
	}
	text, others := r.read()
	switch {
	case !slices.Contains([]string{"", "complete", "input_required"}, r.ResultType) || r.isTask():
		return nil, &handlers.Failure{
			Code: "outcome_unknown",
			Message: fmt.Sprintf("%s of the MCP server %s answered before its work was done, and GEM does not wait for "+
				"tasks: whether the call took effect is not known. Check whether it did.", s.shown(tool.Name), s.server.domain),
			Details: map[string]string{"reason": "task"},
		}
	case r.ResultType == "input_required" || len(r.InputRequests) > 0:
		kinds := map[string]bool{}
		for _, asked := range r.InputRequests {
			kinds[s.shown(asked.Method)] = true
		}
		return nil, handlers.Fail("input_required", fmt.Sprintf("%s of the MCP server %s asks for %s before it does "+
			"anything, which GEM does not answer: its tools must do without.",
			s.shown(tool.Name), s.server.domain, orElse(strings.Join(slices.Sorted(maps.Keys(kinds)), ", "), "more input")))
	case r.IsError:
		return nil, &handlers.Failure{
			Advice: r.advice(),
			Message: orElse(receipts.Shorten(receipts.Storable(text), maxMessageText),
				fmt.Sprintf("%s of the MCP server %s failed, and did not say why.", s.shown(tool.Name), s.server.domain)),
			Details: map[string]string{"reason": "tool_error", "server": s.server.domain, "tool": s.shown(tool.Name)},
		}
	case r.structured(tool):
		return r.StructuredContent, nil
	case len(others) == 0:
		return json.Marshal(map[string]string{"text": receipts.Storable(text)})
	}
	return json.Marshal(map[string]any{"text": receipts.Storable(text), "content": others})
}

// advice returns error.details.advice from the structured content of an error.
func (r result) advice() handlers.Advice {
	var said struct {
		Error struct {
			Details struct {
				Advice handlers.Advice `json:"advice"`
			} `json:"details"`
		} `json:"error"`
	}
	if json.Unmarshal(r.StructuredContent, &said) != nil {
		return ""
	}
	return said.Error.Details.Advice
}

// structured reports whether the structured content is the output. If the server has no output schema, the registry's
// schema requires an object.
func (r result) structured(tool Tool) bool {
	start := strings.TrimLeft(string(r.StructuredContent), " \t\r\n")
	if start == "" || start == "null" {
		return false
	}
	return len(tool.OutputSchema) > 0 || start[0] == '{'
}

// read returns the texts of the content, a line each, and the other parts.
func (r result) read() (text string, others []json.RawMessage) {
	var texts []string
	for _, item := range r.Content {
		var c struct{ Type, Text string }
		if err := json.Unmarshal(item, &c); err == nil && c.Type == "text" {
			texts = append(texts, c.Text)
		} else {
			others = append(others, item)
		}
	}
	return strings.Join(texts, "\n"), others
}

// shown returns a text of the server for a message.
func (s *session) shown(text string) string {
	return receipts.Shorten(value.OneLine(s.secrets.scrub(text)), 200)
}

func orElse(text, other string) string {
	if strings.TrimSpace(text) == "" {
		return other
	}
	return text
}

// failure interprets the error of a request. sent means that the request was a call to a tool that may have taken
// effect.
func (s *session) failure(ctx context.Context, err error, sent bool) error {
	said := func(text string) string { return value.OneLine(s.secrets.scrub(text)) }
	var (
		status *statusError
		no     *refusal
	)
	switch {
	case ctx.Err() != nil && !sent:
		return handlers.NothingSent(ctx.Err(), 0)
	case ctx.Err() != nil: // the worker knows why it ended
		return handlers.Transient(&handlers.Failure{
			Code: "outcome_unknown",
			Message: fmt.Sprintf("The time of the call was over before the MCP server %s answered: whether it took effect is "+
				"not known. GEM asked the server to stop. Check whether it did.",
				s.server.domain),
			Details: map[string]string{"reason": "no_answer_in_time"},
		})
	case errors.Is(err, errForgotten) && sent:
		return &staleError{error: s.server.forgot(), sent: true}
	case errors.Is(err, errForgotten):
		return handlers.NothingSent(&staleError{error: fmt.Errorf("the MCP server %s says that it forgot the session, and "+
			"the call was not sent", s.server.domain)}, 0)
	case errors.As(err, &status):
		return s.server.refused(status, s.secrets, sent)
	case errors.Is(err, errRedirect):
		return handlers.Fail("redirect", fmt.Sprintf("The MCP server %s redirects, and its credentials go nowhere else: "+
			"write the address to which it leads into domains.json.",
			s.server.domain))
	case !sent && errors.Is(err, sdk.ErrConnectionClosed):
		s.server.drop(s)
		return handlers.NothingSent(&staleError{error: fmt.Errorf(
			"the connection to the MCP server %s had ended, and nothing was sent", s.server.domain)}, 0)
	case !sent && errors.As(err, new(*unsentError)):
		return handlers.NothingSent(fmt.Errorf("the MCP server %s cannot be reached, and nothing was sent: %s",
			s.server.domain, s.secrets.said(err)), 0)
	case errors.As(err, &no):
		message := fmt.Sprintf("The MCP server %s refused the call: %s", s.server.domain, said(no.wire.Message))
		if no.wire.Code == urlElicitation {
			message = fmt.Sprintf("The MCP server %s asks for an elicitation, which GEM does not answer: its tools must do "+
				"without. It said: %s", s.server.domain, said(no.wire.Message))
		}
		return &handlers.Failure{Message: message, Details: map[string]any{"reason": "refused_by_server",
			"code": no.wire.Code}}
	case sent && errors.Is(err, errUnreadable):
		return s.unreadable()
	case !sent:
		return handlers.NothingSent(fmt.Errorf("the MCP server %s did not list its tools: %s", s.server.domain,
			s.secrets.said(err)), 0)
	}
	return handlers.Transient(&handlers.Failure{
		Code: "outcome_unknown",
		Message: fmt.Sprintf("The connection to the MCP server %s broke before it answered: whether the call took effect "+
			"is not known. Check whether it did.", s.server.domain),
		Details: map[string]string{"reason": "connection_broken", "error": s.secrets.said(err)},
	})
}

// unreadable returns the error of a call whose answer cannot be read.
func (s *session) unreadable() error {
	return handlers.Transient(&handlers.Failure{
		Code: "outcome_unknown",
		Message: fmt.Sprintf("The answer of the MCP server %s cannot be read: whether the call took effect is not known. "+
			"Check whether it did.", s.server.domain),
		Details: map[string]string{"reason": "unreadable_answer"},
	})
}

const urlElicitation = -32042

// ofTheSDK reports whether a code is one with which the SDK reports that a connection is closed or a request was not
// accepted.
func ofTheSDK(code int64) bool { return code <= -32001 && code >= -32005 }

// refused interprets an answer whose status is an error.
func (s *server) refused(status *statusError, secrets secrets, sent bool) error {
	text := value.OneLine(secrets.scrub(status.Error()))
	switch {
	case status.code == http.StatusUnauthorized || status.code == http.StatusForbidden:
		variables := strings.Join(slices.Compact(slices.Sorted(maps.Values(s.settings.HeaderEnv))), ", ")
		hint := "name a header with credentials under header_env in domains.json."
		if variables != "" {
			hint = "look at the value of " + variables + "."
		}
		return &handlers.Failure{
			Message: fmt.Sprintf("The MCP server %s does not let the worker in: %s. To the operator: %s", s.domain,
				strings.TrimSuffix(text, "."), hint),
			Details: map[string]any{"reason": "refused_by_server", "status_code": status.code},
		}
	case sent && (status.code == http.StatusBadGateway || status.code == http.StatusGatewayTimeout):
		// something before the server abandoned it
		return handlers.TransientAfter(&handlers.Failure{
			Code: "outcome_unknown",
			Message: fmt.Sprintf("The MCP server %s gave no answer of its own (%s): whether the call took effect is not "+
				"known. Check whether it did.", s.domain, text),
			Details: map[string]any{"reason": "no_answer", "status_code": status.code},
		}, status.after)
	}
	failed := &handlers.Failure{
		Message: fmt.Sprintf("The MCP server %s failed: %s", s.domain, text),
		Details: map[string]any{"reason": "refused_by_server", "status_code": status.code},
	}
	if !sent {
		return handlers.NothingSent(failed, status.after)
	}
	if status.final() {
		return failed
	}
	return handlers.TransientAfter(failed, status.after)
}

// unreachable returns the error of a server that cannot be reached.
func (s *server) unreachable(err error, secrets secrets) error {
	var unset *handlers.NotConfigured
	var status *statusError
	switch {
	case errors.As(err, &unset):
		return unset
	case errors.As(err, &status):
		return s.refused(status, secrets, false)
	}
	reason := secrets.said(err)
	if errors.Is(err, context.DeadlineExceeded) {
		reason = fmt.Sprintf("it gave no answer within %s", connectTime)
	}
	return handlers.NothingSent(fmt.Errorf("the MCP server %s could not be connected, and nothing was sent: %s", s.domain,
		reason), 0)
}
