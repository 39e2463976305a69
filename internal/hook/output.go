package hook

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/rules"
)

// answer is the output of a hook. It never allows an act: the agent's own permissions still apply.
type answer struct {
	// Message is shown to the user.
	Message  string    `json:"systemMessage,omitempty"`
	Specific *specific `json:"hookSpecificOutput,omitempty"`
}

type specific struct {
	Event event `json:"hookEventName"`
	// Decision is deny or ask, or empty for a warning.
	Decision string `json:"permissionDecision,omitempty"`
	Reason   string `json:"permissionDecisionReason,omitempty"`
	// Context is the text for the model.
	Context string `json:"additionalContext,omitempty"`
}

const maxMessage = 8000 // bytes

// json returns the output for stdout: nothing, or one object.
func (a answer) json() []byte {
	if a == (answer{}) {
		return nil
	}
	text, err := json.Marshal(a)
	if err != nil {
		return nil
	}
	return append(text, '\n')
}

// answerTo combines the verdicts of the rules. The strictest action decides, and the message names every rule that
// matched. The names of files and tests in it are text of others: each verdict keeps to its line.
func answerTo(met []verdict) answer {
	if len(met) == 0 {
		return answer{}
	}
	var lines strings.Builder
	for _, v := range met {
		fmt.Fprintf(&lines, "\n- %s (%s): %s.", v.rule, v.action, oneline.Text(v.text, maxMessage))
	}
	says := func(action rules.Action) bool {
		return slices.ContainsFunc(met, func(v verdict) bool { return v.action == action })
	}
	s := &specific{Event: before}
	switch text := short(lines.String(), maxMessage); {
	case says(rules.Block):
		s.Decision, s.Reason = "deny", "A policy of the project's rules.json stopped this. It is not an error of the "+
			"tool, and other ways to the same result are not wanted either:"+text
	case says(rules.Ask):
		s.Decision, s.Reason = "ask", "A policy of the project's rules.json asks for a person's approval:"+text
	default:
		s.Context = "A policy of the project's rules.json warns:" + text
	}
	return answer{Specific: s}
}

// and adds the rules that could not be judged, and the reason. It keeps a denial.
func (a answer) and(coding rules.Coding, unsure []string, why string) answer {
	if len(unsure) == 0 {
		return a
	}
	more := answerUnknown(coding, unsure, why)
	switch {
	case a.Specific == nil:
		return more
	case more.Specific == nil:
		a.Message = more.Message
	case a.Specific.Decision == "":
		more.Specific.Context = a.Specific.Context
		return more
	}
	return a
}

// answerUnknown returns the answer if the rules with these names could not be judged.
func answerUnknown(coding rules.Coding, names []string, why string) answer {
	text := short(fmt.Sprintf("gem hook cannot judge by %s: %s", strings.Join(names, ", "), why), maxMessage)
	if slices.ContainsFunc(names, func(name string) bool { return coding[name].Unknown == rules.Ask }) {
		return answer{Specific: &specific{Event: before, Decision: "ask", Reason: text}}
	}
	return answer{Message: text + ". The act was let through"}
}
