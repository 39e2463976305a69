package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/gemworker/gem/internal/prose"
)

// The words that commands share with pages, by short names.
var (
	moment       = prose.Moment
	span         = prose.Span
	milliseconds = prose.Milliseconds
	count        = prose.Count
	cut          = prose.Cut
	sentence     = prose.Sentence
	upshot       = prose.Upshot
	printable    = prose.Printable
	named        = prose.Named
	isQuestion   = prose.IsQuestion
)

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// lines keeps the line breaks of a text, and replaces characters that could draw on the terminal.
func lines(text string) string {
	all := strings.Split(text, "\n")
	for i, line := range all {
		all[i] = printable(line)
	}
	return strings.Join(all, "\n")
}

// table writes rows in aligned columns. The first row is the head. A cell is one line, whatever its text.
func table(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = printable(cell)
		}
		// A column is ended by a tab; the last one needs no padding.
		if _, err := fmt.Fprintln(t, strings.TrimRight(strings.Join(cells, "\t"), "\t")); err != nil {
			return err
		}
	}
	return t.Flush()
}
