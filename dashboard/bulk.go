package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/receipts"
)

const (
	mostBulk      = 10000            // calls that one form acts on
	bulkStep      = client.MaxCancel // calls at a time, and the most that can be selected
	bulkTime      = 20 * time.Second // after that no new step starts: browsers and proxies time out
	bulkLook      = 3 * time.Second  // the same for the count that is shown first
	mostConfirmed = 10               // tools whose names must be typed
	mostLeft      = 200              // unchanged calls that are listed
)

// bulk is an action on several calls: the selected ones, or all that match a filter.
type bulk struct {
	Do     string // cancel or again
	Chosen []string
	Filter view.Filter // without Limit
}

func parseBulk(v url.Values) (b bulk, err error) {
	b.Do = v.Get("do")
	if b.Do != "cancel" && b.Do != "again" {
		return b, badRequest("do must be cancel or again.")
	}
	for _, text := range v["id"] {
		if !view.IsID(text) {
			return b, badRequest("%q is not a call id: call ids are UUIDs.", cut(60, text))
		}
		b.Chosen = append(b.Chosen, strings.ToLower(text))
	}
	slices.Sort(b.Chosen)
	b.Chosen = slices.Compact(b.Chosen)
	switch {
	case len(b.Chosen) > bulkStep:
		return b, badRequest("%d calls were selected, but at most %d can be. To act on more, use a filter.", len(b.Chosen),
			bulkStep)
	case len(b.Chosen) == 0 && v.Get("all") == "":
		return b, badRequest("No call was selected. Go back and select some.")
	}
	if form := v.Get("filter"); form != "" {
		if v, err = url.ParseQuery(form); err != nil {
			return b, badRequest("The form's filter cannot be read: load its page again.")
		}
	}
	if b.Filter, err = view.ParseFilter(v); err != nil {
		return b, badRequest("%s", sentence(err.Error()))
	}
	b.Filter.Limit = 0
	if len(b.Chosen) == 0 && b.Filter.State == "" {
		b.Filter.State = map[string]string{"cancel": "open", "again": string(receipts.Code(b.Filter.Code).Kind())}[b.Do]
	}
	return b, nil
}

// values returns the query of the form's page.
func (b bulk) values() url.Values {
	v := b.Filter.Values()
	b.choose(v)
	return v
}

// hidden returns the hidden fields of the form. The filter is encoded, since pages show hidden characters as symbols
// and the form must act on the counted calls.
func (b bulk) hidden() url.Values {
	v := url.Values{"filter": {b.Filter.Values().Encode()}}
	b.choose(v)
	return v
}

func (b bulk) choose(v url.Values) {
	v.Set("do", b.Do)
	if v["id"] = b.Chosen; len(b.Chosen) == 0 {
		v.Set("all", "yes")
	}
}

// list returns the path of the list of calls.
func (b bulk) list() string {
	f := b.Filter
	f.Before, f.To = "", time.Time{}
	return "/calls" + asQuery(f.Values())
}

// step reads the next calls, up to a number, and the effects of repeating them. more is the start of the calls after
// them, or empty.
func (b bulk) step(ctx context.Context, s *site, before string, most int) (calls []client.RepeatPreview, more string,
	err error) {
	err = view.Read(ctx, s.Act, func(ctx context.Context, db view.DB) error {
		ids := b.Chosen
		if len(ids) == 0 {
			f := b.Filter
			f.Before, f.Limit = before, min(most, bulkStep)
			page, err := view.Calls(ctx, db, f)
			if err != nil {
				return err
			}
			more = cmp.Or(page.Next, page.LookFurther)
			for _, c := range page.Calls {
				ids = append(ids, c.ID)
				if b.Do == "cancel" {
					calls = append(calls, client.RepeatPreview{ID: c.ID, Tool: c.Tool, Status: c.Status})
				}
			}
		}
		if calls == nil && len(ids) > 0 {
			calls, err = client.PreviewRepeats(ctx, db, ids)
		}
		return err
	})
	if wrong := (*view.FilterError)(nil); errors.As(err, &wrong) {
		err = badRequest("%s", sentence(err.Error()))
	}
	return calls, more, err
}

// bulkTool is the summary of one tool's calls.
type bulkTool struct {
	Tool, Mode string
	Calls      int
	Left       int // unchanged
	Running    int // their workers are asked to end them
	Hits       int // they return an earlier result
	Twice      int // they may happen twice
	Unknown    int // of those, the calls with an unknown outcome
	Typed      string
}

