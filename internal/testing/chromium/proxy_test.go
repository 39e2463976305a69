package chromium

import (
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/dashboard"
)

// proxyTo returns a proxy in front of a server. change may modify its requests.
func proxyTo(t *testing.T, origin string, change func(*httputil.ProxyRequest)) http.Handler {
	t.Helper()
	to, err := url.Parse(origin)
	if err != nil {
		t.Fatal(err)
	}
	return &httputil.ReverseProxy{ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		change(r)
	}}
}

// Scenario 11: a proxy that keeps the prefix, a proxy that removes it and reports it, and a server of another program
// with the pages below /ops/.
func TestThePagesWorkBelowAPrefix(t *testing.T) {
	t.Parallel()
	s := newScene(t, withoutWorker)
	prefixed := func(o *dashboard.Options) { o.Prefix = "/gem" }
	trusting := func(o *dashboard.Options) { o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")} }
	for name, site := range map[string]struct {
		prefix  string
		handler http.Handler
	}{
		"kept": {"/gem", proxyTo(t, s.serve(ada, prefixed), func(*httputil.ProxyRequest) {})},
		"taken away": {"/gem", proxyTo(t, s.serve(ada, trusting), func(r *httputil.ProxyRequest) {
			r.Out.URL.Path = strings.TrimPrefix(r.Out.URL.Path, "/gem")
			r.Out.Header.Set("X-Forwarded-Prefix", "/gem")
		})},
		"embedded": {"/ops", s.handler(ada, func(o *dashboard.Options) { o.Prefix = "/ops" })},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queued := s.Insert(of("shop.charge", `{"order": "A-1"}`))
			mux := http.NewServeMux() // a path outside the prefix is not found
			mux.Handle(site.prefix+"/", site.handler)
			b := openTab(t, serve(t, mux))
			b.visit(site.prefix + "/")
			for _, link := range eval[[]string](b,
				`[...document.querySelectorAll("a[href], link[href], script[src], form")].map(e => e.getAttribute("href") ?? e.getAttribute("src") ?? e.getAttribute("action"))`) {
				if strings.HasPrefix(link, "/") && !strings.HasPrefix(link, site.prefix+"/") {
					t.Errorf("a link of the overview leads to %s", link)
				}
			}
			for _, page := range []string{"calls", "failures", "questions", "tools", "workers"} {
				b.follow(`header nav a[href$="/` + page + `"]`)
				if got := b.where(); got != site.prefix+"/"+page {
					t.Errorf("the link to %s leads to %s", page, got)
				}
			}
			b.visit(site.prefix + "/calls")
			b.follow(`main a[href$="/calls/` + queued + `"]`)
			s.Until("a live stream", func() bool {
				return slices.ContainsFunc(b.requested(), func(r string) bool {
					return strings.HasPrefix(r, b.origin+site.prefix+"/live?")
				})
			})
			s.exec("select public.cancel_tool_call($1)", queued)
			b.until("the end of the call", `document.querySelector("main .state.cancelled")`)
			b.follow("footer button[value=dark]")
			if got := b.where(); got != site.prefix+"/calls/"+queued {
				t.Errorf("the form of the look leads to %s", got)
			}
			b.look("light", wide)
			if eval[string](b, "document.documentElement.dataset.theme ?? ''") != "dark" {
				t.Error("the look was not kept")
			}
			for _, r := range b.requested() {
				if !strings.HasPrefix(r, b.origin+site.prefix+"/") && !strings.HasPrefix(r, "data:") {
					t.Errorf("a request left the prefix: %s", r)
				}
			}
		})
	}
}
