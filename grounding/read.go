package grounding

import (
	"encoding/json"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/internal/schema"
	"github.com/gemworker/gem/receipts"
)

// Item is an item of an answer whose quote was found in the window.
type Item struct {
	Class string `json:"class"`
	// Quote is the window's own text from Start to End. Both are byte offsets in [Window.Text]. Start is in the body.
	Quote string `json:"quote"`
	Start int    `json:"start"`
	End   int    `json:"end"`
	Match string `json:"match"` // exact, folded or caseless
	// Attributes is a JSON object in canonical form, so that equal values are equal bytes. It is {} for a class without
	// attributes.
	Attributes json.RawMessage `json:"attributes"`
	Inferred   bool            `json:"inferred"`
}

// Reading is the result of reading an answer about a window.
type Reading struct {
	Items    []Item      // sorted by start, end and class
	Rejected []Rejection // in the order of the answer
	// Claimed is the number of items in the answer. It includes the items that begin in the context and belong to the
	// neighbouring shards. It is 1 for a list that cannot be read.
	Claimed int
	// Failure is why no items could be read: [Unreadable], [Truncated] or [AnswerTooLarge]. It is empty if the
	// answer was read.
	Failure string
}

// Failures of an answer.
const (
	Unreadable     = "answer_unreadable" // the answer has no list of items that can be read
	Truncated      = "answer_truncated"  // the answer ends before its list does
	AnswerTooLarge = "answer_too_large"  // the answer has more than MaxAnswer bytes
)

// Limits of an answer.
const (
	MaxAnswer = 1 << 20 // bytes
	MaxItems  = 2000    // items read; the rest is rejected as one
	MaxQuote  = 10_000  // characters
)

// AskAgain reports whether a second answer may supply what this one lacks.
func (r *Reading) AskAgain() bool { return r.Failure == Unreadable || len(r.Rejected) > 0 }

// Read reads an answer about a window. It never trusts an offset of the model: it finds each quote in the text. It
// skips the items that begin in the context. It rejects an invalid item with a reason and keeps the other items.
// truncated reports that the model stopped at a limit.
//
// The last list in the answer counts. Read ignores a list that is cut and reports [Truncated], so that no item is lost
// silently.
func (c *CompiledProgram) Read(w Window, answer string, truncated bool) Reading {
	r, _ := c.read(w, answer, truncated)
	return r
}

// read is like [CompiledProgram.Read]. It also returns the amount of work, in bytes and steps.
func (c *CompiledProgram) read(w Window, answer string, truncated bool) (Reading, int) {
	switch {
	case len(answer) > MaxAnswer:
		return Reading{Failure: AnswerTooLarge}, 0
	case truncated:
		return Reading{Failure: Truncated}, 0
	}
	a := readAnswer(valid(answer), 0)
	switch a.says() {
	case someItems:
		r := reader{program: c, finder: newFinder(w), body: w.Body}
		reading := r.read(a.items())
		return reading, a.work + r.finder.work
	case noItems:
		return Reading{}, a.work
	case cutOff:
		return Reading{Failure: Truncated}, a.work
	}
	reading := Reading{Failure: Unreadable}
	if a.says() == malformed {
		reading.Claimed = 1 // at least
	}
	return reading, a.work
}

// valid returns an answer as valid UTF-8. It drops an incomplete character at the end.
func valid(answer string) string {
	for n := 1; n < utf8.UTFMax && n <= len(answer); n++ {
		if end := answer[len(answer)-n:]; utf8.RuneStart(end[0]) && !utf8.FullRuneInString(end) {
			answer = answer[:len(answer)-n]
		}
	}
	return strings.ToValidUTF8(answer, "\ufffd")
}

// reader reads the items of one answer.
type reader struct {
	program *CompiledProgram
	finder  *finder
	body    string
	units   []*Index // indexes of the body, by unit
}

