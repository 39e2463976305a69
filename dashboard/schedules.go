package dashboard

import (
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5"
)

// mostOccurrences is how many occurrences the page of a schedule shows.
const mostOccurrences = 100

// schedules lists the schedules. Only operators see them, because their inputs are not for everyone.
func (s *site) schedules(ctx context.Context, r *request) (*content, error) {
	if _, err := r.operator(); err != nil {
		return nil, err
	}
	all, err := store.Schedules(ctx, s.Act)
	if err != nil {
		return nil, err
	}
	return &content{Title: "Schedules", Template: "schedules", Data: all}, nil
}

// schedulePage is the data of the page of a schedule.
type schedulePage struct {
	store.Schedule
	Next        []time.Time // the next times of the expression
	Occurrences []store.Occurrence
	More        bool // there are more than these
	Reason      string
	Fault       string
}

func (p *schedulePage) fault(why string) { p.Fault = why }

// scheduleOf returns the schedule that a request names.
func scheduleOf(r *request) store.ScheduleName {
	return store.ScheduleName{Name: r.PathValue("name"), CreatedBy: r.URL.Query().Get("of")}
}

// schedule shows a schedule, with its next times and its occurrences.
func (s *site) schedule(ctx context.Context, r *request) (*content, error) {
	if _, err := r.operator(); err != nil {
		return nil, err
	}
	p := schedulePage{Reason: r.PostForm.Get("reason")}
	err := view.Read(ctx, s.Act, func(ctx context.Context, db view.DB) (err error) {
		if p.Schedule, err = store.OneSchedule(ctx, db, scheduleOf(r)); err != nil {
			return err
		}
		if !p.NextAt.IsZero() {
			if p.Next, err = store.CronNext(ctx, db, p.Cron, p.Zone, 3); err != nil {
				return err
			}
		}
		p.Occurrences, err = store.Occurrences(ctx, db, p.ScheduleName, mostOccurrences+1)
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, notFound("No schedule has this name. Perhaps somebody removed it.")
	}
	if err != nil {
		return nil, err
	}
	if len(p.Occurrences) > mostOccurrences {
		p.Occurrences, p.More = p.Occurrences[:mostOccurrences], true
	}
	return &content{Title: "Schedule " + p.Name, Template: "schedule", Data: &p}, nil
}

// actOnSchedule pauses, resumes, runs or removes a schedule.
func (s *site) actOnSchedule(ctx context.Context, r *request) (to, done string, err error) {
	who, err := r.operator()
	if err != nil {
		return "", "", err
	}
	name := scheduleOf(r)
	to = "/schedules/" + name.Name
	if name.CreatedBy != "" {
		to += "?of=" + url.QueryEscape(name.CreatedBy)
	}
	switch do := r.PostForm.Get("do"); do {
	case "pause":
		err = store.PauseSchedule(ctx, s.Act, name, who.By, who.Reason)
		done = "The schedule is paused."
	case "resume":
		_, err = store.ResumeSchedule(ctx, s.Act, name, who.By, who.Reason)
		done = "The schedule continues. The times of the pause were skipped."
	case "run":
		var id string
		if id, err = store.RunScheduleNow(ctx, s.Act, name, who.By, who.Reason); err == nil {
			to, done = "/calls/"+id, "This is the call that the schedule made now. Its own times are unchanged."
		}
	case "remove":
		err = store.RemoveSchedule(ctx, s.Act, name, who.By, who.Reason)
		to, done = "/schedules", "The schedule was removed: "+name.Name
	default:
		err = badRequest("The form says neither pause, resume, run nor remove.")
	}
	if err != nil {
		return "", "", s.again(ctx, r, err, s.schedule)
	}
	return to, done, nil
}
