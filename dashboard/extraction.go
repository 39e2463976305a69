package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/grounding"
)

// extractRun is the tool whose results quote a document.
const extractRun = "extract.run"

// The limits of a page.
const (
	quotesShown = 50
	shardsShown = 100
	marksShown  = 300
	pieceSize   = 16 << 10 // of the document, in bytes
)

// extractionPage is a document with its extractions. A viewer sees Call and Children.
type extractionPage struct {
	Call     *view.Call
	Children childCounts
	Result   *extractionResult // nil for a viewer, and until the call ends

	Classes []string // in the result
	Quotes  []quote  // of this page
	All     int      // quotes of the class
	Wrong   int      // quotes that are not where the result says
	Shards  []extractionShard
	Text    *documentText // nil if the document no longer exists
	Segs    []segment     // of the piece
	Over    bool          // the piece has more marks than are shown

	Class              string
	Piece, Item, Shard int // the page shows this piece of the document, and the quotes and shards from these on
}

// childCounts count the calls of shards of an unfinished run.
type childCounts struct{ Ended, Open int }

// extractionResult is the result of extract.run, or the details of its failure.
type extractionResult struct {
	Document struct {
		SHA256  string         `json:"sha256"`
		Length  int            `json:"length"` // in the unit of Offsets
		Offsets grounding.Unit `json:"offsets"`
		ID      string         `json:"document_id"`
	} `json:"document"`
	Models       []string `json:"models"`
	Kind         string   `json:"result_kind"`
	Completeness struct {
		Kind                 string `json:"kind"`
		Shards, Read, Failed int
	} `json:"completeness"`
	Extractions   []grounding.FoundItem `json:"extractions"`
	RejectedCount int                   `json:"rejected_count"`
	Rejected      []grounding.Refusal   `json:"rejected"`
	Shards        []extractionShard     `json:"shards"`
	FailedShards  []extractionShard     `json:"failed_shards"`
	Normalisation []grounding.Change    `json:"normalisation"`
	Usage         *struct {
		Calls        int    `json:"llm_calls"`
		Requests     int    `json:"requests"`
		InputTokens  int64  `json:"input_tokens"`
		OutputTokens int64  `json:"output_tokens"`
		Cost         string `json:"cost_usd"`
		Unknown      int    `json:"unknown_requests"`
		CachedShards int    `json:"cached_shards"`
	} `json:"usage"`
}

type extractionShard struct {
	Index, Start, End int
	CallID            string `json:"call_id"`
	Status            string // read, failed, divided, blank
	Cached            bool
	Calls             int
	Covered           float64
	Code              string
}

// Percent returns the share of the shard's lines that an extraction touches.
func (s extractionShard) Percent() int { return int(s.Covered*100 + 0.5) }

// quote is an extraction with its number and its place in the document.
type quote struct {
	grounding.FoundItem
	N       int  // from 1
	InPlace bool // the document has the quote there
	Piece   int  // of the document in which it begins

	from, to int // in bytes
}

// AttributesText returns the attributes as JSON, or "" if there are none.
func (q quote) AttributesText() string {
	if s := string(q.Attributes); s != "null" && s != "{}" {
		return s
	}
	return ""
}

// MatchWords describes how the quote was found.
func (q quote) MatchWords() string {
	switch q.Match {
	case "exact":
		return "word for word"
	case "folded":
		return "ignoring formatting"
	case "caseless":
		return "ignoring case"
	}
	return q.Match
}

// extraction shows a call to extract.run: the document with the quotes marked in it.
func (s *site) extraction(ctx context.Context, r *request) (*content, error) {
	id := r.PathValue("id")
	if !view.IsID(id) {
		return nil, notFound("This call does not exist.")
	}
	p := &extractionPage{}
	if err := p.parse(r.URL.Query()); err != nil {
		return nil, err
	}
	err := view.Read(ctx, r.db(), func(ctx context.Context, db view.DB) (err error) {
		if p.Call, err = view.Get(ctx, db, id); err != nil {
			return err
		}
		switch {
		case p.Call.Tool != extractRun:
			return notFound("This is not a call to extract.run, so it has no quotes.")
		case p.Call.EndedAt.IsZero():
			return p.children(ctx, db)
		case !r.operates():
			return nil
		}
		return p.read(ctx, db)
	})
	if err != nil {
		return nil, err
	}
	title := "Extraction: " + p.Call.Status
	if p.Result != nil {
		title += fmt.Sprintf(", %d quotes", len(p.Result.Extractions))
	}
	return &content{Title: title, Template: "extraction", Data: p, Watch: untilEnded(p.Call),
		JSON: map[string]any{"call": p.Call, "result": p.Result, "wrong": p.Wrong}}, nil
}

// parse reads the parameters of the page.
func (p *extractionPage) parse(q url.Values) error {
	p.Class, p.Piece = q.Get("class"), -1
	for name, into := range map[string]*int{"piece": &p.Piece, "item": &p.Item, "shard": &p.Shard} {
		if q.Get(name) == "" {
			continue
		}
		n, err := strconv.Atoi(q.Get(name))
		if err != nil || n < 0 || n > 1e6 {
			return badRequest("%s must be a number of at least 0.", name)
		}
		*into = n
	}
	return nil
}

