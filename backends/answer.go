package backends

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/receipts"
)

// codeForm is that of an error code.
var codeForm = regexp.MustCompile(`^[a-z][a-z0-9_]{0,59}$`)

// Failure is the failure of a call as a tool of a backend reports it: details are JSON, or nil. An invalid code,
// or one that only GEM itself may use, such as rule_blocked, becomes execution_error, and is kept in the details.
func Failure(code, message string, details json.RawMessage) *handlers.Failure {
	failure := &handlers.Failure{Code: code, Message: cmp.Or(message, "The tool failed, and did not say why.")}
	if len(details) > 0 {
		failure.Details = details
	}
	given := receipts.Code(code)
	switch {
	case code == "" || given == receipts.ExecutionError || given == receipts.ValidationError:
	case !codeForm.MatchString(code) || given.OfGEM():
		failure.Code, failure.Details = "", map[string]any{"error_code": receipts.Shorten(code, 60),
			"details": failure.Details}
	}
	return failure
}

// NotConfigured is the end of a call whose tool says that it is not set up: detail is JSON, {"reason", "required_env",
// "next_steps"}. What it does not say is taken from otherwise.
func NotConfigured(detail json.RawMessage, otherwise handlers.NotConfigured) error {
	var said handlers.NotConfigured
	if json.Unmarshal(detail, &said) != nil {
		said = handlers.NotConfigured{}
	}
	said.Reason = receipts.Shorten(cmp.Or(said.Reason, otherwise.Reason), mostText)
	said.RequiredEnv = texts(said.RequiredEnv, otherwise.RequiredEnv)
	said.NextSteps = texts(said.NextSteps, otherwise.NextSteps)
	return &said
}

func texts(said, otherwise []string) []string {
	if len(said) == 0 {
		return otherwise
	}
	said = said[:min(len(said), 20)]
	for i := range said {
		said[i] = receipts.Shorten(said[i], mostText)
	}
	return said
}

// The bounds of what a tool says of itself.
const (
	mostEffects = 1000 // in all lists together
	mostText    = 500  // bytes of each text
)

// effects are the lists that a tool of a backend may fill: those of a receipt, without what GEM's own requests to
// models say.
type effects struct {
	DBWrites      []receipts.DBWrite     `json:"db_writes"`
	DBReads       []receipts.DBRead      `json:"db_reads"`
	MessagesSent  []receipts.MessageSent `json:"messages_sent"`
	FilesWritten  []string               `json:"files_written"`
	ExternalCalls []struct {
		Service    string `json:"service"`
		Endpoint   string `json:"endpoint"`
		StatusCode int    `json:"status_code"`
	} `json:"external_calls"`
}

// AddEffects adds to a call the effects that a tool of a backend reports: JSON with the lists of a receipt, of
// which each may be missing. If any part is wrong, it adds nothing and returns an error: then the call ends
// as output_invalid.
func AddEffects(call *handlers.Call, said json.RawMessage) error {
	e, err := ReadEffects(call.Tool, said)
	if err != nil {
		return err
	}
	for _, w := range e.DBWrites {
		call.Wrote(w.Table, w.Action, w.ID)
	}
	for _, r := range e.DBReads {
		call.Read(r.Table, r.Count)
	}
	for _, m := range e.MessagesSent {
		call.Sent(m.Type, m.Recipient, m.MessageID)
	}
	for _, path := range e.FilesWritten {
		call.WroteFile(path)
	}
	for _, c := range e.ExternalCalls {
		call.Called(c.Service, c.Endpoint, c.StatusCode)
	}
	return nil
}

// ReadEffects reads the effects that a tool of a backend reports: see [AddEffects].
func ReadEffects(tool string, said json.RawMessage) (read receipts.HandlerEffects, _ error) {
	var e effects
	d := json.NewDecoder(bytes.NewReader(said))
	d.DisallowUnknownFields()
	err := d.Decode(&e)
	if err == nil {
		err = e.wrong()
	}
	if err != nil {
		return read, &handlers.Failure{Code: string(receipts.OutputInvalid),
			Message: fmt.Sprintf("The effects that %s reports cannot be taken: %s. It has run.",
				tool, value.OneLine(err.Error()))}
	}
	read = receipts.HandlerEffects{DBWrites: e.DBWrites, DBReads: e.DBReads, MessagesSent: e.MessagesSent,
		FilesWritten: e.FilesWritten}
	for _, c := range e.ExternalCalls {
		read.ExternalCalls = append(read.ExternalCalls,
			receipts.ExternalCall{Service: c.Service, Endpoint: c.Endpoint, StatusCode: c.StatusCode})
	}
	return read, nil
}

func (e *effects) wrong() error {
	if n := len(e.DBWrites) + len(e.DBReads) + len(e.MessagesSent) + len(e.FilesWritten) +
		len(e.ExternalCalls); n > mostEffects {
		return fmt.Errorf("they are %d, and may be at most %d", n, mostEffects)
	}
	var all []string // that must be there
	for _, w := range e.DBWrites {
		if w.Action != handlers.Insert && w.Action != handlers.Update && w.Action != handlers.Delete {
			return fmt.Errorf("the action of one of db_writes is %q, and may be insert, update or delete",
				receipts.Shorten(string(w.Action), 100))
		}
		all = append(all, w.Table, w.ID)
	}
	for _, r := range e.DBReads {
		if r.Count < 0 {
			return errors.New("the count of one of db_reads is negative")
		}
		all = append(all, r.Table)
	}
	for _, m := range e.MessagesSent {
		all = append(all, m.Type, m.Recipient)
		if len(m.MessageID) > mostText {
			return fmt.Errorf("a message_id has more than %d bytes", mostText)
		}
	}
	all = append(all, e.FilesWritten...)
	for _, c := range e.ExternalCalls {
		if c.StatusCode < 0 || c.StatusCode > 999 {
			return errors.New("the status_code of one of external_calls is none")
		}
		all = append(all, c.Service, c.Endpoint)
	}
	for _, text := range all {
		if text == "" || len(text) > mostText {
			return fmt.Errorf("one of their texts is empty or has more than %d bytes", mostText)
		}
	}
	return nil
}
