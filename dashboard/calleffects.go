package dashboard

import (
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/rules"
)

// effects are the effects of a receipt.
type effects struct {
	receipts.Effects
	Files []link
	Calls []endpoint
	Ruled []ruleRow
	More  bool // some are not listed
}

// ruleRow is the decision of a rule or, if it asked, of a person.
type ruleRow struct {
	Rule, Decision, Message string
	By                      string // who decided; empty for the rule itself
	Question                string // the id
	At                      time.Time
}

// policyPrefix begins the messages of verdicts for callers whose call was refused.
const policyPrefix = "This is a policy of the operator, not an error: "

// ruleRows lists the decisions about a call that ended with a code, or succeeded.
func ruleRows(r *receipts.Rules, code receipts.Code) (rows []ruleRow) {
	if r == nil {
		return nil
	}
	approved := map[string]bool{}
	for _, a := range first(r.Approvals) {
		approved[a.Rule] = true
		rows = append(rows, ruleRow{Rule: a.Rule, Decision: "approved", By: a.By, At: a.At, Question: a.ID,
			Message: a.Reason})
	}
	for _, v := range first(r.Verdicts) {
		row := ruleRow{Rule: v.Rule, Decision: string(v.Action), Message: upper(strings.TrimPrefix(v.Message, policyPrefix))}
		switch {
		case v.Action == rules.Ask && approved[v.Rule]:
			continue // the approval repeats it, and names the person
		case v.Action == rules.Ask && code == receipts.ApprovalDenied:
			row.Decision = "denied"
		case v.Action == rules.Ask && code == receipts.ApprovalExpired:
			row.Decision = "expired"
		}
		rows = append(rows, row)
	}
	return rows
}

// None reports whether nothing is listed.
func (e *effects) None() bool {
	return len(e.DBWrites)+len(e.DBReads)+len(e.MessagesSent)+len(e.Files)+len(e.Calls) == 0 && e.Rules == nil
}

type link struct{ Text, URL string }

type endpoint struct {
	receipts.ExternalCall
	URL string // empty unless it is an https URL
}

// payload prepares the input, the result and the effects of a call.
func (p *callPage) payload(left *budget) {
	var failed receipts.Error
	if explained := p.Payload.Result; !explained.Cut && p.Call.Status == "failed" {
		var result struct{ Error receipts.Error }
		_ = json.Unmarshal([]byte(explained.Text), &result) // an imported receipt may have another form
		failed = result.Error
	}
	if p.Effects = effectsOf(p.Payload.Effects); p.Effects != nil {
		p.Effects.Ruled = ruleRows(p.Effects.Rules, receipts.Code(p.Call.ErrorCode))
		*left -= budget(p.Payload.Effects.Bytes) // they are listed too
	}
	marks := map[string]string{}
	var points []point
	var details []struct{ Path, Message string }
	if failed.Code == receipts.ValidationError && json.Unmarshal(failed.Details, &details) == nil {
		for _, d := range details[:min(len(details), 100)] {
			points = append(points, point{Pointer: d.Path, Message: d.Message})
			marks[d.Path] = strings.TrimPrefix(marks[d.Path]+"; "+d.Message, "; ")
		}
	}
	for _, v := range []struct {
		name, title string
		view.Value
	}{
		{"input", "Input", p.Payload.Input},
		{"result", "Result", p.Payload.Result},
		{"effects", "Effects", p.Payload.Effects},
	} {
		if v.Bytes == 0 {
			continue
		}
		shown := value{Name: v.name, Title: v.title, Bytes: v.Bytes, Cut: v.Cut}
		switch {
		case v.Cut:
			shown.Passages = []passage{{Text: v.Text}}
		case v.name == "input":
			shown.Passages = printed(v.Text, marks)
		default:
			shown.Passages = printed(v.Text, nil)
		}
		var cut bool
		shown.Passages, cut = left.take(shown.Passages, view.ValueShown)
		shown.Cut = shown.Cut || cut
		for _, passage := range shown.Passages {
			for i := range points {
				if passage.N > 0 && marks[points[i].Pointer] == passage.Note {
					points[i].N = passage.N
				}
			}
		}
		p.Values = append(p.Values, shown)
	}
	if p.Fault != nil {
		p.Fault.Points = points
	}
	p.Progress = progressLines(p.Payload.Progress)
}

// mostListed is the number of effects of a kind that are listed.
const mostListed = 100

// effectsOf reads the effects of a receipt. It returns nil if they have another form.
func effectsOf(v view.Value) *effects {
	var e effects
	if v.Bytes == 0 || v.Cut || json.Unmarshal([]byte(v.Text), &e.Effects) != nil {
		return nil
	}
	e.More = len(e.DBWrites) > mostListed || len(e.DBReads) > mostListed || len(e.MessagesSent) > mostListed ||
		len(e.FilesWritten) > mostListed || len(e.ExternalCalls) > mostListed
	e.DBWrites, e.DBReads, e.MessagesSent = first(e.DBWrites), first(e.DBReads), first(e.MessagesSent)
	for _, f := range first(e.FilesWritten) {
		e.Files = append(e.Files, link{f, secure(f)})
	}
	for _, c := range first(e.ExternalCalls) {
		e.Calls = append(e.Calls, endpoint{c, secure(c.Endpoint)})
	}
	return &e
}

func first[T any](all []T) []T { return all[:min(len(all), mostListed)] }

// secure returns an https URL unchanged, and "" for any other text.
func secure(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
		return ""
	}
	return u.String()
}

// progressLines joins consecutive rows of one kind.
func progressLines(rows []view.Progress) (lines []progressLine) {
	for _, row := range rows {
		var data struct{ Text, Name, Arguments, State, Step, Target string }
		_ = json.Unmarshal(row.Data, &data)
		said := data.Text
		switch row.Kind {
		case "tool_call":
			said = data.Name + data.Arguments
		case "status":
			said = strings.Join(strings.Fields(data.State+" "+data.Step+" "+data.Target), " ")
		}
		if n := len(lines); n > 0 && lines[n-1].Kind == row.Kind && row.Kind != "status" &&
			(row.Kind != "tool_call" || data.Name == "") {
			lines[n-1].Text += said
		} else {
			lines = append(lines, progressLine{row.Kind, said})
		}
	}
	return lines[max(len(lines)-30, 0):]
}
