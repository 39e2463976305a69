package login

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/testing/issuertest"
	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// lobby is a dashboard in front of an issuer.
type lobby struct {
	*issuertest.Issuer
	url  string
	auth *Authenticator
	logs *observer.ObservedLogs
}

// newLobby opens a dashboard after change has changed the options. Everyone is a viewer, and the group ops operates.
func newLobby(t *testing.T, change func(*Options)) *lobby {
	t.Helper()
	l := &lobby{Issuer: issuertest.New(t)}
	core, logs := observer.New(zap.DebugLevel)
	l.logs = logs
	o := Options{
		Auth: "oidc", Roles: Roles{"viewer": {"*"}, "operator": {"@ops"}}, IsRole: isRole, Log: zap.New(core),
		OIDC: OIDC{
			Issuer: l.URL, ClientID: issuertest.ClientID, ClientSecret: handlers.Secret(issuertest.ClientSecret),
			GroupsClaim: "groups",
		},
	}
	if change != nil {
		change(&o)
	}
	server := httptest.NewUnstartedServer(nil)
	l.url = "http://" + server.Listener.Addr().String()
	o.OIDC.URL = l.url + "/"
	l.auth, _ = serve(t, server, o)
	t.Cleanup(func() {
		for _, entry := range logs.All() {
			if line := fmt.Sprint(entry.Message, entry.ContextMap()); strings.Contains(line, issuertest.ClientSecret) {
				t.Errorf("the secret is in the log: %s", line)
			}
		}
	})
	return l
}

// page is what a browser got.
type page struct {
	status int
	path   string
	text   string // of the body
	header http.Header
}

func get(t *testing.T, c *http.Client, address string) page {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Body.Close() }()
	body, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return page{a.StatusCode, a.Request.URL.Path, string(body), a.Header}
}

var link = regexp.MustCompile(`href="(http[^"]*/login/start[^"]*)"`)

// signIn opens a page as a new browser, and follows the link to the issuer.
func (l *lobby) signIn(t *testing.T, to string) (page, *http.Client) {
	t.Helper()
	c := browser(t)
	return l.signInWith(t, c, to), c
}

func (l *lobby) signInWith(t *testing.T, c *http.Client, to string) page {
	t.Helper()
	login := get(t, c, l.url+to)
	found := link.FindStringSubmatch(login.text)
	if login.path != "/login" || found == nil {
		t.Fatalf("no link to sign in by at %s: %s", login.path, login.text)
	}
	return get(t, c, html.UnescapeString(found[1]))
}

// user returns who a browser is.
func (l *lobby) user(t *testing.T, c *http.Client) (dashboard.User, error) {
	t.Helper()
	u, err := url.Parse(l.url)
	if err != nil {
		t.Fatal(err)
	}
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, l.url, nil)
	for _, cookie := range c.Jar.Cookies(u) {
		r.AddCookie(cookie)
	}
	return l.auth.User(r)
}

// held returns a client that stops at the issuer's answer, and that answer's address.
func (l *lobby) held(t *testing.T, to string) (*http.Client, string) {
	t.Helper()
	c := browser(t)
	var answer string
	c.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
		if r.URL.Path == "/login/callback" {
			answer = r.URL.String()
			return http.ErrUseLastResponse
		}
		return nil
	}
	l.signInWith(t, c, to)
	c.CheckRedirect = nil
	return c, answer
}

