package grounding

import "sort"

// claim is an item whose quote was found. choose selects its spot.
type claim struct {
	class string
	quote string
	sighting
	hint   int // index of the spot at the model's own offset, or -1
	spot   int // index of the chosen spot
	placed bool
}

// weight ranks placements: first by the total length of the placed claims, then by the number of hints that match.
type weight int64

func (c *claim) weight(spot int) weight {
	w := weight(c.spots[spot].end-c.spots[spot].start) << 16
	if spot == c.hint {
		w++
	}
	return w
}

// choose selects a spot for each claim. The claims must be in the order of the answer. choose keeps that order, avoids
// overlaps and prefers the greatest total length. Ties go to the model's offsets, then to the earliest spots. A claim
// that breaks the order gets a spot that no claim of its class has taken. work counts the steps.
//
// An answer may be out of order as a whole but in order within each class, because the model went class by class. Or
// the model listed the cells of each row in its own order. In that case the quotes that occur once show where to look
// for the rest. choose tries all three: the order of the answer, the order within each class, and the nearest unique
// quotes. It keeps the result with the shortest path through the text.
func choose(claims []*claim, length int, work *int) {
	if inOrder(claims) {
		return
	}
	var spots []int
	way := 0
	try := func(placeSome func()) {
		for _, c := range claims {
			c.placed = false
		}
		placeSome()
		placeRest(claims, work)
		if w := travel(claims); spots == nil || w < way {
			way, spots = w, spots[:0]
			for _, c := range claims {
				spots = append(spots, c.spot)
			}
		}
	}
	try(func() { keepOrder(claims, length, work) })
	classes, runs := byClass(claims)
	try(func() {
		for _, class := range classes {
			if !inOrder(class) {
				keepOrder(class, length, work)
			}
		}
	})
	// skip an answer that goes class by class: its neighbours are not neighbours in the text
	if len(classes) == 1 || runs > len(classes) {
		try(func() { nearAnchors(claims, work) })
	}
	for i, c := range claims {
		c.spot = spots[i]
	}
}

// byClass groups the claims by class. runs is the number of runs of consecutive claims of one class.
func byClass(claims []*claim) (classes [][]*claim, runs int) {
	index := map[string]int{}
	for n, c := range claims {
		i, ok := index[c.class]
		if !ok {
			i = len(classes)
			index[c.class] = i
			classes = append(classes, nil)
		}
		classes[i] = append(classes[i], c)
		if n == 0 || claims[n-1].class != c.class {
			runs++
		}
	}
	return classes, runs
}

// travel returns the sum of the distances from each claim to the next, in bytes.
func travel(claims []*claim) int {
	way := 0
	for i := 1; i < len(claims); i++ {
		step := claims[i].spots[claims[i].spot].start - claims[i-1].spots[claims[i-1].spot].start
		way += max(step, -step)
	}
	return way
}

// inOrder places each claim at its first spot after the previous claim. It returns false if a claim has no such spot.
// It also returns false for a hint that points to another spot, because choose must then weigh both spots.
func inOrder(claims []*claim) bool {
	at := 0
	for _, c := range claims {
		c.spot = sort.Search(len(c.spots), func(i int) bool { return c.spots[i].start >= at })
		if c.spot == len(c.spots) || c.hint >= 0 && c.hint != c.spot {
			return false
		}
		at = c.spots[c.spot].end
	}
	for _, c := range claims {
		c.placed = true
	}
	return true
}

// link is the last claim of a chain of placed claims.
type link struct {
	claim, spot int32
	end, before int32 // before: index of the previous link
	weight      weight
}

// chains finds the best chain that ends at or before an offset. It is a Fenwick tree over the offsets of the window.
// Each node holds the best link in its range.
type chains struct {
	links []link // links[0] is the empty chain
	best  []int32
}

func (t *chains) better(a, b int32) bool {
	x, y := &t.links[a], &t.links[b]
	return x.weight > y.weight || x.weight == y.weight && x.end < y.end
}

func (t *chains) upTo(offset int) int32 {
	var best int32
	for i := offset; i > 0; i &= i - 1 {
		if t.better(t.best[i], best) {
			best = t.best[i]
		}
	}
	return best
}

func (t *chains) add(l link) {
	n := int32(len(t.links))
	t.links = append(t.links, l)
	for i := int(l.end); i < len(t.best); i += i & -i {
		if t.better(n, t.best[i]) {
			t.best[i] = n
		}
	}
}

// behind returns the link that places claim n at a spot, with before as the previous link.
func (t *chains) behind(before int32, n int, c *claim, spot int) link {
	return link{int32(n), int32(spot), int32(c.spots[spot].end), before, t.links[before].weight + c.weight(spot)}
}

