package dashboard

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/gemworker/gem/client/view"
)

//go:embed templates/*.html
var templateFiles embed.FS

// looks are the templates and the static files.
type looks struct {
	pages  map[string]*template.Template // by name: layout.html, parts.html and the page's file together
	assets map[string]*asset             // by the name of their URL
	hashed map[string]string             // the name of the file to the name of the URL
}

// shell is the data of layout.html: the page and its frame.
type shell struct {
	*content
	Base     string // the beginning of every link
	Path     string // of the page below Base, with its query
	User     User
	Operates bool // the user sees payloads and may act
	ReadOnly bool // the dashboard cannot act
	Login    bool // there is a login, and so a logout
	Look     look
	Done     string       // the outcome of the submitted form
	Open     int          // the number of open questions
	Source   *view.Source // where a list was read; nil: the primary, as configured
	Form     string       // an id for a form of the page; a page with several uses newForm
}

func (s *site) load() error {
	s.looks = &looks{pages: map[string]*template.Template{}}
	if err := s.loadStatic(); err != nil {
		return err
	}
	funcs := s.funcs()
	names, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil {
		return err
	}
	for _, name := range names {
		page := strings.TrimSuffix(path.Base(name), ".html")
		if page == "layout" || page == "parts" {
			continue
		}
		t, err := template.New("layout.html").Funcs(funcs).Option("missingkey=error").ParseFS(templateFiles,
			"templates/layout.html", "templates/parts.html", name)
		if err != nil {
			return err
		}
		s.pages[page] = t
	}
	return nil
}

// shell puts a page into its frame.
func (s *site) shell(r *request, v *content) *shell {
	return &shell{content: v, Base: r.base, Path: r.URL.RequestURI(), User: r.user, Operates: r.operates(),
		ReadOnly: s.Act == nil,
		Login:    s.Login != nil, Look: r.look, Done: s.forms.done(r), Form: newForm(), Source: r.source}
}

// render writes a page.
func (s *site) render(w http.ResponseWriter, r *request, v *content) {
	var page bytes.Buffer
	shell := s.shell(r, v)
	if r.user.Name != "" && v.Template != "error" {
		shell.Open = s.open.count(r.Context(), s)
	}
	if err := s.write(&page, "layout.html", shell); err != nil {
		s.Log.Error("a page cannot be rendered: " + err.Error())
		http.Error(w, "this page cannot be shown", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	s.send(w, r.Request, max(v.Status, http.StatusOK), page.Bytes())
}

// write executes a template of a page's file: layout.html for the whole page, or a part of it by name.
func (s *site) write(page *bytes.Buffer, part string, data *shell) error {
	t := s.pages[data.Template]
	if t == nil {
		return fmt.Errorf("there is no template %s", data.Template)
	}
	var html strings.Builder
	if err := t.ExecuteTemplate(&html, part, data); err != nil {
		return err
	}
	page.WriteString(visible(html.String()))
	return nil
}

// send writes a body, compressed if the client accepts that.
func (s *site) send(w http.ResponseWriter, q *http.Request, status int, body []byte) {
	w.Header().Add("Vary", "Accept-Encoding")
	if len(body) > 1000 && strings.Contains(q.Header.Get("Accept-Encoding"), "gzip") {
		var small bytes.Buffer
		z := gzip.NewWriter(&small)
		_, _ = z.Write(body) // into memory
		_ = z.Close()
		body = small.Bytes()
		w.Header().Set("Content-Encoding", "gzip")
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if q.Method != http.MethodHead {
		_, _ = w.Write(body) // nobody is there to see the error
	}
}