func TestAnIssuerNamesTheUser(t *testing.T) {
	t.Parallel()
	l := newLobby(t, nil)
	l.Claims = map[string]any{"groups": []string{"staff", "ops"}}
	p, ada := l.signIn(t, "/calls?state=failed")
	if p.status != 200 || p.path != "/login/callback" || !strings.Contains(p.text, `content="0;url=/calls?state=failed"`) {
		t.Fatalf("%d %s %s", p.status, p.path, p.text)
	}
	if u, err := l.user(t, ada); err != nil || u.Name != "ada" || u.Subject != "ada" || !u.Operator || u.OtherName == "" {
		t.Errorf("%+v %v", u, err)
	}
	q := l.Asked
	if q.Get("response_type") != "code" || q.Get("code_challenge_method") != "S256" || q.Get("scope") != "openid" ||
		q.Get("theme") != "dark" || q.Get("redirect_uri") != l.url+"/login/callback" || len(q.Get("nonce")) < 20 ||
		len(q.Get("state")) < 20 {
		t.Errorf("asked for %v", q)
	}
	if v := l.Exchanged.Get("code_verifier"); len(v) < 43 {
		t.Errorf("the verifier has %d characters", len(v))
	}
	if l.Exchanged.Has("client_secret") {
		t.Error("the secret is in the form, and the issuer takes it in a header")
	}
	status, path := ask(t, ada, "POST", l.url+"/logout", "")
	wants(t, "sign out", status, path, 200, "/login")
	if u, err := l.user(t, ada); err == nil {
		t.Errorf("after it: %+v", u)
	}
}

// A browser keeps a strict cookie back on the way from the issuer; that of the sign-in must come along, and goes
// nowhere else.
func TestTheCookieOfASignInReturnsFromTheIssuer(t *testing.T) {
	t.Parallel()
	l := newLobby(t, nil)
	c := browser(t)
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	p := get(t, c, l.url+"/login/start?to=/calls")
	const attributes = "; Path=/login/callback; Max-Age=600; HttpOnly; SameSite=Lax"
	got := p.header.Get("Set-Cookie")
	if !strings.HasPrefix(got, "gem_signin=") || !strings.HasSuffix(got, attributes) {
		t.Errorf("cookie %s", got)
	}
	to, err := url.Parse(p.header.Get("Location"))
	if err != nil || p.status != http.StatusSeeOther || !strings.HasPrefix(to.String(), l.URL+"/authorize?") {
		t.Errorf("%d to %s", p.status, to)
	}
	for _, secret := range []string{"state", "nonce"} {
		if v := to.Query().Get(secret); v == "" || strings.Contains(p.header.Get("Set-Cookie"), v) {
			t.Errorf("%s %q in the cookie", secret, v)
		}
	}
}

func TestASignInLeadsToPagesOfThisDashboardAlone(t *testing.T) {
	t.Parallel()
	l := newLobby(t, nil)
	for _, to := range []string{
		"//evil.example/x", "https://evil.example/", "/\\evil.example", "/../x", "javascript:alert(1)",
	} {
		p := get(t, browser(t), l.url+"/login/start?to="+url.QueryEscape(to))
		if p.status != 200 || !strings.Contains(p.text, `content="0;url=/"`) {
			t.Errorf("to %s: %d %s", to, p.status, p.text)
		}
	}
}

func TestASignInBelongsToOneBrowserAndCountsOnce(t *testing.T) {
	t.Parallel()
	l := newLobby(t, nil)
	ada, answer := l.held(t, "/calls")
	eve := browser(t)
	if p := get(t, eve, answer); p.status != 401 || !strings.Contains(p.text, "not started in this browser") {
		t.Errorf("the answer in another browser: %d %s", p.status, p.text)
	}
	mallory, _ := l.held(t, "/calls") // has a sign-in under way, but not this one
	if p := get(t, mallory, answer); p.status != 401 {
		t.Errorf("the answer in a browser with another sign-in: %d", p.status)
	}
	if status, _ := ask(t, ada, "HEAD", answer, ""); status != http.StatusMethodNotAllowed {
		t.Errorf("HEAD: %d", status)
	}
	if p := get(t, ada, answer); p.status != 200 {
		t.Fatalf("the answer in its browser: %d %s", p.status, p.text)
	}
	if p := get(t, ada, answer); p.status != 401 {
		t.Errorf("the answer again: %d", p.status)
	}
	if l.Exchanges != 1 {
		t.Errorf("%d exchanges", l.Exchanges)
	}
	carl, answer := l.held(t, "/calls")
	wrong := regexp.MustCompile(`state=\w+`).ReplaceAllString(answer, "state="+strings.Repeat("A", 26))
	for _, address := range []string{wrong, l.url + "/login/callback?code=x", l.url + "/login/callback?code=x&state="} {
		if p := get(t, carl, address); p.status != 401 {
			t.Errorf("%s: %d", address, p.status)
		}
	}
	p := get(t, carl, answer+"&iss=https%3A%2F%2Fevil.example")
	if p.status != 401 || !strings.Contains(p.text, "another issuer") {
		t.Errorf("another issuer's answer: %d %s", p.status, p.text)
	}
}

