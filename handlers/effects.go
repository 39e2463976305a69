package handlers

import (
	"slices"
	"sync"
)

// Action is what a write did to a row.
type Action string

// The actions that a receipt knows.
const (
	Insert Action = "insert"
	Update Action = "update"
	Delete Action = "delete"
)

// Effects is what a call really did to the world. It stands on the receipt under these names.
type Effects struct {
	DBWrites      []DBWrite      `json:"db_writes,omitempty"`
	DBReads       []DBRead       `json:"db_reads,omitempty"`
	MessagesSent  []MessageSent  `json:"messages_sent,omitempty"`
	FilesWritten  []string       `json:"files_written,omitempty"`
	ExternalCalls []ExternalCall `json:"external_calls,omitempty"`
}

// DBWrite names a row that was written.
type DBWrite struct {
	Table  string `json:"table"`
	Action Action `json:"action"`
	ID     string `json:"id"`
}

// DBRead says how many rows of a table were read.
type DBRead struct {
	Table string `json:"table"`
	Count int    `json:"count"`
}

// MessageSent names a message that a service accepted for delivery.
type MessageSent struct {
	Type      string `json:"type"` // email, sms
	Recipient string `json:"recipient"`
	MessageID string `json:"message_id"`
}

// ExternalCall is a request to a service. StatusCode is 0 when no answer came.
type ExternalCall struct {
	Service    string `json:"service"`
	Endpoint   string `json:"endpoint"` // without query string and credentials
	StatusCode int    `json:"status_code"`
}

// recorder collects effects under a lock, since a handler that ignored its context may still be writing to it.
type recorder struct {
	mu  sync.Mutex
	all Effects
}

func (r *recorder) record(add func(*Effects)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	add(&r.all)
}

// Wrote records a row that the handler inserted, updated or deleted. In a transactional handler it reaches the receipt
// only when the transaction does.
func (c *Call) Wrote(table string, action Action, id string) {
	c.effects.record(func(e *Effects) { e.DBWrites = append(e.DBWrites, DBWrite{table, action, id}) })
}

// Read records how many rows of a table the handler looked at to answer.
func (c *Call) Read(table string, count int) {
	c.effects.record(func(e *Effects) { e.DBReads = append(e.DBReads, DBRead{table, count}) })
}

// Sent records a message that a service accepted. kind is email or sms.
func (c *Call) Sent(kind, recipient, messageID string) {
	c.effects.record(func(e *Effects) { e.MessagesSent = append(e.MessagesSent, MessageSent{kind, recipient, messageID}) })
}

// WroteFile records a file that the handler wrote.
func (c *Call) WroteFile(path string) {
	c.effects.record(func(e *Effects) { e.FilesWritten = append(e.FilesWritten, path) })
}

// Called records a request to a service, with the status code of its answer, or 0 when none came. The endpoint must
// carry no secret: leave out query strings and credentials.
func (c *Call) Called(service, endpoint string, statusCode int) {
	c.effects.record(func(e *Effects) {
		e.ExternalCalls = append(e.ExternalCalls, ExternalCall{service, endpoint, statusCode})
	})
}

// Effects returns what was recorded so far.
func (c *Call) Effects() Effects {
	c.effects.mu.Lock()
	defer c.effects.mu.Unlock()
	e := c.effects.all
	return Effects{
		DBWrites:      slices.Clone(e.DBWrites),
		DBReads:       slices.Clone(e.DBReads),
		MessagesSent:  slices.Clone(e.MessagesSent),
		FilesWritten:  slices.Clone(e.FilesWritten),
		ExternalCalls: slices.Clone(e.ExternalCalls),
	}
}
