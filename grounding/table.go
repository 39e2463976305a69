package grounding

import (
	"sort"
	"strings"
)

// table is a run of at least two lines with the same number of one separator. Each line has at least two. All fields
// are byte offsets.
type table struct {
	start, end int32
	body       int32 // after the second line
}

// separators lists the separators between the cells of a line.
var separators = []string{"|", "\t", ";"}

// maxHeader is the maximum size of a table's first two lines, in bytes. Longer headers are not repeated.
const maxHeader = 2000

// findTables returns the tables of a text, grouped by separator.
func findTables(text string) [][]table {
	all := make([][]table, len(separators))
	for i, separator := range separators {
		if strings.Count(text, separator) >= 4 {
			all[i] = tablesOf(text, separator)
		}
	}
	return all
}

func tablesOf(text, separator string) []table {
	var tables []table
	var run table
	cells, lines := 0, 0 // of the run
	for at := 0; at < len(text); {
		end := len(text)
		if i := strings.IndexByte(text[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		n := strings.Count(text[at:end], separator)
		if n != cells {
			run, cells, lines = table{start: int32(at)}, n, 0
		}
		run.end = int32(end)
		switch lines++; {
		case cells < 2 || lines < 2:
		case lines == 2:
			run.body = int32(end)
			tables = append(tables, run)
		default:
			tables[len(tables)-1].end = run.end
		}
		at = end
	}
	return tables
}

// header returns the text that comes before the context of a body, and the offset at which the context begins. If the
// body begins inside a table, the text is the first two lines of the table. If the context reaches those lines, header
// extends the context instead and returns no text. It returns no text if the body begins outside a table. It also
// returns none for lines longer than maxHeader.
func (t *Text) header(body, context int) (string, int) {
	for _, tables := range t.tables() {
		i := sort.Search(len(tables), func(i int) bool { return int(tables[i].end) > body })
		if i == len(tables) || int(tables[i].start) >= body || tables[i].body-tables[i].start > maxHeader {
			continue
		}
		start, end := int(tables[i].start), min(int(tables[i].body), body)
		if context <= end { // the header and the context are contiguous
			return "", min(start, context)
		}
		return t.read[start:end], context
	}
	return "", context
}
