package login

import (
	"context"
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/internal/postgres/pgpool"
)

// pages serves a dashboard with these options. Its database is unreachable: a missing page needs none.
func pages(t *testing.T, o Options) (*httptest.Server, *Authenticator, http.Handler) {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	d, h := serve(t, server, o)
	return server, d, h
}

// serve starts a server with the pages.
func serve(t *testing.T, server *httptest.Server, o Options) (*Authenticator, http.Handler) {
	t.Helper()
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgpool.Open(t.Context(), "postgres://nobody@127.0.0.1:1/none", pgpool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	h, err := dashboard.New(dashboard.Options{Read: pool, User: d.User, Login: d.Login(), TrustedProxies: o.Proxies})
	if err != nil {
		t.Fatal(err)
	}
	server.Config.Handler = h
	server.Start()
	t.Cleanup(server.Close)
	return d, h
}

// isRole is a database whose roles are postgres and operator.
func isRole(_ context.Context, name string) (bool, error) {
	return strings.EqualFold(name, "postgres") || strings.EqualFold(name, "operator"), nil
}

// browser keeps cookies, and follows redirects.
func browser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Jar: jar}
}

// ask sends a request, and returns the status and the path where it ended up.
func ask(t *testing.T, c *http.Client, method, address, form string, headers ...string) (status int, path string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(form))
	if err != nil {
		t.Fatal(err)
	}
	if form != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	a, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = a.Body.Close()
	return a.StatusCode, a.Request.URL.Path
}

func wants(t *testing.T, what string, status int, path string, wantStatus int, wantPath string) {
	t.Helper()
	if status != wantStatus || path != wantPath {
		t.Errorf("%s: %d at %s, want %d at %s", what, status, path, wantStatus, wantPath)
	}
}

const none = "/no-such-page" // 404 for who is signed in

func TestALinkIsGoodForOneBrowser(t *testing.T) {
	t.Parallel()
	var next string
	server, d, _ := pages(t, Options{Auth: "link", Name: "ada", Used: func(token string) { next = token }})
	first := d.NewLink()
	link := server.URL + "/login?token=" + first + "&to=" + url.QueryEscape(none)
	ada, eve := browser(t), browser(t)
	status, path := ask(t, eve, "GET", server.URL+none, "")
	wants(t, "without a session", status, path, 200, "/login")
	status, path = ask(t, eve, "HEAD", link, "")
	wants(t, "a link that is only looked at", status, path, 200, "/login")
	status, path = ask(t, ada, "GET", link, "")
	wants(t, "the link", status, path, 404, none)
	status, path = ask(t, ada, "GET", server.URL+none, "")
	wants(t, "with a session", status, path, 404, none)
	status, path = ask(t, eve, "GET", link, "")
	wants(t, "the link again", status, path, 401, "/login")
	status, path = ask(t, eve, "GET", server.URL+"/login?token=", "")
	wants(t, "no token", status, path, 401, "/login")
	for _, to := range []string{"//evil.example/x", "/../other", "/calls/%2e%2e/%2E%2E/other", "/\\evil.example",
		"https://evil.example/"} {
		_, path = ask(t, browser(t), "GET", server.URL+"/login?token="+next+"&to="+url.QueryEscape(to), "")
		wants(t, "the next link, to "+to, 0, path, 0, "/") // whatever the overview is without its database
	}
	status, path = ask(t, ada, "POST", server.URL+"/logout", "")
	wants(t, "the end of a session", status, path, 200, "/login")
	status, path = ask(t, ada, "GET", server.URL+none, "")
	wants(t, "after it", status, path, 200, "/login")
}

func TestTheCookieOfASessionIsForThesePagesAlone(t *testing.T) {
	t.Parallel()
	_, d, h := pages(t, Options{Auth: "link", Cookie: "gem_8470", Used: func(string) {},
		Proxies: Proxies{netip.MustParsePrefix("10.0.0.0/8")}})
	for _, c := range []struct {
		peer, proto, prefix string
		want                string
	}{
		{"10.1.2.3:4", "https", "/gem", "Path=/gem/; Max-Age=43200; HttpOnly; Secure; SameSite=Strict"},
		{"192.0.2.1:4", "https", "/gem", "Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"}, // not a proxy
	} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/login?token="+d.NewLink(), nil)
		r.RemoteAddr = c.peer
		r.Header.Set("X-Forwarded-Proto", c.proto)
		r.Header.Set("X-Forwarded-Prefix", c.prefix)
		h.ServeHTTP(w, r)
		name, rest, _ := strings.Cut(w.Header().Get("Set-Cookie"), "=")
		if _, attributes, _ := strings.Cut(rest, "; "); name != "gem_8470" || attributes != c.want ||
			w.Code != http.StatusSeeOther {
			t.Errorf("from %s: %d %s, want %s", c.peer, w.Code, w.Header().Get("Set-Cookie"), c.want)
		}
	}
}