// statement is an item as the model statement it.
type statement struct {
	class      *compiledClass
	name       string // name of the class
	quote      string
	attributes json.RawMessage
	verbatim   []verbatim // values that must be in the quote
	inferred   bool
	reason     string // reason for the rejection, or empty
	claim      *claim
}

// verbatim is an attribute whose values must be in the quote.
type verbatim struct {
	name   string
	values []string
}

func (r *reader) read(values []value) Reading {
	reading := Reading{Claimed: len(values)}
	all := make([]statement, min(len(values), MaxItems))
	var claims []*claim
	for i := range all {
		s := &all[i]
		r.state(s, &values[i])
		if s.reason != "" {
			continue
		}
		seen := r.finder.find(s.quote)
		if len(seen.spots) == 0 {
			s.reason = QuoteNotFound
			continue
		}
		s.claim = &claim{class: s.name, quote: s.quote, sighting: seen, hint: -1}
		if len(seen.spots) > 1 {
			s.claim.hint = r.hint(&values[i], seen.spots)
		}
		claims = append(claims, s.claim)
	}
	choose(claims, len(r.finder.text), &r.finder.work)
	r.accept(&reading, all)
	if more := len(values) - len(all); more > 0 {
		reading.Rejected = append(reading.Rejected, Rejection{Reason: TooManyItems})
	}
	return reading
}

// state reads an item into s. It sets s.reason if the item is invalid.
func (r *reader) state(s *statement, v *value) {
	if v.form != anObject {
		s.reason = NotAnObject
		return
	}
	if class := v.member("class", "extractionClass", "extraction_class"); class != nil && class.form == aString {
		s.name = strings.TrimSpace(class.text)
	}
	if s.class = r.program.class(s.name); s.class == nil {
		s.class = r.program.class(strings.ToLower(s.name))
	}
	if quote := v.member("quote"); quote != nil && (quote.form == aString || quote.form == aNumber) {
		s.quote = strings.TrimSpace(quote.text)
	}
	s.inferred = isTrue(v.member("inferred")) || isText(v.member("grounding"), "inferred")
	switch {
	case s.class == nil:
		s.reason = UndeclaredClass
		return
	case s.quote == "":
		s.reason = EmptyQuote
		return
	case utf8.RuneCountInString(s.quote) > MaxQuote:
		s.reason = QuoteTooLong
		return
	case s.inferred && !s.class.Inferred:
		s.reason = InferredNotAllowed
		return
	}
	s.name = s.class.Name
	r.stateAttributes(s, v.member("attributes"))
}

func (r *reader) stateAttributes(s *statement, v *value) {
	s.attributes = json.RawMessage("{}")
	missing := v == nil || v.form == aWord && v.text == "null"
	if !missing && v.form != anObject {
		s.reason = InvalidAttributes
		return
	}
	if s.class.attributes == nil {
		return
	}
	members := map[string]any{}
	if !missing {
		members = v.plain().(map[string]any)
	}
	s.attributes = schema.Canonical(members)
	faults, _ := s.class.attributes.Check(s.attributes, true)
	if withoutNulls(members, faults) {
		s.attributes = schema.Canonical(members)
		faults, _ = s.class.attributes.Check(s.attributes, true)
	}
	if len(faults) > 0 {
		s.reason = InvalidAttributes + ": " + faults[0].Message
		return
	}
	for _, name := range s.class.Verbatim {
		s.verbatim = append(s.verbatim, verbatim{name, scalars(nil, members[name])})
	}
}

// withoutNulls drops the members that are null but may not be. Models write null for values that a text does not state.
// withoutNulls reports whether it dropped any.
func withoutNulls(members map[string]any, faults []receipts.Fault) bool {
	before := len(members)
	for _, fault := range faults {
		name := strings.TrimPrefix(fault.Path, "/")
		if v, ok := members[name]; ok && v == nil {
			delete(members, name)
		}
	}
	return len(members) < before
}

