package dashboard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/internal/prose"
	"github.com/jackc/pgx/v5/pgtype"
)

// callPage is the data of a call's page.
type callPage struct {
	*view.Whole
	Sentence  string
	Timeline  *timeline
	Events    []eventRow
	From      int    // the first event of the requested window; 0 shows the first and the last events
	NextEvent int    // the first of the next window, or 0
	Trace     string // a link to the trace
	TraceID   string
	Fault     *fault
	Values    []value // input, result and effects
	Effects   *effects
	Progress  []progressLine
	Requests  []view.Request
	Checked   *auditResult
	Asks      []ask           // open questions that the user may answer
	Others    []view.Question // open questions that only other people may answer
	Extracted bool            // it has a page for its quotes
	Agent     bool            // it has a page for its conversation
}

// fault is why a call did not succeed.
type fault struct {
	Code, Message string
	Points        []point
}

// point is a fault of a value of the input.
type point struct {
	Pointer, Message string
	N                int // of the marked value; 0 if it is not shown
}

// value is a value that is shown as text.
type value struct {
	Name, Title string
	Passages    []passage
	Bytes       int
	Cut         bool // there is more, in the download
}

type eventRow struct {
	view.Entry
	Text     string
	Data     string        // of a step or an answer, cut
	Child    string        // the id of a call in the event
	Download bool          // a download has all of its data
	Gap      int           // hidden events after it
	Since    time.Duration // the time since the first event
}

// GapFrom returns the number of the first hidden event.
func (e eventRow) GapFrom() int { return e.Seq + 1 }

// Stamp returns the exact time of the event.
func (e eventRow) Stamp() string { return e.At.UTC().Format("2006-01-02 15:04:05.000 UTC") }

// State returns the call's status, or scheduled.
func (p *callPage) State() string { return stateWord(p.Call) }

// StateText returns the call's state in words, with the reason if it waits for people.
func (p *callPage) StateText() string {
	if len(p.Questions) > 0 && p.Call.WaitsFor == "call" {
		return waitingFor(p.Questions[0].Tool)
	}
	return stateText(p.Call)
}

// Value returns the input, the result or the effects; nil if it is missing or not shown.
func (p *callPage) Value(name string) *value {
	for i := range p.Values {
		if p.Values[i].Name == name {
			return &p.Values[i]
		}
	}
	return nil
}

// Ended reports whether the call has its receipt.
func (p *callPage) Ended() bool { return !isOpen(&p.Call) }

// NotBegun reports whether the handler has certainly not run: no worker has claimed the call, or rules ask people
// first.
func (p *callPage) NotBegun() bool {
	return p.Call.Status == "queued" && p.Call.Attempt == 0 || p.Call.Approval
}

type progressLine struct{ Kind, Text string }

// auditResult is the result of an audit of the call.
type auditResult struct {
	*audit.CallReport
	Undecided bool // it took too long, or a value could not be read
}

func (s *site) routeCall(mux *http.ServeMux) {
	s.list(mux, "/calls/{id}", s.call)
	for _, part := range []string{"input", "result", "effects"} {
		s.download(mux, "/calls/{id}/"+part, func(ctx context.Context, r *request) (name string, text []byte, err error) {
			return s.part(ctx, r, part, 0)
		})
	}
	s.download(mux, "/calls/{id}/events/{seq}", func(ctx context.Context, r *request) (name string, text []byte,
		err error) {
		seq, err := strconv.ParseInt(r.PathValue("seq"), 10, 32)
		if err != nil {
			return "", nil, notFound("This event does not exist: events are numbered from 1.")
		}
		return s.part(ctx, r, "event", int(seq))
	})
}

// callID returns the id in a path.
func callID(r *request) (string, error) {
	var id pgtype.UUID
	if err := id.Scan(r.PathValue("id")); err != nil {
		return "", notFound("This call does not exist: call ids are UUIDs.")
	}
	return id.String(), nil
}

