package extract

import "sort"

// claim is an item whose quote was found, and for which a place is to be chosen.
type claim struct {
	class string
	quote string
	sighting
	hint   int // index of the spot that the model's own offset names, or -1
	spot   int // index of the chosen one
	placed bool
}

// weight orders the choices: first by the length of what is placed, then by the number of hints that hold.
type weight int64

func (c *claim) weight(spot int) weight {
	w := weight(c.spots[spot].end-c.spots[spot].start) << 16
	if spot == c.hint {
		w++
	}
	return w
}

// choose places the claims, which stand in the order of the answer: in that order, none over another, with the greatest total length, and where that leaves a
// choice as the model's offsets say, else as early as can be. An answer that is not in order, and goes class by class, is placed so class by class. What does not
// fit into the order goes where no claim of its class is yet. work counts the steps.
func choose(claims []*claim, length int, work *int) {
	if inOrder(claims) {
		return
	}
	for _, run := range runs(claims) {
		if !inOrder(run) {
			keepOrder(run, length, work)
		}
	}
	placeRest(claims, work)
}

// runs divides the claims by class if each class has its claims in one run, and leaves them together otherwise.
func runs(claims []*claim) [][]*claim {
	var all [][]*claim
	seen := map[string]bool{}
	for from := 0; from < len(claims); {
		class, to := claims[from].class, from
		for to < len(claims) && claims[to].class == class {
			to++
		}
		if seen[class] {
			return [][]*claim{claims}
		}
		seen[class] = true
		all = append(all, claims[from:to])
		from = to
	}
	return all
}

// inOrder places each claim at its first spot behind the one before. It returns false if there is none, or if an offset names another spot: then there is more
// to weigh.
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

// link is the end of a chain of placed claims.
type link struct {
	claim, spot int32
	end, before int32 // before: the link before it
	weight      weight
}

// chains finds, for any offset, the best chain that ends there or earlier: a Fenwick tree over the offsets of the window, of the best link in each range.
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

// behind is the link of the nth claim at a spot, behind another link.
func (t *chains) behind(before int32, n int, c *claim, spot int) link {
	return link{int32(n), int32(spot), int32(c.spots[spot].end), before, t.links[before].weight + c.weight(spot)}
}

// keepOrder places the claims of the best chain. It takes at most some steps for each byte of the window: what is beyond them is not placed.
func keepOrder(claims []*claim, length int, work *int) {
	t := chains{links: make([]link, 1, 1+len(claims)), best: make([]int32, length+1)}
	left := 100_000 + 4*length
	for n, c := range claims {
		// The later spots first: no chain may have two spots of one claim.
		for i := len(c.spots) - 1; i >= 0 && left > 0; {
			before := t.upTo(c.spots[i].start)
			from := t.links[before].end
			// The same chain ends before earlier spots, of which the first leaves most room.
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

// place is a spot that a claim of a class has.
type place struct {
	class string
	at    span
}

// placeRest places the claims that are not: at the spot of their hint, behind the claim before them, or anywhere, but where no claim of their class is.
// If all spots are taken, the claim repeats another.
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
	at := 0                    // where the last placed claim before begins
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
			const tries = 32
			behind := sort.Search(len(c.spots), func(i int) bool { return c.spots[i].start >= at })
			for i := behind; i < len(c.spots) && i < behind+tries; i++ {
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
