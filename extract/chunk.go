package extract

import "strings"

// Window is what a model sees of a document: the body, of which it is asked, and what stands around it.
type Window struct {
	// Before is what the text has before the body, after the header of the table in which the body begins.
	Before string
	// Body owns the items that begin in it.
	Body string
	// After is what follows the body.
	After string
}

// Text is the whole window. The offsets of items count its bytes.
func (w Window) Text() string { return w.Before + w.Body + w.After }

// Blank reports whether the body is only white space, so that no model needs to be asked.
func (w Window) Blank() bool { return strings.TrimSpace(w.Body) == "" }

// Shard is a piece of a document. The bodies of all shards, in their order, are the read text.
type Shard struct {
	Index      int // from 0
	Start, End int // of the body: byte offsets in the read text
	Window
}

// Cut divides a text into shards.
func Cut(t *Text, size, context int) ([]Shard, error) {
	if t.read == "" {
		return nil, nil
	}
	return []Shard{{End: len(t.read), Window: Window{Body: t.read}}}, nil
}

// Halves divides a shard.
func (s Shard) Halves(t *Text, context int) []Shard { return nil }

// table is a run of lines with the same number of separators.
type table struct{ start, header, end int32 }

func findTables(string) []table { return nil }
