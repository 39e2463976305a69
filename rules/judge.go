package rules

import (
	"encoding/json"

	"github.com/gemworker/gem/registry"
)

// Call is what a rule can see of a call before it runs.
type Call struct {
	ID        string
	Tool      *registry.Tool
	Input     json.RawMessage // valid, by the tool's schema
	SessionID string          // empty for none
	CreatedBy string          // empty for nobody
	SignedIn  bool
	Child     bool
}

// Judgement is what the rules say of a call: first of what it shows, and, once its checks are answered, all.
type Judgement struct {
	// Verdicts are those of rules that met the call by what it shows: warnings, and blocks. With a block there are no checks.
	Verdicts []Verdict
	// Checks are what is left to ask. Without any the call runs, or is blocked.
	Checks []Check
}

// Verdict is what one rule says of a call.
type Verdict struct {
	Rule    string `json:"rule"`
	Action  Action `json:"action"`
	Message string `json:"message"` // that it is policy, which rule, what was seen, and what to do
	Seen    *Seen  `json:"seen,omitempty"`
	// Undecided: the rule could not be judged, and stops the call for that.
	Undecided bool `json:"undecided,omitempty"`
}
