// Package rules reads rules.json, an operator's restrictions on calls, and judges calls by it.
//
// [Judge.Judge] applies the conditions on the call itself. A condition on earlier calls becomes a [Check], which
// Postgres answers in one statement (gem.gate), and [Memory] in tests and replays. [Judgement.Rule] combines the
// results. The package uses no database.
package rules

import (
	"encoding/json"
	"time"

	"github.com/gemworker/gem/internal/schema"
	"github.com/gemworker/gem/receipts"
)

// Action is a rule's action on a call that it meets. If several rules meet a call, the strictest action wins: block,
// ask, wait, warn.
type Action = receipts.RuleAction

// The actions.
const (
	Off   Action = "off"   // nothing: the rule is ignored
	Warn  Action = "warn"  // the call runs, and its receipt has the warning
	Wait  Action = "wait"  // the call runs when the limit has room, or a place is free
	Ask   Action = "ask"   // the call runs if a person approves it
	Block Action = "block" // the call fails
)

// Rule is a restriction on calls. Callers must not change its fields.
type Rule struct {
	// Name has lower-case letters, digits and underscores. Counters contain it, so do not reuse it for another rule.
	Name string
	// Tools are names, or domains as in leads.*; Permissions are permissions of the registry's tools, or verbs as in
	// send:*. The rule applies to tools that match either list.
	Tools, Permissions []string
	Action             Action
	// The rule applies to calls for which When holds and Unless does not. Nil: the condition is absent.
	Limit    *Limit
	Running  *Running
	Requires *Requires
	After    *After
	Failures *Failures
	// Of and Within belong to an ask: the roles that may decide, and how long they may take; 24 h by default.
	Of     []string
	Within time.Duration
	// Question is the question of an ask, with values of the input in braces, as in "Refund {amount}?". If it is empty,
	// the question is made from the call and the rule.
	Question string
	// AtMost is how long a call may wait for its start; 1 h by default.
	AtMost time.Duration
	// Say advises the caller what to do instead; it may be empty.
	Say string

	// The rule applies to a call if when holds and unless does not; nil for both: it applies to all calls.
	when, unless *condition
	entry        map[string]any // as in the file
	template     template       // of the question
}

// Limit limits the number of calls in a period, or the sum of their amounts.
type Limit struct {
	Max    json.Number
	Within time.Duration
	// Sum is the JSON pointer of the number in the input that is summed. If it is empty, the limit counts calls.
	Sum string
	// Per selects the calls that count together: the calls of one `caller`, `session` (of one caller), `tool`, or value of
	// the input, as in `input:/to`. Empty means all calls.
	Per []string
}

// Running limits how many calls run at the same time. A call that waits, such as for a child or for people, does not
// run.
type Running struct {
	Max int      // 1 to 100
	Per []string // as in [Limit]
}

// Requires requires a success in the same session of the same caller, before the call was made.
type Requires struct {
	Tools  []string
	Within time.Duration // before the call; 0: at any time
}

// After meets a call if, in the same session of the same caller, a call of one of these tools had ended in this way
// before the call was made.
type After struct {
	Tools  []string
	Ended  []string // statuses, and error codes of failures; succeeded by default
	Within time.Duration
}

// Failures meets a call if the last calls under the rule all failed, until some time after the last failure.
type Failures struct {
	InARow   int
	Per      []string // as in [Limit]
	Cooldown time.Duration
}

// condition is a when or an unless: JSON Schemas of fields. Each field must exist and match.
type condition struct {
	// input and caller are known before the call runs. The caller's fields are created_by, signed_in, session_id and
	// child; a call does not have all of them.
	input, caller map[string]*schema.Schema
	// result and effects are known when its handler has succeeded.
	result, effects map[string]*schema.Schema
}

// Set is a valid rules file. It never changes, and many goroutines can use it.
type Set struct {
	// Version identifies the contents: changed contents need a new version. See [CheckUpgrade].
	Version string

	doc    map[string]any
	json   []byte
	rules  []*Rule
	coding Coding
	byName map[string]*Rule
}
