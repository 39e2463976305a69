package chromium

import (
	"context"
	"net/http"
	"testing"

	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/login"
	"github.com/gemworker/gem/internal/testing/oidcprovider"
)

// The issuer is on another site, so that the browser withholds the strict cookie on the way back.
func TestAnIssuerOnAnotherSiteSignsABrowserIn(t *testing.T) {
	t.Parallel()
	s := newScene(t, withoutWorker)
	queued := s.Insert(of("shop.charge", `{"order": "A-1"}`))
	var pages http.Handler
	origin := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { pages.ServeHTTP(w, r) }))
	issuer := oidcprovider.Start(t, oidcprovider.Options{
		Client:   oidcprovider.Client{ID: "gem", Secret: "hunter2", Redirects: []string{origin + "/login/callback"}},
		Accounts: map[string]map[string]any{"ada": {"groups": []string{"ops"}}},
	})
	auth, err := login.New(login.Options{
		Auth: "oidc", Roles: login.Roles{"operator": {"@ops"}, "viewer": {"@staff"}},
		OIDC: login.OIDC{
			Issuer: issuer, ClientID: "gem", ClientSecret: handlers.Secret("hunter2"), GroupsClaim: "groups", URL: origin + "/",
		},
		IsRole: func(context.Context, string) (bool, error) { return false, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	pages = s.handler(ada, func(o *dashboard.Options) { o.User, o.Login = auth.User, auth.Login() })

	b := openTab(t, origin)
	b.expects("status of 401", "localhost", "font", "Content Security Policy")
	b.visit("/calls/" + queued)
	for _, scheme := range []string{"light", "dark"} {
		b.look(scheme, narrow)
		b.barrierFree(scheme)
	}
	b.follow("a.main")
	b.fill("[name=login]", "ada")
	b.fill("[name=password]", "any")
	b.follow("[type=submit]")
	b.follow("[type=submit]") // the issuer asks whether this dashboard may know the user
	b.until("the page that was asked for", "location.pathname === '/calls/"+queued+
		"' && document.readyState === 'complete'")
	if b.text(".user") != "ada" {
		t.Errorf("the call, for ada: %s", b.text("body"))
	}
	b.has("A-1") // an operator sees inputs
	b.follow("form[action$='/logout'] button")
	if at := b.where(); at != "/login" {
		t.Errorf("after the session: %s", at)
	}
}
