package grounding

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// form is the kind of a value in an answer.
type form uint8

const (
	anObject form = iota + 1
	aList
	aString
	aNumber
	aWord // true, false, null
)

// value is a JSON value as the model wrote it.
type value struct {
	form  form
	text  string   // contents of a string, or the text of a number or a word
	names []string // names of an object's members
	parts []value  // values of an object or a list
}

// member returns the value of the last member with one of the names, or nil.
func (v *value) member(names ...string) *value {
	for i := len(v.names) - 1; i >= 0; i-- {
		for _, name := range names {
			if v.names[i] == name {
				return &v.parts[i]
			}
		}
	}
	return nil
}

// plain returns the value as encoding/json would decode it. Numbers are of type [json.Number].
func (v *value) plain() any {
	switch v.form {
	case anObject:
		m := make(map[string]any, len(v.parts))
		for i := range v.parts {
			m[v.names[i]] = v.parts[i].plain()
		}
		return m
	case aList:
		l := make([]any, len(v.parts))
		for i := range v.parts {
			l[i] = v.parts[i].plain()
		}
		return l
	case aNumber:
		return json.Number(v.text)
	case aWord:
		if v.text == "null" {
			return nil
		}
		return v.text == "true"
	}
	return v.text
}

// maxNested is the maximum nesting depth of the values in an answer.
const maxNested = 64

// parser reads one value. It repairs a value only if the repair is certain. It repairs control characters, backslashes
// that escape nothing, extra or missing commas, comments, quotation marks of other kinds, bare quotation marks within a
// string, names without quotation marks, NaN and the words of Python. A value that is not closed is cut. The parser
// never closes it.
type parser struct {
	s      string
	at     int // offset after the value, or where reading stopped
	cut    bool
	nested int // open values; more than maxNested if the depth stopped the reading
}

// read reads the value that begins at p.at, like value. It also sets p.cut if the text ends within a comment mark or a
// character.
func (p *parser) read() (value, bool) {
	v, ok := p.value(aList)
	if rest := p.s[p.at:]; !ok && rest != "" {
		p.cut = p.cut || rest == "/" || !utf8.FullRuneInString(rest)
	}
	return v, ok
}

// value reads the value that begins at p.at. in is the form of the enclosing value. If value returns false, the result
// is the part that was read. p.cut then reports whether the text ended too early.
func (p *parser) value(in form) (value, bool) {
	p.space()
	if p.at >= len(p.s) {
		p.cut = true
		return value{}, false
	}
	switch c := p.s[p.at]; {
	case c == '{' || c == '[':
		if p.nested++; p.nested > maxNested {
			return value{}, false
		}
		p.at++
		read := p.list
		if c == '{' {
			read = p.object
		}
		v, ok := read()
		if ok {
			p.nested--
		}
		return v, ok
	case opening(p.s[p.at:]) > 0:
		text, ok := p.string(in)
		return value{form: aString, text: text}, ok
	default:
		return p.word()
	}
}

func (p *parser) object() (value, bool) {
	v := value{form: anObject}
	for {
		p.commas()
		switch {
		case p.at >= len(p.s):
			p.cut = true
			return v, false
		case p.s[p.at] == '}':
			p.at++
			return v, true
		}
		name, ok := p.name()
		if !ok {
			return v, false
		}
		p.space()
		n := separator(p.s[p.at:], ':', "：")
		if n == 0 {
			p.cut = p.at >= len(p.s)
			return v, false
		}
		p.at += n
		part, ok := p.value(anObject)
		v.names, v.parts = append(v.names, name), append(v.parts, part)
		if !ok || !p.ended(&part, '}') {
			return v, false
		}
	}
}

func (p *parser) list() (value, bool) {
	v := value{form: aList}
	for {
		p.commas()
		switch {
		case p.at >= len(p.s):
			p.cut = true
			return v, false
		case p.s[p.at] == ']':
			p.at++
			return v, true
		}
		part, ok := p.value(aList)
		v.parts = append(v.parts, part)
		if !ok || !p.ended(&part, ']') {
			return v, false
		}
	}
}

// ended reports whether a comma or the closing bracket follows a part. The comma may be missing between objects and
// before the name of a member. ended skips a bracket of the other kind that closes nothing.
func (p *parser) ended(part *value, closing byte) bool {
	p.space()
	if p.at < len(p.s) && p.s[p.at] == '}'+']'-closing {
		if next := pastSpace(p.s, p.at+1); next < len(p.s) && (p.s[next] == closing || p.s[next] == ',') {
			p.at = next
		}
	}
	if p.at >= len(p.s) {
		p.cut = true
		return false
	}
	c := p.s[p.at]
	switch {
	case c == closing || separator(p.s[p.at:], ',', "，") > 0:
		return true
	case closing == ']':
		return c == '{' && part.form == anObject
	}
	return opening(p.s[p.at:]) > 0 && memberFollows(p.s[p.at:], true)
}

