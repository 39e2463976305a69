package handlers

import (
	"slices"

	"github.com/gemworker/gem/receipts"
)

// The actions of [Call.Wrote].
const (
	Insert = receipts.Insert
	Update = receipts.Update
	Delete = receipts.Delete
)

// record adds an effect under a lock, because a handler that ignores the end of its context may add effects
// concurrently.
func (c *Call) record(add func(*receipts.HandlerEffects)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	add(&c.effects)
}

// Wrote records a row that the handler inserted, updated or deleted. If the handler is transactional, the receipt lists
// the row only if the transaction commits.
func (c *Call) Wrote(table string, action receipts.Action, id string) {
	c.record(func(e *receipts.HandlerEffects) {
		e.DBWrites = append(e.DBWrites, receipts.DBWrite{Table: table, Action: action, ID: id})
	})
}

// Read records how many rows of a table the handler read for its answer.
func (c *Call) Read(table string, count int) {
	c.record(func(e *receipts.HandlerEffects) {
		e.DBReads = append(e.DBReads, receipts.DBRead{Table: table, Count: count})
	})
}

// Sent records a message that a service accepted. kind is email or sms.
func (c *Call) Sent(kind, recipient, messageID string) {
	c.record(func(e *receipts.HandlerEffects) {
		e.MessagesSent = append(e.MessagesSent,
			receipts.MessageSent{Type: kind, Recipient: recipient, MessageID: messageID})
	})
}

// WroteFile records a file that the handler wrote.
func (c *Call) WroteFile(path string) {
	c.record(func(e *receipts.HandlerEffects) { e.FilesWritten = append(e.FilesWritten, path) })
}

// Called records a request to a service, with the status code of its response, or 0 if there was none. The endpoint
// must not contain secrets: leave out query strings and credentials.
func (c *Call) Called(service, endpoint string, statusCode int) {
	c.record(func(e *receipts.HandlerEffects) {
		e.ExternalCalls = append(e.ExternalCalls,
			receipts.ExternalCall{Service: service, Endpoint: endpoint, StatusCode: statusCode})
	})
}

// CalledModel records a request to a model, like [Call.Called]. If an earlier record has the same r.Request, the new
// one takes its place.
func (c *Call) CalledModel(service, endpoint string, statusCode int, r receipts.ModelRequest) {
	c.record(func(e *receipts.HandlerEffects) {
		e.Called(receipts.ExternalCall{Service: service, Endpoint: endpoint, StatusCode: statusCode, LLM: &r})
	})
}

// TakeEffects returns the effects so far and forgets them. Workers use it to keep the effects of steps apart.
func (c *Call) TakeEffects() (all receipts.HandlerEffects) {
	c.record(func(e *receipts.HandlerEffects) { all, *e = *e, receipts.HandlerEffects{} })
	return all
}

// Effects returns the effects so far.
func (c *Call) Effects() (all receipts.HandlerEffects) {
	c.record(func(e *receipts.HandlerEffects) {
		all = receipts.HandlerEffects{DBWrites: slices.Clone(e.DBWrites), DBReads: slices.Clone(e.DBReads),
			MessagesSent: slices.Clone(e.MessagesSent), FilesWritten: slices.Clone(e.FilesWritten),
			ExternalCalls: slices.Clone(e.ExternalCalls)}
	})
	return all
}
