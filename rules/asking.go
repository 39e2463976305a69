package rules

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/internal/schema"
)

// check returns the check of a rule that meets the call, about earlier calls or people; nil if the rule needs none.
func (f *facts) check(r *Rule) (c *Check, why undecided) {
	c = &Check{Rule: r.Name, Action: r.Action}
	switch {
	case r.Limit != nil:
		c.Kind, c.Max, c.WithinMS = Count, r.Limit.Max, r.Limit.Within.Milliseconds()
		word := "calls"
		switch {
		case r.Limit.Sum != "":
			c.Kind, word = Sum, "sum:"+r.Limit.Sum
			c.Add, why = f.amount(r.Limit.Sum)
		case r.Action == Wait:
			word, c.AtMostMS = "starts", r.AtMost.Milliseconds()
		}
		if why == "" {
			c.Counter, why = f.counter(r, word)
		}
	case r.Running != nil:
		c.Kind, c.Max = AtOnce, json.Number(strconv.Itoa(r.Running.Max))
		if r.Action == Wait {
			c.AtMostMS = r.AtMost.Milliseconds()
		}
		c.Counter, why = f.counter(r, "running")
	case r.Requires != nil:
		c.Kind, c.Tools, c.WithinMS = Required, f.judge.earlier[r], r.Requires.Within.Milliseconds()
	case r.After != nil:
		c.Kind, c.Tools, c.WithinMS = Afterwards, f.judge.earlier[r], r.After.Within.Milliseconds()
		c.Ended = slices.Sorted(slices.Values(r.After.Ended))
	case r.Failures != nil:
		c.Kind, c.InARow, c.CooldownMS = FailureRow, r.Failures.InARow, r.Failures.Cooldown.Milliseconds()
		c.Counter, why = f.counter(r, "failures")
	case r.Action == Ask:
		c.Kind = ItsCall
	default:
		return nil, ""
	}
	if c.Counter != "" && f.call.CreatedBy != "" && r.shared() {
		c.CoarseMS = max(c.WithinMS, c.CooldownMS) / coarseParts
	}
	if r.Action == Ask && why == "" {
		why = f.question(r, c)
	}
	return c, why
}

// coarseParts is the number of parts into which the period of a shared limit is divided: see [Check.CoarseMS].
const coarseParts = 20

// shared reports whether the rule counts calls of several callers together.
func (r *Rule) shared() bool {
	return !slices.Contains(r.per(), "caller") && !slices.Contains(r.per(), "session")
}

// amount returns the input's number that a rule sums.
func (f *facts) amount(pointer string) (json.Number, undecided) {
	doc, err := f.inputDocument()
	if err != nil {
		return "", "the input of the call cannot be read"
	}
	n, _ := schema.Lookup(doc.Value(), pointer)
	number, ok := n.(json.Number)
	if value, read := new(big.Rat).SetString(string(number)); !ok || !read || value.Sign() < 0 {
		return "", undecided("the input has no number of at least 0 at " + pointer)
	}
	return number, ""
}

// maxScope limits the bytes of scope values in a counter's name.
const maxScope = 200

// counter returns the name of the rows that are counted together: the rule, the kind of count, and the values that are
// counted separately.
func (f *facts) counter(r *Rule, word string) (string, undecided) {
	per := r.per()
	values := make([]any, len(per))
	for i, what := range per {
		pointer, ofInput := strings.CutPrefix(what, "input:")
		switch {
		case ofInput:
			doc, err := f.inputDocument()
			if err != nil {
				return "", "the input of the call cannot be read"
			}
			if value, there := schema.Lookup(doc.Value(), pointer); there { // null for a missing value
				// hashed, because it remains when the call is pruned
				values[i] = fmt.Sprintf("%x", sha256.Sum256(schema.Canonical(value)))[:32]
			}
		case what == "tool":
			values[i] = f.call.Tool.Name
		case what == "session":
			values[i] = []any{f.call.SessionID, nobodyIsNull(f.call.CreatedBy)}
		default:
			values[i] = nobodyIsNull(f.call.CreatedBy)
		}
	}
	scope := schema.Canonical(values)
	if len(scope) > maxScope {
		scope = fmt.Appendf(nil, "%x", sha256.Sum256(scope))
	}
	all := "all"
	if len(per) > 0 {
		all = strings.Join(per, ",")
	}
	return r.Name + "/" + word + " per " + all + " " + string(scope), ""
}

func nobodyIsNull(caller string) any {
	if caller == "" {
		return nil
	}
	return caller
}

// maxShown is the maximum size, in bytes, of an input that a question shows.
const maxShown = 256 << 10

// question adds the question for people. It is bound to the contents of the call and the rule: another input, rule or
// tool entry makes another question.
func (f *facts) question(r *Rule, c *Check) undecided {
	doc, err := f.inputDocument()
	if err != nil {
		return "the input of the call cannot be read"
	}
	c.AskMS = r.Within.Milliseconds()
	c.Digest = fmt.Sprintf("%x", sha256.Sum256(schema.Canonical(map[string]any{
		"call_id": f.call.ID, "input": doc.Value(), "tool": f.call.Tool.Does(), "rule": r.entry,
	})))
	message := "The rule " + r.Name + " (rules " + f.judge.set.Version + ") asks whether this call to " +
		f.call.Tool.Name + " may run: " + r.about(c) + "."
	text := r.questionText(f.call.Tool.Name, doc.Value(), c)
	input := doc.Value()
	if len(f.call.Input) > maxShown {
		input = map[string]any{}
		text += " Its input is too large to be shown here: read it in the call " + f.call.ID + "."
	}
	by := make([]string, len(r.Of))
	for i, role := range r.Of {
		by[i] = "role:" + role
	}
	c.Question = schema.Canonical(map[string]any{
		"tool": f.call.Tool.Name, "input": input, "text": oneline.Cut(text, 4000), "by": by, "others": true,
		"digest":  c.Digest,
		"call_id": f.call.ID, "rules": []any{map[string]any{"name": r.Name, "message": message}},
	})
	return ""
}
