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
	// LLM is set if it was a request to a model.
	LLM *ModelRequest `json:"llm,omitempty"`
}

// ModelRequest is what a receipt says about a request to a model. The ledger of requests has it too.
type ModelRequest struct {
	Request        int     `json:"request"` // numbers those of the call, from 1
	Arm            string  `json:"arm"`
	Model          string  `json:"model"`                // that answered, else that was asked
	RequestID      string  `json:"request_id,omitempty"` // the provider's
	InputTokens    int64   `json:"input_tokens"`
	OutputTokens   int64   `json:"output_tokens"`
	CostUSD        *string `json:"cost_usd"`                // in decimal digits; null if it is not known
	Outcome        string  `json:"outcome"`                 // done, failed, cut, cancelled, lost
	Bounded        bool    `json:"usage_bounded,omitempty"` // the provider reported more tokens than the request can have
	FirstContentMS int64   `json:"first_content_ms,omitempty"`
	MS             int64   `json:"ms"`
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
		e.ExternalCalls = append(e.ExternalCalls, ExternalCall{Service: service, Endpoint: endpoint, StatusCode: statusCode})
	})
}

// CalledModel is [Call.Called] for a request to a model. One of the same number takes the place of what was recorded before.
func (c *Call) CalledModel(service, endpoint string, statusCode int, r ModelRequest) {
	c.record(func(e *Effects) {
		e.called(ExternalCall{service, endpoint, statusCode, &r})
	})
}

// Add adds the effects of others.
func (e *Effects) Add(others Effects) {
	e.DBWrites = append(e.DBWrites, others.DBWrites...)
	e.DBReads = append(e.DBReads, others.DBReads...)
	e.MessagesSent = append(e.MessagesSent, others.MessagesSent...)
	e.FilesWritten = append(e.FilesWritten, others.FilesWritten...)
	for _, c := range others.ExternalCalls {
		e.called(c)
	}
}

// called adds a request. One to a model stands once, however many attempts and steps tell of it.
func (e *Effects) called(c ExternalCall) {
	for i, has := range e.ExternalCalls {
		if c.LLM != nil && has.LLM != nil && has.LLM.Request == c.LLM.Request {
			e.ExternalCalls[i] = c
			return
		}
	}
	e.ExternalCalls = append(e.ExternalCalls, c)
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
