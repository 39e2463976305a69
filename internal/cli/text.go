package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/internal/prose"
)

// Short names for the words that commands share with pages.
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

func printJSON(w io.Writer, v any) error { return writeJSON(w, v, "  ") }

// writeJSON writes JSON and escapes characters that could draw on a terminal or reorder its text.
func writeJSON(w io.Writer, v any, indent string) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(oneline.JSON(text.Bytes()))
	return err
}

// lines keeps the line breaks of a text, and replaces characters that could draw on the terminal.
func lines(text string) string {
	all := strings.Split(text, "\n")
	for i, line := range all {
		all[i] = printable(line)
	}
	return strings.Join(all, "\n")
}

// table writes rows in aligned columns. The first row is the header. Each cell is one line.
func table(w io.Writer, rows [][]string) error {
	var aligned bytes.Buffer
	t := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = printable(cell)
		}
		fmt.Fprintln(t, strings.Join(cells, "\t")) // to memory
	}
	_ = t.Flush()
	for line := range strings.Lines(aligned.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}
