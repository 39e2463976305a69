package prose

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/rules"
)

// explainRuled says why rules ended a call. The message names the rule, its version, what it saw and what to do; what it says of times was true
// when the call ended.
func explainRuled(e *client.Explanation, failure receipts.Error, message string) string {
	var details struct {
		FreeAt time.Time `json:"free_at"`
	}
	_ = json.Unmarshal(failure.Details, &details)
	switch failure.Code {
	case receipts.RuleError:
		return message + " Correct that rule and restart the workers. gem rules check reads the file."
	case receipts.ApprovalDenied:
		return message + " The decision is final for this call. gem trace " + e.Call.ID + " has the question."
	case receipts.ApprovalExpired:
		return message + " Make a new call to ask again."
	}
	switch {
	case details.FreeAt.IsZero():
		return message
	case details.FreeAt.After(e.At):
		return fmt.Sprintf("%s It is %s until then.", message, Span(details.FreeAt.Sub(e.At)))
	}
	return message + " That time has come: make a new call."
}

// explainApprovals says whom rules ask about a call, and how they decide.
func explainApprovals(e *client.Explanation) string {
	by := TheRules(e.Rules, e.RulesVersion)
	if len(e.Approvals) == 0 {
		return "It waited, in no process, for people to decide, by " + by + ". They have: a worker takes it within seconds."
	}
	said := "It waits, in no process, for people to decide whether it may run, by " + by + "."
	for _, q := range e.Approvals {
		if q.Text != "" {
			said += fmt.Sprintf(" They are asked %q.", Cut(Printable(q.Text), 300))
		}
		said += fmt.Sprintf(" It takes %s", Cut(Printable(strings.Join(q.By, ", ")), 300))
		if !q.Until.IsZero() {
			said += ", until " + Moment(q.Until)
		}
		said += fmt.Sprintf(": gem approve %s, or gem deny.", q.ID)
	}
	return said + " Whoever made the call may not. gem roles list shows who has which role."
}

// gaveTurn says which rules let a call wait in the queue.
func gaveTurn(e *client.Explanation) string {
	by := TheRules(e.Rules, e.RulesVersion)
	if e.WaitsFor == client.ForTurn {
		return fmt.Sprintf("It waits for its turn, by %s.", by)
	}
	return fmt.Sprintf("It waited for its turn, which has come, by %s.", by)
}

// TheRules names rules, of a version where that is known.
func TheRules(names []string, version string) string {
	said := "the rule "
	if len(names) != 1 {
		said = "the rules "
	}
	said += Cut(Printable(strings.Join(names, ", ")), 300)
	if version != "" {
		said += fmt.Sprintf(" (rules %s)", Cut(Printable(version), 100))
	}
	return said
}

// AsksPeople reports whether a call waits, under these names, for people whom rules ask: no handler chooses such a name.
func AsksPeople(names []string) bool { return len(names) > 0 && strings.HasPrefix(names[0], "##") }

// ruling lists the verdicts in the journal of a call, and who approved it.
func ruling(data json.RawMessage) string {
	var r receipts.Rules
	_ = json.Unmarshal(data, &r)
	if r.Version == "" { // not everyone may see it
		return "rules had met it"
	}
	var all []string
	for _, v := range r.Verdicts {
		all = append(all, fmt.Sprintf("%s (%s)", Printable(v.Rule), v.Action))
	}
	for _, a := range r.Approvals {
		all = append(all, fmt.Sprintf("%s approved what %s asked", Printable(a.By), Printable(a.Rule)))
	}
	return "the rules " + Cut(Printable(r.Version), 100) + " had met it: " + Cut(strings.Join(all, ", "), 300)
}

// warned says, of a call that ran, what rules warned of, and who approved it.
func warned(r *receipts.Rules) string {
	if r == nil {
		return ""
	}
	said := ""
	for _, v := range r.Verdicts {
		if v.Action == rules.Warn {
			said += " A warning: " + Sentence(Cut(v.Message, 500))
		}
	}
	for _, a := range r.Approvals {
		why := "."
		if a.Reason != "" {
			why = ": " + Sentence(Cut(Printable(a.Reason), 300))
		}
		said += fmt.Sprintf(" %s approved it, as the rule %s asks%s", Cut(Printable(a.By), 200), Printable(a.Rule), why)
	}
	return said
}
