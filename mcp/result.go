package mcp

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/gemworker/gem/internal/prose"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// result returns the answer to a tools/call whose call is in a state. A failure is not a protocol error, so that a
// model reads it; only a tool that no worker has is one, like a tool that the server does not have.
func (d *Server) result(s state) (*sdk.CallToolResult, error) {
	if !s.ended() {
		return annotated(pending(s), s), nil
	}
	tool, ok := d.o.Registry.Tool(s.Tool)
	if !ok { // the registry has changed since the call was made
		tool = &registry.Tool{Name: s.Tool}
	}
	var answer *sdk.CallToolResult
	switch s.Receipt.Status {
	case receipts.Succeeded:
		answer = d.success(s)
	case receipts.NotConfigured:
		answer = failed(notConfigured(tool, s.Receipt.Result))
	default:
		e, _ := s.Receipt.Error()
		if e.Code == receipts.UnknownTool {
			return nil, invalid("unknown tool %q: %s", s.Tool, e.Message)
		}
		answer = failed(failure(tool, s.Receipt, e))
	}
	answer = annotated(answer, s)
	if effects := chosenEffects(tool.ReceiptFields, s.Receipt.Effects); effects != nil {
		answer.Meta[meta+"effects"] = effects
	}
	return answer, nil
}

// success returns the result, or a link to it if it is too large.
func (d *Server) success(s state) *sdk.CallToolResult {
	if len(s.Receipt.Result) <= d.o.MaxResult {
		return structured(s.Receipt.Result)
	}
	return large(s, d.o.MaxResult)
}

// large returns a link to a result that exceeds the limit of bytes.
func large(s state, most int) *sdk.CallToolResult {
	ended := "has succeeded"
	if s.Receipt.Status != receipts.Succeeded {
		e, _ := s.Receipt.Error()
		ended = strings.TrimSpace("has not succeeded: it is " + s.Status + " " + string(e.Code))
	}
	size, uri := len(s.Receipt.Result), receiptURI+s.ID
	answer := structured(encode(map[string]any{"gem_large": map[string]any{"call_id": s.ID, "bytes": size,
		"beginning": beginning(s.Receipt.Result), "message": fmt.Sprintf(
			"The call %s. Its result takes %d bytes, more than the limit of %d; the whole result is in the resource %s.",
			ended, size, most, uri)}}))
	answer.Content = append(answer.Content, &sdk.ResourceLink{URI: uri, Name: "receipt of " + s.Tool,
		MIMEType: "application/json"})
	return answer
}

// beginning returns the first part of a text, of whole characters.
func beginning(text []byte) string {
	return strings.ToValidUTF8(string(text[:min(len(text), 2000)]), "")
}

// pending returns the answer for a call that continues. It is not an error, or the model would repeat the call.
func pending(s state) *sdk.CallToolResult {
	message := fmt.Sprintf("The call was accepted and continues (%s). Do not call the tool again: call gem_result with "+
		"call_id %s for its result.", where(s), s.ID)
	if s.asks != "" {
		message = fmt.Sprintf("The call was accepted and waits. %s Tell your user this, and do not answer or approve it "+
			"yourself. Do not call the tool again: "+
			"once it is answered, call gem_result with call_id %s for the result.", s.asks, s.ID)
	}
	status := s.Status
	if status == "" { // its state could not be read
		status = "unknown"
	}
	return structured(encode(map[string]any{"gem_pending": map[string]string{"call_id": s.ID, "state": status,
		"message": message}}))
}

// where describes the state of an open call in a few words.
func where(s state) string {
	switch s.Status {
	case "":
		return "its state could not be read"
	case "running":
		return fmt.Sprintf("it runs, attempt %d", s.Attempt)
	case "waiting":
		return "it waits for " + prose.Awaited(s.Tool, s.WaitsFor, s.approval)
	}
	return "it is " + s.Status + ", last event: " + s.Event
}

// failure explains why a call failed, and what an agent should do.
func failure(tool *registry.Tool, r *receipts.Receipt, e receipts.Error) string {
	said := fmt.Sprintf("%s failed (%s): %s", tool.Name, e.Code, e.Message)
	policy := "This is a policy of the tools' operator, not an error: the same call will be refused again."
	switch e.Code {
	case receipts.ValidationError:
		return said + faults(e.Details) + "\nCorrect the input, and call the tool again."
	case receipts.OutcomeUnknown:
		return fmt.Sprintf("%s\nIt may have taken effect: do not repeat the call before somebody has checked. Its receipt "+
			"is %s.", said, r.ID)
	case receipts.RuleBlocked, receipts.ApprovalDenied, receipts.NotAllowed:
		return said + advice(e.Details) + "\n" + policy
	case receipts.LimitReached, receipts.ApprovalExpired:
		return said + advice(e.Details) + "\nThis is a policy of the tools' operator, not an error of the call."
	case receipts.Cancelled:
		return said
	case receipts.KeyReused, receipts.KeyDeadlock, receipts.RuleError:
		return said + details(e.Details)
	}
	return said + details(e.Details) + whatNext(tool, e)
}

// Advice on a failure, by handlers.Advice.
var advices = map[string]string{
	"never":        "Do not repeat the call: it would fail again.",
	"later":        "The same call may succeed later.",
	"change_input": "Change the input before you call the tool again.",
}

// whatNext explains whether to repeat a failed call: by the tool's own advice, otherwise by its mode of idempotency.
func whatNext(tool *registry.Tool, e receipts.Error) string {
	var of struct {
		Advice string `json:"advice"`
	}
	if json.Unmarshal(e.Details, &of) == nil && advices[of.Advice] != "" {
		return "\n" + advices[of.Advice]
	}
	return repeatable(tool)
}

