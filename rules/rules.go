// Package rules reads rules.json, the restrictions on calls that an operator wrote, and judges calls by it.
//
// What a call shows of itself is judged here, in [Judge.Judge]. What needs the calls before it becomes a [Check], which Postgres
// answers in one statement (gem.gate), and [Memory] in tests and replays: [Judgement.Rule] puts both together. The package uses
// no database.
package rules

import (
	"encoding/json"
	"time"

	"github.com/gemworker/gem/internal/schema"
)

// Action is what a rule does with a call that it meets. A call that several rules meet gets the strictest: block, ask, wait, warn.
type Action string

// The actions.
const (
	Off   Action = "off"   // nothing: the rule is not looked at
	Warn  Action = "warn"  // the call runs, and its receipt has the warning
	Wait  Action = "wait"  // the call runs when the limit has room
	Ask   Action = "ask"   // the call runs if a person approves it
	Block Action = "block" // the call fails
)

// Rule is a restriction on calls. Callers must not change its fields.
type Rule struct {
	// Name has lower-case letters, digits and underscores. Counters carry it: it is never given another meaning.
	Name string
	// Tools are names, and domains as in leads.*; Permissions are those of tools in the registry, and verbs as in send:*. The rule
	// is for the tools that either names.
	Tools, Permissions []string
	Action             Action
	// When must hold, and Unless must not, for the rule to be for a call; nil: it is for all.
	When, Unless *Condition
	// At most one of these says what the rule looks at besides the call itself.
	Limit    *Limit
	Requires *Requires
	After    *After
	Failures *Failures
	// Of and Within are those of an ask: the roles of which one decides, and how long they may take; 24 h by default.
	Of     []string
	Within time.Duration
	// Question is the question of an ask, with values of the input in braces, as in "Refund {amount}?". If it is empty, it
	// is made from the call and the rule.
	Question string
	// AtMost is how long a call may wait for its turn; 1 h by default.
	AtMost time.Duration
	// Say tells whoever made the call what to do instead; it may be empty.
	Say string

	entry    map[string]any // as in the file
	template template       // of the question
}

// Limit lets so many calls through, or such a sum, in a time.
type Limit struct {
	Max    json.Number
	Within time.Duration
	// Sum is the JSON pointer of a number of the input, which is summed; empty: the calls are counted.
	Sum string
	// Per says which calls are counted together: those of one `caller`, `session` (of one caller), `tool`, or of one value of the
	// input, as in `input:/to`. Empty: all.
	Per []string
}

// Requires asks for a success, in the same session of the same caller, that was there when the call was made.
type Requires struct {
	Tools  []string
	Within time.Duration // before the call; 0: at any time
}

// After meets a call if, in the same session of the same caller, one of these tools had ended so when the call was made.
type After struct {
	Tools  []string
	Ended  []string // statuses, and error codes of failures; succeeded by default
	Within time.Duration
}

// Failures meets a call if the last ones under the rule failed, one after another, until a time after the last of them.
type Failures struct {
	InARow int
	Per    []string // as of a [Limit]
	Rest   time.Duration
}

// Condition is what a when or an unless says: JSON Schemas of fields, each of which must be there and fit.
type Condition struct {
	// Input and Caller are known before the call runs. The caller's fields are created_by, signed_in, session_id and child; those
	// that a call does not have are not there.
	Input, Caller map[string]*schema.Schema
	// Result and Effects are known when its handler has succeeded.
	Result, Effects map[string]*schema.Schema
}

// Set is a valid rules file. It never changes; many goroutines can use it.
type Set struct {
	// Version names the contents: other contents need another version. See [CheckUpgrade].
	Version string

	doc    map[string]any
	json   []byte
	rules  []*Rule
	coding Coding
	byName map[string]*Rule
}
