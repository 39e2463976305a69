package dashboard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/gemworker/gem/client"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
)

// pageError is an error that has its own page: a status and a sentence for the user.
type pageError struct {
	status int
	text   string
}

func (e *pageError) Error() string { return e.text }

func badRequest(format string, args ...any) error {
	return &pageError{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}
func forbidden(text string) error { return &pageError{http.StatusForbidden, text} }
func notFound(text string) error  { return &pageError{http.StatusNotFound, text} }

// conflict says that the state has moved on.
func conflict(format string, args ...any) error {
	return &pageError{http.StatusConflict, fmt.Sprintf(format, args...)}
}

// told is an error as the page shows it.
type told struct {
	Status    int
	Text      string
	ID        string // finds it in the log; empty for what the user can mend
	Away      bool   // the database cannot be reached: the page tries again by itself
	Forbidden bool
}

// told says what the user is told of an error, and logs what only the operator of the dashboard can mend.
func (s *site) told(q *http.Request, err error) told {
	var page *pageError
	var none *client.NotFoundError
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &page):
		return told{Status: page.status, Text: page.text, Forbidden: page.status == http.StatusForbidden}
	case errors.Is(err, ErrNoUser):
		return told{Status: http.StatusUnauthorized, Text: "Nobody has signed in."}
	case errors.As(err, &none):
		return told{Status: http.StatusNotFound, Text: "There is no such call. It may have been pruned."}
	case errors.Is(err, context.Canceled) && q.Context().Err() != nil:
		return told{Status: 499, Text: "The request was given up."}
	}
	t := told{Status: http.StatusInternalServerError, Text: "Something went wrong on this page.", ID: rand.Text()[:10]}
	switch {
	case errors.As(err, &pg) && pg.Code == "57014":
		t.Status, t.Text = http.StatusServiceUnavailable, "The database took longer than this page may wait."
	case errors.As(err, &pg) && pg.Code == "42501":
		t.Status, t.Text, t.Forbidden = http.StatusForbidden, "The database refuses this to the role of the dashboard.", true
	case errors.As(err, &pg) && (pg.Code[:2] == "57" || pg.Code[:2] == "53" || pg.Code[:2] == "08"), pg == nil && isAway(err):
		t.Status, t.Text, t.Away = http.StatusServiceUnavailable, "The database cannot be reached. This page tries again by itself.", true
	}
	s.Log.Error("a page failed", zap.String("id", t.ID), zap.String("path", q.URL.Path), zap.Error(err))
	return t
}

// isAway reports whether an error is one of a connection.
func isAway(err error) bool {
	var connect *pgconn.ConnectError
	return errors.As(err, &connect) || pgconn.Timeout(err) || pgconn.SafeToRetry(err) || errors.Is(err, context.DeadlineExceeded)
}

// fail shows an error as a page. A reader who has not signed in is led to the login.
func (s *site) fail(w http.ResponseWriter, q *http.Request, r *request, err error) {
	if errors.Is(err, ErrNoUser) && s.Login != nil && (q.Method == http.MethodGet || q.Method == http.MethodHead) && q.Header.Get("HX-Request") == "" {
		http.Redirect(w, q, s.base(q)+"/login?to="+url.QueryEscape(q.URL.RequestURI()), http.StatusSeeOther)
		return
	}
	t := s.told(q, err)
	if t.Away {
		w.Header().Set("Retry-After", "2")
	}
	s.render(w, r, &view{Title: http.StatusText(t.Status), Template: "error", Data: t, Status: t.Status})
}
