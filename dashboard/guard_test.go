package dashboard_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/gemworker/gem/dashboard"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// answer returns the response to a request, without following redirects.
func answer(t *testing.T, h http.Handler, method, target string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(method, target, nil)
	r.RemoteAddr = "127.0.0.1:1234"
	r.Host = "127.0.0.1:8470"
	for i := 0; i+1 < len(headers); i += 2 {
		if r.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestRequestsOfOtherSitesAndUnderOtherNamesAreRefused(t *testing.T) {
	t.Parallel()
	server, _ := pages(t, dashboard.User{Name: "ada"}, func(o *dashboard.Options) {
		o.Hosts = []string{"ops.example:8443"}
		o.User = func(r *http.Request) (dashboard.User, error) {
			switch r.Header.Get("User") {
			case "":
				return dashboard.User{}, dashboard.ErrNoUser
			case "eve":
				return dashboard.User{}, errors.New("secret reason")
			}
			return dashboard.User{Name: "ada"}, nil
		}
	})
	h := server.Config.Handler
	for _, c := range []struct {
		method, target string
		headers        []string
		want           int
	}{
		{"POST", "/look", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"POST", "/look", []string{"Origin", "https://evil.example"}, 403},
		{"POST", "/look", nil, 303},
		// a stream for another site
		{"GET", "/live?watch=overview", []string{"User", "ada", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"},
			403},
		{"GET", "/nothing", []string{"User", "ada", "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors"}, 403},
		{"GET", "/nothing", []string{"User", "ada", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, 404},
		{"GET", "/nothing", []string{"User", "ada", "Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "cors"}, 404},
		{"GET", "/nothing", nil, 401},
		{"GET", "/nothing", []string{"User", "eve"}, 403},
		{"GET", "/nothing", []string{"User", "ada"}, 404},
		{"GET", "/nothing", []string{"User", "ada", "Host", "evil.example"}, 403},
		{"GET", "/nothing", []string{"User", "ada", "Host", "ops.example"}, 403}, // without its port
		{"GET", "/nothing", []string{"User", "ada", "Host", "OPS.example:8443"}, 404},
		{"GET", "/nothing", []string{"User", "ada", "Host", "localhost:1"}, 404},
		{"GET", "/nothing", []string{"User", "ada", "Host", "[::1]"}, 404},
		{"GET", "/nothing", []string{"User", "ada", "Host", "192.0.2.1:8470"}, 404}, // no name leads elsewhere
		{"GET", "/nothing", []string{"User", "ada", "Host", "127.0.0.1.evil.example"}, 403},
		{"GET", "/healthz", []string{"Host", "10.0.0.1"}, 200},
		{"GET", "/login", nil, 401}, // there is none
	} {
		w := answer(t, h, c.method, c.target, c.headers...)
		if w.Code != c.want || strings.Contains(w.Body.String(), "secret") {
			t.Errorf("%s %s %q: %d, want %d: %s", c.method, c.target, c.headers, w.Code, c.want, w.Body)
		}
		if c.target != "/healthz" && !strings.Contains(w.Header().Get("Content-Security-Policy"), "frame-ancestors 'none'") {
			t.Errorf("%s %s: %v", c.method, c.target, w.Header())
		}
	}
}

func TestPagesBelowAPrefix(t *testing.T) {
	t.Parallel()
	proxy := []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	keeps, _ := pages(t, dashboard.User{Name: "ada"}, func(o *dashboard.Options) { o.Prefix = "/gem" })
	strips, _ := pages(t, dashboard.User{Name: "ada"}, func(o *dashboard.Options) { o.TrustedProxies = proxy })
	embedded := http.NewServeMux()
	embedded.Handle("/gem/", keeps.Config.Handler)
	behind := func(server *httptest.Server, strip bool) http.Handler {
		to, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host
			if strip {
				r.Out.URL.Path = strings.TrimPrefix(r.In.URL.Path, "/gem")
				r.Out.Header.Set("X-Forwarded-Prefix", "/gem")
			}
		}}
	}
	for name, h := range map[string]http.Handler{"a proxy that keeps the prefix": behind(keeps, false),
		"a proxy that takes it away": behind(strips, true), "embedded": embedded} {
		w := answer(t, h, "GET", "/gem/nothing")
		body := w.Body.String()
		if w.Code != 404 {
			t.Errorf("%s: %d", name, w.Code)
		}
		for _, link := range []string{`href="/gem/calls"`, `action="/gem/look"`, `src="/gem/static/gem.`,
			`data-base="/gem"`} {
			if !strings.Contains(body, link) {
				t.Errorf("%s: %s is not in %s", name, link, body)
			}
		}
		for _, part := range strings.Split(body, `="/`)[1:] {
			// the address in the form names its page below the prefix
			if !strings.HasPrefix(part, "gem/") && !strings.HasPrefix(part, `gem"`) && !strings.HasPrefix(part, "nothing") {
				t.Errorf("%s: a link leaves the prefix: /%s", name, part[:min(len(part), 40)])
			}
		}
		_, script, _ := strings.Cut(body, `src="`)
		script, _, _ = strings.Cut(script, `"`)
		for target, want := range map[string]string{
			script:                    "200 ",
			"/gem/healthz":            "200 ",
			"/gem//calls/../nothing":  "308 /gem/nothing",
			"/gem/nothing/?a=%2F&b=c": "308 /gem/nothing?a=%2F&b=c",
		} {
			w := answer(t, h, "GET", target)
			to := w.Header().Get("Location")
			if name == "embedded" && strings.Contains(target, "..") {
				want = fmt.Sprint(w.Code, " /gem/nothing") // the mux around it does that
			}
			if got := fmt.Sprint(w.Code, " ", to); got != want {
				t.Errorf("%s: %s: %s, want %s", name, target, got, want)
			}
		}
		if w := answer(t, h, "POST", "/gem/look"); w.Code != 303 || w.Header().Get("Location") != "/gem/" {
			t.Errorf("%s: a form: %d to %s", name, w.Code, w.Header().Get("Location"))
		}
	}
	for target, want := range map[string]string{"/gem": "308 /gem/", "/gems": "404 ", "/": "404 ",
		"//evil.example/gem": "404 "} {
		w := answer(t, keeps.Config.Handler, "GET", target)
		if got := fmt.Sprint(w.Code, " ", w.Header().Get("Location")); got != want {
			t.Errorf("%s: %s, want %s", target, got, want)
		}
	}
	for _, prefix := range []string{"/a\tb", "/a\u0001", "/a\u202eb", "/a\u00a0", "//evil.example", "/a\\b", "no-slash"} {
		w := answer(t, strips.Config.Handler, "GET", "/calls/../nothing", "X-Forwarded-Prefix", prefix)
		if to := w.Header().Get("Location"); to != "/nothing" {
			t.Errorf("a prefix %q leads to %q", prefix, to)
		}
	}
	// A client that is not a trusted proxy cannot set the beginning of links.
	stranger := httptest.NewRequest(http.MethodGet, "/nothing", nil)
	stranger.Header.Set("X-Forwarded-Prefix", "/evil")
	w := httptest.NewRecorder()
	strips.Config.Handler.ServeHTTP(w, stranger)
	if strings.Contains(w.Body.String(), "/evil") {
		t.Errorf("X-Forwarded-Prefix is believed: %s", w.Body)
	}
}

func TestALineForEachRequestHasNoQuery(t *testing.T) {
	t.Parallel()
	core, lines := observer.New(zap.DebugLevel)
	server, _ := pages(t, dashboard.User{Name: "ada"}, func(o *dashboard.Options) { o.Log = zap.New(core) })
	for _, target := range []string{"/nothing?find=secret", "/healthz"} {
		answer(t, server.Config.Handler, "GET", target)
	}
	all := lines.FilterMessage("request").All()
	if len(all) != 2 || all[0].Level != zap.InfoLevel || all[1].Level != zap.DebugLevel {
		t.Fatalf("%v", all)
	}
	if got := all[0].ContextMap(); got["path"] != "/nothing" || got["status"] != int64(404) || got["user"] != "ada" ||
		got["method"] != "GET" || len(got) != 5 {
		t.Errorf("%v", got)
	}
}

func TestHealthSaysThatPostgresIsAway(t *testing.T) {
	t.Parallel()
	server, _ := pages(t, dashboard.User{Name: "ada"}, func(o *dashboard.Options) {
		away := *o.Read.Config()
		away.ConnConfig.Port = 1
		var err error
		if o.Read, err = pgxpool.NewWithConfig(t.Context(), &away); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(o.Read.Close)
	})
	if status, body := get(t, server, "/healthz"); status != 503 || !strings.Contains(body, "Postgres cannot be reached") {
		t.Errorf("%d %s", status, body)
	}
}
