package dashboard

import (
	"cmp"
	"fmt"
	"time"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/prose"
)

// bar is a phase of a call. X and W place it on a line of 1,000 units.
type bar struct {
	Class      string // queued, running, waiting, child, step, gap, or the outcome of a child call
	Label      string
	From, Till time.Time
	Open       bool // it has not ended
	X, W       float64
}

// Took returns how long the phase was.
func (b bar) Took() time.Duration { return b.Till.Sub(b.From) }

// timeline is the history of a call, to scale: its phases, with steps and children in between.
type timeline struct {
	Rows       []bar
	From, Till time.Time
}

// Took returns how long the call has existed.
func (t *timeline) Took() time.Duration { return t.Till.Sub(t.From) }

// timelineOf draws the part of a call's journal that was read: at most [view.EventsShown] events.
func timelineOf(w *view.Whole) *timeline {
	if len(w.Journal) == 0 {
		return nil
	}
	t := &timeline{From: w.Journal[0].At, Till: w.At}
	if last := w.Journal[len(w.Journal)-1]; !w.Call.EndedAt.IsZero() || last.Seq < w.Call.Events {
		t.Till = last.At
	}
	phase := -1 // in Rows
	end := func(at time.Time) {
		if phase >= 0 {
			t.Rows[phase].Till = at
			phase = -1
		}
	}
	begin := func(class, label string, at time.Time) {
		end(at)
		phase = len(t.Rows)
		t.Rows = append(t.Rows, bar{Class: class, Label: label, From: at, Till: t.Till})
	}
	began := map[string]time.Time{} // steps
	children := map[string]int{}    // in Rows
	for i, e := range w.Journal {
		data := prose.DataOf(e.Event)
		switch e.Event.Event {
		case "queued", "imported":
			begin("queued", "queued", e.At)
			if data.RunAt.Sub(e.At) > time.Millisecond {
				t.Rows[phase].Label = "scheduled"
			}
		case "claimed":
			begin("running", fmt.Sprintf("attempt %d on %s", e.Attempt, e.WorkerID), e.At)
		case "waiting":
			begin("waiting", waitsFor(data), e.At)
		case "woken":
			begin("queued", "queued again", e.At)
		case "delayed":
			begin("waiting", "scheduled by a rule", e.At)
		case "retried":
			begin("queued", "scheduled for the next attempt", e.At)
		case "released":
			begin("queued", "queued again, handed over", e.At)
		case "lost":
			begin("queued", "queued again, its worker died", e.At)
		case "succeeded", "failed", "not_configured":
			end(e.At)
		case "began":
			began[data.Name] = e.At
		case "step":
			from, known := began[data.Name]
			if !known && i > 0 {
				from = w.Journal[i-1].At
			}
			t.Rows = append(t.Rows, bar{Class: "step", Label: "step " + data.Name, From: from, Till: e.At})
		case "called":
			children[data.Name] = len(t.Rows)
			t.Rows = append(t.Rows, bar{Class: "child", Label: childLabel(data), From: e.At, Till: t.Till, Open: true})
		case "returned":
			if row, known := children[data.Name]; known {
				t.Rows[row].Till, t.Rows[row].Open, t.Rows[row].Class = e.At, false, cmp.Or(data.Status, "child")
			}
		}
		if n := w.GapAfter(i); n > 0 {
			end(e.At)
			t.Rows = append(t.Rows, bar{Class: "gap", Label: prose.Count(n, "event") + " of the journal not read", From: e.At,
				Till: w.Journal[i+1].At})
		}
	}
	if phase >= 0 {
		t.Rows[phase].Open = w.Call.EndedAt.IsZero()
	}
	t.scale()
	return t
}

func childLabel(d prose.EventData) string {
	if prose.AsksPeople([]string{d.Name}) {
		return "question to people"
	}
	return "call " + d.Name
}

func waitsFor(d prose.EventData) string {
	switch {
	case prose.AsksPeople(d.For):
		return "waits for a decision"
	case len(d.For) > 0:
		return "waits for " + prose.Cut(prose.Named(d.For), 100)
	case d.Code.Message != "" || d.Code.Name != "":
		return "waits for a matching program"
	}
	return "waits for its key"
}

// scale places the bars.
func (t *timeline) scale() {
	whole := float64(max(t.Took(), time.Microsecond))
	for i := range t.Rows {
		b := &t.Rows[i]
		if b.Till.Before(b.From) { // the clock was set back
			b.Till = b.From
		}
		b.W = min(max(float64(b.Took())/whole*1000, 3), 1000)
		b.X = min(max(float64(b.From.Sub(t.From))/whole*1000, 0), 1000-b.W)
	}
}
