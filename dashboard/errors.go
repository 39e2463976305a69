package dashboard

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/store"
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

// conflict returns the error for a state that has changed.
func conflict(format string, args ...any) error {
	return &pageError{http.StatusConflict, fmt.Sprintf(format, args...)}
}

// pageAgain answers a rejected form: its page is shown again, with the typed values and the reason. Its status is 422
// unless the view has another.
type pageAgain struct{ view *content }

func (e *pageAgain) Error() string { return "the form is shown again: " + e.view.Title }

// elsewhere redirects to another page: a path below the prefix, with its query.
type elsewhere struct{ to string }

func (e *elsewhere) Error() string { return "the page is " + e.to }

// shownError is an error in the form that the page shows.
type shownError struct {
	Status    int
	Text      string
	ID        string // finds it in the log; empty if the user can correct the error
	Away      bool   // the database cannot be reached: the page retries
	Forbidden bool
}

// describe returns an error in words for the user, and logs errors that only the operator of the dashboard can fix.
func (s *site) describe(q *http.Request, err error) shownError {
	page := refusalOf(err)
	var none *client.NotFoundError
	switch {
	case page != nil:
		return shownError{Status: page.status, Text: page.text, Forbidden: page.status == http.StatusForbidden}
	case errors.Is(err, ErrNoUser):
		return shownError{Status: http.StatusUnauthorized, Text: "You are not signed in, or the proxy of these " +
			"pages does not say who you are."}
	case errors.As(err, &none):
		return shownError{Status: http.StatusNotFound, Text: "This call does not exist. It may have been pruned."}
	case q.Context().Err() != nil: // Postgres then reports a cancelled statement
		return shownError{Status: 499, Text: "The request was cancelled."}
	}
	t := shownError{Status: http.StatusInternalServerError, Text: "Something went wrong on this page.",
		ID: rand.Text()[:10]}
	switch {
	case store.HasCode(err, "57014", "55P03"):
		t.Status, t.Text = http.StatusServiceUnavailable, "The database did not answer in time."
	case lacksSchema(err):
		t.Status, t.Text, t.Away = http.StatusServiceUnavailable, otherSchema+" This page retries automatically.", true
	case store.HasCode(err, "25006"):
		t.Status, t.Text = http.StatusServiceUnavailable, "The database is read-only now. Nothing was changed."
	case store.IsForbidden(err):
		t.Status, t.Text, t.Forbidden = http.StatusForbidden, "The dashboard's database role may not do this.", true
	case isAway(err):
		t.Status, t.Text, t.Away = http.StatusServiceUnavailable,
			"The database cannot be reached. This page retries automatically.", true
	}
	s.Log.Error("a page failed", zap.String("id", t.ID), zap.String("path", cut(300, q.URL.Path)), zap.Error(err))
	return t
}

// refusalOf returns GEM's reason for rejecting a request: a pageError, or the error of a function whose code is that
// of PostgREST, where PT409 is 409. Otherwise it returns nil.
func refusalOf(err error) *pageError {
	var page *pageError
	var pg *pgconn.PgError
	if errors.As(err, &page) || !errors.As(err, &pg) {
		return page
	}
	text := strings.TrimSpace(sentence(pg.Message) + " " + sentence(pg.Hint))
	if pg.Code == "23503" || pg.Code == "23514" { // the guards of new calls
		return &pageError{http.StatusConflict, text}
	}
	code, ours := strings.CutPrefix(pg.Code, "PT")
	status, _ := strconv.Atoi(code) // 0 if it is not a number
	if !ours || status < 400 || status > 499 {
		return nil
	}
	return &pageError{status, text}
}

// sentence turns a message of Postgres into a sentence.
func sentence(s string) string {
	first, size := utf8.DecodeRuneInString(s)
	if size == 0 {
		return ""
	}
	s = string(unicode.ToUpper(first)) + s[size:]
	if strings.ContainsAny(s[len(s)-1:], ".!?") {
		return s
	}
	return s + "."
}

// isAway reports whether an error means that the database cannot be reached, stops, starts or has no connection left.
func isAway(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code != "57014" && (strings.HasPrefix(pg.Code, "57") || strings.HasPrefix(pg.Code, "53") ||
			strings.HasPrefix(pg.Code, "08"))
	}
	var connect *pgconn.ConnectError
	return errors.As(err, &connect) || pgconn.Timeout(err) || pgconn.SafeToRetry(err) ||
		errors.Is(err, context.DeadlineExceeded) || isBroken(err)
}

// isBroken reports whether a connection ended in the middle of a response.
func isBroken(err error) bool {
	var network *net.OpError
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) ||
		errors.As(err, &network)
}

// otherSchema is the message for errors for which [lacksSchema] is true.
const otherSchema = "GEM's tables are missing or of another version. Run gem migrate."

// lacksSchema reports whether a table, column, function or schema is missing, or has changed since a connection
// prepared its statement.
func lacksSchema(err error) bool {
	return store.HasCode(err, "3F000", "42P01", "42703", "42883") || store.HasCode(err, "0A000") &&
		strings.Contains(err.Error(), "cached plan")
}

// fail shows an error as a page. It redirects users who have not signed in to the login.
func (s *site) fail(w http.ResponseWriter, q *http.Request, r *request, err error) {
	if errors.Is(err, ErrNoUser) && s.Login != nil && (q.Method == http.MethodGet || q.Method == http.MethodHead) {
		http.Redirect(w, q, s.base(q)+"/login?to="+url.QueryEscape(q.URL.RequestURI()), http.StatusSeeOther)
		return
	}
	var again *pageAgain
	var other *elsewhere
	switch {
	case errors.As(err, &again):
		again.view.Status = cmp.Or(again.view.Status, http.StatusUnprocessableEntity)
		s.render(w, r, again.view)
		return
	case errors.As(err, &other):
		http.Redirect(w, q, r.base+other.to, http.StatusSeeOther)
		return
	}
	t := s.describe(q, err)
	if t.Away {
		w.Header().Set("Retry-After", "2")
	}
	s.render(w, r, &content{Title: titleOf(t.Status), Template: "error", Data: t, Status: t.Status})
}

// titleOf returns the title of an error page, such as Not found.
func titleOf(status int) string {
	return cmp.Or(upper(strings.ToLower(http.StatusText(status))), "Error")
}
