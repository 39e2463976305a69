package rules

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/internal/schema"
	"github.com/gemworker/gem/receipts"
)

// Ruling is the result of all rules for a call.
type Ruling struct {
	// Code is the error code of a call that fails: rule_blocked, limit_reached, approval_denied, approval_expired or
	// rule_error. It is empty for a call that runs or waits.
	Code    string
	Message string // of the failure, for the caller
	Details any    // of the failure, for programs: a [Details]
	// Verdicts are all verdicts, including those on a call that runs. Those on the call itself come first.
	Verdicts []Verdict
}

// OnReceipt returns verdicts in the form that a receipt has.
func OnReceipt(verdicts []Verdict) []receipts.Verdict {
	all := make([]receipts.Verdict, len(verdicts))
	for i, v := range verdicts {
		all[i] = v.Verdict
	}
	return all
}

// Details are the error details of a call that a rule stopped.
type Details struct {
	Rule         string             `json:"rule"`
	RulesVersion string             `json:"rules_version"`
	Kind         Kind               `json:"kind"`
	Seen         *receipts.Evidence `json:"seen,omitempty"`
	Do           string             `json:"do,omitempty"` // what to do instead
	// FreeAt is the time at which the call can be repeated, and RetryAfterMS is the time until then.
	FreeAt       *time.Time `json:"free_at,omitempty"`
	RetryAfterMS *int64     `json:"retry_after_ms,omitempty"`
}

// The codes of failures.
const (
	codeBlocked = "rule_blocked"
	codeLimit   = "limit_reached"
	codeDenied  = "approval_denied"
	codeExpired = "approval_expired"
	codeFault   = "rule_error"
)

// Rule combines the verdicts of a version's rules on the call itself with the results of its checks. A judgement
// without checks takes the zero [Answer].
func (j Judgement) Rule(version string, a Answer) Ruling {
	ruling := Ruling{Verdicts: slices.Clone(j.Verdicts)}
	var stopping, refused []Verdict
	for _, v := range j.Verdicts {
		if v.Action == Block {
			stopping = append(stopping, v)
		}
	}
	for _, met := range a.Met {
		if met.Check == NoCheck && met.Seen.By != "" {
			v := j.denied(met)
			ruling.Verdicts, refused = append(ruling.Verdicts, v), append(refused, v)
			continue
		}
		if met.Check < 0 || met.Check >= len(j.Checks) {
			continue
		}
		check := j.Checks[met.Check]
		v := j.verdict(version, a, check, met.Seen)
		ruling.Verdicts = append(ruling.Verdicts, v)
		switch {
		case check.Action == Block || met.Seen.NotInTime:
			stopping = append(stopping, v)
		case check.Action == Ask && !a.approves(check):
			refused = append(refused, v)
		}
	}
	switch a.Outcome {
	case Denied:
		ruling.Code, stopping = codeDenied, answered(refused)
	case Expired:
		ruling.Code, stopping = codeExpired, answered(refused)
	case Unasked:
		ruling.Code, stopping = codeFault, answered(refused)
	}
	switch {
	case len(stopping) > 0:
		ruling.stop(version, stopping, a.At)
	case ruling.Code != "" || a.Outcome == Stopped: // no gate answers like this
		ruling.Code, ruling.Message = codeFault, "A rule (rules "+version+") stopped the call, and it is not known which."
		ruling.Details = Details{RulesVersion: version}
	}
	return ruling
}

// denied returns the verdict of a denial that no current check needs.
func (j Judgement) denied(met Met) Verdict {
	call := "this call"
	if j.tool != "" {
		call += " to " + j.tool
	}
	asked := policy + "the rule " + met.Rule + " asked whether " + call + " may run."
	return Verdict{Verdict: receipts.Verdict{Rule: met.Rule, Action: Ask, Seen: &met.Seen,
		Message: sentences(asked, denied(met.Seen))}, Kind: ItsCall}
}

// denied describes who denied a call, and why.
func denied(s receipts.Evidence) string {
	text := oneline.Cut(s.By, 200) + " denied it"
	if s.Reason != "" {
		text += ": " + oneline.Cut(strings.TrimRight(s.Reason, ". "), 500)
	}
	return text + "."
}

// approves reports whether a person approved a check's question.
func (a Answer) approves(c Check) bool {
	return slices.ContainsFunc(a.Approvals, func(given receipts.Approval) bool { return given.Digest == c.Digest })
}

