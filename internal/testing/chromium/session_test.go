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
		ids = append(ids, s.Insert(inSession(of("os.create_note",
			fmt.Sprintf(`{"domain": "business", "title": "note %d", "content": "A note."}`, n)), "long talk")))
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
	indents := map[string]string{} // by call
	for range 20 {
		for _, c := range eval[[][3]string](b,
			`[...document.querySelectorAll("main .thread a.id")].map(a => [a.title, a.getAttribute("href"), a.closest("li").className])`) {
			if seen, indents[c[0]] = append(seen, c[0]), c[2]; c[1] != "/calls/"+c[0] {
				t.Errorf("the link of %s leads to %s", c[0], c[1])
			}
		}
		later := eval[bool](b,
			`(a => { if (a) a.id = "later"; return !!a })([...document.querySelectorAll("main .pages a")].find(a => a.textContent.includes("Later")))`)
		if !later {
			break
		}
		b.follow("#later")
	}
	want := strings.Fields(s.value("select string_agg(id::text, ' ' order by seq) from core_tool_calls where session_id " +
		"= 'long talk' and parent_call_id is null"))
	var roots []string
	for _, id := range seen {
		if slices.Contains(want, id) {
			roots = append(roots, id)
		}
	}
	if !slices.Equal(roots, want) {
		t.Errorf("the session shows %d calls of %d that nobody's handler made, or in another order", len(roots), len(want))
	}
	// Children follow the call that made them, indented by one step, in order.
	children := strings.Fields(s.value("select string_agg(id::text, ' ' order by seq) from core_tool_calls where "+
		"parent_call_id = $1", parent))
	if at := slices.Index(seen, parent) + 1; !slices.Equal(seen[at:at+len(children)], children) {
		t.Errorf("behind their parent stand %v, want the children %v", seen[at:at+len(children)], children)
	}
	for _, id := range slices.Concat(roots, children) {
		if want := map[bool]string{false: "in0", true: "in1"}[slices.Contains(children, id)]; indents[id] != want {
			t.Errorf("%s stands at %s, want %s", id, indents[id], want)
		}
	}

	b.visit("/calls/" + hit)
	if b.count(`main a[href*="`+s.value("select replay_of from core_tool_receipts where call_id = $1", hit)+
		`"], main a[href$="/calls/`+first+`"]`) == 0 {
		t.Error("the page of a hit does not lead to the call whose result it has")
	}
	checked := b.text("#checked")
	s.exec("set session_replication_role = replica; update core_tool_calls set status = 'failed' where id = '" + first +
		"'; set session_replication_role = origin")
	b.visit("/calls/" + first)
	if forged := b.text("#checked"); forged == checked || forged == "" {
		t.Errorf("an altered row is not called out: %q, and of one that was not %q", forged, checked)
	}
}
