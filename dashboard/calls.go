package dashboard

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
)

// callsPage is a list of calls, and its filter.
type callsPage struct {
	*view.Page
	Filter view.Filter
	Typed  map[string]string // the fields of the form
	Fault  string            // which of them is invalid
	States []string
	Tools  []string // suggestions
	Codes  []receipts.Code

	Callers, Sessions, Reasons bool // a call has one: empty columns are left out

	// The queries of links begin with a question mark unless they are empty: templates would escape one inside a
	// link.
	Query   string // the filter, without a position in the list
	Older   string // the next page, or a further search back; may be empty
	Further bool   // Older searches further back
	// CancelAll and AgainAll are the queries of /calls/bulk for all calls that match the filter; empty if there is
	// nothing to do.
	CancelAll, AgainAll string
}

// filterFields are the fields of the form, by their names in the URL.
var filterFields = []string{"state", "tool", "caller", "session", "key", "code", "q", "from", "to"}

var codes = []receipts.Code{receipts.ApprovalDenied, receipts.ApprovalExpired, receipts.Cancelled,
	receipts.ExecutionError, receipts.JournalFull,
	receipts.KeyDeadlock, receipts.KeyReused, receipts.LimitReached, receipts.NotAllowed, receipts.OutcomeUnknown,
	receipts.OutputInvalid, receipts.Panic,
	receipts.RuleBlocked, receipts.RuleError, receipts.Timeout, receipts.UnknownTool, receipts.ValidationError,
	receipts.WorkerLost}

// calls lists calls, the newest first.
func (s *site) calls(ctx context.Context, r *request) (*content, error) {
	query := r.URL.Query()
	if text := strings.TrimSpace(query.Get("find")); text != "" {
		return s.find(ctx, r, text)
	}
	asJSON := strings.HasSuffix(r.URL.Path, ".json")
	if clean := withoutEmpty(query); !asJSON && len(clean) < len(query) {
		return nil, &elsewhere{"/calls" + asQuery(clean)} // a form sends its empty fields too
	}
	p := &callsPage{Page: &view.Page{}, States: view.States, Codes: codes, Typed: map[string]string{}}
	for _, name := range filterFields {
		p.Typed[name] = query.Get(name)
	}
	var err error
	if p.Filter, err = view.ParseFilter(query); err != nil {
		if asJSON {
			return nil, badRequest("%s", sentence(err.Error()))
		}
		p.Fault = sentence(err.Error())
		return &content{Title: "Calls: invalid filter", Template: "calls", Data: p, Status: http.StatusBadRequest}, nil
	}
	err = s.readList(ctx, r, r.db(), func(ctx context.Context, db view.DB) (err error) {
		if p.Page, err = view.Calls(ctx, db, p.Filter); err == nil && !asJSON && !r.live {
			p.Tools, err = toolNames(ctx, db)
		}
		return err
	})
	if wrong := (*view.FilterError)(nil); errors.As(err, &wrong) { // such as a cursor of another list
		return nil, badRequest("%s", sentence(err.Error()))
	} else if err != nil {
		return nil, err
	}
	p.links()
	v := &content{Title: p.title(), Template: "calls", Data: p, JSON: p.Page}
	if p.Filter.Before == "" {
		v.Watch = "list"
	}
	return v, nil
}

func withoutEmpty(query url.Values) url.Values {
	clean := url.Values{}
	for name, values := range query {
		if values[0] != "" {
			clean[name] = values
		}
	}
	return clean
}

