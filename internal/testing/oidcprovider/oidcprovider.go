// Package oidcprovider starts a third-party issuer: oidc-provider, from npm, a certified implementation of OpenID
// Connect. It requires PKCE, and its pages sign in anybody by name.
//
//	issuer := oidcprovider.Start(t, oidcprovider.Options{Client: oidcprovider.Client{ID: "gem", Redirects: …}})
//
// If it is missing, tests that need it are skipped, or fail if GEM_TEST_REQUIRE is set. See [Install].
package oidcprovider

import (
	"encoding/json"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/npmrig"
)

// Install is the command that installs oidc-provider. Run it at the top of the repository.
const Install = "npm ci --prefix internal/testing/oidcprovider"

// Options of an issuer.
type Options struct {
	Client   Client                    `json:"client"`
	Accounts map[string]map[string]any `json:"accounts"` // the claims of people, by their sub
}

// Client is the client that the issuer knows.
type Client struct {
	ID         string   `json:"client_id"`
	Secret     string   `json:"client_secret,omitempty"`
	AuthMethod string   `json:"token_endpoint_auth_method,omitempty"` // client_secret_basic by default
	Redirects  []string `json:"redirect_uris"`
}

// Start starts an issuer on localhost and returns its URL. The issuer stops at the end of the test.
func Start(t testing.TB, o Options) string {
	t.Helper()
	node, folder := npmrig.Node(t, "internal/testing/oidcprovider", "oidc-provider", Install)
	var log strings.Builder
	t.Cleanup(func() { // after the program has ended
		if t.Failed() {
			t.Logf("oidc-provider:\n%s", log.String())
		}
	})
	in, out := npmrig.Start(t, node, folder, &log, "server.mjs")
	if err := json.NewEncoder(in).Encode(o); err != nil {
		t.Fatal(err)
	}
	address, err := out.ReadString('\n')
	if err != nil {
		t.Fatalf("oidc-provider printed no address: %v", err)
	}
	return strings.TrimSpace(address)
}

var action = regexp.MustCompile(`<form[^>]* action="([^"]+)"`)

// SignIn opens the URL of a sign-in with a browser that keeps cookies, and fills in the issuer's two pages for a
// person. It returns the page to which the issuer redirects the browser.
func SignIn(t testing.TB, browser *http.Client, address, person string) (status int, page string, at *url.URL) {
	t.Helper()
	answer, err := browser.Get(address) //nolint:bodyclose,noctx // read closes it
	for _, form := range []url.Values{
		{"prompt": {"login"}, "login": {person}, "password": {"any"}}, {"prompt": {"consent"}},
	} {
		if err != nil {
			t.Fatal(err)
		}
		text := read(t, answer)
		found := action.FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("%s has no form: %d %s", answer.Request.URL, answer.StatusCode, text)
		}
		to, wrong := answer.Request.URL.Parse(html.UnescapeString(found[1]))
		if wrong != nil {
			t.Fatal(wrong)
		}
		answer, err = browser.PostForm(to.String(), form) //nolint:bodyclose,noctx // read closes it
	}
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, read(t, answer), answer.Request.URL
}

func read(t testing.TB, answer *http.Response) string {
	t.Helper()
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