// answered removes questions that nobody denied, or, if nobody denied any, open questions.
func answered(refused []Verdict) []Verdict {
	for _, is := range []func(*receipts.Evidence) bool{func(s *receipts.Evidence) bool { return s.By != "" },
		func(s *receipts.Evidence) bool { return s.Reason != "" }} {
		with := slices.DeleteFunc(slices.Clone(refused), func(v Verdict) bool { return v.Seen == nil || !is(v.Seen) })
		if len(with) > 0 {
			return with
		}
	}
	return refused
}

// stop fails the call for these verdicts.
func (r *Ruling) stop(version string, stopping []Verdict, now time.Time) {
	v := deciding(stopping)
	if r.Code == "" {
		r.Code = codeBlocked
		switch {
		case !slices.ContainsFunc(stopping, func(v Verdict) bool { return !v.Undecided }):
			r.Code = codeFault
		case !slices.ContainsFunc(stopping, func(v Verdict) bool { return !v.fullLimit() }):
			r.Code = codeLimit
		}
	}
	var messages []string
	for _, v := range stopping {
		messages = append(messages, v.Message)
	}
	r.Message = strings.Join(messages, "\n")
	details := Details{Rule: v.Rule, RulesVersion: version, Kind: v.Kind, Seen: v.Seen, Do: v.Do}
	if v.Seen != nil && v.Seen.FreeAt != nil && (r.Code == codeLimit || r.Code == codeBlocked) {
		wait := max(0, v.Seen.FreeAt.Sub(now)+time.Millisecond-1).Milliseconds()
		if details.FreeAt = v.Seen.FreeAt; !now.IsZero() {
			details.RetryAfterMS = &wait
		}
	}
	r.Details = details
}

// fullLimit reports whether a limit has no room for the call.
func (v Verdict) fullLimit() bool {
	return (v.Kind == Count || v.Kind == Sum || v.Kind == AtOnce) && !v.Undecided
}

// deciding returns the verdict that a failure names: the first that ends at no known time, or else the one that ends
// last.
func deciding(stopping []Verdict) Verdict {
	decided := slices.DeleteFunc(slices.Clone(stopping), func(v Verdict) bool { return v.Undecided })
	if len(decided) == 0 {
		return stopping[0]
	}
	last := decided[0]
	for _, v := range decided {
		if v.Seen == nil || v.Seen.FreeAt == nil {
			return v
		}
		if v.Seen.FreeAt.After(*last.Seen.FreeAt) {
			last = v
		}
	}
	return last
}

// policy begins the messages that agents read.
const policy = "This is a policy of the operator, not an error: "

// rulePart names a rule of a version.
func rulePart(rule, version string) string { return "the rule " + rule + " (rules " + version + ")" }

// verdict returns the verdict of a rule that needs only the call itself. do is advice in addition to the rule's own.
func (f *facts) verdict(r *Rule, seen, do string) *Verdict {
	v := &Verdict{Verdict: receipts.Verdict{Rule: r.Name, Action: Block}, Kind: ItsCall, Do: sentences(do, r.Say)}
	does := " blocks this call to " + f.call.Tool.Name
	if r.Action == Warn {
		v.Action, does = Warn, " warns about this call to "+f.call.Tool.Name+", which runs anyway"
	}
	v.Message = sentences(policy+rulePart(r.Name, f.judge.set.Version)+does+": "+seen+".", v.Do)
	return v
}

// undecided returns the verdict of a rule that could not be judged.
func (f *facts) undecided(r *Rule, why undecided) *Verdict {
	v := &Verdict{Verdict: receipts.Verdict{Rule: r.Name, Action: Block, Undecided: true}, Kind: r.kind(), Do: r.Say}
	end := "a call that a rule may stop does not run"
	if r.Action == Warn {
		v.Action, v.Undecided, end = Warn, false, "it only warns, so the call runs"
	}
	v.Message = sentences("The rule "+r.Name+" (rules "+f.judge.set.Version+") could not be judged: "+string(why)+"; "+end+
		".", r.Say)
	return v
}