func TestASignInTakesTenMinutesAtMost(t *testing.T) {
	t.Parallel()
	l := newLobby(t, nil)
	c, answer := l.held(t, "/calls")
	var later atomic.Int64
	l.auth.sessions.now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	later.Store(int64(signInTime))
	if p := get(t, c, answer); p.status != 401 || l.Exchanges != 0 {
		t.Errorf("ten minutes later: %d", p.status)
	}
	later.Store(0)
	if p := get(t, c, answer); p.status != 200 {
		t.Errorf("before: %d %s", p.status, p.text)
	}
}

func TestUsedStatesAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Now()
	o := &once{now: func() time.Time { return now }}
	for n := range mostStates + 10 {
		if !o.first(fmt.Sprint(n)) {
			t.Fatal("used before")
		}
		now = now.Add(time.Millisecond)
	}
	if len(o.until) != mostStates || o.first(fmt.Sprint(mostStates)) {
		t.Errorf("%d states", len(o.until))
	}
}

// The tokens of a hostile or broken issuer open no session.
func TestAnIDTokenThatIsNotForThisSignInIsRefused(t *testing.T) {
	t.Parallel()
	l := newLobby(t, nil)
	public, err := x509.MarshalPKIXPublicKey(&l.RSA.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	right := l.IDToken
	with := func(name string, value any) func(map[string]any) string {
		return func(claims map[string]any) string {
			if claims[name] = value; value == nil {
				delete(claims, name)
			}
			return right(claims)
		}
	}
	signed := func(method jwt.SigningMethod, key any, kid string) func(map[string]any) string {
		return func(claims map[string]any) string { return issuertest.Sign(t, method, key, kid, claims) }
	}
	now := time.Now()
	for name, c := range map[string]struct {
		token func(map[string]any) string
		want  string
	}{
		"another issuer":            {with("iss", "https://evil.example"), "another issuer"},
		"another audience":          {with("aud", "another"), "another audience"},
		"no audience":               {with("aud", nil), "lacks"},
		"several audiences":         {with("aud", []string{issuertest.ClientID, "another"}), "another client"},
		"another party":             {with("azp", "another"), "another client"},
		"expired":                   {with("exp", now.Add(-time.Hour).Unix()), "expired"},
		"without an end":            {with("exp", nil), "lacks"},
		"issued tomorrow":           {with("iat", now.Add(24*time.Hour).Unix()), "not valid yet"},
		"without the time of issue": {with("iat", nil), "lacks iat"},
		"a time of issue as text":   {with("iat", "now"), "lacks iat"},
		"another nonce":             {with("nonce", "another"), "nonce"},
		"no nonce":                  {with("nonce", nil), "nonce"},
		"alg none": {
			signed(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, "ec"), "signature is wrong",
		},
		"HS256 with the public key": {signed(jwt.SigningMethodHS256, public, "rsa"), "signature is wrong"},
		"HS256 with the client's secret": {
			signed(jwt.SigningMethodHS256, []byte(issuertest.ClientSecret), ""), "signature is wrong",
		},
		"HS256 with the set's symmetric": {
			signed(jwt.SigningMethodHS256, []byte(issuertest.Secret), "symmetric"), "signature is wrong",
		},
		"an unknown key":             {signed(jwt.SigningMethodES256, l.EC, "new"), "no key"},
		"no token":                   {func(map[string]any) string { return "ada" }, "is wrong"},
		"no subject":                 {with("sub", nil), "no text in the claim sub"},
		"an empty subject":           {with("sub", ""), "no text in the claim sub"},
		"a subject that is a number": {with("sub", 5), "no text in the claim sub"},
		"a subject that is a list":   {with("sub", []string{"ada"}), "no text in the claim sub"},
		"a long subject":             {with("sub", strings.Repeat("a", 256)), "more than 255"},
		"a subject with a line":      {with("sub", "ada\nbob"), "unprintable"},
		"a subject with bidi":        {with("sub", "ada\u202e"), "unprintable"},
		"service_role":               {with("sub", "service_role"), "name of a role of the database"},
		"a role of the database":     {with("sub", "operator"), "name of a role of the database"},
		"a role in capitals":         {with("sub", "OPERATOR"), "name of a role of the database"},
		"groups as an object":        {with("groups", map[string]bool{"ops": true}), "neither a text nor a list"},
		"groups with a number":       {with("groups", []any{"ops", 1}), "neither a text nor a list"},
		"groups without an end": {
			with("groups", strings.Split(strings.Repeat("ops ", mostGroups+1), " ")), "neither a text nor a list",
		},
		"a claim twice": {func(claims map[string]any) string {
			text, _ := json.Marshal(claims)
			head := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","kid":"ec"}`))
			signing := head + "." + base64.RawURLEncoding.EncodeToString(append([]byte(`{"sub":"bob",`), text[1:]...))
			signature, _ := jwt.SigningMethodES256.Sign(signing, l.EC)
			return signing + "." + base64.RawURLEncoding.EncodeToString(signature)
		}, "a claim twice"},
	} {
		l.IDToken = c.token
		p, eve := l.signIn(t, "/calls")
		if _, err := l.user(t, eve); err == nil || p.status != 401 && p.status != 403 || !strings.Contains(p.text, c.want) {
			t.Errorf("%s: %d, user %v: %s", name, p.status, err, p.text)
		}
	}
	l.IDToken = right
	if p, _ := l.signIn(t, "/calls"); p.status != 200 {
		t.Errorf("a right one: %d %s", p.status, p.text)
	}
}

func TestTheSubjectAndTheGroupsAreClaims(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		subject string
		claims  map[string]any
		want    string // the name; empty: refused
		status  int
		op      bool
	}{
		"a group as a text":           {"", map[string]any{"groups": "ops"}, "ada", 200, true},
		"no comma divides a text":     {"", map[string]any{"groups": "staff,ops"}, "ada", 200, false},
		"no groups":                   {"", nil, "ada", 200, false},
		"nobody is in a group by sub": {"", map[string]any{"sub": "@ops"}, "@ops", 200, false},
		"a verified email": {
			"email", map[string]any{"email": "ada@example.com", "email_verified": true}, "ada@example.com", 200, false,
		},
		"an unverified email": {
			"email", map[string]any{"email": "ada@example.com", "email_verified": false}, "", 401, false,
		},
		"an email, verified in words": {
			"email", map[string]any{"email": "ada@example.com", "email_verified": "true"}, "", 401, false,
		},
		"an email without a word": {"email", map[string]any{"email": "ada@example.com"}, "", 401, false},
		"another claim": {
			"preferred_username", map[string]any{"preferred_username": "countess"}, "countess", 200, false,
		},
		"another claim is missing": {"preferred_username", nil, "", 401, false},
	} {
		l := newLobby(t, func(o *Options) { o.OIDC.SubjectClaim = c.subject })
		l.Claims = c.claims
		p, browser := l.signIn(t, "/calls")
		u, _ := l.user(t, browser)
		if p.status != c.status || u.Name != c.want || u.Operator != c.op {
			t.Errorf("%s: %d %+v %s", name, p.status, u, p.text)
		}
		scope := map[bool]string{true: "openid", false: "openid email profile"}[c.subject == ""]
		if l.Asked.Get("scope") != scope {
			t.Errorf("%s: scope %s", name, l.Asked.Get("scope"))
		}
	}
	l := newLobby(t, func(o *Options) { o.Roles = Roles{"viewer": {"@staff"}}; o.OIDC.GroupsClaim = "email" })
	l.Claims = map[string]any{"email": "staff", "email_verified": false}
	if p, _ := l.signIn(t, "/calls"); p.status != 403 || !strings.Contains(p.text, "neither you, as ada, nor") {
		t.Errorf("an unverified email as a group: %d %s", p.status, p.text)
	}
}

