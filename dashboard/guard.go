package dashboard

import (
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
)

// policy lets a page load only files of the program.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// guarded rejects requests from other sites and for other host names, sends the headers that isolate a page, and
// removes the prefix.
func (s *site) guarded(next http.Handler) http.Handler {
	next = http.NewCrossOriginProtection().Handler(s.below(next))
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == s.Prefix+"/healthz" {
			s.healthz(w, q)
			return
		}
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		if !s.isOurs(q.Host) {
			http.Error(w, "this host name is not configured; set GEM_DASHBOARD_URL, or Hosts of dashboard.Options",
				http.StatusForbidden)
			return
		}
		if isPartOfOther(q) {
			http.Error(w, "pages of other sites may link here, but not send requests", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, q)
	})
}

// isPartOfOther reports whether a page of another site makes the request itself, for example for a stream. It could
// not read the response, but it could keep the pages busy, or measure the time. A navigation, by a link or in a
// frame, is not such a request.
func isPartOfOther(q *http.Request) bool {
	if from := q.Header.Get("Sec-Fetch-Site"); from != "cross-site" && from != "same-site" {
		return false
	}
	mode := q.Header.Get("Sec-Fetch-Mode")
	return mode != "" && mode != "navigate"
}

// below removes the prefix. It redirects paths with double slashes or dots, since the mux, which would do that, does
// not know the prefix.
func (s *site) below(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		rest, found := strings.CutPrefix(q.URL.EscapedPath(), s.Prefix)
		if !found || rest != "" && rest[0] != '/' {
			http.NotFound(w, q)
			return
		}
		if clean := path.Clean("/" + rest); clean != rest {
			if q.URL.RawQuery != "" {
				clean += "?" + q.URL.RawQuery
			}
			http.Redirect(w, q, s.base(q)+clean, http.StatusPermanentRedirect)
			return
		}
		http.StripPrefix(s.Prefix, next).ServeHTTP(w, q)
	})
}

// isOurs reports whether the header Host is allowed: an attacker's page could make its own name resolve to this
// server. It cannot use an address.
func (s *site) isOurs(host string) bool {
	if len(s.Hosts) == 0 || slices.ContainsFunc(s.Hosts, func(ours string) bool { return strings.EqualFold(ours, host) }) {
		return true
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	_, err = netip.ParseAddr(name)
	return strings.EqualFold(name, "localhost") || err == nil
}

// base returns the beginning of every link: the prefix, or the one that a trusted proxy removed.
func (s *site) base(q *http.Request) string {
	forwarded := strings.TrimRight(q.Header.Get("X-Forwarded-Prefix"), "/")
	if !strings.HasPrefix(forwarded, "/") || strings.HasPrefix(forwarded, "//") ||
		strings.ContainsFunc(forwarded, notInPrefix) {
		return s.Prefix
	}
	from, err := netip.ParseAddrPort(q.RemoteAddr)
	if err != nil || !slices.ContainsFunc(s.TrustedProxies,
		func(p netip.Prefix) bool { return p.Contains(from.Addr().Unmap()) }) {
		return s.Prefix
	}
	return forwarded + s.Prefix
}

// notInPrefix reports whether a character is not allowed in a forwarded prefix, which becomes part of links and of
// the header Location.
func notInPrefix(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune("\\?#%\"'<>", c) }