// verdict returns the verdict of a check that is met.
func (j Judgement) verdict(version string, a Answer, c Check, seen receipts.Evidence) Verdict {
	r := j.rules[c.Rule]
	if r == nil { // the checks are not from this judgement
		r = &Rule{Name: c.Rule}
	}
	v := Verdict{Verdict: receipts.Verdict{Rule: c.Rule, Action: c.Action}, Kind: c.Kind, Do: r.Say}
	if !reflect.ValueOf(seen).IsZero() {
		v.Seen = &seen
	}
	call := "this call"
	if j.tool != "" {
		call += " to " + j.tool
	}
	about := r.about(&c)
	switch {
	case seen.Ended != "":
		about = seen.Tool + " had ended with " + schema.Show(seen.Ended) +
			" in this session when this call was made (receipt " + seen.ReceiptID + ")"
	case len(seen.Receipts) > 0:
		about += " (receipts " + list(seen.Receipts) + ")"
	case seen.Total != "":
		about += "; it is " + string(seen.Total) + " so far, and this call would exceed that"
	}
	does := " blocks " + call
	free := ""
	said := policy + rulePart(c.Rule, version)
	switch c.Action {
	case Warn:
		does = " warns about " + call + ", which runs anyway"
	case Ask:
		does = " asks whether " + call + " may run"
		if a.approves(c) {
			said, does = "The rule "+c.Rule+" (rules "+version+")", " asked whether "+call+" may run"
		}
		about, free = j.asked(r, a, c, seen, about)
	case Wait:
		does = " lets " + call + " wait"
		switch {
		case seen.NotInTime && c.Kind == AtOnce:
			does = " blocks " + call
			about += "; no place was free for it within the time that a call may wait, " + span(c.AtMostMS)
		case seen.NotInTime:
			does = " blocks " + call
			about += "; the next start is later than a call may wait, " + span(c.AtMostMS)
		case !a.StartsAt.IsZero():
			about += "; it runs at " + moment(a.StartsAt)
		}
	}
	if seen.FreeAt != nil && (c.Action == Block || seen.NotInTime) {
		free = "It can be made again at " + moment(*seen.FreeAt) + "."
		if wait := seen.FreeAt.Sub(a.At); wait > 0 && !a.At.IsZero() {
			free = "It can be made again in " + (wait + time.Second - 1).Truncate(time.Second).String() + ", at " +
				moment(*seen.FreeAt) + "."
		}
	}
	v.Message = sentences(said+does+": "+about+".", free, r.Say)
	return v
}

// asked describes the state of a rule that asks people.
func (j Judgement) asked(r *Rule, a Answer, c Check, seen receipts.Evidence, about string) (string, string) {
	if i := slices.IndexFunc(a.Approvals, func(given receipts.Approval) bool { return given.Digest == c.Digest }); i >= 0 {
		return about, oneline.Cut(a.Approvals[i].By, 200) + " approved it."
	}
	switch a.Outcome {
	case Denied:
		if seen.By == "" { // another question was denied
			return about, ""
		}
		return about, denied(seen)
	case Expired:
		return about, "Nobody answered within " + span(c.AskMS) + "."
	case Unasked:
		return about, sentences("Nobody could be asked.", oneline.Cut(seen.Reason, 500))
	}
	if len(r.Of) > 0 {
		return about, "Someone with the role " + strings.Join(r.Of, " or ") + " decides."
	}
	return about, ""
}

// about describes a check's condition, and why it is met, without a value of its input.
func (r *Rule) about(c *Check) string {
	switch c.Kind {
	case Count:
		if c.Max == "0" {
			return "it allows no such call"
		}
		return "it allows " + number(string(c.Max), "call") + " within " + span(c.WithinMS) + r.apart() +
			", and this limit is reached"
	case AtOnce:
		return "it lets " + number(string(c.Max), "call") + " run at the same time" + r.apart() + ", and as many run"
	case Sum:
		pointer := "the amount"
		if r.Limit != nil {
			pointer = r.Limit.Sum
		}
		return "the sum of " + pointer + " within " + span(c.WithinMS) + r.apart() + " may be at most " + string(c.Max)
	case Required:
		tools, within := c.Tools, ""
		if r.Requires != nil {
			tools = r.Requires.Tools
		}
		if c.WithinMS > 0 {
			within = " within " + span(c.WithinMS)
		}
		return "no call to " + list(tools) + " had succeeded in this session" + within +
			" before this call was made; make one, and repeat this call after its receipt"
	case Afterwards:
		tools := c.Tools
		if r.After != nil {
			tools = r.After.Tools
		}
		return "a call to " + list(tools) + " had ended in this session with " + list(c.Ended) + " when this call was made"
	case FailureRow:
		return "the last " + number(strconv.Itoa(c.InARow), "call") + r.apart() + " failed, one after another"
	}
	return r.conditions()
}