func TestAnIssuerThatCannotBeAskedIsReported(t *testing.T) {
	t.Parallel()
	endless := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	}
	loop := func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for name, c := range map[string]struct {
		change func(*lobby)
		want   string // in the log
	}{
		"the issuer of another": {
			func(l *lobby) { l.Metadata = map[string]any{"issuer": l.URL + "/"} }, "must be exactly",
		},
		"an endpoint without TLS": {
			func(l *lobby) { l.Metadata = map[string]any{"token_endpoint": "http://issuer.example/token"} }, "token_endpoint is",
		},
		"an endpoint that is no URL": {
			func(l *lobby) { l.Metadata = map[string]any{"jwks_uri": "file:///etc/passwd"} }, "jwks_uri is",
		},
		"an endpoint with a user": {
			func(l *lobby) { l.Metadata = map[string]any{"authorization_endpoint": "https://a:b@issuer.example"} },
			"authorization_endpoint is",
		},
		"no token endpoint": {
			func(l *lobby) { l.Metadata = map[string]any{"token_endpoint": nil} }, "token_endpoint is",
		},
		"secrets that it does not take": {
			func(l *lobby) { l.Metadata = map[string]any{"token_endpoint_auth_methods_supported": []string{"tls"}} },
			"neither client_secret_basic",
		},
		"no metadata":             {func(l *lobby) { l.Discovery = status(404) }, "HTTP status 404"},
		"metadata that redirects": {func(l *lobby) { l.Discovery = loop }, "HTTP status 302"},
		"metadata without an end": {func(l *lobby) { l.Discovery = endless }, "longer than"},
		"metadata of another form": {func(l *lobby) {
			l.Discovery = func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "[]") }
		}, "not JSON"},
		"no token":              {func(l *lobby) { l.Token = status(200) }, "no ID token"},
		"tokens that redirect":  {func(l *lobby) { l.Token = loop }, "HTTP status 302"},
		"tokens without an end": {func(l *lobby) { l.Token = endless }, "longer than"},
		"another secret":        {func(l *lobby) { l.Public = true }, "invalid_client"},
		"keys without an end":   {func(l *lobby) { l.Answers(endless) }, "longer than"},
		"no keys":               {func(l *lobby) { l.Answers(status(503)) }, "HTTP status 503"},
	} {
		l := newLobby(t, nil)
		c.change(l)
		p, browser := l.signIn(t, "/calls")
		_, err := l.user(t, browser)
		if err == nil || p.status != http.StatusBadGateway || !strings.Contains(p.text, "cannot be asked who you are") {
			t.Errorf("%s: %d, user %v: %s", name, p.status, err, p.text)
		}
		if l.logs.FilterMessageSnippet(c.want).Len() == 0 {
			t.Errorf("%s: the log has %v", name, l.logs.All())
		}
	}
}