// name reads the name of a member.
func (p *parser) name() (string, bool) {
	if opening(p.s[p.at:]) > 0 {
		return p.string(0)
	}
	n := identifier(p.s[p.at:])
	if n == 0 {
		return "", false
	}
	name := p.s[p.at : p.at+n]
	p.at += n
	p.cut = p.at >= len(p.s)
	return name, !p.cut
}

func identifier(s string) int {
	n := 0
	for n < len(s) && (s[n] == '_' || s[n] == '$' || 'a' <= s[n]|0x20 && s[n]|0x20 <= 'z' || n > 0 &&
		('0' <= s[n] && s[n] <= '9' || s[n] == '-')) {
		n++
	}
	return n
}

// words maps the words of JSON, and the words that models write instead, to JSON. A word without a value in JSON
// becomes null.
var words = map[string]string{
	"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null",
	"NaN": "null", "Infinity": "null", "-Infinity": "null", "undefined": "null",
}

// word reads a number or a word. It returns a number that JSON does not allow, such as 007, as a string.
func (p *parser) word() (value, bool) {
	n := p.at
	for n < len(p.s) && (strings.IndexByte("+-.", p.s[n]) >= 0 || '0' <= p.s[n] && p.s[n] <= '9' || 'a' <= p.s[n]|0x20 &&
		p.s[n]|0x20 <= 'z') {
		n++
	}
	text := p.s[p.at:n]
	if n == len(p.s) {
		p.at, p.cut = n, true
		return value{}, false
	}
	if w, ok := words[text]; ok {
		p.at = n
		return value{form: aWord, text: w}, true
	}
	p.at = n
	if text == "" || strings.IndexByte("+-.0123456789", text[0]) < 0 {
		return value{}, false
	}
	if json.Valid([]byte(text)) {
		return value{form: aNumber, text: text}, true
	}
	return value{form: aString, text: text}, true
}

// space skips white space, control characters, characters without width and comments.
func (p *parser) space() {
	for p.at = pastSpace(p.s, p.at); comment(p.s[p.at:]); p.at = pastSpace(p.s, p.at) {
		rest, end := p.s[p.at+2:], "\n"
		if p.s[p.at+1] == '*' {
			end = "*/"
		}
		if i := strings.Index(rest, end); i >= 0 {
			p.at += 2 + i + len(end)
		} else {
			p.at = len(p.s)
		}
	}
}

func comment(s string) bool { return len(s) > 1 && s[0] == '/' && (s[1] == '/' || s[1] == '*') }

// pastSpace returns the offset after white space, control characters and characters without width.
func pastSpace(s string, at int) int {
	for at < len(s) {
		c := s[at]
		switch {
		case c <= ' ' || c == 0x7f:
			at++
		case c < utf8.RuneSelf:
			return at
		default:
			r, n := utf8.DecodeRuneInString(s[at:])
			if !unicode.IsSpace(r) && !unseen(r) {
				return at
			}
			at += n
		}
	}
	return at
}

// commas skips white space and commas. One comma may separate two parts. All others have no meaning.
func (p *parser) commas() {
	for p.space(); p.at < len(p.s); p.space() {
		n := separator(p.s[p.at:], ',', "，")
		if n == 0 {
			return
		}
		p.at += n
	}
}

// separator returns the length of the separator at the start of s, or 0.
func separator(s string, narrow byte, wide string) int {
	switch {
	case s == "":
		return 0
	case s[0] == narrow:
		return 1
	case s[0] >= utf8.RuneSelf && strings.HasPrefix(s, wide):
		return len(wide)
	}
	return 0
}

// opening returns the length of the quotation mark at the start of s if it can open a string, else 0.
func opening(s string) int {
	switch {
	case s == "":
		return 0
	case s[0] == '"' || s[0] == '\'' || s[0] == '`':
		return 1
	case s[0] < utf8.RuneSelf:
		return 0
	}
	if r, n := utf8.DecodeRuneInString(s); strings.ContainsRune(doubleMarks+singleMarks, r) {
		return n
	}
	return 0
}

const (
	doubleMarks = "“”„‟＂«»"
	singleMarks = "‘’‚‛"
)

// closers returns the quotation marks that can end a string that mark opened.
func closers(mark string) string {
	switch {
	case mark == `"`:
		return `"`
	case mark == "'" || mark == "`":
		return mark
	case strings.Contains(doubleMarks, mark):
		return doubleMarks + `"`
	}
	return singleMarks + "'"
}

