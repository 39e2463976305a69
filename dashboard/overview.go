package dashboard

import (
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
}

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
	data.Plots = plotsOf("minutes", ended.minutes)
	return &view{Title: data.Title(), Template: "overview", Data: data, Watch: "overview", Live: []string{"now", "overtime"}, JSON: data.Overview}, nil
}

// Title says whether there is anything to do.
func (d overviewData) Title() string {
	if n := len(d.Needs); n > 0 {
		return fmt.Sprintf("Overview: %d to look at", n)
	}
	return "Overview: nothing to look at"
}

// Say is what is read out to those who hear the page.
func (d overviewData) Say() string {
	return fmt.Sprintf("%d ready, %d waiting, %d running, %d to look at", d.Queue.Ready, d.Queue.Waiting, d.Queue.Running, len(d.Needs))
}

// endedKept is how long the sums and plots of what ended are shown before they are read again: workers count them each 15 s.
const endedKept = 20 * time.Second

// ended keeps what ended, which is the same for all.
type ended struct {
	mu   sync.Mutex
	kept map[string]endedIn // by the range of the plots
}

type endedIn struct {
	at  time.Time
	err error // of the reading, if it failed
	*watch.Ended
	minutes []watch.Minute
}

func (e *ended) read(ctx context.Context, s *site, span string) (in endedIn, err error) {
	asked := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock() // others wait for the same, also if it fails: one after the other, each would wait for all before it
	if in = e.kept[span]; in.err == nil && time.Since(in.at) < endedKept || in.at.After(asked) {
		return in, in.err
	}
	in = endedIn{}
	var from time.Time
	if span == "day" {
		from = time.Now().Add(-24 * time.Hour)
	}
	err = watch.Read(ctx, s.Read, func(ctx context.Context, db watch.DB) (err error) {
		if in.Ended, err = watch.ReadEnded(ctx, db); err == nil {
			in.minutes, err = watch.Minutes(ctx, db, from, time.Time{}, "")
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
