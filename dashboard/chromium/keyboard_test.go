package chromium

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// Scenario 18.
func TestTheKeyboardAloneFindsAFailedCallAndDoesItAgain(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for range 3 {
		s.Await(s.Insert(of("os.create_note", note)))
	}
	failed := s.Insert(of("shop.ship", `{"order": "late-9"}`))
	s.Await(failed)
	b := openTab(t, s.serve(ada))
	b.visit("/")

	// The link that skips the navigation is the first that Tab finds.
	b.press(kb.Tab)
	b.focused("the skip link")
	if got := eval[string](b, "document.activeElement.hash"); got != "#main" {
		t.Errorf("Tab finds %q first", got)
	}
	b.tabTo("the list of calls", `a.pathname.endsWith("/calls") && a.closest("nav")`)
	b.leads("Enter", pressing(kb.Enter))

	// j and k move over the rows, Enter opens one.
	b.press("j")
	b.press("j")
	b.press("k")
	b.focused("the first row")
	b.leads("Enter", pressing(kb.Enter))
	if got := b.where(); got != "/calls/"+failed {
		t.Errorf("j, j, k and Enter lead to %s", got)
	}
	b.tabTo("Again", `a.pathname && a.pathname.endsWith("/again")`)
	b.leads("Enter", pressing(kb.Enter))
	b.tabTo("the button", `a.matches("main form button.main")`)
	b.leads("Enter", pressing(kb.Enter))
	again := strings.TrimPrefix(strings.SplitN(b.where(), "?", 2)[0], "/calls/")
	if s.value("select count(*) from core_tool_calls where id = $1", again) != "1" || again == failed {
		t.Errorf("the button leads to %s", b.where())
	}

	// Slash goes to the search, and a question mark shows what the keys do.
	b.press("?")
	b.until("help", `document.querySelector("dialog[open], [role=dialog]:not([hidden])")`)
	b.barrierFree("with help")
	b.press(kb.Escape)
	b.until("no help", `!document.querySelector("dialog[open], [role=dialog]:not([hidden])")`)
	b.press("/")
	b.until("the search", `document.activeElement.id === "search"`)
	b.types(failed)
	b.leads("Enter", pressing(kb.Enter))
	if got := b.where(); got != "/calls/"+failed {
		t.Errorf("the search for an id leads to %s", got)
	}
}

// tabTo presses Tab until the element a that has the focus is the one.
func (b *tab) tabTo(what, is string) {
	b.t.Helper()
	for range 200 {
		b.press(kb.Tab)
		b.focused(what)
		if eval[bool](b, fmt.Sprintf("!!(a => %s)(document.activeElement)", is)) {
			return
		}
	}
	b.t.Fatalf("%s: Tab does not find %s", b.where(), what)
}

// focused fails the test unless the element that has the focus shows it, and is where it can be seen.
func (b *tab) focused(what string) {
	b.t.Helper()
	if fault := eval[string](b, `(() => {
		const a = document.activeElement, s = getComputedStyle(a), r = a.getBoundingClientRect();
		const name = a.tagName + " " + a.textContent.trim().slice(0, 40);
		if (a === document.body) return "";
		if ((s.outlineStyle === "none" || parseFloat(s.outlineWidth) < 1) && s.boxShadow === "none") return name + " has the focus and does not show it";
		if (r.bottom < 0 || r.top > innerHeight || r.right < 0 || r.left > innerWidth || r.width < 2) return name + " has the focus and is not in sight";
		return "";
	})()`); fault != "" {
		b.t.Errorf("%s, on the way to %s: %s", b.where(), what, fault)
	}
}
