package chromium

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/gemworker/gem/dashboard"
)

// Scenario 8, in a browser. Its tabs resolve every name below .example to this machine.
func TestAPageElsewhereCanNeitherFrameThePagesNorActNorTakeTheirName(t *testing.T) {
	t.Parallel()
	s := newScene(t, withoutWorker)
	queued := s.Insert(of("shop.charge", `{"order": "A-1"}`))
	origin := s.serve(ada, func(o *dashboard.Options) { o.Hosts = []string{"gem.example"} })
	evil := serve(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		switch q.URL.Path {
		case "/frame":
			fmt.Fprintf(w, `<title>ready</title><link rel=icon href="data:,"><iframe src="%s/"></iframe>`, origin)
		case "/form":
			fmt.Fprintf(w, `<link rel=icon href="data:,"><form method=post action="%s/calls/%s/cancel"><input name=form value=aaaaaaaaaaaaaaaaaaaaaaaaaa><button>win</button></form>`, origin, queued)
		}
	}))
	elsewhere := strings.Replace(evil, "127.0.0.1", "evil.example", 1)

	b := openTab(t, elsewhere)
	b.expects("left the origin", "frame-ancestors")
	b.visit("/frame")
	b.until("the frame to be refused", "document.title === 'ready'")
	if all := strings.Join(b.faulty(), "\n"); !strings.Contains(all, "frame-ancestors") {
		t.Errorf("the frame was not refused: %s", all)
	}

	b.expects("status of 403", "favicon.ico")
	b.visit("/form")
	b.follow("button")
	if text := b.text("body"); !strings.Contains(text, "cross-origin") {
		t.Errorf("the form of another site came to %s: %q", b.where(), text)
	}
	if got := s.value("select status from core_tool_calls where id = $1", queued); got != "queued" {
		t.Errorf("another site made the call %s", got)
	}

	other := openTab(t, strings.Replace(origin, "127.0.0.1", "evil.example", 1))
	other.expects("status of 403", "favicon.ico", "Cross-Origin-Opener-Policy")
	if status := other.visit("/"); status != 403 {
		t.Errorf("under the name evil.example the overview is answered with %d", status)
	}
}

// Scenarios 2 and 3.
func TestALookStaysAndNeedsNoScript(t *testing.T) {
	t.Parallel()
	s := newScene(t, withoutWorker)
	origin := s.serve(ada)
	for name, b := range map[string]*tab{"with scripts": openTab(t, origin),
		"without scripts": openTab(t, origin, scriptless)} {
		background := "getComputedStyle(document.documentElement).backgroundColor"
		b.visit("/")
		light := eval[string](b, background)
		b.follow("footer button[value=dark]")
		dark := eval[string](b, background)
		b.visit("/")
		if again := eval[string](b, background); light == dark || again != dark {
			t.Errorf("%s: light %s, dark %s, dark again %s", name, light, dark, again)
		}
		b.look("dark", wide)
		b.follow("footer button[value=light]")
		if got := eval[string](b, background); got != light {
			t.Errorf("%s: light where the system is dark: %s", name, got)
		}
	}
}
