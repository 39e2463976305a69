package receipts

// Action is what a write did to a row.
type Action string

// The actions that a receipt knows.
const (
	Insert Action = "insert"
	Update Action = "update"
	Delete Action = "delete"
)

// HandlerEffects lists the effects of a handler, under their names on the receipt.
type HandlerEffects struct {
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

// DBRead has the number of rows that were read from a table.
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

// ExternalCall is a request to a service. StatusCode is 0 without a response.
type ExternalCall struct {
	Service    string `json:"service"`
	Endpoint   string `json:"endpoint"` // without query string and credentials
	StatusCode int    `json:"status_code"`
	// LLM is set if it was a request to a model.
	LLM *ModelRequest `json:"llm,omitempty"`
}

// ModelRequest is the record of a request to a model on a receipt. The ledger of requests has the same data.
type ModelRequest struct {
	Request        int     `json:"request"` // number within the call, from 1
	Target         string  `json:"target"`
	Model          string  `json:"model"`                // the model that answered, or else the requested one
	RequestID      string  `json:"request_id,omitempty"` // the provider's
	InputTokens    int64   `json:"input_tokens"`
	OutputTokens   int64   `json:"output_tokens"`
	CostUSD        *string `json:"cost_usd"`                // in decimal digits; null if unknown
	Outcome        string  `json:"outcome"`                 // done, failed, cut, cancelled, lost
	Bounded        bool    `json:"usage_bounded,omitempty"` // the provider reported impossibly many tokens
	FirstContentMS int64   `json:"first_content_ms,omitempty"`
	MS             int64   `json:"ms"`
}

// Add adds the effects of others.
func (e *HandlerEffects) Add(others HandlerEffects) {
	e.DBWrites = append(e.DBWrites, others.DBWrites...)
	e.DBReads = append(e.DBReads, others.DBReads...)
	e.MessagesSent = append(e.MessagesSent, others.MessagesSent...)
	e.FilesWritten = append(e.FilesWritten, others.FilesWritten...)
	for _, c := range others.ExternalCalls {
		e.Called(c)
	}
}

// Called adds a request. A request to a model replaces one of the same number, which an earlier attempt or step
// recorded.
func (e *HandlerEffects) Called(c ExternalCall) {
	for i, has := range e.ExternalCalls {
		if c.LLM != nil && has.LLM != nil && has.LLM.Request == c.LLM.Request {
			e.ExternalCalls[i] = c
			return
		}
	}
	e.ExternalCalls = append(e.ExternalCalls, c)
}
