package grounding

import "strings"

// draft is a list of items in an answer, and its place.
type draft struct {
	items []value
	at    int
}

// damage is a list of items that was not read to its end: the answer ends within it, or it is not JSON and cannot be
// repaired without a guess.
type damage struct {
	at  int
	cut bool
}

// answer is what was found in the text of an answer. Of drafts of the same rank the last counts.
type answer struct {
	object draft   // an object whose extractions are not empty
	list   draft   // a list of objects that have a quote
	loose  draft   // all objects that have a quote and stand alone
	empty  bool    // an object whose extractions are empty, or an answer that is [] and nothing else
	stray  bool    // an object that has a quote and is in no list of items: it claims something all the same
	damage *damage // the last
	open   bool    // some value is not closed where the answer ends
	work   int     // bytes that were read
}

const (
	// maxReadings is how many times an answer may be read in all, since what begins like JSON may not be JSON, and JSON
	// may be inside it.
	maxReadings = 16
	// maxInside is how many strings of JSON an answer may be nested in: a model may write its JSON as a string, or as the
	// arguments of a call.
	maxInside = 2
)

// thoughts are the names of the tags between which models think.
var thoughts = map[string]bool{"think": true, "thinking": true, "thought": true, "reasoning": true, "reflection": true,
	"analysis": true, "scratchpad": true}

// thoughtTag returns the length of the tag of a thought with which text begins, or 0, and whether the tag ends the
// thought.
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

// thoughtEnd returns the offsets of the first end of a thought in a text and behind it, or false.
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

// readAnswer finds the items in an answer. It reads each value in the text, and leaves out thoughts
// before it.
func readAnswer(text string, inside int) *answer {
	a := &answer{}
	thought := lastThought(text)
	start := 0 // where the last thought ended
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
			at = max(p.at, at+1, thought) // what was thought may have been damaged, and does not count
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

// lastThought returns the offset of the last end of a thought in a text, or 0.
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

// skipThought returns how much to skip of a text that begins with <. An end without a beginning ends all before it:
// some models leave the beginning out.
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

// blank reports whether a part of an answer is white space, with the marks of a code block or not.
func blank(s string) bool {
	s = s[pastSpace(s, 0):]
	if strings.HasPrefix(s, "```") {
		s = s[3:]
		s = s[identifier(s):]
	}
	return pastSpace(s, 0) == len(s)
}

// unescape reads a text as the inside of a string of JSON.
func unescape(text string) string {
	var b strings.Builder
	p := parser{s: text}
	for {
		before, _, ok := strings.Cut(text[p.at:], `\`)
		b.WriteString(before)
		p.at += len(before)
		if !ok || p.at+1 == len(text) { // a backslash at the end is half of an escape
			return b.String()
		}
		p.escape(&b, `"`)
	}
}

// itemList is the member that has the items.
const itemList = "extractions"

// isResult reports whether a value that was read in part gives items.
func isResult(v *value) bool {
	return v.member(itemList) != nil || v.form == aList && len(v.parts) > 0 && isItem(&v.parts[0])
}

func isItem(v *value) bool { return v.form == anObject && v.member("quote") != nil }

// add notes what a whole value gives.
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

// search looks for lists of items in a value, which may be the envelope of a call of a tool.
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

// meaning is what an answer says in all.
type meaning uint8

const (
	unclear   meaning = iota // nothing that can be read
	someItems                // items
	noItems                  // that there are none
	cutOff                   // items, and it was cut
	malformed                // items, which cannot be read
)

// says weighs what was found. A draft counts only if no later one is damaged: a model that began again took back what
// it had said. An empty list counts only if nothing was claimed or cut anywhere.
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

// items returns the items of the best draft.
func (a *answer) items() []value {
	switch {
	case a.object.items != nil:
		return a.object.items
	case a.list.items != nil:
		return a.list.items
	}
	return a.loose.items
}
