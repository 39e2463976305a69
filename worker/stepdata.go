package worker

import (
	"encoding/json"
	"errors"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/receipts"
)

// stepData is what the journal has of a step.
type stepData struct {
	Name    string                  `json:"name"`
	Kind    handlers.StepKind       `json:"kind,omitempty"`
	Result  json.RawMessage         `json:"result,omitempty"`
	Error   *receipts.Error         `json:"error,omitempty"`
	Missing *handlers.NotConfigured `json:"not_configured,omitempty"` // in place of an error
	Effects json.RawMessage         `json:"effects,omitempty"`        // of type [handlers.Effects]
	Tool    string                  `json:"tool,omitempty"`           // of a call that was refused
	Key     string                  `json:"key,omitempty"`            // that the call holds
}

// The kinds of what the journal has in the form of a step, besides those of handlers.
const (
	refusedCall handlers.StepKind = "call"    // one that could not be made
	codeVersion handlers.StepKind = "version" // that of the code
)

// describe sets what a step came to. err is plain.
func (d *stepData) describe(result json.RawMessage, err error) {
	var (
		unencodable *handlers.OutputError
		failure     *handlers.Failure
	)
	d.Result, d.Error, d.Missing = result, nil, nil
	if err == nil {
		return
	}
	code, details := receipts.ExecutionError, any(nil)
	switch {
	case errors.As(err, &d.Missing):
		return
	case errors.As(err, &unencodable):
		code = receipts.OutputInvalid
	case errors.As(err, &failure):
		details = failure.Details
		if failure.Code != "" {
			code = receipts.Code(failure.Code)
		}
	}
	outcome := receipts.Failure(code, err.Error(), details)
	told, _ := (&receipts.Receipt{Status: outcome.Status, Result: outcome.Result}).Error()
	d.Error = &told
}

// kind is what the journal has of it, in words.
func (d *stepData) kind() string {
	if d.Kind == codeVersion {
		return "a Version"
	}
	return "a " + d.Kind.Func()
}

// outcome is what a step returns whose end is in the journal.
func (d *stepData) outcome() (json.RawMessage, error) {
	switch {
	case d.Missing != nil:
		return nil, d.Missing
	case d.Error != nil && d.Error.Code == receipts.OutcomeUnknown && d.Kind == handlers.AtMostOnce:
		return nil, handlers.ErrUnknown
	case d.Error != nil:
		return nil, &handlers.Failure{Code: string(d.Error.Code), Message: d.Error.Message, Details: d.Error.Details}
	}
	return d.Result, nil
}

// encode writes the data as JSON. Whether Postgres takes its result is not known.
func (d *stepData) encode() json.RawMessage {
	encoded, err := json.Marshal(d)
	if err != nil { // its parts are JSON, or can be written as JSON
		panic(err)
	}
	return encoded
}

// encodeEffects writes effects as JSON that Postgres can store.
func encodeEffects(effects handlers.Effects) json.RawMessage {
	encoded, err := json.Marshal(effects)
	if err != nil {
		panic(err) // they hold nothing but texts and numbers
	}
	return receipts.CleanJSON(encoded)
}

// effects decodes what the step recorded.
func (d *stepData) effects() (effects handlers.Effects) {
	if d.Effects != nil {
		_ = json.Unmarshal(d.Effects, &effects) // it was encoded from this type
	}
	return effects
}
