package schema

import (
	"strings"

	"github.com/gemworker/gem/internal/oneline"
)

// DidYouMean names the known word that is most like a mistyped one, as the end of a sentence, or nothing.
func DidYouMean(word string, known []string) string {
	word = plain(word)
	best, nearest := 0.5, "" // nothing that is less alike helps
	for _, k := range known {
		if likeness := alike(word, plain(k)); likeness > best {
			best, nearest = likeness, k
		}
	}
	if nearest == "" {
		return ""
	}
	return ": did you mean " + nearest + "?"
}

// plain leaves out what people write differently, case and the signs between words, and marks both ends.
func plain(s string) string { return "^" + strings.ToLower(signs.Replace(oneline.Cut(s, 60))) + "^" }

var signs = strings.NewReplacer("_", "", "-", "", "$", "", ".", "")

// alike is the share of the pairs of neighboring letters that two plain words have in common, from 0 to 1.
func alike(a, b string) float64 {
	common := 0
	for i := range len(a) - 1 {
		if strings.Contains(b, a[i:i+2]) {
			common++
		}
	}
	return 2 * float64(common) / float64(len(a)+len(b)-2)
}