// call shows a call, or redirects to the call whose receipt has the id.
func (s *site) call(ctx context.Context, r *request) (*content, error) {
	id, err := callID(r)
	if err != nil {
		return nil, err
	}
	o := view.WholeOptions{Payload: r.operates()}
	if o.From, err = wholeNumber(r, "events"); err != nil {
		return nil, err
	}
	after, err := wholeNumber(r, "children")
	if err != nil {
		return nil, err
	}
	o.AfterChild = int64(after)
	p := &callPage{From: o.From}
	var open *client.Explanation // for operators
	var undecided error
	err = view.Read(ctx, r.db(), func(ctx context.Context, db view.DB) (err error) {
		if p.Whole, err = view.ReadWhole(ctx, db, id, o); err != nil || !o.Payload {
			return err
		}
		if p.Usage.Requests > 0 {
			if p.Requests, err = view.Requests(ctx, db, id); err != nil {
				return err
			}
		}
		if isOpen(&p.Call) {
			if open, err = client.Explain(ctx, db, id); err != nil {
				return err
			}
		}
		p.Checked, undecided = checkCall(ctx, db, id) // last, since an error ends the transaction
		return nil
	})
	switch none, is := errors.AsType[*client.NotFoundError](err); {
	case is && none.ReceiptOf != "":
		return nil, &elsewhere{to: "/calls/" + none.ReceiptOf}
	case undecided != nil && (ctx.Err() != nil || isAway(undecided)):
		return nil, undecided
	case undecided == nil && err != nil:
		return nil, err
	}
	if p.Asks, p.Others, err = r.asksAbout(ctx, p.asking()); err != nil {
		return nil, err
	}
	for i := range p.Asks {
		a := &p.Asks[i]
		a.Back = "call"
		// The page already shows its arguments as the input.
		a.InputShown = p.Payload != nil && a.AskedFor == client.AskerRule && a.ID != id
	}
	p.fill(s, open)
	title := cmp.Or(prose.Cut(p.Call.Tool, 80), "A call") + ": " + strings.ToLower(p.StateText())
	return &content{Title: title, Template: "call", Data: p, Watch: "call:" + id, JSON: p.forScripts()}, nil
}

// asking returns the ids of the call's open questions, and its own id if it is one.
func (p *callPage) asking() (ids []string) {
	if prose.IsQuestion(p.Call.Tool) && p.Call.Status == "waiting" {
		ids = append(ids, p.Call.ID)
	}
	for _, q := range p.Questions {
		ids = append(ids, q.ID)
	}
	return ids
}

// wholeNumber reads a number from the query of a URL.
func wholeNumber(r *request, name string) (int, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > 1<<31-1 {
		return 0, badRequest("%s in the address must be a number.", name)
	}
	return n, nil
}

func isOpen(c *view.Call) bool {
	return c.Status == "queued" || c.Status == "running" || c.Status == "waiting"
}

// checkCall audits one call. It is undecided if that takes too long, or a value cannot be read.
func checkCall(ctx context.Context, db view.DB, id string) (*auditResult, error) {
	// Planning takes ten times as long as the rest, so a connection plans it once. It joins rows that are already in
	// memory.
	_, err := db.Exec(ctx, "set local plan_cache_mode = force_generic_plan; set local enable_hashjoin = on")
	var report *audit.CallReport
	if err == nil {
		report, err = audit.Call(ctx, db, id)
	}
	if err != nil {
		return &auditResult{CallReport: &audit.CallReport{}, Undecided: true}, err
	}
	return &auditResult{CallReport: report}, nil
}

// fill computes the parts of the page from the data. open explains an open call to an operator.
func (p *callPage) fill(s *site, open *client.Explanation) {
	shown := isOpen(&p.Call) && len(p.Asks)+len(p.Others) > 0 // the questions make the sentence redundant
	switch {
	case shown && p.Call.Approval:
		p.Sentence = "Rules require approval first. The call runs once it is approved."
	case shown:
		p.Sentence = openSentence(p.Whole)
	case open != nil:
		p.Sentence = prose.Explanation(open)
	case p.Call.Status == "succeeded" && p.answeredBy() != "":
		p.Sentence = p.answered()
	case p.Call.ReceiptID != "":
		p.Sentence = prose.Explanation(explained(p.Whole))
	case !isOpen(&p.Call): // somebody removed the receipt without GEM's functions
		p.Sentence = "It ended as " + p.Call.Status + " but has no receipt."
	default:
		p.Sentence = openSentence(p.Whole)
	}
	p.Timeline = timelineOf(p.Whole)
	p.Trace, p.TraceID = traceLink(s.TraceURL, p.Call.Traceparent)
	p.Extracted, p.Agent = p.Call.Tool == "extract.run", p.Call.Tool == "agent.run"
	if n := len(p.Journal); p.From > 0 && n > 0 && p.Journal[n-1].Seq < p.Call.Events {
		p.NextEvent = p.Journal[n-1].Seq + 1
	}
	if p.Call.ErrorCode != "" || p.Call.Message != "" {
		p.Fault = &fault{Code: p.Call.ErrorCode, Message: p.Call.Message}
	}
	left := budget(120 << 10)
	if p.Payload != nil {
		p.payload(&left)
	}
	p.events(&left)
}