// Link returns the address of this page with another piece, other quotes or other shards: a name and its number, and
// so on.
func (p *extractionPage) Link(pairs ...any) string {
	v := url.Values{}
	for name, n := range map[string]int{"piece": p.Piece, "item": p.Item, "shard": p.Shard} {
		v.Set(name, strconv.Itoa(n))
	}
	v.Set("class", p.Class)
	for i := 0; i+1 < len(pairs); i += 2 {
		v.Set(fmt.Sprint(pairs[i]), fmt.Sprint(pairs[i+1]))
	}
	for name := range v {
		if v.Get(name) == "" || v.Get(name) == "0" && name != "piece" {
			v.Del(name)
		}
	}
	return "?" + v.Encode()
}

// children counts the shards' calls of an unfinished run.
func (p *extractionPage) children(ctx context.Context, db view.DB) error {
	all, err := view.Children(ctx, db, p.Call.ID, 2000)
	for _, c := range all {
		if c.EndedAt.IsZero() {
			p.Children.Open++
		} else {
			p.Children.Ended++
		}
	}
	return err
}

// read reads the result and the document.
func (p *extractionPage) read(ctx context.Context, db view.DB) error {
	raw, err := readResult(ctx, db, p.Call.ID)
	if err != nil {
		return err
	}
	r := parseExtraction(raw)
	if p.Result = r; r == nil {
		return nil
	}
	text, err := readDocument(ctx, db, p.Call.ID, r.Document.ID)
	if err != nil {
		return err
	}
	if text != "" {
		p.Text = newDocumentText(text, r.Document.Offsets, r.Document.Length, r.Document.SHA256, r.Extractions)
	}
	shards := r.Shards
	if len(shards) == 0 {
		shards = r.FailedShards
	}
	p.Shard = min(p.Shard, max(0, len(shards)-1))
	p.Shards = shards[p.Shard:min(len(shards), p.Shard+shardsShown)]
	p.choose()
	return nil
}

// parseExtraction returns nil for the result of another program's extract.run.
func parseExtraction(raw json.RawMessage) *extractionResult {
	r := &extractionResult{}
	if json.Unmarshal(raw, r) != nil {
		return nil
	}
	return r
}

// choose selects the quotes and the piece of the document for the page.
func (p *extractionPage) choose() {
	all := make([]quote, 0, len(p.Result.Extractions))
	for i, f := range p.Result.Extractions {
		q := quote{FoundItem: f, N: i + 1}
		if p.Text != nil {
			q.from, q.to, q.InPlace = p.Text.place(i)
			q.Piece = p.Text.pieceOf(q.from)
			if !q.InPlace {
				p.Wrong++
			}
		}
		if !slices.Contains(p.Classes, f.Class) && len(p.Classes) < 100 {
			p.Classes = append(p.Classes, f.Class)
		}
		if p.Class == "" || f.Class == p.Class {
			all = append(all, q)
		}
	}
	p.All = len(all)
	p.Item = min(p.Item, max(0, len(all)-1))
	p.Quotes = all[p.Item:min(len(all), p.Item+quotesShown)]
	if p.Piece < 0 && len(p.Quotes) > 0 && p.Quotes[0].InPlace {
		p.Piece = p.Quotes[0].Piece
	}
	if p.Text == nil {
		return
	}
	p.Piece = min(max(p.Piece, 0), p.Text.Pieces()-1)
	from, to := p.Text.piece(p.Piece)
	marked := slices.DeleteFunc(slices.Clone(all), func(q quote) bool {
		return !q.InPlace || q.to <= from || q.from >= to
	})
	if len(marked) > marksShown {
		marked, p.Over = marked[:marksShown], true
	}
	p.Segs = segments(p.Text.text, from, to, marked)
}

// NextItem, NextShard and the like return where the next page of quotes or shards begins, or 0. PreviousItem returns
// -1 if there is none.
func (p *extractionPage) NextItem() int { return next(p.Item, quotesShown, p.All) }
func (p *extractionPage) NextShard() int {
	return next(p.Shard, shardsShown, max(len(p.Result.Shards), len(p.Result.FailedShards)))
}

func (p *extractionPage) PreviousItem() int  { return previous(p.Item, quotesShown) }
func (p *extractionPage) PreviousShard() int { return previous(p.Shard, shardsShown) }

// Number is the number of the piece. FirstQuote and LastQuote are the numbers of the quotes in their class. All count
// from 1. NextPiece is 0 on the last piece.
func (p *extractionPage) Number() int        { return p.Piece + 1 }
func (p *extractionPage) FirstQuote() int    { return p.Item + 1 }
func (p *extractionPage) LastQuote() int     { return p.Item + len(p.Quotes) }
func (p *extractionPage) NextPiece() int     { return next(p.Piece, 1, p.Text.Pieces()) }
func (p *extractionPage) PreviousPiece() int { return p.Piece - 1 }

func next(at, size, of int) int {
	if at+size >= of {
		return 0
	}
	return at + size
}

func previous(at, size int) int {
	if at == 0 {
		return -1
	}
	return max(0, at-size)
}
