package dashboard

import "net/http"

// look is a browser's choice of display. A cookie keeps it, so that the server renders it at once.
type look struct {
	Theme string // light or dark; empty means that of the system
	Zone  string // local; empty means UTC
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

// setLook stores the display that a form chose, and returns to the form's page. It needs no user: it changes only the
// browser.
func (s *site) setLook(w http.ResponseWriter, q *http.Request) {
	q.Body = http.MaxBytesReader(w, q.Body, maxForm)
	for _, name := range []string{"theme", "zone"} {
		if value := q.PostFormValue(name); value != "" {
			http.SetCookie(w, &http.Cookie{Name: "gem_" + name, Value: value, Path: s.base(q) + "/", MaxAge: 365 * 86400,
				HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: q.TLS != nil})
		}
	}
	http.Redirect(w, q, s.base(q)+back(q.PostFormValue("back")), http.StatusSeeOther)
}
