package dashboard

import (
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
)

// policy lets a page load what is in the program, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// guarded refuses requests from other sites and under other names, sends the headers that keep a page to itself, and takes the prefix away.
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
			http.Error(w, "this host name is not configured; set GEM_DASHBOARD_URL, or Hosts of dashboard.Options", http.StatusForbidden)
			return
		}
		if isPartOfOther(q) {
			http.Error(w, "pages of other sites may link here, but not send requests", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, q)
	})
}

// isPartOfOther reports whether a page of another site wants something for itself, such as a stream. It could not read it, and it could keep the pages
// busy, or take the time. What it navigates to, by a link or in a frame, is a page of its own.
func isPartOfOther(q *http.Request) bool {
	if from := q.Header.Get("Sec-Fetch-Site"); from != "cross-site" && from != "same-site" {
		return false
	}
	mode := q.Header.Get("Sec-Fetch-Mode")
	return mode != "" && mode != "navigate"
}

// below takes the prefix away. It redirects what the mux would, which does not know the prefix: paths with a slash too many, or with dots.
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

// isOurs reports whether the pages are reached under a host's name: a page elsewhere could let its own name point here. An address is no such name.
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

// base is what every link of an answer begins with: the prefix, or that of a trusted proxy which took it away.
func (s *site) base(q *http.Request) string {
	forwarded := strings.TrimRight(q.Header.Get("X-Forwarded-Prefix"), "/")
	if !strings.HasPrefix(forwarded, "/") || strings.HasPrefix(forwarded, "//") || strings.ContainsFunc(forwarded, notInPrefix) {
		return s.Prefix
	}
	from, err := netip.ParseAddrPort(q.RemoteAddr)
	if err != nil || !slices.ContainsFunc(s.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(from.Addr().Unmap()) }) {
		return s.Prefix
	}
	return forwarded + s.Prefix
}

// notInPrefix reports whether a character may not be part of a forwarded prefix, which goes into links and the header
// Location.
func notInPrefix(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune("\\?#%\"'<>", c) }
