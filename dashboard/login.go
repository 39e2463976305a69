package dashboard

import (
	"errors"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Login lets people sign in at /login, and out at /logout.
type Login interface {
	// Password reports whether people sign in with a password. Otherwise they sign in with a link, whose parameter
	// `token` is the secret.
	Password() bool
	// SignIn returns the cookie of a new session, for which [Options] User then returns a user. Its error is a
	// [*Refusal] if the token or the form's field `password` is wrong.
	SignIn(*http.Request) (*http.Cookie, error)
	// SignOut ends the session of a request, and returns the cookie that deletes the session's cookie.
	SignOut(*http.Request) *http.Cookie
}

// Refusal is an error whose text the user sees.
type Refusal struct {
	Status int
	Text   string        // a sentence
	After  time.Duration // when to try again; 0 if unknown
}

func (e *Refusal) Error() string { return e.Text }

// loginPage is the data of login.html.
type loginPage struct {
	Password bool
	To       string // the page to go to
	Text     string // why it failed
	SignedIn bool
	Again    string // if another site linked here, so that the browser sent no cookie: the address to reload
	Issuer   string // where people sign in
	StartAt  string // the link to it
}

// routeLogin serves /login and /logout.
func (s *site) routeLogin(mux *http.ServeMux) {
	mux.HandleFunc("GET /login", s.login)
	mux.HandleFunc("POST /login", s.login)
	mux.HandleFunc("POST /logout", func(w http.ResponseWriter, q *http.Request) {
		s.setCookie(w, q, s.Login.SignOut(q))
		http.Redirect(w, q, s.base(q)+"/login", http.StatusSeeOther)
	})
	if i, ok := s.Login.(IssuerLogin); ok {
		s.routeIssuer(mux, i)
	}
}

func (s *site) login(w http.ResponseWriter, q *http.Request) {
	q.Body = http.MaxBytesReader(w, q.Body, maxForm)
	r, err := s.request(q)
	to := back(q.FormValue("to"))
	proven := q.Method == http.MethodPost || q.URL.Query().Has("token") && q.Method == http.MethodGet
	switch {
	case proven:
		var cookie *http.Cookie
		if cookie, err = s.Login.SignIn(q); err == nil {
			s.setCookie(w, q, cookie)
		}
	case errors.Is(err, ErrNoUser):
		p := s.newLoginPage(to)
		if from := q.Header.Get("Sec-Fetch-Site"); from == "cross-site" || from == "same-site" {
			p.Again = r.base + "/login?to=" + url.QueryEscape(to)
		}
		s.render(w, r, &content{Title: "Sign in", Template: "login", Data: p})
		return
	}
	switch {
	case err == nil:
		http.Redirect(w, q, r.base+to, http.StatusSeeOther)
	case proven:
		s.refuseLogin(w, r, to, err)
	default:
		s.fail(w, q, r, err)
	}
}

func (s *site) newLoginPage(to string) *loginPage {
	p := &loginPage{Password: s.Login.Password(), To: to}
	if i, ok := s.Login.(IssuerLogin); ok {
		p.Issuer, p.StartAt = i.Issuer(), i.StartAt(to)
	}
	return p
}

// refuseLogin shows the login page with the reason for the failure.
func (s *site) refuseLogin(w http.ResponseWriter, r *request, to string, err error) {
	var refused *Refusal
	if !errors.As(err, &refused) {
		s.fail(w, r.Request, r, err)
		return
	}
	if refused.After > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(refused.After.Seconds()))))
	}
	p := s.newLoginPage(to)
	p.Text, p.SignedIn = refused.Text, r.user != User{}
	s.render(w, r, &content{Title: "Sign in", Template: "login", Data: p, Status: refused.Status})
}

// setCookie sends a cookie only for these pages of the host.
func (s *site) setCookie(w http.ResponseWriter, q *http.Request, c *http.Cookie) {
	c.Path = s.base(q) + "/"
	http.SetCookie(w, c)
}

// back returns the path below the base that a form or a link names, or the overview for anything else.
func back(to string) string {
	u, err := url.Parse(to) // rejects control characters, which browsers remove
	if err != nil || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") ||
		strings.Contains(to, "\\") {
		return "/"
	}
	for part := range strings.SplitSeq(u.Path, "/") { // browsers remove dots, and the part before them
		if part == "." || part == ".." {
			return "/"
		}
	}
	return to
}
