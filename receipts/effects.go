package receipts

import (
	"encoding/json"
	"time"
)

// Effects is the form of a receipt's effects: the handler's records, and facts about the call's key, steps and rules.
type Effects struct {
	HandlerEffects
	Idempotency Idempotency `json:"idempotency,omitzero"` // of a call whose tool the worker knew
	Durable     *Durable    `json:"durable,omitempty"`    // of a durable handler that ran
	Rules       *Rules      `json:"rules,omitempty"`      // of a call that rules met
}

// Durable describes the journal of a durable handler on a receipt.
type Durable struct {
	Steps int `json:"steps"` // number of ended steps
	Calls int `json:"calls"` // number of calls that it made, or could not make
	// Unread has up to a hundred names in the journal that the last run did not use: code that no longer exists made them.
	Unread []string `json:"unread,omitempty"`
}

// Rules has the verdicts of the rules that met a call.
type Rules struct {
	Version  string    `json:"version"` // of the file of rules
	Verdicts []Verdict `json:"verdicts"`
	// Approvals lists the approvals that people gave.
	Approvals []Approval `json:"approvals,omitempty"`
	// At is the time of gem.gate's answer; zero without one. With it, the verdicts can be computed again.
	At time.Time `json:"at,omitzero"`
}

// Idempotency describes the key of a call on its receipt.
type Idempotency struct {
	Mode string `json:"mode"` // none, safe-retry or keyed
	Hit  bool   `json:"hit"`  // the receipt repeats an earlier one
	// InputDiffers reports that the call whose key succeeded before had another input; false if that is unknown. If the
	// tool refuses other inputs, it is also true if the earlier call was another signed-in user's.
	InputDiffers bool `json:"input_differs,omitempty"`
	// KeyIgnored reports that the call has an idempotency_key without effect, because its tool's mode is not safe-retry.
	KeyIgnored bool            `json:"key_ignored,omitempty"`
	KeyField   string          `json:"key_field,omitempty"`
	KeyValue   json.RawMessage `json:"key_value,omitempty"` // up to 1 KiB; a longer value is only in the call's input
}
