package rules

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/gemworker/gem/internal/schema"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
)

// Call is the part of a call that rules can see before it runs.
type Call struct {
	ID        string
	Tool      *registry.Tool
	Input     json.RawMessage // valid by the tool's schema
	SessionID string          // empty for none
	CreatedBy string          // empty for nobody
	SignedIn  bool
	Child     bool
}

// Judgement is the rules' verdict on a call: first on the call itself, and, once its checks are answered, the complete
// one.
type Judgement struct {
	// Verdicts are the warnings and blocks of rules that need only the call itself. If there is a block, there are no
	// checks.
	Verdicts []Verdict
	// Checks are the open conditions. If there are none, the call runs or is blocked.
	Checks []Check

	rules map[string]*Rule // the rules of the checks, by name
	tool  string
}

// Verdict is one rule's verdict on a call.
type Verdict struct {
	receipts.Verdict
	Kind Kind   `json:"-"` // the kind of condition
	Do   string `json:"-"` // the rule's advice
}

// Judge judges calls to the tools of one registry. It never changes, and many goroutines can use it. A nil Judge has no
// rules.
type Judge struct {
	set           *Set
	before, after map[string][]*Rule // the handler, by tool
	earlier       map[*Rule][]string // the tools of requires and after, without patterns, sorted
}

// For returns the judge of calls of a registry's tools.
func (s *Set) For(r *registry.Registry) *Judge {
	j := &Judge{set: s, before: map[string][]*Rule{}, after: map[string][]*Rule{}, earlier: map[*Rule][]string{}}
	tools := r.Tools()
	for _, rule := range s.rules {
		if rule.Action == Off {
			continue
		}
		into := j.before
		if rule.OnResult() {
			into = j.after
		}
		for _, tool := range tools {
			if rule.IsFor(tool) {
				into[tool.Name] = append(into[tool.Name], rule)
			}
		}
		switch {
		case rule.Requires != nil:
			j.earlier[rule] = named(rule.Requires.Tools, tools)
		case rule.After != nil:
			j.earlier[rule] = named(rule.After.Tools, tools)
		}
	}
	return j
}