func TestAnIssuersWordsAreShownAsTextToTheBrowserThatItSentBack(t *testing.T) {
	t.Parallel()
	l := newLobby(t, nil)
	words := "<script>alert(1)</script>\r\nSet-Cookie: evil=1 \u202e" + strings.Repeat("x", 5000)
	l.Authorize = func(w http.ResponseWriter, r *http.Request) {
		q := url.Values{"error": {"access_denied"}, "error_description": {words}, "state": {r.URL.Query().Get("state")}}
		http.Redirect(w, r, r.URL.Query().Get("redirect_uri")+"?"+q.Encode(), http.StatusFound)
	}
	p, _ := l.signIn(t, "/calls")
	if p.status != 401 || !strings.Contains(p.text, "The issuer did not sign you in: access_denied, &lt;script&gt;") ||
		strings.Contains(p.text, strings.Repeat("x", 301)) || strings.Contains(p.text, "<script>alert") ||
		strings.ContainsRune(p.text, '\u202e') {
		t.Errorf("%d %s", p.status, p.text)
	}
	for name, values := range p.header {
		if strings.Contains(fmt.Sprint(values), "evil") {
			t.Errorf("header %s: %q", name, values)
		}
	}
	stranger := get(t, browser(t), l.url+"/login/callback?error=x&error_description=call+the+help+desk&state=abc")
	if stranger.status != 401 || strings.Contains(stranger.text, "help desk") {
		t.Errorf("a stranger's words: %d %s", stranger.status, stranger.text)
	}
}

