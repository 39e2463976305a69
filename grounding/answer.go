package grounding

import "strings"

// draft is a list of items in an answer. at is its byte offset.
type draft struct {
	items []value
	at    int
}

// damage is a list of items that was not read to its end. cut is true if the answer ends within the list. It is false
// if the list is not JSON and a repair would be a guess.
type damage struct {
	at  int
	cut bool
}

// answer holds the findings in the text of an answer. The last object wins, and so does the last list.
type answer struct {
	object draft   // the last object with non-empty extractions
	list   draft   // the last list that has an object with a quote
	loose  draft   // all top-level objects with a quote
	empty  bool    // some object has empty extractions, or the whole answer is []
	stray  bool    // some object with a quote is in no list of items: it still claims something
	damage *damage // the last damaged list
	open   bool    // the answer ends within a value or a thought
	work   int     // bytes read
}

const (
	// maxReadings limits how many times an answer may be read in total. Text that begins like JSON may not be JSON and may
	// contain JSON, so the same bytes may be read several times.
	maxReadings = 16
	// maxInside is the maximum depth of JSON nested in strings. A model may write its JSON as a string or as the arguments
	// of a call.
	maxInside = 2
)

// thoughts lists the names of the tags that models put around their thoughts.
var thoughts = map[string]bool{"think": true, "thinking": true, "thought": true, "reasoning": true, "reflection": true,
	"analysis": true, "scratchpad": true}

// thoughtTag returns the length of the thought tag at the start of text, or 0 if there is none. ends reports whether it
// is a closing tag.
func thoughtTag(text string) (n int, ends bool) {
	name, found := strings.CutPrefix(text, "</")
	if !found {
		name = strings.TrimPrefix(text, "<")
	}
	name, _, ok := strings.Cut(name[:min(len(name), 12)], ">")
	if !ok || !thoughts[strings.ToLower(name)] {
		return 0, false
	}
	return strings.IndexByte(text, '>') + 1, found
}

// thoughtEnd returns the start and the end of the first closing thought tag in text. ok is false if there is none.
func thoughtEnd(text string) (from, to int, ok bool) {
	for at := 0; ; at++ {
		i := strings.Index(text[at:], "</")
		if i < 0 {
			return 0, 0, false
		}
		at += i
		if n, _ := thoughtTag(text[at:]); n > 0 {
			return at, at + n, true
		}
	}
}

// readAnswer finds the items in an answer. It reads each value in the text and ignores earlier thoughts. inside is the
// number of strings of JSON around the text.
func readAnswer(text string, inside int) *answer {
	a := &answer{}
	thought := lastThought(text)
	start := 0 // end of the last thought
	for at := 0; ; {
		i := strings.IndexAny(text[at:], "{[<")
		if i < 0 {
			break
		}
		if at += i; text[at] == '<' {
			end := a.skipThought(text[at:])
			if end > 1 {
				start = at + end
			}
			at += end
			continue
		}
		if a.work > maxReadings*len(text) {
			a.damage = &damage{at, false}
			break
		}
		p := parser{s: text, at: at}
		v, ok := p.read()
		a.work += p.at - at
		switch {
		case ok:
			a.add(&v, at, inside)
			if v.form == aList && len(v.parts) == 0 && blank(text[start:at]) && blank(text[p.at:]) {
				a.empty = true
			}
			at = p.at
		case isResult(&v):
			a.damage = &damage{at, p.cut}
			at = max(p.at, at+1, thought) // damage within a thought does not count
		case p.nested > maxNested:
			at = p.at
		default:
			a.open = a.open || p.cut
			at++
		}
	}
	if a.says() == unclear && inside < maxInside && strings.Contains(text, `{\`) {
		inner := readAnswer(unescape(text), inside+1)
		inner.loose, inner.work = draft{}, inner.work+a.work
		return inner
	}
	return a
}

// lastThought returns the offset of the last closing thought tag in text, or 0 if there is none.
func lastThought(text string) int {
	for end := len(text); ; {
		i := strings.LastIndex(text[:end], "</")
		if i < 0 {
			return 0
		}
		if n, _ := thoughtTag(text[i:]); n > 0 {
			return i
		}
		end = i
	}
}

// skipThought returns the number of bytes to skip in a text that begins with <. A closing tag without an opening tag
// discards everything before it, because some models omit the opening tag.
func (a *answer) skipThought(text string) int {
	n, ends := thoughtTag(text)
	switch {
	case n == 0:
		return 1
	case ends:
		*a = answer{work: a.work}
		return n
	}
	if _, to, ok := thoughtEnd(text); ok {
		return to
	}
	a.open = true
	return len(text)
}

// blank reports whether a part of an answer is only white space. It ignores a code block mark at the beginning.
func blank(s string) bool {
	s = s[pastSpace(s, 0):]
	if strings.HasPrefix(s, "```") {
		s = s[3:]
		s = s[identifier(s):]
	}
	return pastSpace(s, 0) == len(s)
}

