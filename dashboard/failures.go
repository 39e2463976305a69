package dashboard

import (
	"cmp"
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/gemworker/gem/client/view"
)

// failuresPage summarises the calls that did not succeed.
type failuresPage struct {
	*view.Failures
	Rows    []failureRow
	Hidden  int // rows that are not shown
	Tool    string
	Within  string
	Period  string // the time in words
	Withins []timeSpan
	Tools   []string
}

type failureRow struct {
	view.Failure
	List  string // the path of the list
	Again string // the path that repeats them all
}

type timeSpan struct {
	Name, Text string
	Span       time.Duration
}

var withins = []timeSpan{{"1h", "the last hour", time.Hour}, {"24h", "the last 24 hours", 24 * time.Hour},
	{"7d", "the last 7 days", 7 * 24 * time.Hour},
	{"31d", "the last 31 days", 31 * 24 * time.Hour}}

// Limits of the page: rows, and bytes of links, since messages may be long.
const (
	mostFailures     = 100
	mostFailureLinks = 24 << 10
)

// failures summarises calls that did not succeed, by tool and code.
func (s *site) failures(ctx context.Context, r *request) (*content, error) {
	query := r.URL.Query()
	p := &failuresPage{Tool: query.Get("tool"), Within: cmp.Or(query.Get("within"), "24h"), Withins: withins}
	if _, err := view.ParseFilter(url.Values{"tool": {p.Tool}}); err != nil {
		return nil, badRequest("%s", sentence(err.Error()))
	}
	from, err := view.ParseTime(query.Get("from"))
	if err != nil {
		return nil, badRequest("%s", sentence("from: "+err.Error()))
	}
	said := ""
	for _, w := range withins {
		if from.IsZero() && w.Name == p.Within {
			from, said = time.Now().Add(-w.Span), w.Text
			break
		}
	}
	if from.IsZero() {
		return nil, badRequest("%q is not a time span: within must be 1h, 24h, 7d or 31d.", cut(40, p.Within))
	}
	err = s.readList(ctx, r, r.db(), func(ctx context.Context, db view.DB) (err error) {
		if p.Failures, err = view.ReadFailures(ctx, db, from, p.Tool); err == nil && !r.live &&
			!strings.HasSuffix(r.URL.Path, ".json") {
			p.Tools, err = toolNames(ctx, db)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	links := 0
	for _, f := range p.Failures.Failures {
		v := f.Filter(p.From).Values()
		row := failureRow{Failure: f, List: "/calls" + asQuery(v)}
		v.Set("do", "again")
		v.Set("all", "yes")
		row.Again = "/calls/bulk" + asQuery(v)
		if links += len(row.Again); len(p.Rows) == mostFailures || links > mostFailureLinks {
			break
		}
		p.Rows = append(p.Rows, row)
	}
	p.Hidden = len(p.Failures.Failures) - len(p.Rows)
	if p.Period = said; said == "" {
		p.Period = "since " + from.Format("2006-01-02 15:04") + " UTC"
	}
	return &content{Title: "Failures: " + p.Period, Template: "failures", Data: p, JSON: p.Failures, Watch: "list"}, nil
}