// A browser does not send a strict cookie after a link on another site: the login page then reloads the page.
func TestALinkOnAnotherSiteLeadsToThePage(t *testing.T) {
	t.Parallel()
	_, d, h := pages(t, Options{Auth: "link", Used: func(string) {}})
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/login?to=%2Fquestions%2F1", nil)
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	h.ServeHTTP(w, r)
	if !strings.Contains(w.Body.String(), `<meta http-equiv="refresh" content="0;url=/login?to=%2Fquestions%2F1">`) {
		t.Errorf("%s", w.Body)
	}
	cookie, err := d.SignIn(httptest.NewRequest(http.MethodGet, "/login?token="+d.NewLink(), nil))
	if err != nil {
		t.Fatal(err)
	}
	w = httptest.NewRecorder()
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	r.AddCookie(&http.Cookie{Name: cookie.Name, Value: "of another port of this host"})
	r.AddCookie(cookie)
	h.ServeHTTP(w, r)
	if to := w.Header().Get("Location"); to != "/questions/1" {
		t.Errorf("%d to %q", w.Code, to)
	}
}

func TestSessionsEndAfterTwelveHours(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSessions(time.Now)
		first := s.open()
		time.Sleep(sessionTime - time.Second)
		second := s.open()
		if !s.has(first) || !s.has(second) || s.has("") || s.has(second+"x") {
			t.Error("before the end")
		}
		time.Sleep(time.Second)
		if s.has(first) || !s.has(second) {
			t.Error("at the end of the first")
		}
		for range mostSessions {
			s.open()
		}
		if s.has(second) || len(s.ends) != mostSessions {
			t.Errorf("%d sessions", len(s.ends))
		}
	})
}

func TestPasswordsAreTriedFiveTimesAMinute(t *testing.T) {
	t.Parallel()
	made, err := HashPassword([]byte("correct horse"))
	if err != nil || checkHash(made) != nil {
		t.Fatal(made, err)
	}
	const hash = "$2a$04$a4UO.H8zsMtfEfgXec4md.VwH4rONr.My/XDNBTifW28IBCjmthuC" // the same at the least cost
	server, _, _ := pages(t, Options{Auth: "password", PasswordHash: hash, Name: "ada",
		Proxies: Proxies{netip.MustParsePrefix("127.0.0.1/32")}})
	login := server.URL + "/login"
	ada := browser(t)
	status, path := ask(t, ada, "POST", login, "password=correct+horse&to="+url.QueryEscape(none), "X-Forwarded-For",
		"198.51.100.7")
	wants(t, "the password", status, path, 404, none)
	eve := browser(t)
	for i := range mostTries {
		status, path = ask(t, eve, "POST", login, "password=wrong", "X-Forwarded-For",
			fmt.Sprintf("203.0.113.%d, 198.51.100.7", i))
		wants(t, "a wrong one", status, path, 401, "/login")
	}
	status, path = ask(t, eve, "POST", login, "password=correct+horse", "X-Forwarded-For", "198.51.100.7")
	wants(t, "after five wrong ones", status, path, 429, "/login")
	status, path = ask(t, browser(t), "POST", login, "password=correct+horse&to="+url.QueryEscape(none), "X-Forwarded-For",
		"198.51.100.8")
	wants(t, "from another address", status, path, 404, none)
	status, path = ask(t, eve, "GET", server.URL+none, "")
	wants(t, "without a session", status, path, 200, "/login")
}

func TestTriesAreCountedWithinBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &tries{now: time.Now}
		one, neighbour := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
		for range mostTries {
			if s.begin(one) != 0 {
				t.Error("too early")
			}
		}
		time.Sleep(20 * time.Second)
		if s.begin(neighbour) != 40*time.Second {
			t.Error("a network of IPv6 is one person's")
		}
		time.Sleep(40 * time.Second)
		if s.begin(one) != 0 {
			t.Error("a minute later")
		}
		s.right(one)
		for i := range 2 * mostAddresses {
			s.begin(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
		}
		if len(s.of) != mostAddresses {
			t.Errorf("%d addresses are kept", len(s.of))
		}
		time.Sleep(triesTime)
		if s.begin(netip.MustParseAddr("192.0.2.1")) != 0 || len(s.of) != 1 {
			t.Errorf("%d addresses are kept", len(s.of))
		}
	})
}

