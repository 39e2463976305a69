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

// conflict says that the state has moved on.
func conflict(format string, args ...any) error {
	return &pageError{http.StatusConflict, fmt.Sprintf(format, args...)}
}

// pageAgain answers a form that could not be taken as it was: its page is shown again, with what was typed and why. Its status is 422 unless
// the view has another.
type pageAgain struct{ view *view }

func (e *pageAgain) Error() string { return "the form is asked for again: " + e.view.Title }

// elsewhere leads to another page: a path below the prefix, with its query.
type elsewhere struct{ to string }

func (e *elsewhere) Error() string { return "the page is " + e.to }

// shownError is an error as the page shows it.
type shownError struct {
	Status    int
	Text      string
	ID        string // finds it in the log; empty for what the user can mend
	Away      bool   // the database cannot be reached: the page tries again by itself
	Forbidden bool
}

// describe returns an error as the user sees it, and logs what only the operator of the dashboard can fix.
func (s *site) describe(q *http.Request, err error) shownError {
	page := refusalOf(err)
	var none *client.NotFoundError
	switch {
	case page != nil:
		return shownError{Status: page.status, Text: page.text, Forbidden: page.status == http.StatusForbidden}
	case errors.Is(err, ErrNoUser):
		return shownError{Status: http.StatusUnauthorized, Text: "You are not signed in, or the proxy in front of these pages does not say who you are."}
	case errors.As(err, &none):
		return shownError{Status: http.StatusNotFound, Text: "There is no such call. It may have been pruned."}
	case q.Context().Err() != nil: // Postgres says then that a statement was cancelled
		return shownError{Status: 499, Text: "The request was cancelled."}
	}
	t := shownError{Status: http.StatusInternalServerError, Text: "Something went wrong on this page.", ID: rand.Text()[:10]}
	switch {
	case store.HasCode(err, "57014", "55P03"):
		t.Status, t.Text = http.StatusServiceUnavailable, "The database did not answer in time."
	case lacksSchema(err):
		t.Status, t.Text, t.Away = http.StatusServiceUnavailable, otherSchema+" This page retries automatically.", true
	case store.HasCode(err, "25006"):
		t.Status, t.Text = http.StatusServiceUnavailable, "The database is read-only now. Nothing was changed."
	case store.HasCode(err, "42501"):
		t.Status, t.Text, t.Forbidden = http.StatusForbidden, "The dashboard's database role may not do this.", true
	case isAway(err):
		t.Status, t.Text, t.Away = http.StatusServiceUnavailable, "The database cannot be reached. This page retries automatically.", true
	}
	s.Log.Error("a page failed", zap.String("id", t.ID), zap.String("path", cut(300, q.URL.Path)), zap.Error(err))
	return t
}

// refusalOf is what the user is told where GEM refuses what it was asked for: by a pageError, or by a function whose error code is that of
// PostgREST, where PT409 is 409. Otherwise it is nil.
func refusalOf(err error) *pageError {
	var page *pageError
	var pg *pgconn.PgError
	if errors.As(err, &page) || !errors.As(err, &pg) {
		return page
	}
	code, ours := strings.CutPrefix(pg.Code, "PT")
	status, _ := strconv.Atoi(code) // 0 for what is no number
	if !ours || status < 400 || status > 499 {
		return nil
	}
	return &pageError{status, strings.TrimSpace(sentence(pg.Message) + " " + sentence(pg.Hint))}
}

// sentence makes one of a message of Postgres.
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

// isAway reports whether an error says that the database cannot be reached, or that it stops, starts or has no connection left.
func isAway(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code != "57014" && (strings.HasPrefix(pg.Code, "57") || strings.HasPrefix(pg.Code, "53") || strings.HasPrefix(pg.Code, "08"))
	}
	var connect *pgconn.ConnectError
	return errors.As(err, &connect) || pgconn.Timeout(err) || pgconn.SafeToRetry(err) || errors.Is(err, context.DeadlineExceeded) || isBroken(err)
}

// isBroken reports whether a connection ended in the middle of a response.
func isBroken(err error) bool {
	var network *net.OpError
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.As(err, &network)
}

// otherSchema is what people are told where [lacksSchema] is true.
const otherSchema = "GEM's tables are missing or of another version. Run gem migrate."

// lacksSchema reports whether a table, column, function or schema is missing, or another than it was when a connection prepared its statement.
func lacksSchema(err error) bool {
	return store.HasCode(err, "3F000", "42P01", "42703", "42883") || store.HasCode(err, "0A000") && strings.Contains(err.Error(), "cached plan")
}

// fail shows an error as a page. A reader who has not signed in is led to the login.
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
	s.render(w, r, &view{Title: titleOf(t.Status), Template: "error", Data: t, Status: t.Status})
}

// titleOf names the page of an error, such as Not found.
func titleOf(status int) string {
	return cmp.Or(upper(strings.ToLower(http.StatusText(status))), "Error")
}
