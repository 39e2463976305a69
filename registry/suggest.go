package registry

import (
	"fmt"
	"strings"
)

// didYouMean names the known word that is nearest to a mistyped one, as the end of a sentence, or nothing.
func didYouMean(word string, known []string) string {
	if nearest := nearest(word, known); nearest != "" {
		return fmt.Sprintf(": did you mean %s?", nearest)
	}
	return ""
}

func nearest(word string, known []string) string {
	if len(word) > 60 {
		return ""
	}
	// A third of the letters may be wrong, and two at most.
	best, distance := "", min(2, len(word)/3)+1
	for _, k := range known {
		a, b := plain(word), plain(k)
		switch {
		case a == b:
			return k
		case len(a) >= 4 && len(b) >= 4 && (strings.HasPrefix(a, b) || strings.HasPrefix(b, a)):
			if distance > 1 {
				best, distance = k, 1
			}
		default:
			if d := editDistance(a, b); d < distance {
				best, distance = k, d
			}
		}
	}
	return best
}

// plain leaves out what people write differently: case and the signs between words.
func plain(s string) string { return strings.ToLower(signs.Replace(s)) }

var signs = strings.NewReplacer("_", "", "-", "", "$", "", ".", "")

// editDistance counts the letters to insert, remove, replace or swap with their neighbour to turn a into b.
func editDistance(a, b string) int {
	before, last, row := []int(nil), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if before != nil && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, make([]int, len(b)+1)
	}
	return last[len(b)]
}