// named returns the names that match the patterns, sorted. A name without a pattern matches itself, even if the
// registry no longer has the tool.
func named(patterns []string, tools []*registry.Tool) (all []string) {
	for _, pattern := range patterns {
		if !strings.HasSuffix(pattern, "*") {
			all = append(all, pattern)
			continue
		}
		for _, tool := range tools {
			if covers(pattern, tool.Name) {
				all = append(all, tool.Name)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Judge returns the rules' verdict on the call itself, before it runs, with the checks that remain. It changes nothing,
// and always returns the same for the same call. A rule that cannot be judged blocks the call.
func (j *Judge) Judge(c Call) Judgement {
	if j == nil || len(j.before[c.Tool.Name]) == 0 {
		return Judgement{}
	}
	f := &facts{judge: j, call: c}
	judgement := Judgement{rules: j.set.byName, tool: c.Tool.Name}
	blocked := false
	for _, rule := range j.before[c.Tool.Name] {
		verdict, check := f.ask(rule)
		if verdict != nil {
			judgement.Verdicts = append(judgement.Verdicts, *verdict)
			blocked = blocked || verdict.Action == Block
		}
		if check != nil {
			judgement.Checks = append(judgement.Checks, *check)
		}
	}
	if blocked {
		judgement.Checks = nil
	}
	return judgement
}

// Places returns the checks of running rules alone, for a call that the other rules let pass in an earlier attempt.
func (j *Judge) Places(c Call) Judgement {
	if j == nil {
		return Judgement{}
	}
	f := &facts{judge: j, call: c}
	judgement := Judgement{rules: j.set.byName, tool: c.Tool.Name}
	for _, rule := range j.before[c.Tool.Name] {
		if rule.Running == nil {
			continue
		}
		if _, check := f.ask(rule); check != nil {
			judgement.Checks = append(judgement.Checks, *check)
		}
	}
	return judgement
}

// JudgeResult returns the rules' verdicts on a handler's result and effects. effects is the JSON of [handlers.Effects].
// A block rolls back the writes of a transactional handler; for others see [Set.BlocksResult].
func (j *Judge) JudgeResult(c Call, result, effects json.RawMessage) (verdicts []Verdict) {
	if j == nil || len(j.after[c.Tool.Name]) == 0 {
		return nil
	}
	f := &facts{judge: j, call: c, result: part{noun: "the result", text: result},
		effects: part{noun: "the effects", text: effects}}
	for _, rule := range j.after[c.Tool.Name] {
		if verdict, _ := f.ask(rule); verdict != nil {
			verdicts = append(verdicts, *verdict)
		}
	}
	return verdicts
}

// OnResult reports whether a rule checks the results or effects of a tool.
func (j *Judge) OnResult(tool *registry.Tool) bool { return j != nil && len(j.after[tool.Name]) > 0 }

// BlocksResult returns a rule that would block a call to a tool by its result, if there is one. Only the effects of a
// transactional handler can be rolled back.
func (s *Set) BlocksResult(tool *registry.Tool) (rule string, blocks bool) {
	for _, r := range s.rules {
		if r.Action == Block && r.OnResult() && r.IsFor(tool) {
			return r.Name, true
		}
	}
	return "", false
}

// facts has the known facts about one call. Each part is read when the first rule needs it.
type facts struct {
	judge                          *Judge
	call                           Call
	input, caller, result, effects part
}

// part is a JSON text and, once it was read, its document.
type part struct {
	noun string
	text json.RawMessage
	read bool
	doc  schema.Document
	err  error
}

func (p *part) document() (schema.Document, error) {
	if !p.read {
		p.read = true
		p.doc, p.err = schema.Read(p.noun, p.text)
	}
	return p.doc, p.err
}

// inputDocument returns the call's input.
func (f *facts) inputDocument() (schema.Document, error) {
	if !f.input.read {
		f.input.noun, f.input.text = "the input", f.call.Input
	}
	return f.input.document()
}

func (f *facts) callerDocument() (schema.Document, error) {
	if !f.caller.read {
		known := map[string]any{"signed_in": f.call.SignedIn, "child": f.call.Child}
		if f.call.CreatedBy != "" {
			known["created_by"] = f.call.CreatedBy
		}
		if f.call.SessionID != "" {
			known["session_id"] = f.call.SessionID
		}
		f.caller.read, f.caller.doc = true, schema.DocumentOf(known)
	}
	return f.caller.document()
}

// undecided is why a rule could not be judged.
type undecided string

// ask judges one rule. At most one of the results is not nil.
func (f *facts) ask(r *Rule) (verdict *Verdict, check *Check) {
	defer func() {
		// The panic's value may quote the input, so it is dropped.
		if recover() != nil {
			verdict, check = f.undecided(r, "judging it failed"), nil
		}
	}()
	meets, why := f.meets(r)
	switch {
	case why != "":
		return f.undecided(r, why), nil
	case !meets:
		return nil, nil
	case f.call.SessionID == "" && r.ofSession():
		return f.verdict(r, "it looks at the calls of a session, and this call has none", "Make it with a session_id."), nil
	}
	check, why = f.check(r)
	switch {
	case why != "":
		return f.undecided(r, why), nil
	case check != nil:
		return nil, check
	}
	return f.verdict(r, r.conditions(), ""), nil
}

// meets reports whether a rule applies to the call, by its conditions.
func (f *facts) meets(r *Rule) (bool, undecided) {
	when, why := true, undecided("")
	if r.when != nil {
		when, why = f.holds(r.when)
	}
	if !when && why == "" {
		return false, ""
	}
	if r.unless == nil {
		return when, why
	}
	unless, unsure := f.holds(r.unless)
	switch {
	case unsure == "" && unless:
		return false, ""
	case why == "":
		why = unsure
	}
	return true, why
}

// holds reports whether all fields of a condition exist and match. One that does not match decides, even if others
// cannot be decided.
func (f *facts) holds(c *condition) (all bool, why undecided) {
	all = true
	ask := func(part string, fields map[string]*schema.Schema, document func() (schema.Document, error)) {
		if len(fields) == 0 || !all {
			return
		}
		doc, err := document()
		if err != nil {
			why = undecided("the " + part + " of the call cannot be read")
			return
		}
		for name, s := range fields {
			value, has := doc.Field(name)
			if !has {
				all = false
				return
			}
			fits, decided := s.Fits(value)
			switch {
			case !decided:
				unsure := undecided("its condition on " + schema.FieldName([]string{part, name}) + " is too expensive to check")
				if why == "" || unsure < why { // deterministic, whatever the order of the fields
					why = unsure
				}
			case !fits:
				all = false
				return
			}
		}
	}
	ask("input", c.input, f.inputDocument)
	ask("caller", c.caller, f.callerDocument)
	ask("result", c.result, f.result.document)
	ask("effects", c.effects, f.effects.document)
	if !all {
		why = ""
	}
	return all, why
}

// ofSession reports whether a rule concerns the calls of a session.
func (r *Rule) ofSession() bool {
	return r.Requires != nil || r.After != nil || slices.Contains(r.per(), "session")
}

// per returns the values by which a rule counts separately.
func (r *Rule) per() []string {
	switch {
	case r.Limit != nil:
		return r.Limit.Per
	case r.Running != nil:
		return r.Running.Per
	case r.Failures != nil:
		return r.Failures.Per
	}
	return nil
}
