package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/receipts"
)

// The codes of calls that rules ended.
const (
	ruleBlocked     receipts.Code = "rule_blocked"
	limitReached    receipts.Code = "limit_reached"
	approvalDenied  receipts.Code = "approval_denied"
	approvalExpired receipts.Code = "approval_expired"
	ruleError       receipts.Code = "rule_error"
)

// explainRuled says why rules ended a call. The message names the rule, its version, what it saw and what to do; what it says of times was true
// when the call ended.
func explainRuled(e *client.Explanation, failure receipts.Error, message string) string {
	var details struct {
		FreeAt time.Time `json:"free_at"`
	}
	_ = json.Unmarshal(failure.Details, &details)
	switch failure.Code {
	case ruleError:
		return message + " Correct that rule and start the workers anew: gem rules check reads the file."
	case approvalDenied:
		return message + " The answer stands for this call. gem trace " + e.Call.ID + " has the question."
	case approvalExpired:
		return message + " Make a new call to ask again."
	}
	switch {
	case details.FreeAt.IsZero():
		return message
	case details.FreeAt.After(e.At):
		return fmt.Sprintf("%s It is %s until then.", message, span(details.FreeAt.Sub(e.At)))
	}
	return message + " That time has come: make a new call."
}

// explainApprovals says whom rules ask about a call, and how they decide.
func explainApprovals(e *client.Explanation) string {
	by := theRules(e.Rules, e.RulesVersion)
	if len(e.Approvals) == 0 {
		return "It waited, in no process, for people to decide, by " + by + ". They have: a worker takes it within seconds."
	}
	said := "It waits, in no process, for people to decide whether it may run, by " + by + "."
	for _, q := range e.Approvals {
		if q.Text != "" {
			said += fmt.Sprintf(" They are asked %q.", cut(printable(q.Text), 300))
		}
		said += fmt.Sprintf(" It takes %s", cut(printable(strings.Join(q.By, ", ")), 300))
		if !q.Until.IsZero() {
			said += ", until " + moment(q.Until)
		}
		said += fmt.Sprintf(": gem approve %s, or gem deny.", q.ID)
	}
	return said + " Whoever made the call may not. gem roles list shows who has which role."
}

// gaveTurn says which rules let a call wait in the queue.
func gaveTurn(e *client.Explanation) string {
	by := theRules(e.Rules, e.RulesVersion)
	if e.WaitsFor == client.ForTurn {
		return fmt.Sprintf("It waits for its turn, by %s.", by)
	}
	return fmt.Sprintf("It waited for its turn, which has come, by %s.", by)
}

// theRules names rules, of a version where that is known.
func theRules(names []string, version string) string {
	said := "the rule "
	if len(names) != 1 {
		said = "the rules "
	}
	said += cut(printable(strings.Join(names, ", ")), 300)
	if version != "" {
		said += fmt.Sprintf(" (rules %s)", cut(printable(version), 100))
	}
	return said
}

// asksPeople reports whether a call waits, under these names, for people whom rules ask: no handler chooses such a name.
func asksPeople(names []string) bool { return len(names) > 0 && strings.HasPrefix(names[0], "##") }

// ruled is what rules said of a call, on its receipt and in its journal.
type ruled struct {
	Version  string `json:"version"`
	Verdicts []struct {
		Rule, Action, Message string
	} `json:"verdicts"`
	Approvals []struct{ Rule, By string } `json:"approvals"`
}

// said lists the verdicts and who approved.
func (r ruled) said() string {
	var all []string
	for _, v := range r.Verdicts {
		all = append(all, fmt.Sprintf("%s (%s)", printable(v.Rule), printable(v.Action)))
	}
	for _, a := range r.Approvals {
		all = append(all, fmt.Sprintf("%s approved what %s asked", printable(a.By), printable(a.Rule)))
	}
	return "the rules " + cut(printable(r.Version), 100) + " had met it: " + cut(strings.Join(all, ", "), 300)
}

// warned says, of a call that ran, what rules warned of, and who approved it.
func warned(r *receipts.Receipt) string {
	var effects struct {
		Rules ruled `json:"rules"`
	}
	if json.Unmarshal(r.Effects, &effects) != nil {
		return "" // what an imported receipt has may be of another form
	}
	said := ""
	for _, v := range effects.Rules.Verdicts {
		if v.Action == "warn" {
			said += " A warning: " + sentence(cut(v.Message, 500))
		}
	}
	for _, a := range effects.Rules.Approvals {
		said += fmt.Sprintf(" %s approved it, as the rule %s asks.", cut(printable(a.By), 200), printable(a.Rule))
	}
	return said
}
