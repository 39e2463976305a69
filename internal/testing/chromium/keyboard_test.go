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
	s.Await(s.Insert(of("os.create_note", note)))
	s.Await(s.Insert(of("shop.ship", `{"order": "late-8"}`)))
	failed := s.Insert(of("shop.ship", `{"order": "late-9"}`))
	s.Await(failed)
	b := openTab(t, s.serve(ada))
	b.visit("/")

	// The first Tab reaches the link that skips the navigation.
	b.press(kb.Tab)
	b.focused("the skip link")
	if got := eval[string](b, "document.activeElement.hash"); got != "#main" {
		t.Errorf("Tab finds %q first", got)
	}
	b.tabTo("the list of calls", `a.pathname.endsWith("/calls") && a.closest("nav")`)
	b.leads("Enter", pressing(kb.Enter))

	// The filter finds the failed calls.
	b.tabTo("the states", `a.name === "state"`)
	b.press("f")
	b.tabTo("Filter", `a.textContent === "Filter"`)
	b.leads("Enter", pressing(kb.Enter))
	if got := b.where(); got != "/calls?state=failed" {
		t.Errorf("the filter leads to %s", got)
	}

	// j and k move through the rows, and Enter opens one.
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

	// A slash goes to the search, and a question mark shows the help for the keys.
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

// tabTo presses Tab until the focused element a matches a condition in JavaScript.
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

// focused fails the test unless the focused element is visible and shows its focus.
func (b *tab) focused(what string) {
	b.t.Helper()
	if fault := eval[string](b, "("+unseen+")(document.activeElement)"); fault != "" {
		b.t.Errorf("%s, on the way to %s: %s", b.where(), what, fault)
	}
}

// unseen is a JavaScript function that returns why the focus of an element is not visible, or "" if it is visible.
const unseen = `a => {
	if (a === document.body) return "";
	const s = getComputedStyle(a), name = a.tagName + " " + (a.name || a.textContent).trim().slice(0, 40);
	if (s.outlineStyle === "none" || parseFloat(s.outlineWidth) < 2 || /, 0\)$|transparent/.test(s.outlineColor))
		return name + " has the focus and does not show it";
	const r = [...a.getClientRects()].find(r => r.width > 1 && r.height > 1
		&& r.bottom > 0 && r.top < innerHeight && r.right > 0 && r.left < innerWidth);
	if (!r) return name + " has the focus and is not in sight";
	const over = document.elementFromPoint((Math.max(r.left, 0) + Math.min(r.right, innerWidth)) / 2,
		(Math.max(r.top, 0) + Math.min(r.bottom, innerHeight)) / 2);
	if (over && !a.contains(over) && !over.contains(a))
		return name + " has the focus and is below " + over.tagName + " " + over.className;
	return "";
}`

// showsFocus focuses each focusable element of the page in turn. It fails the test for elements that do not show it.
func (b *tab) showsFocus(look string) {
	b.t.Helper()
	b.press(kb.Tab) // the page does not show the focus to users of a mouse
	faults := eval[[]string](b, `(unseen => {
		const faults = [];
		let seen = 0;
		for (const e of document.querySelectorAll(
			"a[href], button, input, select, textarea, summary, [tabindex]:not([tabindex='-1'])")) {
			if (!e.checkVisibility({ visibilityProperty: true })) continue;
			e.focus();
			if (document.activeElement !== e) continue;
			seen++;
			const fault = unseen(e);
			if (fault) faults.push(fault);
		}
		document.activeElement.blur();
		scrollTo(0, 0);
		return seen ? faults : ["nothing takes the focus"];
	})(`+unseen+`)`)
	if len(faults) > 0 {
		b.t.Errorf("%s, %s: %s", b.where(), look, strings.Join(faults, "\n"))
	}
}
