package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/client/view"
)

// overviewData is the data of the overview.
type overviewData struct {
	*view.Overview
	Plots plots
	Range string // hour, day
	Asks  []ask  // open questions that the user may answer, the oldest first
	// EndedRead is when the sums and charts of finished calls were read: see endedKept.
	EndedRead time.Time
}

// mostAsks is the number of questions that the overview shows; the list has all.
const mostAsks = 5

func (s *site) overview(ctx context.Context, r *request) (*content, error) {
	data := overviewData{Range: "hour"}
	if r.URL.Query().Get("range") == "day" {
		data.Range = "day"
	}
	err := s.readList(ctx, r, s.Read, func(ctx context.Context, db view.DB) (err error) {
		data.Overview, err = view.ReadOpen(ctx, db)
		return err
	})
	if err != nil {
		return nil, err
	}
	ended, err := s.ended.read(ctx, r, data.Range)
	if err != nil {
		return nil, err
	}
	data.Add(ended.EndCounts)
	data.EndedRead = ended.at
	data.Plots = plotsOf("minutes", ended.minutes, ended.all)
	v := &content{Title: data.Title(), Template: "overview", Watch: "overview", JSON: data.Overview,
		Live: []string{"health", "overtime", "now"}}
	if r.mayAnswer() && data.Questions > 0 {
		yours, open, err := r.openQuestions(ctx, mostAsks)
		if err != nil {
			return nil, err
		}
		data.Asks, _ = asksOf(yours, open)
		for i := range data.Asks {
			data.Asks[i].Back = "list"
		}
	}
	if r.user.Subject != "" {
		v.Watch = "list" // it is read for this person, within their share
	}
	v.Data = data
	return v, nil
}

// Title reports whether anything needs attention.
func (d overviewData) Title() string {
	switch n := d.Attention(); n {
	case 0:
		return "Overview: healthy"
	case 1:
		return "Overview: 1 thing needs attention"
	default:
		return fmt.Sprintf("Overview: %d things need attention", n)
	}
}

// Attention counts the things that need attention as a person would: each question counts once, even if it has
// several lines. All questions of users count as one thing, since any user can insert some.
func (d overviewData) Attention() (n int) {
	for _, need := range d.Needs {
		switch need.Kind {
		case "question":
			n += need.Count
		case "expiring":
		default:
			n++
		}
	}
	return n
}

// Lines returns the needs that have a separate line. Questions that are shown with buttons have none.
func (d overviewData) Lines() (lines []view.Need) {
	ofUsers := 0
	for _, a := range d.Asks {
		if a.AskedFor == client.AskerUser {
			ofUsers++
		}
	}
	shown := map[string]int{"question": len(d.Asks) - ofUsers, "user_question": ofUsers}
	for _, need := range d.Needs {
		asks, question := shown[need.Kind]
		need.Count -= asks
		if need.Kind != "expiring" && (!question || need.Count > 0) {
			lines = append(lines, need)
		}
	}
	return lines
}

// Expiring returns the number of questions that expire within the hour, and the first deadline.
func (d overviewData) Expiring() view.Need {
	for _, need := range d.Needs {
		if need.Kind == "expiring" {
			return need
		}
	}
	return view.Need{}
}

// Announcement returns the text for screen readers.
func (d overviewData) Announcement() string {
	q := d.Queue
	return fmt.Sprintf("%d queued, %d waiting, %d running, %d need attention", q.Ready, q.Waiting, q.Running,
		d.Attention())
}

// endedKept is how long the sums and charts of finished calls are shown before they are read again: workers count
// these calls every 15 s.
const endedKept = 20 * time.Second

// endCache caches the sums and charts of finished calls, which are the same for all users.
type endCache struct {
	keep time.Duration // for tests; 0 means endedKept

	mu   sync.Mutex
	kept map[string]endedIn // by the range of the charts
}

type endedIn struct {
	at  time.Time
	err error // of the read, if it failed
	*view.EndCounts
	minutes []view.Minute
	all     view.Totals // of the minutes
}

func (e *endCache) read(ctx context.Context, r *request, span string) (in endedIn, err error) {
	asked := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock() // others wait for this read and share its result, even an error
	if in = e.kept[span]; in.err == nil && time.Since(in.at) < cmp.Or(e.keep, endedKept) || in.at.After(asked) {
		return in, in.err
	}
	in = endedIn{}
	var from time.Time
	if span == "day" {
		from = time.Now().Add(-24 * time.Hour)
	}
	err = r.site.readList(ctx, r, r.site.Read, func(ctx context.Context, db view.DB) (err error) {
		if in.EndCounts, err = view.ReadEnded(ctx, db); err == nil {
			in.minutes, in.all, err = view.Minutes(ctx, db, from, time.Time{}, "")
		}
		return err
	})
	if e.kept == nil {
		e.kept = map[string]endedIn{}
	}
	if in.at, in.err = time.Now(), err; ctx.Err() == nil { // otherwise only this request has ended
		e.kept[span] = in
	}
	return in, err
}