// events lays out the journal.
func (p *callPage) events(left *budget) {
	for i, e := range p.Journal {
		row := eventRow{Entry: e, Gap: p.GapAfter(i), Since: e.At.Sub(p.Journal[0].At)}
		event := e.Event
		row.Child = prose.DataOf(event).CallID
		if e.Whole != "" {
			event.Data = json.RawMessage(e.Whole)
		}
		if row.Since < time.Millisecond {
			row.Since = 0
		}
		if row.Text = upper(prose.Happened(event)); event.Event == "claimed" {
			row.Text = fmt.Sprintf("Claimed by worker %s, attempt %d", e.WorkerID, e.Attempt)
		}
		if decision := p.decision(row.Child); event.Event == "returned" && decision != "" {
			row.Text = "The question to people: " + decision
		}
		row.Download = p.Payload != nil && e.Bytes > 0
		if data := prose.DataOf(event); p.Payload != nil && e.Event.Event == "step" && len(data.Result) > 0 {
			shown, cut := left.take([]passage{{Text: string(data.Result)}}, 1000)
			if row.Data = shown[0].Text; cut {
				row.Data += "…"
			}
		}
		p.Events = append(p.Events, row)
	}
}

// decision returns the decision on a question that the call asked, or "" if it is unknown.
func (p *callPage) decision(question string) string {
	for _, c := range p.Children {
		if c.ID == question {
			return c.Decision
		}
	}
	return ""
}

var traceID = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-`)

// traceLink returns the link to the trace in which a call was made.
func traceLink(template, traceparent string) (to, id string) {
	found := traceID.FindStringSubmatch(traceparent)
	if found == nil {
		return "", ""
	}
	if !strings.HasPrefix(template, "https://") && !strings.HasPrefix(template, "http://") {
		return "", found[1]
	}
	return strings.ReplaceAll(template, "{trace_id}", found[1]), found[1]
}

// callJSON is the page for scripts.
type callJSON struct {
	*view.Whole
	Sentence string          `json:"sentence"`
	Input    json.RawMessage `json:"input,omitempty"`
	Result   json.RawMessage `json:"result,omitempty"`
	Effects  json.RawMessage `json:"effects,omitempty"`
	Context  string          `json:"context,omitempty"` // where a function in SQL failed
	// Cut names the values that are longer than 64 KB, and that need a separate request.
	Cut      []string             `json:"cut,omitempty"`
	Requests []view.Request       `json:"requests,omitempty"`
	Checked  []string             `json:"checked,omitempty"`
	Found    []audit.CheckFinding `json:"found,omitempty"`
}

func (p *callPage) forScripts() *callJSON {
	whole := *p.Whole
	whole.Payload = nil
	j := &callJSON{Whole: &whole, Sentence: p.Sentence, Requests: p.Requests}
	if p.Payload != nil {
		j.Context = p.Payload.Context
		for _, v := range []struct {
			to   *json.RawMessage
			name string
			view.Value
		}{{&j.Input, "input", p.Payload.Input}, {&j.Result, "result", p.Payload.Result},
			{&j.Effects, "effects", p.Payload.Effects}} {
			if v.Cut {
				j.Cut = append(j.Cut, v.name)
			} else if v.Bytes > 0 {
				*v.to = json.RawMessage(v.Text)
			}
		}
	}
	if p.Checked != nil {
		j.Found = p.Checked.Found
		for _, c := range p.Checked.Checks {
			j.Checked = append(j.Checked, c.Name)
		}
	}
	return j
}

// download answers GET requests of a path with a text that browsers save instead of showing. Only operators get it.
func (s *site) download(mux *http.ServeMux, path string,
	read func(context.Context, *request) (name string, text []byte, err error)) {
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, q *http.Request) {
		r, err := s.request(q)
		if err == nil && !r.operates() {
			err = forbidden("Only operators see inputs and results.")
		}
		var name string
		var text []byte
		if err == nil {
			name, text, err = read(q.Context(), r)
		}
		if err != nil {
			s.fail(w, q, r, err)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
		s.send(w, q, http.StatusOK, oneline.JSON(text))
	})
}

// part reads a whole value of a call.
func (s *site) part(ctx context.Context, r *request, part string, seq int) (name string, text []byte, err error) {
	id, err := callID(r)
	if err != nil {
		return "", nil, err
	}
	found := false
	err = view.Read(ctx, r.db(), func(ctx context.Context, db view.DB) (err error) {
		text, found, err = view.Part(ctx, db, id, part, seq)
		return err
	})
	if err == nil && !found {
		err = notFound("The call has no such value, or it has been pruned.")
	}
	if seq > 0 {
		part += "-" + strconv.Itoa(seq)
	}
	return id + "-" + part + ".json.txt", text, err
}