// unescape decodes a text as the inside of a JSON string.
func unescape(text string) string {
	var b strings.Builder
	p := parser{s: text}
	for {
		before, _, ok := strings.Cut(text[p.at:], `\`)
		b.WriteString(before)
		p.at += len(before)
		if !ok || p.at+1 == len(text) { // a backslash at the end is half an escape
			return b.String()
		}
		p.escape(&b, `"`)
	}
}

// itemList is the name of the member that holds the items.
const itemList = "extractions"

// isResult reports whether a partly read value contains items.
func isResult(v *value) bool {
	return v.member(itemList) != nil || v.form == aList && len(v.parts) > 0 && isItem(&v.parts[0])
}

func isItem(v *value) bool { return v.form == anObject && v.member("quote") != nil }

// add records the findings in a complete value.
func (a *answer) add(v *value, at, inside int) {
	switch {
	case v.form == aList && len(v.parts) > 0 && hasItem(v):
		a.list = draft{v.parts, at}
	case isItem(v) && v.member(itemList) == nil:
		a.loose = draft{append(a.loose.items, *v), at}
	default:
		a.search(v, at, inside)
	}
}

func hasItem(list *value) bool {
	for i := range list.parts {
		if isItem(&list.parts[i]) {
			return true
		}
	}
	return false
}

// search looks for lists of items in a value, such as the envelope of a tool call.
func (a *answer) search(v *value, at, inside int) {
	if v.form == aString {
		a.searchString(v.text, at, inside)
		return
	}
	if items := v.member(itemList); items != nil {
		switch {
		case items.form == aList && len(items.parts) > 0:
			a.object = draft{items.parts, at}
			return
		case items.form == aList:
			a.empty = true
		case isItem(items):
			a.object = draft{[]value{*items}, at}
			return
		}
	}
	a.stray = a.stray || isItem(v)
	for i := range v.parts {
		if v.parts[i].form <= aString {
			a.search(&v.parts[i], at, inside)
		}
	}
}

// searchString looks for lists of items in a string of JSON.
func (a *answer) searchString(text string, at, inside int) {
	if inside >= maxInside || !strings.ContainsAny(text, "{[") || !strings.Contains(text, "quote") &&
		!strings.Contains(text, itemList) {
		return
	}
	inner := readAnswer(text, inside+1)
	a.work += inner.work
	switch inner.says() {
	case someItems:
		a.object = draft{inner.items(), at}
	case noItems:
		a.empty = true
	case cutOff, malformed:
		a.damage = &damage{at, inner.says() == cutOff}
	}
}

// meaning is the overall meaning of an answer.
type meaning uint8

const (
	unclear   meaning = iota // nothing readable
	someItems                // items
	noItems                  // an explicit statement that nothing was found
	cutOff                   // an answer that was cut off
	malformed                // items that cannot be read
)

// says returns the meaning of the answer. A draft counts only if no later draft is damaged, because a model that starts
// over withdraws its earlier draft. An empty list counts only if the answer has no other claim and no cut.
func (a *answer) says() meaning {
	switch {
	case a.object.items != nil && (a.damage == nil || a.damage.at <= a.object.at):
		return someItems
	case a.damage != nil && a.damage.cut:
		return cutOff
	case a.damage != nil:
		return malformed
	case a.list.items != nil, a.loose.items != nil && !a.open:
		return someItems
	case a.open:
		return cutOff
	case a.stray:
		return malformed
	case a.empty:
		return noItems
	}
	return unclear
}

// items returns the items of the best draft: the object, else the list, else the loose objects.
func (a *answer) items() []value {
	switch {
	case a.object.items != nil:
		return a.object.items
	case a.list.items != nil:
		return a.list.items
	}
	return a.loose.items
}
