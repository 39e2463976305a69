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

// explainRuled explains why rules ended a call. The message names the rule, its version, what it saw and what to do.
// Its times refer to the end of the call.
func explainRuled(e *client.Explanation, failure receipts.Error, message string) string {
	var details struct {
		FreeAt time.Time `json:"free_at"`
	}
	_ = json.Unmarshal(failure.Details, &details)
	switch failure.Code {
	case receipts.RuleError:
		return message + " Correct that rule, check the file with gem rules check, and restart the workers."
	case receipts.ApprovalDenied:
		return message + " The decision is final for this call. gem trace " + e.Call.ID + " has the question."
	case receipts.ApprovalExpired:
		return message + " Make a new call to ask again."
	}
	switch {
	case details.FreeAt.IsZero():
		return message + " Make a call that the rule allows, or change the rule and restart the workers."
	case details.FreeAt.After(e.At):
		return fmt.Sprintf("%s It is %s until then.", message, Span(details.FreeAt.Sub(e.At)))
	}
	return message + " That time has come: make a new call."
}

// explainApprovals names the people whom rules ask about a call, and the commands that decide.
func explainApprovals(e *client.Explanation) string {
	by := requires(e)
	if len(e.Approvals) == 0 {
		return "It waited for an approval, as " + by + ". Everything is decided: a worker claims it within seconds."
	}
	said := "It waits for an approval, as " + by + "."
	for _, q := range e.Approvals {
		if q.Text != "" {
			said += " The question: " + Sentence(Said(q.Text, 300))
		}
		said += fmt.Sprintf(" Only %s may approve it", Answerers(q.By))
		if !q.Until.IsZero() {
			said += ", until " + Moment(q.Until)
		}
		said += fmt.Sprintf(": gem approve %s, or gem deny %[1]s.", q.ID)
	}
	return said + exclusion(e.Call.CreatedBy) + " gem roles list shows who has which role."
}

// requires names the rules that require the approval of a call: the rule big (rules 1) requires.
func requires(e *client.Explanation) string {
	said := TheRules(e.Rules, e.RulesVersion)
	if len(e.Rules) == 1 {
		return said + " requires"
	}
	return said + " require"
}

// decided describes the decision on an approval. It returns "" for other calls.
func decided(e *client.Explanation) string {
	var about struct{ Tool string }
	var is struct {
		Approved   *bool
		By, Reason string
		At         time.Time
	}
	r := e.Receipt
	if r.ToolName != "wait.approval" || json.Unmarshal(r.Result, &is) != nil || is.Approved == nil {
		return ""
	}
	_ = json.Unmarshal(e.Call.Input, &about) // not everyone may see it
	call := "the call"
	if about.Tool != "" {
		call += " to " + Cut(Printable(about.Tool), 200)
	}
	if is.By == "" {
		return "Nobody decided about " + call + " in time, so it was not approved."
	}
	did := "denied"
	if *is.Approved {
		did = "approved"
	}
	return fmt.Sprintf("%s %s %s at %s%s.", Cut(Printable(is.By), 200), did, call, Moment(is.At),
		Because(client.Act{Reason: is.Reason}))
}

// delayedBy names the rules that delayed a call in the queue.
func delayedBy(e *client.Explanation) string {
	by := TheRules(e.Rules, e.RulesVersion)
	if e.WaitsFor == client.ForLimit {
		return fmt.Sprintf("It is scheduled by %s.", by)
	}
	return fmt.Sprintf("It was scheduled by %s, and its time has come.", by)
}

// TheRules names rules, with their version if it is known.
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

// AsksPeople reports whether a call waits, under these names, for people whom rules ask: no handler chooses such a
// name.
func AsksPeople(names []string) bool { return len(names) > 0 && strings.HasPrefix(names[0], "##") }

// ruling lists the verdicts in the journal of a call, and who approved it.
func ruling(data json.RawMessage) string {
	var r receipts.Rules
	_ = json.Unmarshal(data, &r)
	if r.Version == "" { // not everyone may see it
		return "rules applied to it"
	}
	var all []string
	for _, v := range r.Verdicts {
		all = append(all, fmt.Sprintf("%s (%s)", Printable(v.Rule), v.Action))
	}
	for _, a := range r.Approvals {
		all = append(all, fmt.Sprintf("%s approved what %s asked", Printable(a.By), Printable(a.Rule)))
	}
	return "the rules " + Cut(Printable(r.Version), 100) + " applied to it: " + Cut(strings.Join(all, ", "), 300)
}

// warned describes the warnings of rules about a call that ran, and who approved it.
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
		said += fmt.Sprintf(" %s approved it, as the rule %s requires%s", Cut(Printable(a.By), 200), Printable(a.Rule), why)
	}
	return said
}