func TestAClientMaySendItsSecretInTheFormOrHaveNone(t *testing.T) {
	t.Parallel()
	post := newLobby(t, nil)
	post.Metadata = map[string]any{"token_endpoint_auth_methods_supported": []string{"client_secret_post"}}
	p, _ := post.signIn(t, "/calls")
	if p.status != 200 || post.Exchanged.Get("client_secret") != issuertest.ClientSecret {
		t.Errorf("client_secret_post: %d %s", p.status, p.text)
	}
	public := newLobby(t, func(o *Options) { o.OIDC.ClientSecret = "" })
	public.Public = true
	if p, _ := public.signIn(t, "/calls"); p.status != 200 {
		t.Errorf("without a secret: %d %s", p.status, p.text)
	}
	open := newLobby(t, func(o *Options) { o.OIDC.ClientSecret = "" })
	open.Public, open.Metadata = true, map[string]any{"code_challenge_methods_supported": nil}
	if p, _ := open.signIn(t, "/calls"); p.status != http.StatusBadGateway {
		t.Errorf("without a secret, and perhaps without PKCE: %d %s", p.status, p.text)
	}
}

func TestOnlyTheIssuerOfTheFrontendsKnowsPeopleByTheirNames(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change   func(*Options, string)
		metadata map[string]any
		want     string // a part of the reason; empty: they have one name
	}{
		"the same issuer": {func(o *Options, at string) { o.OIDC.Frontends = []string{at, at} }, nil, ""},
		"not known":       {func(*Options, string) {}, nil, "GEM_DASHBOARD_FRONTENDS_ISSUER"},
		"another issuer": {
			func(o *Options, _ string) { o.OIDC.Frontends = []string{"https://other.example"} }, nil, "https://other.example",
		},
		"another issuer of gem mcp": {
			func(o *Options, at string) { o.OIDC.Frontends = []string{at, "https://other.example"} }, nil,
			"https://other.example",
		},
		"another claim": {
			func(o *Options, at string) { o.OIDC.Frontends, o.OIDC.SubjectClaim = []string{at}, "name" }, nil, "the claim name",
		},
		"another sub for each client": {
			func(o *Options, at string) { o.OIDC.Frontends = []string{at} },
			map[string]any{"subject_types_supported": []string{"pairwise"}}, "another sub",
		},
	} {
		l := newLobby(t, func(o *Options) { c.change(o, o.OIDC.Issuer) })
		l.Claims, l.Metadata = map[string]any{"name": "Ada"}, c.metadata
		_, browser := l.signIn(t, "/calls")
		u, err := l.user(t, browser)
		if err != nil || (u.OtherName == "") != (c.want == "") || !strings.Contains(u.OtherName, c.want) {
			t.Errorf("%s: %+v %v", name, u, err)
		}
	}
}