// toolNames returns the names of tools to choose from. Only this form needs them.
func toolNames(ctx context.Context, db view.DB) ([]string, error) {
	rows, err := db.Query(ctx, "select name from gem.tools order by name limit 200")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func (p *callsPage) links() {
	for name, at := range map[string]time.Time{"from": p.Filter.From, "to": p.Filter.To} {
		if !at.IsZero() {
			p.Typed[name] = at.Format("2006-01-02T15:04:05") // the format of its field
		}
	}
	for _, c := range p.Calls {
		p.Callers = p.Callers || c.CreatedBy != ""
		p.Sessions = p.Sessions || c.SessionID != ""
		p.Reasons = p.Reasons || c.ErrorCode != "" || c.Message != "" || c.CancelRequested
	}
	here := p.Filter
	here.Before, here.Limit = "", 0
	p.Query = asQuery(here.Values())
	if next := cmp.Or(p.Next, p.LookFurther); next != "" {
		f := p.Filter
		f.Before = next
		p.Older, p.Further = asQuery(f.Values()), p.Next == ""
	}
	all := func(do, state string) string {
		f := here
		f.State = cmp.Or(f.State, state)
		v := f.Values()
		v.Set("do", do)
		v.Set("all", "yes")
		return asQuery(v)
	}
	if p.Query == "" {
		return // nothing was chosen
	}
	switch p.Filter.State {
	case "queued", "scheduled", "waiting", "running", "open":
		p.CancelAll = all("cancel", "")
	case "failed", "refused", "cancelled", "not_configured":
		p.AgainAll = all("again", "")
	case "":
		if p.Filter.Code == "" {
			p.CancelAll = all("cancel", "open")
		}
		p.AgainAll = all("again", string(receipts.Code(p.Filter.Code).Kind()))
	}
}

// asQuery returns the part of a URL after the path.
func asQuery(v url.Values) string {
	if len(v) == 0 {
		return ""
	}
	return "?" + v.Encode()
}

// title is the title of the page, which names the filter.
func (p *callsPage) title() string {
	if heading := p.Heading(); heading != "Calls" {
		return "Calls: " + strings.ToLower(heading[:1]) + heading[1:]
	}
	return "Calls"
}

// Heading names the calls that the list shows.
func (p *callsPage) Heading() string {
	state := p.Filter.State
	if state == "not_configured" {
		state = "not configured"
	}
	title := strings.TrimSpace(state + " calls")
	title = upper(title)
	if p.Filter.Tool == view.NoTool {
		title += " without a tool"
	} else if p.Filter.Tool != "" {
		title += " of " + cut(60, p.Filter.Tool)
	}
	return title
}

// findPage lists the things that have a name.
type findPage struct {
	Text  string
	Found view.Matches
}

// find redirects to the only thing that a text names: a call's or a receipt's id, a session, a key, a tool, a caller.
func (s *site) find(ctx context.Context, r *request, text string) (*content, error) {
	p := &findPage{Text: text}
	if len(text) <= 2000 && utf8.ValidString(text) && !strings.ContainsRune(text, 0) {
		err := view.Read(ctx, r.db(), func(ctx context.Context, db view.DB) (err error) {
			p.Found, err = view.Find(ctx, db, text)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	places := p.Places()
	switch {
	case strings.HasSuffix(r.URL.Path, ".json"):
		return &content{JSON: p.Found}, nil
	case len(places) == 1:
		return nil, &elsewhere{places[0].Link}
	case len(places) > 1:
		return &content{Title: "Several matches", Template: "find", Data: p}, nil
	}
	return &content{Title: "Nothing found", Template: "find", Data: p, Status: http.StatusNotFound}, nil
}

// place is the link to a thing that has the name.
type place struct{ Kind, Link string }

// Places returns the links for the name. A call's id leads to the call, whatever else has the same name.
func (p *findPage) Places() (all []place) {
	f := p.Found
	if f.CallID != "" {
		return []place{{"call", "/calls/" + url.PathEscape(f.CallID)}}
	}
	add := func(name, kind, link string) {
		if name != "" {
			all = append(all, place{kind, link + url.QueryEscape(name)})
		}
	}
	add(f.Session, "session", "/sessions?id=")
	add(f.Key, "key", "/calls?key=")
	add(f.Caller, "caller", "/calls?caller=")
	add(f.Tool, "tool", "/calls?tool=")
	return all
}
