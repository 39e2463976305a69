package receipts

import (
	"bytes"
	"encoding/json"
	"regexp"
)

const (
	maxContext = 8 << 10  // bytes of an error's context
	maxMessage = 4 << 10  // bytes of an error's message
	maxDetails = 64 << 10 // bytes of an error's details
)

// Outcome is the end of a call, in the form of its receipt.
type Outcome struct {
	Status Status
	Result json.RawMessage
	// Code is the error's code when Status is Failed, for logs.
	Code Code
	// Context describes the origin of a failure for operators. It goes into the journal and the log, never onto the
	// receipt.
	Context string
	// ReplayOf is the receipt that a hit repeats; empty otherwise.
	ReplayOf string
}

// Success returns the outcome of a handler that returned output.
func Success(output json.RawMessage) Outcome { return Outcome{Status: Succeeded, Result: output} }

// Replay returns the outcome of a call whose key succeeded before.
func Replay(receiptID string, result json.RawMessage) Outcome {
	return Outcome{Status: Succeeded, Result: result, ReplayOf: receiptID}
}

// Failure returns the outcome of a call that failed. It makes message and details storable: it replaces what jsonb
// refuses, and cuts what is too long. details may be nil.
func Failure(code Code, message string, details any) Outcome {
	e := Error{Code: Code(cleanText(string(code), 100)), Message: cleanText(message, maxMessage),
		Details: CleanDetails(details)}
	return Outcome{Status: Failed, Code: e.Code, Result: mustEncode(map[string]Error{"error": e})}
}

// Within returns the outcome with a context, which is cut if it is too long.
func (o Outcome) Within(context string) Outcome {
	o.Context = cleanText(context, maxContext)
	return o
}

// Setup is the missing setup on a receipt with the status not_configured.
type Setup struct {
	Reason      string   `json:"reason"`
	RequiredEnv []string `json:"required_env"` // the variables that are missing, by name
	NextSteps   []string `json:"next_steps"`   // what a person does to set it up
}

// Unconfigured returns the outcome of a call whose tool exists but is not set up.
func Unconfigured(reason string, requiredEnv, nextSteps []string) Outcome {
	clean := func(in []string) []string {
		out := []string{} // an empty list, never null
		for _, s := range in {
			out = append(out, cleanText(s, maxMessage))
		}
		return out
	}
	return Outcome{Status: NotConfigured, Result: mustEncode(struct {
		Status Status `json:"status"`
		Setup
	}{NotConfigured, Setup{
		Reason: cleanText(reason, maxMessage), RequiredEnv: clean(requiredEnv), NextSteps: clean(nextSteps),
	}})}
}

// mustEncode encodes values for which encoding cannot fail: strings, and JSON that was encoded before.
func mustEncode(v any) json.RawMessage {
	encoded, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return encoded
}

func cleanText(s string, limit int) string { return Storable(Shorten(s, limit)) }

// CleanDetails encodes the details of an error so that they can be stored: see [Failure].
func CleanDetails(details any) json.RawMessage {
	if details == nil {
		return json.RawMessage("null")
	}
	encoded, err := json.Marshal(details)
	switch {
	case err != nil:
		return omitted("cannot be written as JSON")
	case len(encoded) > maxDetails:
		return omitted("take more than 64 KiB")
	}
	if excess := Excess(encoded); excess != "" {
		return omitted("have " + excess)
	}
	if PrintedSize(encoded) > maxDetails {
		return omitted("take more than 64 KiB with their numbers written out")
	}
	return CleanJSON(encoded)
}

// omitted returns what replaces details that cannot be stored.
func omitted(why string) json.RawMessage {
	return mustEncode(map[string]string{"omitted": "the details " + why})
}

// escapes matches the escapes in a string of JSON, a surrogate pair as one; unstorable matches the ones that jsonb
// cannot hold.
var (
	escapes    = regexp.MustCompile(`\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\.`)
	unstorable = regexp.MustCompile(`^\\u(0000|[dD][89a-fA-F]..)$`)
)

// CleanJSON replaces with U+FFFD the parts of valid JSON that jsonb cannot hold: the escape of NUL, and halves of
// surrogate pairs.
func CleanJSON(encoded json.RawMessage) json.RawMessage {
	if !bytes.Contains(encoded, []byte(`\u`)) {
		return encoded
	}
	return escapes.ReplaceAllFunc(encoded, func(escape []byte) []byte {
		if unstorable.Match(escape) {
			return []byte(`\ufffd`)
		}
		return escape
	})
}