// bulkPage is the data of the page that confirms an action on several calls.
type bulkPage struct {
	bulk
	Count   int
	AtLeast bool // there may be more calls, which the form does not cover
	Tools   []*bulkTool
	More    int // tools that are not listed
	Left    int
	Confirm []*bulkTool // the tools whose names must be typed
	TooMany bool        // tools to confirm
	Hidden  url.Values
	Names   []string // of Filter's fields that are set
	Back    string
	Reason  string
	Fault   string
}

func (p *bulkPage) fault(why string) { p.Fault = why }

// askBulk shows how many calls the action covers, and its effects.
func (s *site) askBulk(ctx context.Context, r *request) (*content, error) {
	if _, err := r.operator(); err != nil {
		return nil, err
	}
	form := r.URL.Query()
	if r.Method == http.MethodPost {
		form = r.PostForm
	}
	b, err := parseBulk(form)
	if err != nil {
		return nil, err
	}
	p := &bulkPage{Back: b.list(), Reason: r.PostForm.Get("reason")}
	if len(b.Chosen) == 0 && b.Filter.State != "queued" && b.Filter.State != "scheduled" {
		if now := time.Now().UTC().Truncate(time.Millisecond); b.Filter.To.IsZero() || b.Filter.To.After(now) {
			b.Filter.To = now // exclude calls that arrive after this
		}
	}
	p.bulk = b
	if err := p.count(ctx, s); err != nil {
		return nil, err
	}
	for i, name := range form["tool_named"] {
		if i < len(form["confirm"]) {
			for _, t := range p.Confirm {
				if t.Tool == name {
					t.Typed = form["confirm"][i]
				}
			}
		}
	}
	p.Hidden = b.hidden()
	p.Hidden.Set("most", strconv.Itoa(p.Count))
	title := "Cancel " + calls(p.Count)
	if b.Do == "again" {
		title = "Run " + calls(p.Count) + " again"
	}
	return &content{Title: title, Template: "bulk", Data: p}, nil
}

// calls returns a number of calls in words.
func calls(n int) string {
	if n == 1 {
		return "1 call"
	}
	return strconv.Itoa(n) + " calls"
}

// count summarises the calls by tool.
func (p *bulkPage) count(ctx context.Context, s *site) error {
	tools := map[string]*bulkTool{}
	began := time.Now()
	for before := p.Filter.Before; ; {
		step, more, err := p.step(ctx, s, before, mostBulk-p.Count)
		if err != nil {
			return err
		}
		for _, c := range step {
			p.add(tools, c)
		}
		p.AtLeast = more != ""
		if before = more; more == "" || p.Count >= mostBulk || time.Since(began) > bulkLook {
			break
		}
	}
	p.Tools = slices.SortedFunc(maps.Values(tools),
		func(a, b *bulkTool) int { return cmp.Or(b.Calls-a.Calls, cmp.Compare(a.Tool, b.Tool)) })
	for _, t := range p.Tools {
		p.Left += t.Left
		if t.Twice > 0 {
			p.Confirm = append(p.Confirm, t)
		}
	}
	p.TooMany = len(p.Confirm) > mostConfirmed
	if len(p.Tools) > 50 {
		p.Tools, p.More = p.Tools[:50], len(p.Tools)-50
	}
	return nil
}

func (p *bulkPage) add(tools map[string]*bulkTool, c client.RepeatPreview) {
	t := tools[c.Tool]
	if t == nil {
		t = &bulkTool{Tool: c.Tool, Mode: c.Mode}
		tools[c.Tool] = t
	}
	p.Count++
	t.Calls++
	over := c.Status == "succeeded" || c.Status == "failed" || c.Status == "not_configured"
	if p.Do == "cancel" {
		if over {
			t.Left++
		} else if c.Status == "running" {
			t.Running++
		}
		return
	}
	switch {
	case c.Refused != "":
		t.Left++
	case c.Succeeded != "":
		t.Hits++
	case c.MayHappenTwice:
		t.Twice++
		if c.ErrorCode == "outcome_unknown" {
			t.Unknown++
		}
	}
}

// bulkDone is the outcome of an action on several calls.
type bulkDone struct {
	Do              string
	Done, Requested int
	Left            []leftCall // the first unchanged calls
	LeftCount       int
	Fault           string // why it stopped
	Rest            string // the path that continues after the last call
	List            string
}

// leftCall is an unchanged call, and the reason.
type leftCall struct{ ID, Tool, Why string }

func (d *bulkDone) leave(c client.RepeatPreview, why string) {
	d.LeftCount++
	if len(d.Left) < mostLeft {
		d.Left = append(d.Left, leftCall{c.ID, c.Tool, why})
	}
}

