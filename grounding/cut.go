package grounding

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxCluster is how many code points of one character, with all its marks, are kept together where a body is shorter
// than that.
const maxCluster = 64

// bodyEnd returns where the body ends that begins at start.
func bodyEnd(text string, start, size int) int {
	limit := skip(text, start, size)
	if limit == len(text) {
		return limit
	}
	half := start + (limit-start)/2
	if at := lineEnd(text, half, limit); at > 0 {
		return at
	}
	if at := wordEnd(text, half, limit); at > 0 {
		return at
	}
	for at := limit; at > start; {
		if between(text, at, start) {
			return at
		}
		_, n := utf8.DecodeLastRuneInString(text[:at])
		at -= n
	}
	for n, at := size, limit; n < maxCluster; n++ {
		_, width := utf8.DecodeRuneInString(text[at:])
		if at += width; between(text, at, start) {
			return at
		}
	}
	return limit
}

// lineEnd returns the offset behind the last blank line between two offsets, else behind the last line, else 0.
func lineEnd(text string, from, to int) int {
	line := 0
	for {
		i := strings.LastIndexByte(text[from:to], '\n')
		if i < 0 {
			return line
		}
		at := from + i + 1
		to = at - 1
		if !between(text, at, from) {
			continue
		}
		if strings.HasSuffix(strings.TrimRight(text[:to], " \t"), "\n") {
			return at
		}
		if line == 0 {
			line = at
		}
	}
}

// wordEnd returns the offset behind the last sentence between two offsets, else behind the last white space, else 0.
func wordEnd(text string, from, to int) int {
	word := 0
	tail, spaced := 0, false // the end of the white space and closers that follow, and whether there is white space
	for at := to; at > from; {
		r, n := utf8.DecodeLastRuneInString(text[from:at])
		switch kind := kindOf(r); {
		case kind == space:
			if !spaced {
				tail, spaced = at, true
			}
		case kind == closer:
			if tail == 0 {
				tail = at
			}
		case kind == wideStop || kind == stop && spaced:
			if end := max(at, tail); between(text, end, from) {
				return end
			}
			tail, spaced = 0, false
		default:
			if word == 0 && spaced && between(text, tail, from) {
				word = tail
			}
			tail, spaced = 0, false
		}
		at -= n
	}
	if word == 0 && spaced && between(text, tail, from) {
		word = tail
	}
	return word
}

// kind is what a character means for the end of a sentence.
type kind int

const (
	other    kind = iota
	space         // between words
	stop          // ends a sentence where white space follows
	wideStop      // ends a sentence
	closer        // can stand between the end of a sentence and what follows
)

func kindOf(r rune) kind {
	switch r {
	case ' ', '\t':
		return space
	case '.', '!', '?', '…', '؟', '۔', '।', '॥':
		return stop
	case '。', '！', '？':
		return wideStop
	case '"', '\'', ')', ']', '}', '»', '”', '’', '」', '』', '）', '】':
		return closer
	}
	return other
}

// between reports whether an offset is between two characters as people see them: a combining mark belongs to the
// letter before it, and so do the parts of an emoji, of a flag and of a Hangul syllable. Flags are counted from an
// offset on that is between two characters.
func between(text string, at, from int) bool {
	if at <= from || at >= len(text) {
		return true
	}
	if text[at] < utf8.RuneSelf { // no ASCII character continues another
		return true
	}
	before, _ := utf8.DecodeLastRuneInString(text[from:at])
	switch after, _ := utf8.DecodeRuneInString(text[at:]); {
	case before == '\u200d' || continues(after): // joined by a joiner
		return false
	case isFlag(after):
		return !isFlag(before) || flags(text[from:at])%2 == 0
	case after >= 0x1160 && after <= 0x11FF: // a vowel or an end of a syllable
		return !isHangul(before)
	}
	return true
}

// continues reports whether a character belongs to the one before it.
func continues(r rune) bool {
	switch {
	case r < 0x370:
		return r >= 0x300
	case r == 0x200C || r == 0x200D || r == 0xFF9E || r == 0xFF9F: // joiners, and the voice marks of narrow katakana
		return true
	case r >= 0x1F3FB && r <= 0x1F3FF || r >= 0xE0020 && r <= 0xE007F: // skin colours and tags of emoji
		return true
	}
	return unicode.Is(unicode.M, r)
}

func isHangul(r rune) bool { return r >= 0x1100 && r <= 0x11FF || r >= 0xAC00 && r <= 0xD7A3 }

func isFlag(r rune) bool { return r >= 0x1F1E6 && r <= 0x1F1FF }

// flags counts the letters of flags at the end of a text.
func flags(text string) int {
	n := 0
	for {
		r, width := utf8.DecodeLastRuneInString(text)
		if !isFlag(r) {
			return n
		}
		text = text[:len(text)-width]
		n++
	}
}
