package chromium

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/internal/login"
)

// Scenario 1, without JavaScript, and with a link on another site, for which a browser withholds a strict cookie.
func TestALinkSignsOneBrowserInAndPagesAreFoundFromElsewhere(t *testing.T) {
	t.Parallel()
	s := newScene(t, withoutWorker)
	queued := s.Insert(of("shop.charge", `{"order": "A-1"}`))
	auth, err := login.New(login.Options{Auth: "link", Name: "operator", Used: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	link := "/login?token=" + auth.NewLink()
	origin := s.serve(ada, func(o *dashboard.Options) { o.User, o.Login = auth.User, auth.Login() })
	elsewhere := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<title>elsewhere</title><link rel=icon href="data:,"><a href="%s/calls/%s">the call</a>`, origin,
			queued)
	}))
	elsewhere = strings.Replace(elsewhere, "127.0.0.1", "elsewhere.example", 1)

	b := openTab(t, origin, scriptless)
	b.expects("left the origin", "status of 401")
	b.visit("/calls/" + queued)
	if at := b.where(); at != "/login?to=%2Fcalls%2F"+queued || strings.Contains(b.text("body"), "shop.charge") {
		t.Errorf("without a session: %s", at)
	}
	b.visit(link)
	if at := b.where(); at != "/" {
		t.Errorf("the link leads to %s", at)
	}
	b.visit("/calls/" + queued)
	if b.text(".user") != "operator" || !strings.Contains(b.text("main"), "A-1") {
		t.Errorf("the call, for an operator: %s", b.text("body"))
	}
	if status := b.visit(link); status != 401 {
		t.Errorf("the link again: %d", status)
	}

	b.origin = elsewhere
	b.visit("/")
	b.origin = origin
	b.follow("a")
	b.until("the login page to look again for the session",
		"location.pathname === '/calls/"+queued+"' && document.readyState === 'complete'")
	b.follow("form[action$='/logout'] button")
	if at := b.where(); at != "/login" {
		t.Errorf("after the session: %s", at)
	}
	b.visit("/calls/" + queued)
	if at := b.where(); !strings.HasPrefix(at, "/login?") {
		t.Errorf("after the session the call is at %s", at)
	}
}

func TestTheLoginPagesAreFreeOfBarriers(t *testing.T) {
	t.Parallel()
	s := newScene(t, withoutWorker)
	hash, err := login.HashPassword([]byte("correct horse"))
	if err != nil {
		t.Fatal(err)
	}
	auth, err := login.New(login.Options{Auth: "password", Name: "operator", PasswordHash: hash})
	if err != nil {
		t.Fatal(err)
	}
	b := openTab(t, s.serve(ada, func(o *dashboard.Options) { o.User, o.Login = auth.User, auth.Login() }))
	b.expects("status of 401")
	b.visit("/calls")
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{wide, narrow} {
			b.look(scheme, width)
			b.barrierFree(scheme)
		}
	}
	b.fill("[name=password]", "wrong")
	b.follow("button.main")
	b.has("The password is wrong.")
	b.fill("[name=password]", "correct horse")
	b.follow("button.main")
	if at := b.where(); at != "/calls" {
		t.Errorf("the password leads to %s", at)
	}
}
