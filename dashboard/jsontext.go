package dashboard

import (
	"encoding/json"
	"strconv"
	"strings"
)

// passage is a part of a text. A passage with a note is marked.
type passage struct {
	Text string
	Note string // for a value that an error points at
	N    int    // numbers the marked ones, from 1
}

// deepest is the greatest depth at which values are indented.
const deepest = 10

// mostPointed is the greatest depth at which values are marked: the length of a pointer grows with the depth.
const mostPointed = 100

type jsonLevel struct {
	array   bool
	n       int
	pointer string
}

// printed breaks a JSON text of Postgres into lines without changing it: numbers keep their digits, and texts their
// escapes. marks has the notes of values, by their JSON pointers.
func printed(s string, marks map[string]string) []passage {
	var (
		passages []passage
		out      strings.Builder
		stack    []jsonLevel
		at       string // the pointer of the next value
		marked   int
	)
	line := func() { out.WriteString("\n" + strings.Repeat("  ", min(len(stack), deepest))) }
	value := func(text string) {
		note, is := marks[at]
		if !is {
			out.WriteString(text)
			return
		}
		marked++
		passages = append(passages, passage{Text: out.String()}, passage{Text: text, Note: note, N: marked})
		out.Reset()
	}
	below := func(top *jsonLevel, name string) string {
		if len(stack) > mostPointed {
			return "too deep" // a pointer begins with a slash
		}
		return top.pointer + "/" + name
	}
	next := func(top *jsonLevel) {
		if top.array && len(marks) > 0 {
			at = below(top, strconv.Itoa(top.n))
		}
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case ' ', '\n', '\t', '\r':
		case '{', '[':
			value(string(c))
			stack = append(stack, jsonLevel{array: c == '[', pointer: at})
			if rest := strings.TrimLeft(s[i+1:], " \n\t\r"); rest != "" && rest[0] == c+2 { // } and ] follow { and [ by two
				i = len(s) - len(rest)
				stack = stack[:len(stack)-1]
				out.WriteByte(rest[0])
				continue
			}
			next(&stack[len(stack)-1])
			line()
		case '}', ']':
			stack = stack[:max(len(stack)-1, 0)]
			line()
			out.WriteByte(c)
		case ',':
			out.WriteByte(c)
			line()
			if len(stack) > 0 {
				top := &stack[len(stack)-1]
				top.n++
				next(top)
			}
		case ':':
			out.WriteString(": ")
		default:
			end := tokenEnd(s, i)
			token := s[i:end]
			i = end - 1
			if c == '"' && len(stack) > 0 && !stack[len(stack)-1].array &&
				strings.HasPrefix(strings.TrimLeft(s[end:], " \n\t\r"), ":") {
				out.WriteString(token)
				if len(marks) > 0 {
					at = below(&stack[len(stack)-1], pointerToken(token))
				}
				continue
			}
			value(token)
		}
	}
	return append(passages, passage{Text: out.String()})
}

// tokenEnd returns the end of the text, the number or the word that begins at i.
func tokenEnd(s string, i int) int {
	if s[i] != '"' {
		if n := strings.IndexAny(s[i:], ",]} \n\t\r:"); n > 0 {
			return i + n
		}
		return len(s)
	}
	for j := i + 1; j < len(s); j++ {
		switch s[j] {
		case '\\':
			j++
		case '"':
			return j + 1
		}
	}
	return len(s)
}

// pointerToken returns the name of a field in a JSON pointer.
func pointerToken(quoted string) string {
	var name string
	_ = json.Unmarshal([]byte(quoted), &name)
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

// budget is how much more of others' text a page may show, in bytes of HTML.
type budget int

// take cuts passages to the rest of the budget, and to at most most. It reports whether it cut anything.
func (b *budget) take(passages []passage, most int) (shown []passage, cut bool) {
	left := min(int(*b), most)
	for _, p := range passages {
		cost := 0
		for i, c := range p.Text {
			if cost += escapedSize(c); cost > left {
				p.Text, cut = p.Text[:i], true
				break
			}
		}
		cost = min(cost, left)
		left -= cost
		*b -= budget(cost)
		if shown = append(shown, p); cut {
			break
		}
	}
	return shown, cut
}

// escapedSize returns roughly how many bytes a character takes in HTML.
func escapedSize(c rune) int {
	switch c {
	case '"', '\'', '&', '<', '>', '+':
		return 5
	}
	if c < 0x80 {
		return 1
	}
	return 3
}
