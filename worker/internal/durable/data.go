package durable

import (
	"encoding/json"
	"errors"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/receipts"
)

// stepData is the data of a step's event.
type stepData struct {
	Name    string                  `json:"name"`
	Kind    handlers.StepKind       `json:"kind,omitempty"`
	Result  json.RawMessage         `json:"result,omitempty"`
	Error   *receipts.Error         `json:"error,omitempty"`
	Missing *handlers.NotConfigured `json:"not_configured,omitempty"` // in place of an error
	Effects json.RawMessage         `json:"effects,omitempty"`        // of type [receipts.HandlerEffects]
	Tool    string                  `json:"tool,omitempty"`           // of a call that was refused
	Key     string                  `json:"key,omitempty"`            // the key that the call holds
}

// The kinds of events that have the form of a step, in addition to the kinds in package handlers.
const (
	refusedCall handlers.StepKind = "call"    // a call that could not be made
	codeVersion handlers.StepKind = "version" // a version of the code
	// a wait that returned [handlers.ErrCancelled] to the handler
	cancelledWait handlers.StepKind = "cancelled"
)

// describe sets the result or the error of a step. err must be plain: see package plain.
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

// kind describes the event in words.
func (d *stepData) kind() string {
	if d.Kind == codeVersion {
		return "a Version"
	}
	return "a " + d.Kind.Func()
}

// outcome returns the result of a step whose end is in the journal.
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

// encode encodes the data as JSON. Postgres may still reject the result.
func (d *stepData) encode() json.RawMessage {
	encoded, err := json.Marshal(d)
	if err != nil { // its parts are JSON, or can be encoded as JSON
		panic(err)
	}
	return encoded
}

// encodeEffects encodes effects as JSON that Postgres can store.
func encodeEffects(effects receipts.HandlerEffects) json.RawMessage {
	encoded, err := json.Marshal(effects)
	if err != nil {
		panic(err) // they have only texts and numbers
	}
	return receipts.CleanJSON(encoded)
}

// effects decodes the effects of the step.
func (d *stepData) effects() (effects receipts.HandlerEffects) {
	if d.Effects != nil {
		_ = json.Unmarshal(d.Effects, &effects) // it was encoded from this type
	}
	return effects
}