// keepOrder places the claims of the best chain. It takes at most 100,000 steps plus 4 per byte of the window, and
// leaves the claims beyond that limit unplaced.
func keepOrder(claims []*claim, length int, work *int) {
	t := chains{links: make([]link, 1, 1+len(claims)), best: make([]int32, length+1)}
	left := 100_000 + 4*length
	for n, c := range claims {
		// Later spots go first, because no chain may have two spots of one claim.
		for i := len(c.spots) - 1; i >= 0 && left > 0; {
			before := t.upTo(c.spots[i].start)
			from := t.links[before].end
			// The same chain also ends before some earlier spots. The first of these leaves the most room.
			first := sort.Search(i, func(i int) bool { return c.spots[i].start >= int(from) })
			if first < c.hint && c.hint <= i {
				t.add(t.behind(before, n, c, c.hint))
			}
			t.add(t.behind(before, n, c, first))
			i = first - 1
			left--
			*work++
		}
	}
	for at := t.upTo(length); at > 0; at = t.links[at].before {
		c := claims[t.links[at].claim]
		c.spot, c.placed = int(t.links[at].spot), true
	}
}

// nearAnchors places each claim that has only one spot: such a claim is an anchor. It places every other claim at the
// free spot nearest to the previous or the next anchor in the answer.
func nearAnchors(claims []*claim, work *int) {
	taken := map[place]bool{}
	anchors := make([][]*claim, len(claims)) // of each claim: the previous and the next
	for _, step := range []int{1, -1} {
		var anchor *claim
		for i := range claims {
			if step < 0 {
				i = len(claims) - 1 - i
			}
			if c := claims[i]; len(c.spots) == 1 {
				anchor = c
				c.spot, c.placed = 0, true
				taken[place{c.class, c.spots[0]}] = true
			} else if anchor != nil {
				anchors[i] = append(anchors[i], anchor)
			}
		}
	}
	for i, c := range claims {
		nearest := -1
		for _, anchor := range anchors[i] {
			at := anchor.spots[0]
			from := sort.Search(len(c.spots), func(n int) bool { return c.spots[n].start >= at.start })
			for _, direction := range []int{1, -1} {
				n := from + min(direction, 0)
				for tries := 0; tries < maxTries && n >= 0 && n < len(c.spots); tries, n = tries+1, n+direction {
					*work++
					spot := c.spots[n]
					distance := max(spot.start-at.start, at.start-spot.start)
					if nearest >= 0 && distance >= nearest {
						break
					}
					over := c.class == anchor.class && spot.start < at.end && at.start < spot.end
					if !over && !taken[place{c.class, spot}] {
						nearest, c.spot, c.placed = distance, n, true
						break
					}
				}
			}
		}
		if c.placed {
			taken[place{c.class, c.spots[c.spot]}] = true
		}
	}
}

// maxTries is the number of spots to try in one direction when looking for a free spot.
const maxTries = 32

// place is the spot of a claim together with its class.
type place struct {
	class string
	at    span
}

// placeRest places the remaining claims. It tries the spot of the hint, then the free spots after the previous claim,
// then any free spot. A spot is free if no claim of the same class has taken it. If no spot is free, the claim repeats
// another claim.
func placeRest(claims []*claim, work *int) {
	taken := map[place]bool{}
	for _, c := range claims {
		if c.placed {
			taken[place{c.class, c.spots[c.spot]}] = true
		}
	}
	if len(taken) == len(claims) {
		return
	}
	type mention struct{ class, quote string }
	first := map[mention]int{} // index of the first spot that may be free
	at := 0                    // start of the previous placed claim
	for _, c := range claims {
		if c.placed {
			at = c.spots[c.spot].start
			continue
		}
		free := func(spot int) bool {
			*work++
			return !taken[place{c.class, c.spots[spot]}]
		}
		m := mention{c.class, c.quote}
		for first[m] < len(c.spots) && !free(first[m]) {
			first[m]++
		}
		c.spot, c.placed = min(first[m], len(c.spots)-1), true
		if c.hint >= 0 && free(c.hint) {
			c.spot = c.hint
		} else {
			behind := sort.Search(len(c.spots), func(i int) bool { return c.spots[i].start >= at })
			for i := behind; i < len(c.spots) && i < behind+maxTries; i++ {
				if free(i) {
					c.spot = i
					break
				}
			}
		}
		taken[place{c.class, c.spots[c.spot]}] = true
		at = c.spots[c.spot].start
	}
}
