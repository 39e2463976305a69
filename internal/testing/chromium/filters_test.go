package chromium

import (
	"encoding/json"
	"slices"
	"strconv"
	"testing"

	"github.com/chromedp/chromedp"
)

// rowsOf returns the ids of the calls in a list, in order.
func (b *tab) rowsOf() []string {
	b.t.Helper()
	return eval[[]string](b, `[...document.querySelectorAll("main tbody tr[data-key]")].map(r => r.dataset.key)`)
}

// Scenario 16.
func TestTheAddressOfAListIsAllOfItsState(t *testing.T) {
	t.Parallel()
	d := newDay(t)
	b := openTab(t, d.serve(ada), scriptless)
	b.visit("/calls")
	all := b.rowsOf()
	b.fill("main form [name=tool]", "shop.charge")
	b.leads("Enter", chromedp.KeyEvent("\r"))
	charges := b.rowsOf()
	if want := d.ids("tool_name = 'shop.charge'"); !slices.Equal(charges, want) {
		t.Errorf("the list shows %d calls to shop.charge, and there are %d", len(charges), len(want))
	}
	for _, path := range []string{"/calls", b.where(), "/calls?state=open", "/calls?state=failed&tool=shop.charge",
		"/calls?session=s-morning", "/calls?key=note-1", "/calls?state=scheduled", "/calls?code=card_declined"} {
		other := openTab(t, b.origin, scriptless) // a browser without history
		other.visit(path)
		b.visit(path)
		if here, there := b.rowsOf(), other.rowsOf(); !slices.Equal(here, there) || len(here) == 0 {
			t.Errorf("%s shows %d calls, and %d in another browser", path, len(here), len(there))
		}
	}
	b.visit("/calls")
	b.visit("/calls?tool=shop.charge")
	shows := func(rows []string) string { // pages may come back from the browser's memory, which loads nothing
		return `JSON.stringify([...document.querySelectorAll("main tbody tr[data-key]")].map(r => r.dataset.key)) === ` +
			strconv.Quote(string(encode(rows)))
	}
	eval[any](b, "history.back(), null")
	b.until("the list before", shows(all))
	eval[any](b, "history.forward(), null")
	b.until("the list behind it", shows(charges))

	// Older calls are on further pages, each once.
	b.visit("/calls")
	seen := b.rowsOf()
	for b.count("main a[rel=next]") > 0 {
		b.follow("main a[rel=next]")
		seen = append(seen, b.rowsOf()...)
	}
	if want := d.ids("true"); !slices.Equal(seen, want) {
		t.Errorf("all pages show %d calls, and there are %d", len(seen), len(want))
	}

	// The JSON matches the views.
	d.agrees(b.origin)
}

func encode(rows []string) []byte {
	text, _ := json.Marshal(rows)
	return text
}

// ids returns the calls that match a condition, the newest first.
func (s *scene) ids(condition string) (ids []string) {
	s.t.Helper()
	if err := json.Unmarshal([]byte(s.value("select json_agg(id order by created_at desc, id desc) from core_tool_calls "+
		"where "+condition)), &ids); err != nil {
		s.t.Fatal(err)
	}
	return ids
}
