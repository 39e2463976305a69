package chromium

import (
	"flag"
	"slices"
	"testing"
)

var paints = flag.Int("paints", 0, "measure the first paint of the overview in this `number` of browsers, each with "+
	"an empty cache")

// For table 6, this measures the time from the click to the first contentful paint, and the bytes sent before and after
// it. It asserts nothing, since machines differ.
func TestHowSoonAPageIsPainted(t *testing.T) {
	if *paints == 0 {
		t.Skip("it measures: go test . -run Painted -paints 31 -v, on a machine that does nothing else")
	}
	d := newDay(t)
	origin := d.serve(ada)
	visited := func(b *tab, path string) (ms, bytes float64) {
		before := b.received()
		b.visit(path)
		b.until("its first paint",
			`performance.getEntriesByName("first-contentful-paint").length === 1 && document.readyState === "complete"`)
		ms = eval[float64](b, `performance.getEntriesByName("first-contentful-paint")[0].startTime`)
		b.until("all of its files",
			`performance.getEntriesByType("resource").every(r => r.initiatorType === "other" || r.responseEnd > 0)`)
		return ms, b.received() - before
	}
	var first, further, size, furtherSize []float64
	for range *paints {
		b := openTab(t, origin)
		ms, bytes := visited(b, "/")
		first, size = append(first, ms), append(size, bytes)
		ms, bytes = visited(b, "/calls")
		further, furtherSize = append(further, ms), append(furtherSize, bytes)
		b.leave()
	}
	report := func(what string, values []float64, unit string, divisor float64) {
		slices.Sort(values)
		t.Logf("%-40s p50 %6.1f %s, most %6.1f %s", what, values[len(values)/2]/divisor, unit, values[len(values)-1]/divisor,
			unit)
	}
	report("first paint of /, cold cache", first, "ms", 1)
	report("transferred for it", size, "kB", 1000)
	report("first paint of a further page", further, "ms", 1)
	report("transferred for that", furtherSize, "kB", 1000)
}

// received returns the bytes received so far, with headers. Streams count when they have ended.
func (b *tab) received() (bytes float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes
}
