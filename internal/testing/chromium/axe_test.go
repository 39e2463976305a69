package chromium

import (
	"strings"
)

// axe checks the page by the rules of WCAG 2.2 A and AA, and returns a line for each violation.
func (b *tab) axe() []string {
	b.t.Helper()
	if !eval[bool](b, "!!window.axe") {
		eval[any](b, browser.axe+";null")
	}
	return eval[[]string](b,
		`axe.run(document, {resultTypes: ["violations"], runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}).then(found =>
		found.violations.flatMap(v => v.nodes.map(n => v.id + " " + n.target.join(" ") + ": " + n.failureSummary.replace(/\s+/g, " ") + " " + n.html.slice(0, 200))))`)
}

// tooWide describes the elements that are wider than the window.
func (b *tab) tooWide() string {
	b.t.Helper()
	return eval[string](b, `(() => {
		const most = document.documentElement.clientWidth;
		if (document.documentElement.scrollWidth <= most) return "";
		const right = e => e.getBoundingClientRect().right;
		const out = [...document.querySelectorAll("body *")]
			.filter(e => right(e) > most + 1 && getComputedStyle(e).position !== "absolute")
			.map(e => e.tagName.toLowerCase() + (e.className ? "." + e.className : "") + " ends at " + Math.round(right(e)));
		return document.documentElement.scrollWidth + " pixels in a window of " + most + ": " + out.slice(0, 5).join(", ");
	})()`)
}

// barrierFree fails the test if axe finds a violation, or if the page scrolls sideways.
func (b *tab) barrierFree(look string) {
	b.t.Helper()
	if found := b.axe(); len(found) > 0 {
		b.t.Errorf("%s, %s: axe found\n%s", b.where(), look, strings.Join(found, "\n"))
	}
	if wide := b.tooWide(); wide != "" {
		b.t.Errorf("%s, %s: %s", b.where(), look, wide)
	}
}
