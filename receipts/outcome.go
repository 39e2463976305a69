package receipts

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxMessage = 4 << 10  // bytes of an error's message
	maxDetails = 64 << 10 // bytes of an error's details
)

// Outcome is how a call ended: what stands on its receipt.
type Outcome struct {
	Status Status
	Result json.RawMessage
	// Code is the error's code when Status is Failed, for logs.
	Code Code
	// ReplayOf is the receipt that a hit repeats; empty otherwise.
	ReplayOf string
}

// Success is the outcome of a handler that returned output.
func Success(output json.RawMessage) Outcome { return Outcome{Status: Succeeded, Result: output} }

// Replay is the outcome of a call whose key succeeded before.
func Replay(receiptID string, result json.RawMessage) Outcome {
	return Outcome{Status: Succeeded, Result: result, ReplayOf: receiptID}
}

// Failure is the outcome of a call that failed. Message and details are made to be storable: what jsonb refuses is
// replaced, and what is too long is cut. details may be nil.
func Failure(code Code, message string, details any) Outcome {
	e := Error{Code: Code(cleanText(string(code), 100)), Message: cleanText(message, maxMessage), Details: cleanDetails(details)}
	return Outcome{Status: Failed, Code: e.Code, Result: mustEncode(map[string]Error{"error": e})}
}

// Unconfigured is the outcome of a call whose tool exists while its setup is missing.
func Unconfigured(reason string, requiredEnv, nextSteps []string) Outcome {
	clean := func(in []string) []string {
		out := []string{} // an empty list, never null
		for _, s := range in {
			out = append(out, cleanText(s, maxMessage))
		}
		return out
	}
	return Outcome{Status: NotConfigured, Result: mustEncode(struct {
		Status      Status   `json:"status"`
		Reason      string   `json:"reason"`
		RequiredEnv []string `json:"required_env"`
		NextSteps   []string `json:"next_steps"`
	}{NotConfigured, cleanText(reason, maxMessage), clean(requiredEnv), clean(nextSteps)})}
}

// mustEncode encodes what can always be encoded: strings and JSON that was encoded before.
func mustEncode(v any) json.RawMessage {
	encoded, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return encoded
}

// Shorten cuts text that is longer than limit bytes, and ends it with an ellipsis.
func Shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "…"
}

func cleanText(s string, limit int) string {
	return strings.ReplaceAll(strings.ToValidUTF8(Shorten(s, limit), "\uFFFD"), "\x00", "\uFFFD")
}

func cleanDetails(details any) json.RawMessage {
	if details == nil {
		return json.RawMessage("null")
	}
	encoded, err := json.Marshal(details)
	switch {
	case err != nil:
		return mustEncode(map[string]string{"omitted": "the details cannot be written as JSON"})
	case len(encoded) > maxDetails:
		return mustEncode(map[string]string{"omitted": "the details take more than 64 KiB"})
	}
	return CleanJSON(encoded)
}

// CleanJSON replaces in valid JSON what jsonb cannot hold by U+FFFD: the escape of NUL, and halves of surrogate pairs.
func CleanJSON(encoded json.RawMessage) json.RawMessage {
	if !slices.Contains(encoded, '\\') {
		return encoded
	}
	const replacement = `\ufffd`
	out := make([]byte, 0, len(encoded))
	for i := 0; i < len(encoded); {
		if encoded[i] != '\\' || i+1 >= len(encoded) {
			out = append(out, encoded[i])
			i++
			continue
		}
		if encoded[i+1] != 'u' || i+6 > len(encoded) {
			out = append(out, encoded[i], encoded[i+1])
			i += 2
			continue
		}
		unit := strings.ToLower(string(encoded[i+2 : i+6]))
		switch {
		case unit == "0000" || isLow(unit):
			out = append(out, replacement...)
			i += 6
		case isHigh(unit):
			paired := i+12 <= len(encoded) && encoded[i+6] == '\\' && encoded[i+7] == 'u' && isLow(strings.ToLower(string(encoded[i+8:i+12])))
			if !paired {
				out = append(out, replacement...)
				i += 6
				continue
			}
			out = append(out, encoded[i:i+12]...)
			i += 12
		default:
			out = append(out, encoded[i:i+6]...)
			i += 6
		}
	}
	return out
}

func isHigh(unit string) bool { return unit >= "d800" && unit <= "dbff" }
func isLow(unit string) bool  { return unit >= "dc00" && unit <= "dfff" }