// doBulk acts on each call. Each has its own outcome.
func (s *site) doBulk(ctx context.Context, r *request) (to, done string, err error) {
	who, err := r.operator()
	if err != nil {
		return "", "", err
	}
	b, err := parseBulk(r.PostForm)
	if err != nil {
		return "", "", err
	}
	most, err := strconv.Atoi(r.PostForm.Get("most"))
	if err != nil || most < 1 || most > mostBulk {
		return "", "", badRequest("The form does not say how many calls it is for. Reload the page.")
	}
	typed := map[string]bool{}
	for i, name := range r.PostForm["tool_named"] {
		if i >= len(r.PostForm["confirm"]) || r.PostForm["confirm"][i] != name {
			return "", "", s.again(ctx, r, &pageError{http.StatusUnprocessableEntity,
				"The name does not match the tool. Nothing was done: type " + name + "."}, s.askBulk)
		}
		typed[name] = true
	}
	d := &bulkDone{Do: b.Do, List: b.list()}
	began := time.Now()
	for before := b.Filter.Before; most > 0; {
		step, more, err := b.step(ctx, s, before, most)
		if err == nil && b.Do == "cancel" {
			err = d.cancel(ctx, s, step, who)
		} else if err == nil {
			err = d.repeat(ctx, s, step, who, typed, r.PostForm.Get("form"))
		}
		if err != nil && d.Done+d.Requested+d.LeftCount == 0 {
			return "", "", s.again(ctx, r, err, s.askBulk)
		} else if err != nil {
			d.Fault = s.describe(r.Request, err).Text
			break
		}
		if most -= len(step); more == "" {
			break
		}
		if before = more; most > 0 && time.Since(began) > bulkTime {
			b.Filter.Before = before
			d.Rest = "/calls/bulk" + asQuery(b.values())
			break
		}
	}
	r.kept = d
	return "/calls/bulk/done", d.sentence(), nil
}

// cancel requests the cancellation of calls.
func (d *bulkDone) cancel(ctx context.Context, s *site, step []client.RepeatPreview, who client.Operator) error {
	ids, byID := []string{}, map[string]client.RepeatPreview{}
	for _, c := range step {
		ids, byID[c.ID] = append(ids, c.ID), c
	}
	if len(ids) == 0 {
		return nil
	}
	outcomes, err := client.OperatorCancel(ctx, s.Act, ids, who, false)
	if err != nil {
		return err
	}
	for _, o := range outcomes {
		switch o.Outcome {
		case client.Cancelled:
			d.Done++
		case client.CancelRequested:
			d.Requested++
		case client.CancelBusy:
			d.leave(byID[o.ID], "it was being changed: try again")
		case client.CancelUnknown:
			d.leave(client.RepeatPreview{ID: o.ID}, "the call no longer exists")
		default:
			d.leave(byID[o.ID], "it had already ended: it "+endedAs(string(o.Outcome)))
		}
	}
	return nil
}

// repeat repeats calls. With the form's id each is repeated once, even if an interrupted form is sent again.
func (d *bulkDone) repeat(ctx context.Context, s *site, step []client.RepeatPreview, who client.Operator,
	typed map[string]bool, form string) error {
	for _, c := range step {
		a := client.RepeatOptions{Operator: who, NewID: idOf(form, c.ID)}
		if typed[c.Tool] {
			a.Confirm = c.Tool
		}
		_, err := client.OperatorRepeat(ctx, s.Act, c.ID, a)
		var gone *client.NotFoundError
		refused := refusalOf(err)
		switch {
		case err == nil:
			d.Done++
		case errors.As(err, &gone):
			d.leave(c, "the call no longer exists")
		case refused != nil && refused.status != http.StatusUnprocessableEntity:
			// The reason on the form was rejected, for all calls.
			d.leave(c, refused.text)
		default:
			return err
		}
	}
	return nil
}

// sentence describes the outcome.
func (d *bulkDone) sentence() string {
	var text string
	switch {
	case d.Do == "again":
		text = fmt.Sprintf("Run again: %s.", calls(d.Done))
	case d.Requested > 0:
		text = fmt.Sprintf("Cancelled: %s. Cancellation requested: %s.", calls(d.Done), calls(d.Requested))
	default:
		text = fmt.Sprintf("Cancelled: %s.", calls(d.Done))
	}
	if d.LeftCount > 0 {
		text += fmt.Sprintf(" Unchanged: %s.", calls(d.LeftCount))
	}
	return text
}

// bulkDone shows the outcome.
func (s *site) bulkDone(_ context.Context, r *request) (*content, error) {
	d, ok := s.forms.kept(r).(*bulkDone)
	if !ok {
		return nil, notFound("The result of a form is kept for ten minutes. The journals of its calls record it.")
	}
	return &content{Title: d.sentence(), Template: "bulkdone", Data: d}, nil
}