// string reads a string. in is the form of the enclosing value, or 0 for the name of a member.
func (p *parser) string(in form) (string, bool) {
	n := opening(p.s[p.at:])
	marks := closers(p.s[p.at : p.at+n])
	p.at += n
	var b strings.Builder
	from := p.at // start of the text not yet copied to b
	for p.at < len(p.s) {
		c := p.s[p.at]
		switch {
		case c == '\\':
			b.WriteString(p.s[from:p.at])
			if p.at+1 >= len(p.s) {
				p.at, p.cut = len(p.s), true
				return b.String(), false
			}
			p.escape(&b, marks)
			from = p.at
		case c < ' ' && c != '\n' && c != '\r' && c != '\t' || c == 0x7f:
			b.WriteString(p.s[from:p.at])
			p.at++
			from = p.at
		case c >= utf8.RuneSelf || c == marks[len(marks)-1]:
			n := 1
			if c >= utf8.RuneSelf {
				_, n = utf8.DecodeRuneInString(p.s[p.at:])
			}
			if strings.Contains(marks, p.s[p.at:p.at+n]) && p.closes(p.at+n, in) {
				text := p.s[from:p.at]
				if b.Len() > 0 {
					b.WriteString(text)
					text = b.String()
				}
				p.at += n
				return text, true
			}
			p.at += n
		default:
			p.at++
		}
	}
	p.cut = true
	b.WriteString(p.s[from:])
	return b.String(), false
}

// escape decodes a backslash and the characters after it. It keeps a backslash that escapes nothing.
func (p *parser) escape(b *strings.Builder, marks string) {
	c := p.s[p.at+1]
	p.at += 2
	switch i := strings.IndexByte(`"\/bfnrt`, c); {
	case i >= 0:
		b.WriteByte("\"\\/\b\f\n\r\t"[i])
	case c == 'u':
		r, ok := hex4(p.s[p.at:])
		if !ok {
			b.WriteString(`\u`)
			return
		}
		p.at += 4
		if utf16.IsSurrogate(r) && strings.HasPrefix(p.s[p.at:], `\u`) {
			if low, ok := hex4(p.s[p.at+2:]); ok && utf16.DecodeRune(r, low) != unicode.ReplacementChar {
				r = utf16.DecodeRune(r, low)
				p.at += 6
			}
		}
		if r != 0 { // Postgres cannot store NUL
			b.WriteRune(r)
		}
	case c == '\'' && marks[len(marks)-1] == '\'':
		b.WriteByte(c)
	default:
		b.WriteByte('\\')
		p.at--
	}
}

func hex4(s string) (rune, bool) {
	if len(s) < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(s[:4], 16, 16)
	return rune(n), err == nil
}

// closes reports whether the quotation mark before at ends its string. It does if valid JSON can continue after it. In
// a valid text a closing mark always passes this test. A mark that fails it belongs to the contents of the string.
func (p *parser) closes(at int, in form) bool {
	s := p.s
	at = pastSpace(s, at)
	if at >= len(s) {
		return true
	}
	if in == 0 {
		return separator(s[at:], ':', "：") > 0
	}
	if s[at] == '}' || s[at] == ']' || comment(s[at:]) {
		return true
	}
	n := separator(s[at:], ',', "，")
	if n == 0 {
		return in == anObject && opening(s[at:]) > 0 && memberFollows(s[at:], false)
	}
	at = pastSpace(s, at+n)
	switch {
	case at >= len(s) || strings.IndexByte("}],", s[at]) >= 0 || comment(s[at:]):
		return true
	case in == anObject:
		return memberFollows(s[at:], true)
	}
	return strings.IndexByte("{[-0123456789", s[at]) >= 0 || opening(s[at:]) > 0 ||
		words[s[at:at+identifier(s[at:])]] != ""
}

// maxName is the number of bytes in which memberFollows looks for the end of a name.
const maxName = 100

// memberFollows reports whether s begins with a name and a colon. It returns unsure if the text or the first maxName
// bytes end too early to tell.
func memberFollows(s string, unsure bool) bool {
	colon := func(at int) bool {
		at = pastSpace(s, at)
		return at >= len(s) && unsure || at < len(s) && (comment(s[at:]) || separator(s[at:], ':', "：") > 0)
	}
	n := opening(s)
	if n == 0 {
		end := identifier(s[:min(len(s), maxName)])
		return end > 0 && colon(end)
	}
	marks := closers(s[:n])
	for i := n; i < len(s) && i < maxName; {
		_, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case s[i] == '\\':
			size = 2
		case strings.Contains(marks, s[i:i+size]):
			return colon(i + size)
		}
		i += size
	}
	return unsure
}
