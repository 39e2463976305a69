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
		data.Overview, err = watch.ReadOverview(ctx, db)
		return err
	})
	if err != nil {
		return nil, err
	}
	minutes, err := s.ended.read(ctx, s, data.Range)
	if err != nil {
		return nil, err
	}
	data.Plots = plotsOf("minutes", minutes)
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

// endedKept is how long the minutes of plots are shown before they are read again: a minute has ended before it is counted.
const endedKept = 20 * time.Second

// ended keeps the minutes of the overview's plots, which are the same for all.
type ended struct {
	mu     sync.Mutex
	ranges map[string]*endedIn
}

type endedIn struct {
	mu      sync.Mutex
	at      time.Time
	minutes []watch.Minute
}

func (e *ended) read(ctx context.Context, s *site, span string) ([]watch.Minute, error) {
	e.mu.Lock()
	if e.ranges == nil {
		e.ranges = map[string]*endedIn{}
	}
	in := e.ranges[span]
	if in == nil {
		in = &endedIn{}
		e.ranges[span] = in
	}
	e.mu.Unlock()

	in.mu.Lock()
	defer in.mu.Unlock()
	if time.Since(in.at) < endedKept {
		return in.minutes, nil
	}
	var from time.Time
	if span == "day" {
		from = time.Now().Add(-24 * time.Hour)
	}
	err := watch.Read(ctx, s.Read, func(ctx context.Context, db watch.DB) (err error) {
		in.minutes, err = watch.Minutes(ctx, db, from, time.Time{}, "")
		return err
	})
	if err != nil {
		return nil, err
	}
	in.at = time.Now()
	return in.minutes, nil
}
