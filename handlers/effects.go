package handlers

import "slices"

// Action is what a write did to a row.
type Action string

// The actions that a receipt knows.
const (
	Insert Action = "insert"
	Update Action = "update"
	Delete Action = "delete"
)

// Effects is what a call did to the world, under its names on the receipt.
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

// ExternalCall is a request to a service. StatusCode is 0 if there was no response.
type ExternalCall struct {
	Service    string `json:"service"`
	Endpoint   string `json:"endpoint"` // without query string and credentials
	StatusCode int    `json:"status_code"`
}

// record adds an effect under a lock, since a handler that ignored the end of its context may still add to them.
func (c *Call) record(add func(*Effects)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	add(&c.effects)
}

// Wrote records a row that the handler inserted, updated or deleted. If the handler is transactional, the receipt has it only
// if the transaction commits.
func (c *Call) Wrote(table string, action Action, id string) {
	c.record(func(e *Effects) { e.DBWrites = append(e.DBWrites, DBWrite{table, action, id}) })
}

// Read records how many rows of a table the handler read for its answer.
func (c *Call) Read(table string, count int) {
	c.record(func(e *Effects) { e.DBReads = append(e.DBReads, DBRead{table, count}) })
}

// Sent records a message that a service accepted. kind is email or sms.
func (c *Call) Sent(kind, recipient, messageID string) {
	c.record(func(e *Effects) { e.MessagesSent = append(e.MessagesSent, MessageSent{kind, recipient, messageID}) })
}

// WroteFile records a file that the handler wrote.
func (c *Call) WroteFile(path string) {
	c.record(func(e *Effects) { e.FilesWritten = append(e.FilesWritten, path) })
}

// Called records a request to a service, with the status code of its response, or 0 if there was none. The endpoint must
// have no secret: leave out query strings and credentials.
func (c *Call) Called(service, endpoint string, statusCode int) {
	c.record(func(e *Effects) {
		e.ExternalCalls = append(e.ExternalCalls, ExternalCall{service, endpoint, statusCode})
	})
}

// Add appends the effects of others.
func (e *Effects) Add(others Effects) {
	e.DBWrites = append(e.DBWrites, others.DBWrites...)
	e.DBReads = append(e.DBReads, others.DBReads...)
	e.MessagesSent = append(e.MessagesSent, others.MessagesSent...)
	e.FilesWritten = append(e.FilesWritten, others.FilesWritten...)
	e.ExternalCalls = append(e.ExternalCalls, others.ExternalCalls...)
}

// TakeEffects returns the effects so far and forgets them. It is for workers, which keep those of steps apart.
func (c *Call) TakeEffects() (all Effects) {
	c.record(func(e *Effects) { all, *e = *e, Effects{} })
	return all
}

// Effects returns the effects so far.
func (c *Call) Effects() (all Effects) {
	c.record(func(e *Effects) {
		all = Effects{slices.Clone(e.DBWrites), slices.Clone(e.DBReads), slices.Clone(e.MessagesSent),
			slices.Clone(e.FilesWritten), slices.Clone(e.ExternalCalls)}
	})
	return all
}
