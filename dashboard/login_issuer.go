package dashboard

import (
	"net/http"
	"net/url"
)

// IssuerLogin is a [Login] through an OpenID Connect issuer. /login links to StartAt, which redirects to the issuer,
// and the issuer sends the browser back to /login/callback.
type IssuerLogin interface {
	Login
	// Issuer returns the host of the issuer, for people to read.
	Issuer() string
	// StartAt returns the URL of /login/start, with the page to go to afterwards. Its host is the one to which the
	// issuer sends the browser back.
	StartAt(to string) string
	// Start returns the issuer's address, and a cookie for /login/callback that binds the sign-in to the browser. Its
	// error is a [*Refusal] if the issuer is unavailable.
	Start(r *http.Request, to string) (address string, cookie *http.Cookie, err error)
	// Finish returns the cookie of the session that the issuer's answer opens, and the page to go to. Its error is a
	// [*Refusal] if the answer does not belong to a sign-in that this browser started, or if the person may not enter.
	Finish(r *http.Request) (session *http.Cookie, to string, err error)
}

const callback = "/login/callback"

func (s *site) routeIssuer(mux *http.ServeMux, issuer IssuerLogin) {
	mux.HandleFunc("GET /login/start", func(w http.ResponseWriter, q *http.Request) {
		to := back(q.URL.Query().Get("to"))
		address, cookie, err := issuer.Start(q, to)
		if err != nil {
			r, _ := s.request(q)
			s.refuseLogin(w, r, to, err)
			return
		}
		cookie.Path = s.base(q) + callback
		http.SetCookie(w, cookie)
		http.Redirect(w, q, address, http.StatusSeeOther)
	})
	mux.HandleFunc("GET "+callback, func(w http.ResponseWriter, q *http.Request) {
		r, _ := s.request(q)
		if q.Method != http.MethodGet { // HEAD must not use up the code
			s.fail(w, q, r, &pageError{http.StatusMethodNotAllowed, "Sign in with a browser."})
			return
		}
		cookie, to, err := issuer.Finish(q)
		to = back(to)
		// The page must not link back to this address, which contains a used code and perhaps a stranger's words.
		r.Request = q.Clone(q.Context())
		r.URL = &url.URL{Path: "/login", RawQuery: "to=" + url.QueryEscape(to)}
		if err != nil {
			s.refuseLogin(w, r, to, err)
			return
		}
		s.setCookie(w, q, cookie)
		// A redirect would not work: the issuer's site started this request, so the browser would not send the
		// cookie.
		p := s.newLoginPage(to)
		p.SignedIn, p.Again = true, r.base+to
		s.render(w, r, &content{Title: "Signed in", Template: "login", Data: p})
	})
}
