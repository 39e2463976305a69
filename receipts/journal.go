package receipts

import (
	"encoding/json"
	"time"
)

// Event is an entry of a call's journal. migrations/functions/states.sql explains its names.
type Event struct {
	Seq      int             `json:"seq"` // 1, 2, 3 … per call
	At       time.Time       `json:"at"`
	Event    string          `json:"event"`
	Attempt  int             `json:"attempt"`
	WorkerID string          `json:"worker_id,omitempty"`
	Data     json.RawMessage `json:"data,omitempty"`
}
