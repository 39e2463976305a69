package dashboard

import "net/http"

// look is how a browser shows the pages. A cookie keeps it, so that the server renders it at once.
type look struct {
	Theme string // light, dark; empty: as the system has it
	Zone  string // local; empty: UTC
}

func readLook(q *http.Request) (l look) {
	if c, err := q.Cookie("gem_theme"); err == nil && (c.Value == "light" || c.Value == "dark") {
		l.Theme = c.Value
	}
	if c, err := q.Cookie("gem_zone"); err == nil && c.Value == "local" {
		l.Zone = c.Value
	}
	return l
}

// setLook keeps the look that a form chose, and goes back to the page with the form. It needs no user: it changes nothing but the browser.
func (s *site) setLook(w http.ResponseWriter, q *http.Request) {
	q.Body = http.MaxBytesReader(w, q.Body, maxForm)
	for _, name := range []string{"theme", "zone"} {
		if value := q.PostFormValue(name); value != "" {
			http.SetCookie(w, &http.Cookie{Name: "gem_" + name, Value: value, Path: s.base(q) + "/", MaxAge: 365 * 86400, HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: q.TLS != nil})
		}
	}
	http.Redirect(w, q, s.base(q)+back(q.PostFormValue("back")), http.StatusSeeOther)
}