// repeatable warns that a new call would repeat effects, by the tool's permissions and its mode of idempotency.
func repeatable(tool *registry.Tool) string {
	switch {
	case tool.Idempotency.Mode != "" && readOnly(tool), // no mode: the registry no longer has the tool
		tool.Idempotency.Mode == registry.SafeRetry, tool.Idempotency.Mode == registry.Keyed:
		return ""
	}
	return "\nA new call repeats everything: before you make it, check the effects of this one."
}

// faults lists the faults of an input, each with its place.
func faults(encoded json.RawMessage) (lines string) {
	var all []struct{ Path, Message string }
	if json.Unmarshal(encoded, &all) != nil {
		return details(encoded)
	}
	for _, f := range all {
		if f.Path == "" {
			f.Path = "the input"
		}
		lines += fmt.Sprintf("\n- %s: %s", f.Path, f.Message)
	}
	return lines
}

// advice returns the advice for an agent in the details of a rule's refusal.
func advice(encoded json.RawMessage) (lines string) {
	var of struct {
		Do      string   `json:"do"`
		RetryMS *float64 `json:"retry_after_ms"`
	}
	if json.Unmarshal(encoded, &of) != nil {
		return ""
	}
	if of.Do != "" {
		lines += "\n" + of.Do
	}
	if of.RetryMS != nil {
		lines += fmt.Sprintf("\nretry_after_ms: %.0f", *of.RetryMS)
	}
	return lines
}

// details returns the details of a tool's own error.
func details(encoded json.RawMessage) string {
	if len(encoded) == 0 || string(encoded) == "null" || len(encoded) > 4<<10 {
		return ""
	}
	return "\ndetails: " + string(encoded)
}

// notConfigured explains what a tool lacks.
func notConfigured(tool *registry.Tool, encoded json.RawMessage) string {
	var of struct {
		Reason      string
		RequiredEnv []string `json:"required_env"`
		NextSteps   []string `json:"next_steps"`
	}
	_ = json.Unmarshal(encoded, &of) // a receipt has this form
	said := fmt.Sprintf("%s is not configured: %s", tool.Name, of.Reason)
	if len(of.RequiredEnv) > 0 {
		said += "\nrequired_env: " + strings.Join(of.RequiredEnv, ", ")
	}
	for _, step := range of.NextSteps {
		said += "\n- " + step
	}
	return said
}

// refusal returns the answer for a call that the database refuses to insert.
func (d *Server) refusal(r request, why string) *sdk.CallToolResult {
	if strings.HasPrefix(why, "there is another call with the id") && r.key != "" {
		why = fmt.Sprintf("the key %q belongs to another call: a new call needs a new key. To repeat that call, send its "+
			"arguments, and its key in the same place", r.key)
	}
	return failed(fmt.Sprintf("The call to %s was not made: %s", r.Tool, why))
}

// chosenEffects returns the effects that the tool's receipt_fields name, such as effects.db_writes; nil for none.
func chosenEffects(fields []string, encoded json.RawMessage) map[string]json.RawMessage {
	var all, chosen map[string]json.RawMessage
	for _, field := range fields {
		name, ok := strings.CutPrefix(field, "effects.")
		if !ok {
			continue
		}
		if all == nil && json.Unmarshal(encoded, &all) != nil {
			return nil
		}
		if value := all[name]; value != nil {
			if chosen == nil {
				chosen = map[string]json.RawMessage{}
			}
			chosen[name] = value
		}
	}
	return chosen
}

// annotated adds the data that programs need about the call.
func annotated(answer *sdk.CallToolResult, s state) *sdk.CallToolResult {
	m := sdk.Meta{meta + "callId": s.ID, meta + "status": s.Status}
	if r := s.Receipt; r != nil {
		m[meta+"receiptId"], m[meta+"attempt"], m[meta+"durationMs"] = r.ID, r.Attempt, r.DurationMS
		if r.RegistryVersion != "" {
			m[meta+"registryVersion"] = r.RegistryVersion
		}
		if r.ReplayOf != "" {
			m[meta+"replayOf"] = r.ReplayOf
		}
		if note := otherInput(r); note != "" {
			m[meta+"inputDiffers"] = true
			answer.Content = append(answer.Content, &sdk.TextContent{Text: note}) // after the result, which programs read first
		}
	}
	answer.Meta = m
	return answer
}

// otherInput tells a model that the result of its call belongs to an earlier call with the same key and a different
// input. It returns an empty text for other receipts.
func otherInput(r *receipts.Receipt) string {
	var effects receipts.Effects
	_ = json.Unmarshal(r.Effects, &effects) // an imported receipt may have another form
	key := effects.Idempotency
	if r.ReplayOf == "" || !key.InputDiffers {
		return ""
	}
	field := cmp.Or(key.KeyField, "key")
	return fmt.Sprintf("This call did nothing. Its result is that of an earlier call to %s, which had the same %s but "+
		"otherwise a different input: "+
		"do not report it as the result of your input. The tool does its work once for each %[2]s. If this input must "+
		"take effect too, ask your user, "+
		"or send another %[2]s if you meant a new call.", r.ToolName, field)
}

// structured returns an answer in JSON, for programs and, as a text, for models.
func structured(content json.RawMessage) *sdk.CallToolResult {
	return &sdk.CallToolResult{StructuredContent: content, Content: []sdk.Content{&sdk.TextContent{Text: string(content)}}}
}

// failed returns an error answer. It has no structuredContent, since clients would check that against the schema of
// results.
func failed(text string) *sdk.CallToolResult {
	return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: text}}}
}
