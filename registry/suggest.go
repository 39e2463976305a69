package registry

import "strings"

// didYouMean names the known word that is nearest to a mistyped one, as the end of a sentence, or nothing.
func didYouMean(word string, known []string) string {
	if nearest := nearest(word, known); nearest != "" {
		return ": did you mean " + nearest + "?"
	}
	return ""
}

func nearest(word string, known []string) string {
	if len(word) > 60 {
		return ""
	}
	word = plain(word)
	// A third of the letters may be wrong, and two at most.
	for edits := range min(2, len(word)/3) + 1 {
		for _, k := range known {
			if within(edits, word, plain(k)) {
				return k
			}
		}
	}
	for _, k := range known {
		if len(word) >= 4 && len(k) >= 4 && (strings.HasPrefix(word, plain(k)) || strings.HasPrefix(plain(k), word)) {
			return k
		}
	}
	return ""
}

// plain leaves out what people write differently: case and the signs between words.
func plain(s string) string { return strings.ToLower(signs.Replace(s)) }

var signs = strings.NewReplacer("_", "", "-", "", "$", "", ".", "")

// within reports whether a becomes b by inserting, removing, replacing or swapping so many letters at most.
func within(edits int, a, b string) bool {
	for a != "" && b != "" && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	if a == "" || b == "" || edits == 0 {
		return len(a)+len(b) <= edits
	}
	swapped := len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0]
	return within(edits-1, a[1:], b) || within(edits-1, a, b[1:]) || within(edits-1, a[1:], b[1:]) || swapped && within(edits-1, a[2:], b[2:])
}