// scalars appends the strings and numbers in a value. It visits the members of an object in the order of their names.
func scalars(to []string, v any) []string {
	switch v := v.(type) {
	case string:
		return append(to, v)
	case json.Number:
		return append(to, string(v))
	case []any:
		for _, part := range v {
			to = scalars(to, part)
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			to = scalars(to, v[name])
		}
	}
	return to
}

func isTrue(v *value) bool              { return v != nil && v.form == aWord && v.text == "true" }
func isText(v *value, text string) bool { return v != nil && v.form == aString && v.text == text }

// hint returns the index of the spot at the model's own offset, or -1. The offset may count any unit of the body.
// Either all spots are in the body or all are outside it.
func (r *reader) hint(v *value, spots []span) int {
	offset := v.member("charStart", "start")
	if in := v.member("span"); offset == nil && in != nil {
		offset = in.member("start", "charStart")
	}
	if offset == nil || offset.form != aNumber && offset.form != aString {
		return -1
	}
	n, err := strconv.Atoi(offset.text)
	begin := r.finder.body.start
	if err != nil || n < 0 || spots[0].start < begin || spots[0].start >= r.finder.body.end {
		return -1
	}
	if r.units == nil {
		r.units = []*Index{newIndex(r.body, utf16Units), newIndex(r.body, codePoints), newIndex(r.body, nil)}
	}
	for _, unit := range r.units {
		i := sort.Search(len(spots), func(i int) bool { return unit.At(spots[i].start-begin) >= n })
		if i < len(spots) && unit.At(spots[i].start-begin) == n {
			return i
		}
	}
	return -1
}

// accept checks the items after choose has selected their spots, and sorts the accepted items.
func (r *reader) accept(reading *Reading, all []statement) {
	kept := map[place]*statement{}
	counts := map[string]int{}
	body := r.finder.body
	for i := range all {
		s := &all[i]
		if s.reason != "" {
			reading.reject(s)
			continue
		}
		at := s.claim.spots[s.claim.spot]
		if at.start < body.start || at.start >= body.end {
			continue // belongs to a neighbouring shard
		}
		quote := r.finder.text[at.start:at.end]
		key := place{s.name, at}
		attribute := r.absent(quote, s.verbatim)
		switch same := kept[key]; {
		case attribute != "":
			s.reason = AttributeNotInQuote + ": " + attribute
		case same != nil && string(same.attributes) != string(s.attributes):
			s.reason = Conflict
		case same != nil:
			continue
		case s.class.Max > 0 && counts[s.name] >= s.class.Max:
			s.reason = TooManyOfClass
		}
		if s.reason != "" {
			reading.reject(s)
			continue
		}
		kept[key] = s
		counts[s.name]++
		match := s.claim.match
		reading.Items = append(reading.Items, Item{s.name, quote, at.start, at.end, match, s.attributes, s.inferred})
	}
	slices.SortFunc(reading.Items, compareItems)
}

// absent returns the first attribute with a value that is not in the quote. The presentation of the value may differ. A
// match within a word or a number does not count: 485 is not in 485,000. absent returns an empty string if the quote
// has all values.
func (r *reader) absent(quote string, all []verbatim) string {
	if len(all) == 0 {
		return ""
	}
	f := newFinder(Window{Body: quote})
	f.folded, f.one = fold(quote, false), true
	defer func() { r.finder.work += f.work }()
	for _, attribute := range all {
		values := slices.Clone(attribute.values)
		slices.Sort(values)
		for _, value := range slices.Compact(values) {
			value = strings.TrimSpace(value)
			if value != "" && len(f.lookFolded(f.folded, value, false, clear)) == 0 {
				return schema.Show(attribute.name)
			}
		}
	}
	return ""
}

func (r *Reading) reject(s *statement) {
	r.Rejected = append(r.Rejected, Rejection{oneline.Cut(s.name, 64), oneline.Cut(s.quote, 200), s.reason})
}
