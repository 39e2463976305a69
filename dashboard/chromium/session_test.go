package chromium

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Scenario 17.
func TestASessionIsShownInOrderAndAnAlteredRowIsCalledOut(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	var ids []string
	for n := range 280 {
		ids = append(ids, s.Insert(inSession(of("os.create_note", fmt.Sprintf(`{"domain": "business", "title": "note %d", "content": "A note."}`, n)), "long talk")))
	}
	parent := s.Insert(inSession(of("shop.fulfil", `{"order": "A-1"}`), "long talk"))
	s.Answer(s.Question(parent).ID, map[string]any{"door": "blue", "floor": 1, "lift": true})
	first := s.Insert(inSession(of("shop.ship", `{"order": "A-1"}`), "long talk"))
	s.Await(first)
	hit := s.Insert(inSession(of("shop.ship", `{"order": "A-1"}`), "long talk"))
	for _, id := range append(ids, parent, hit) {
		s.Await(id)
	}
	b := openTab(t, s.serve(ada))
	b.visit("/sessions?id=long+talk")
	var seen []string
	for range 20 {
		seen = append(seen, eval[[]string](b, `[...document.querySelectorAll("main .thread a.id")].map(a => a.title)`)...)
		later := eval[bool](b, `(a => { if (a) a.id = "later"; return !!a })([...document.querySelectorAll("main .pages a")].find(a => a.textContent.includes("Later")))`)
		if !later {
			break
		}
		b.follow("#later")
	}
	want := strings.Fields(s.value("select string_agg(id::text, ' ' order by seq) from core_tool_calls where session_id = 'long talk' and parent_call_id is null"))
	var roots []string
	for _, id := range seen {
		if slices.Contains(want, id) {
			roots = append(roots, id)
		}
	}
	if !slices.Equal(roots, want) {
		t.Errorf("the session shows %d calls of %d that nobody's handler made, or in another order", len(roots), len(want))
	}
	for _, child := range strings.Fields(s.value("select string_agg(id::text, ' ') from core_tool_calls where parent_call_id = $1", parent)) {
		if !slices.Contains(seen, child) {
			t.Errorf("the session lacks the child %s", child)
		}
	}

	b.visit("/calls/" + hit)
	if b.count(`main a[href*="`+s.value("select replay_of from core_tool_receipts where call_id = $1", hit)+`"], main a[href$="/calls/`+first+`"]`) == 0 {
		t.Error("the page of a hit does not lead to the call whose result it has")
	}
	checked := b.text("[aria-labelledby=checked]")
	s.exec("set session_replication_role = replica; update core_tool_calls set status = 'failed' where id = '" + first + "'; set session_replication_role = origin")
	b.visit("/calls/" + first)
	if forged := b.text("[aria-labelledby=checked]"); forged == checked || forged == "" {
		t.Errorf("an altered row is not called out: %q, and of one that was not %q", forged, checked)
	}
}
