package receipts

import (
	"encoding/json"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/rules"
)

// Effects is what a receipt's effects hold: what the handler recorded, and what became of the call's key.
type Effects struct {
	handlers.Effects
	Idempotency Idempotency `json:"idempotency"`
	Durable     *Durable    `json:"durable,omitempty"` // of a durable handler that ran
	Rules       *Rules      `json:"rules,omitempty"`   // of a call that rules met
}

// Durable is what a receipt's effects say about the journal of a durable handler.
type Durable struct {
	Steps int `json:"steps"` // that ended
	Calls int `json:"calls"` // that it made, or could not make
	// Unread are names in the journal to which the last run did not come, a hundred at most: code that is gone had made them.
	Unread []string `json:"unread,omitempty"`
}

// Rules is what a receipt's effects say about the rules that met a call.
type Rules struct {
	Version  string          `json:"version"` // of the file of rules
	Verdicts []rules.Verdict `json:"verdicts"`
	// Approvals are those that people gave.
	Approvals []rules.Approval `json:"approvals,omitempty"`
	// At is when gem.gate answered, where it was asked: by that time the verdicts can be computed again.
	At time.Time `json:"at,omitzero"`
}

// Idempotency is what a receipt's effects say about the key of its call.
type Idempotency struct {
	Mode string `json:"mode"` // none, safe-retry or keyed; empty for a tool that is not in the registry
	Hit  bool   `json:"hit"`  // the receipt repeats an earlier one
	// InputDiffers says that the call whose key succeeded before had another input; false also where that is not known. Where other
	// inputs are refused, it is also true if the earlier call was another signed-in user's.
	InputDiffers bool `json:"input_differs,omitempty"`
	// KeyIgnored says that the call has an idempotency_key, which counts for nothing: its tool's mode is not safe-retry.
	KeyIgnored bool            `json:"key_ignored,omitempty"`
	KeyField   string          `json:"key_field,omitempty"`
	KeyValue   json.RawMessage `json:"key_value,omitempty"` // up to 1 KiB; a longer value is only in the call's input
}
