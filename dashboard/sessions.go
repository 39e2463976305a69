package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/gemworker/gem/client/view"
)

// A session's id may be any text. Browsers and proxies rewrite paths, such as those with two dots or two slashes, so
// the id is a parameter of the query.

// toSession redirects from /sessions/ID to the page of the session.
func (s *site) toSession(w http.ResponseWriter, q *http.Request) {
	http.Redirect(w, q, s.base(q)+"/sessions?id="+url.QueryEscape(q.PathValue("id")), http.StatusSeeOther)
}

// sessionPage is a conversation, or a part of it.
type sessionPage struct {
	*view.SessionPage
	thread
	Facts []hookFact
	From  string // the first call of this page; empty for the first page
}

// A page shows this many characters of each input, result and answer.
const previewed = 200

func (s *site) sessions(ctx context.Context, r *request) (*content, error) {
	q := r.URL.Query()
	if !q.Has("id") {
		return s.recentSessions(ctx, r)
	}
	p := sessionPage{From: q.Get("from")}
	err := s.readByRights(ctx, r, func(ctx context.Context, db view.DB) (err error) {
		if p.SessionPage, err = view.Session(ctx, db, q.Get("id"), p.From); err != nil || len(p.Calls) == 0 {
			return err
		}
		all, err := readTurns(ctx, db, r.operates(), agentsOf(p.Above, p.Calls), p.Turns, nil, previewed)
		if err != nil {
			return err
		}
		p.Models, p.Items = models(p.Turns), weave(p.Above, p.Calls, all, p.GoesOn)
		if err := p.fill(ctx, db, r.operates()); err != nil {
			return err
		}
		p.bound()
		return nil
	})
	switch {
	case errors.Is(err, view.ErrNoPage):
		return nil, notFound("This page of the session no longer exists: its first call may have been pruned.")
	case err != nil:
		return nil, err
	case len(p.Calls) == 0:
		return nil, notFound("No call has this session. Its calls may have been pruned.")
	}
	v := &content{Title: sessionTitle(p.SessionPage), Template: "session", Data: p, JSON: p.SessionPage}
	if p.Later == "" { // new calls appear at the end
		v.Watch = "list"
	}
	return v, nil
}

func sessionTitle(p *view.SessionPage) string {
	state := "ended"
	switch {
	case p.Open > 0:
		state = "in progress"
	case p.Failed > 0:
		state = "ended, with failures"
	}
	return "Session " + cut(60, p.ID) + ": " + state
}

// fill adds the data that only operators see.
func (p *sessionPage) fill(ctx context.Context, db view.DB, operates bool) error {
	if !operates {
		return nil
	}
	if err := p.thread.fill(ctx, db, previewed); err != nil || p.From != "" {
		return err
	}
	var err error
	p.Facts, err = readFacts(ctx, db, p.ID)
	return err
}

// fill adds inputs and results to the calls, each cut to most characters.
func (t *thread) fill(ctx context.Context, db view.DB, most int) error {
	var ids []string
	for _, i := range t.Items {
		if i.Call != nil {
			ids = append(ids, i.Call.ID)
		}
	}
	payloads, err := readPayloads(ctx, db, ids, most)
	if err != nil {
		return err
	}
	for i := range t.Items {
		if c := t.Items[i].Call; c != nil {
			if p, there := payloads[c.ID]; there {
				t.Items[i].Payload = &p
			}
		}
	}
	return nil
}

// recentSession is a session of one of the newest calls.
type recentSession struct {
	ID    string    `json:"id"`
	Calls int       `json:"calls"` // among the calls that were read
	Last  view.Call `json:"last"`
}

type recentPage struct {
	Sessions []recentSession `json:"sessions"`
	Looked   int             `json:"looked"` // the newest calls
}

// recentSessions lists the sessions of the newest calls.
func (s *site) recentSessions(ctx context.Context, r *request) (*content, error) {
	var p recentPage
	err := s.readList(ctx, r, r.db(), func(ctx context.Context, db view.DB) error {
		p = recentPage{Sessions: []recentSession{}}
		page, err := view.Calls(ctx, db, view.Filter{Limit: 500})
		if err != nil {
			return err
		}
		p.Looked = len(page.Calls)
		at := map[string]int{}
		for _, c := range page.Calls {
			if c.SessionID == "" {
				continue
			}
			i, known := at[c.SessionID]
			if !known {
				i = len(p.Sessions)
				at[c.SessionID] = i
				p.Sessions = append(p.Sessions, recentSession{ID: c.SessionID, Last: c})
			}
			p.Sessions[i].Calls++
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &content{Title: "Sessions", Template: "sessions", Data: p, JSON: p}, nil
}