// conditions describes the rule's conditions on the call itself.
func (r *Rule) conditions() string {
	return cmp.Or(r.holds(), "it applies to every call to the tool")
}

// holds puts the conditions of the rule into words. For a condition on a result it only names the fields.
func (r *Rule) holds() string {
	var all []string
	switch {
	case r.when != nil && len(r.when.result)+len(r.when.effects) > 0:
		all = append(all, "its condition on "+list(r.when.fields())+" holds")
	case r.when != nil:
		all = append(all, conditionWords(r.entry["when"]))
	}
	if r.unless != nil {
		exception := "its exception does not hold"
		if words := conditionWords(r.entry["unless"]); words != "" {
			exception = "its exception (" + words + ") does not hold"
		}
		all = append(all, exception)
	}
	return strings.Join(all, "; ")
}

// fields returns the field names of a condition, sorted.
func (c *condition) fields() (all []string) {
	if c == nil {
		return nil
	}
	for part, schemas := range map[string]map[string]*schema.Schema{"input": c.input, "caller": c.caller,
		"result": c.result, "effects": c.effects} {
		for name := range maps.Keys(schemas) {
			all = append(all, schema.FieldName([]string{part, name}))
		}
	}
	slices.Sort(all)
	return all
}

// LooksAt describes the rule's condition in a few words.
func (r *Rule) LooksAt() string {
	var words []string
	switch {
	case r.Limit != nil && r.Limit.Sum != "":
		words = append(words, "a sum of "+string(r.Limit.Max)+" at "+r.Limit.Sum+" in "+span(r.Limit.Within.Milliseconds())+
			r.apart())
	case r.Limit != nil:
		words = append(words, number(string(r.Limit.Max), "call")+" in "+span(r.Limit.Within.Milliseconds())+r.apart())
	case r.Running != nil:
		words = append(words, number(strconv.Itoa(r.Running.Max), "call")+" at the same time"+r.apart())
	case r.Requires != nil:
		words = append(words, "requires "+list(r.Requires.Tools))
	case r.After != nil:
		words = append(words, "after "+list(r.After.Tools)+" "+list(r.After.Ended))
	case r.Failures != nil:
		words = append(words, number(strconv.Itoa(r.Failures.InARow), "failure")+" in a row"+r.apart()+", for "+
			span(r.Failures.Cooldown.Milliseconds()))
	}
	if fields := r.when.fields(); len(fields) > 0 {
		words = append(words, "when "+list(fields))
	}
	if fields := r.unless.fields(); len(fields) > 0 {
		words = append(words, "unless "+list(fields))
	}
	return cmp.Or(strings.Join(words, "; "), "every call")
}

// kind returns the kind of the rule's condition.
func (r *Rule) kind() Kind {
	switch {
	case r.Limit != nil && r.Limit.Sum != "":
		return Sum
	case r.Limit != nil:
		return Count
	case r.Running != nil:
		return AtOnce
	case r.Requires != nil:
		return Required
	case r.After != nil:
		return Afterwards
	case r.Failures != nil:
		return FailureRow
	}
	return ItsCall
}

// apart describes the values that are counted separately.
func (r *Rule) apart() string {
	if len(r.per()) == 0 {
		return ""
	}
	return " per " + list(r.per())
}

// sentences joins texts that are not empty.
func sentences(texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(text string) bool { return text == "" }), " ")
}

// list names the first few of several.
func list(names []string) string {
	const most = 5
	if more := len(names) - most; more > 0 {
		return strings.Join(names[:most], ", ") + " and " + strconv.Itoa(more) + " more"
	}
	return strings.Join(names, ", ")
}

func number(n, of string) string {
	if n == "1" {
		return n + " " + of
	}
	return n + " " + of + "s"
}

// span formats a duration as rules do.
func span(ms int64) string {
	for _, unit := range []struct {
		name string
		ms   int64
	}{{"d", 86_400_000}, {"h", 3_600_000}, {"m", 60_000}, {"s", 1000}} {
		if ms%unit.ms == 0 {
			return strconv.FormatInt(ms/unit.ms, 10) + unit.name
		}
	}
	return strconv.FormatInt(ms, 10) + "ms"
}

func moment(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.999Z07:00") }
