package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
)

// request is a request of a user.
type request struct {
	*http.Request
	site *site
	user User
	base string // the beginning of every link
	look look
	live bool // a page is reread for its watchers: its forms are not shown
	kept any  // data of an action for the next page: see [forms.kept]

	source *view.Source // of a list; nil: the primary, as configured
}

// db returns the connection that has the user's rights.
func (r *request) db() *pgxpool.Pool {
	if r.operates() {
		return r.site.Act
	}
	return r.site.Read
}

// operates reports whether the user sees payloads and may act.
func (r *request) operates() bool { return r.user.Operator && r.site.Act != nil }

// mayAnswer reports whether the user can answer questions: as a subject, or as an operator under the database user of
// Act.
func (r *request) mayAnswer() bool {
	return r.site.Act != nil && (r.user.Subject != "" || r.user.Operator)
}

// as runs statements with the rights of the answering user: under the user's subject, or as the database user of Act.
func (r *request) as(ctx context.Context, do func(client.DB) error) error {
	switch {
	case r.site.Act == nil:
		return forbidden("This dashboard is read-only: it has no connection that may act.")
	case !r.mayAnswer():
		return forbidden("You can view questions but not answer them: the dashboard does not know your subject.")
	case r.user.Subject == "":
		return do(r.site.Act)
	default:
		s := client.Subject{ID: r.user.Subject, Role: "gem_frontend"}
		if r.user.OtherName != "" {
			s.Claims = json.RawMessage(`{"gem_other_name": true}`) // see gem.may_answer
		}
		return client.As(ctx, r.site.Act, s, do)
	}
}

// content is the data of a page.
type content struct {
	Title    string // names the page and its state
	Template string // a file of templates, without .html
	Data     any
	// Watch names the changes that affect the page: overview, workers, list (reread every few seconds), or call:ID
	// for changes of the call's row. Empty means that the page does not change.
	Watch  string
	Live   []string // the parts that change: templates of the file, each in an element of that id; nil: live
	Status int      // 0 means 200
	JSON   any      // of a list: the answer of PATH.json
}

// page answers GET requests of a path with a page.
func (s *site) page(mux *http.ServeMux, path string, show func(context.Context, *request) (*content, error)) {
	s.live.page(path, show)
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, q *http.Request) { s.show(w, q, show) })
}

// list answers GET requests of a path with a page, and of the path with .json appended with the same data as JSON.
func (s *site) list(mux *http.ServeMux, path string, show func(context.Context, *request) (*content, error)) {
	name, named := strings.CutSuffix(path[strings.LastIndexByte(path, '/')+1:], "}")
	if !named {
		s.page(mux, path, show)
		s.json(mux, path+".json", show)
		return
	}
	s.live.page(path, show)
	name = strings.TrimPrefix(name, "{")
	// a pattern cannot have a suffix after a name
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, q *http.Request) {
		if value, is := strings.CutSuffix(q.PathValue(name), ".json"); is {
			q.SetPathValue(name, value)
			s.showJSON(w, q, show)
		} else {
			s.show(w, q, show)
		}
	})
}

// json answers GET requests of a path with the data of a list, as JSON.
func (s *site) json(mux *http.ServeMux, path string, show func(context.Context, *request) (*content, error)) {
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, q *http.Request) { s.showJSON(w, q, show) })
}

func (s *site) show(w http.ResponseWriter, q *http.Request, show func(context.Context, *request) (*content, error)) {
	r, err := s.request(q)
	var v *content
	if err == nil {
		v, err = s.read(q.Context(), r, show)
	}
	if err != nil {
		s.fail(w, q, r, err)
		return
	}
	s.render(w, r, v)
}

func (s *site) showJSON(w http.ResponseWriter, q *http.Request,
	show func(context.Context, *request) (*content, error)) {
	r, err := s.request(q)
	var v *content
	if err == nil {
		v, err = s.read(q.Context(), r, show)
	}
	status := http.StatusOK
	var body any
	if err == nil {
		body = v.JSON
	} else {
		shown := s.describe(q, err)
		status, body = shown.Status, map[string]any{"error": shown.Text, "id": shown.ID}
	}
	text, err := json.Marshal(body)
	if err != nil {
		s.fail(w, q, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	s.send(w, q, status, append(oneline.JSON(text), '\n'))
}

// maxForm limits the body of a form, in bytes: an answer of 64 KiB, encoded.
const maxForm = 256 << 10

// act answers POST requests of a path. do acts for the user, and returns the page to go to and a sentence about the
// outcome. A form that is sent twice acts once: see [forms].
func (s *site) act(mux *http.ServeMux, path string, do func(context.Context, *request) (to, done string, err error)) {
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, q *http.Request) {
		q.Body = http.MaxBytesReader(w, q.Body, maxForm)
		r, err := s.request(q)
		if err == nil {
			err = q.ParseForm()
			if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
				err = &pageError{http.StatusRequestEntityTooLarge, "The form has more than 256 KiB."}
			} else if err != nil {
				err = badRequest("The form cannot be read: %v.", err)
			}
		}
		if err == nil && !isText(q.PostForm) {
			err = badRequest("The form has characters that Postgres cannot store.")
		}
		if err == nil {
			var to string
			to, err = s.forms.once(q.Context(), r, do)
			s.acted.record()
			if err == nil {
				http.Redirect(w, q, r.base+to, http.StatusSeeOther)
				return
			}
		}
		s.fail(w, q, r, err)
	})
}

// isText reports whether Postgres can store the values of a form.
func isText(form url.Values) bool {
	for _, values := range form {
		for _, v := range values {
			if !utf8.ValidString(v) || strings.ContainsRune(v, 0) {
				return false
			}
		}
	}
	return true
}

// request identifies the sender of a request. With an error it also returns a request without a user, to show the
// error.
func (s *site) request(q *http.Request) (*request, error) {
	r := &request{Request: q, site: s, base: s.base(q), look: readLook(q)}
	var err error
	r.user, err = s.User(q)
	var refused *Refusal
	switch {
	case err == nil:
		noteUser(q.Context(), r.user.Name)
	case errors.As(err, &refused):
		err = &pageError{refused.Status, refused.Text}
	case errors.Is(err, ErrNoUser):
	case isAway(err), store.HasCode(err, "57014"), q.Context().Err() != nil: // the database looks up a name
	default:
		s.Log.Warn("a user is refused", zap.Error(err))
		err = forbidden("You may not see these pages.")
	}
	return r, err
}
