package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gemworker/gem/internal/watch"
)

// overviewData is what the overview shows.
type overviewData struct {
	*watch.Overview
	Plots plots
	Range string // hour, day
	Asks  []ask  // open questions that the user may answer, the oldest first
	// EndedRead is when the sums and charts of ended calls were read: see endedKept.
	EndedRead time.Time
}

// mostAsks is the number of questions that the overview shows; the list has all.
const mostAsks = 5

func (s *site) overview(ctx context.Context, r *request) (*view, error) {
	data := overviewData{Range: "hour"}
	if r.URL.Query().Get("range") == "day" {
		data.Range = "day"
	}
	err := watch.Read(ctx, s.Read, func(ctx context.Context, db watch.DB) (err error) {
		data.Overview, err = watch.ReadOpen(ctx, db)
		return err
	})
	if err != nil {
		return nil, err
	}
	ended, err := s.ended.read(ctx, s, data.Range)
	if err != nil {
		return nil, err
	}
	data.Add(ended.Ended)
	data.EndedRead = ended.at
	data.Plots = plotsOf("minutes", ended.minutes, ended.all)
	v := &view{Title: data.Title(), Template: "overview", Watch: "overview", JSON: data.Overview,
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
		v.Watch = "list" // it is read for this person alone, within their allowance
	}
	v.Data = data
	return v, nil
}

// Title says whether there is anything to do.
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

// Attention counts the things that need attention as a person would: each question counts once, even if it has several
// lines.
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

// More reports whether there are open questions that are not in Asks.
func (d overviewData) More() bool { return d.Questions > len(d.Asks) }

// Lines returns the needs that have a line of their own. Questions that are shown with buttons have none.
func (d overviewData) Lines() (lines []watch.Need) {
	for _, need := range d.Needs {
		if need.Kind == "question" {
			need.Count -= len(d.Asks)
		}
		if need.Kind != "expiring" && (need.Kind != "question" || d.More()) {
			lines = append(lines, need)
		}
	}
	return lines
}

// Expiring returns the number of questions that expire within the hour, and the first deadline.
func (d overviewData) Expiring() watch.Need {
	for _, need := range d.Needs {
		if need.Kind == "expiring" {
			return need
		}
	}
	return watch.Need{}
}

// Announcement is what screen readers read out.
func (d overviewData) Announcement() string {
	q := d.Queue
	return fmt.Sprintf("%d ready, %d waiting, %d running, %d need attention", q.Ready, q.Waiting, q.Running, d.Attention())
}

// endedKept is how long the sums and charts of ended calls are shown before they are read again: workers count these
// calls every 15 s.
const endedKept = 20 * time.Second

// ended keeps the sums and charts of ended calls, which are the same for all users.
type ended struct {
	keep time.Duration // for tests; 0: endedKept

	mu   sync.Mutex
	kept map[string]endedIn // by the range of the charts
}

type endedIn struct {
	at  time.Time
	err error // of the reading, if it failed
	*watch.Ended
	minutes []watch.Minute
	all     watch.Totals // of the minutes
}

func (e *ended) read(ctx context.Context, s *site, span string) (in endedIn, err error) {
	asked := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock() // others wait for this reading and share its result, even an error
	if in = e.kept[span]; in.err == nil && time.Since(in.at) < cmp.Or(e.keep, endedKept) || in.at.After(asked) {
		return in, in.err
	}
	in = endedIn{}
	var from time.Time
	if span == "day" {
		from = time.Now().Add(-24 * time.Hour)
	}
	err = watch.Read(ctx, s.Read, func(ctx context.Context, db watch.DB) (err error) {
		if in.Ended, err = watch.ReadEnded(ctx, db); err == nil {
			in.minutes, in.all, err = watch.Minutes(ctx, db, from, time.Time{}, "")
		}
		return err
	})
	if e.kept == nil {
		e.kept = map[string]endedIn{}
	}
	if in.at, in.err = time.Now(), err; ctx.Err() == nil { // otherwise only this one has gone
		e.kept[span] = in
	}
	return in, err
}