func TestAProxyNamesTheUser(t *testing.T) {
	t.Parallel()
	roles, err := ParseRoles("operator=ada,@ops viewer=@staff")
	if err != nil {
		t.Fatal(err)
	}
	proxies, err := ParseProxies([]string{"10.0.0.0/8", " ::1", "192.0.2.1"})
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Options{Auth: "header", UserHeader: "x-user", GroupsHeader: "X-Groups", Proxies: proxies, Roles: roles,
		IsRole: isRole})
	if err != nil {
		t.Fatal(err)
	}
	_, _, h := pages(t, d.o)
	for _, c := range []struct {
		peer, user, groups string
		status             int
		operator           bool
	}{
		{"10.1.2.3:4", "ada", "", 404, true},
		{"[::ffff:10.1.2.3]:4", "bob", "staff, ops", 404, true},
		{"[::1]:4", "carl", "staff", 404, false},
		{"192.0.2.1:4", "@ops", "", 403, false},
		{"10.1.2.3:4", "dora", "cooks", 403, false},
		{"192.0.2.2:4", "ada", "", 403, false},
		{"10.1.2.3:4", "", "ops", 401, false},
		{"10.1.2.3:4", "Postgres", "ops", 403, false},
		{"10.1.2.3:4", "service_role", "ops", 403, false},
		{"10.1.2.3:4", "ada\u202e", "", 401, false},
		{"10.1.2.3:4", "ada|eve", "ops", 401, false},
		{"10.1.2.3:4", "carl", "ops|staff", 401, false}, // the first may be from the proxy's client
	} {
		r := httptest.NewRequest(http.MethodGet, none, nil)
		r.RemoteAddr = c.peer
		for name := range strings.SplitSeq(c.user, "|") {
			r.Header.Add("X-User", name)
		}
		for groups := range strings.SplitSeq(c.groups, "|") {
			r.Header.Add("X-Groups", groups)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		u, _ := d.User(r)
		if w.Code != c.status || u.Operator != c.operator || u.Subject != u.Name || c.status == 404 && u.Name != c.user {
			t.Errorf("%+v: %d %+v", c, w.Code, u)
		}
	}
}

// Nobody is let in while the server cannot check whether a role has the name. The page says that the database is
// unreachable.
func TestNamesAreLookedUpInTheDatabase(t *testing.T) {
	t.Parallel()
	away, err := pgpool.Open(t.Context(), "postgres://nobody@127.0.0.1:1/none", pgpool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(away.Close)
	asked, down := 0, true
	_, _, h := pages(t, Options{Auth: "header", UserHeader: "X-User",
		Proxies: Proxies{netip.MustParsePrefix("10.0.0.0/8")},
		IsRole: func(ctx context.Context, name string) (bool, error) {
			if asked++; down {
				return false, away.Ping(ctx)
			}
			return isRole(ctx, name)
		}})
	look := func(want int) {
		t.Helper()
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, none, nil)
		r.RemoteAddr = "10.1.2.3:4"
		r.Header.Set("X-User", "ada")
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%d, want %d: %s", w.Code, want, w.Body)
		}
	}
	look(503)
	down = false
	look(404)
	look(404)
	if asked != 2 {
		t.Errorf("the database was asked %d times", asked)
	}
}

func TestRolesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"ada", "admin=ada", "operator=", "operator=ada,", "operator=@"} {
		if _, err := ParseRoles(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	all, err := ParseRoles("")
	if operator, viewer := all.of("ada", nil); err != nil || operator || !viewer {
		t.Errorf("by default: operator %v, viewer %v, %v", operator, viewer, err)
	}
}

func TestOptionsThatDoNotGoTogether(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]Options{
		"GEM_DASHBOARD_PASSWORD_HASH is not set": {Auth: "password"},
		"single quotes":                          {Auth: "password", PasswordHash: "$2y"},
		"its cost is 31": {Auth: "password",
			PasswordHash: "$2a$31$abcdefghijklmnopqrstuuQeVtbDmSLMgi2EM/RjZxM.n0MMVRvEq"},
		"needs GEM_DASHBOARD_USER_HEADER":                       {Auth: "header", UserHeader: "X-User"},
		"GEM_DASHBOARD_ROLES applies only with --auth header":   {Auth: "link", Roles: Roles{"viewer": {"*"}}},
		`--auth is "saml"; it may be link, password, header, o`: {Auth: "saml"},
		"needs GEM_DASHBOARD_OIDC_ISSUER":                       {Auth: "oidc", OIDC: OIDC{ClientID: "gem"}},
		"GEM_DASHBOARD_OIDC_CLIENT_ID":                          {Auth: "oidc", OIDC: OIDC{Issuer: "https://issuer.example"}},
		"needs GEM_DASHBOARD_URL": {Auth: "oidc",
			OIDC: OIDC{Issuer: "https://issuer.example", ClientID: "gem"}},
		"names no viewer": {Auth: "oidc", Roles: Roles{"operator": {"ada"}},
			OIDC: OIDC{Issuer: "https://issuer.example", ClientID: "gem", URL: "https://ops.example/"}},
		"IsRole is required": {Auth: "header", UserHeader: "X-User", Proxies: Proxies{netip.MustParsePrefix("10.0.0.0/8")}},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, password := range []string{"short", strings.Repeat("x", 73)} {
		if _, err := HashPassword([]byte(password)); err == nil {
			t.Errorf("a password of %d is taken", len(password))
		}
	}
}
