package grounding

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxCluster is the length up to which a character with all its marks stays whole in a smaller body, in code points.
const maxCluster = 64

// bodyEnd returns the end offset of the body that begins at start.
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

// lineEnd returns the offset after the last blank line between two offsets, else after the last line, else 0.
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

// wordEnd returns the offset after the last sentence between two offsets, else after the last white space, else 0.
func wordEnd(text string, from, to int) int {
	word := 0
	tail, spaced := 0, false // end of the white space and closers that follow; whether there is white space
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

// kind is the role of a character at the end of a sentence.
type kind int

const (
	other    kind = iota
	space         // separates words
	stop          // ends a sentence before white space
	wideStop      // ends a sentence
	closer        // may come between the end of a sentence and the next text
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

// between reports whether an offset is between two characters as a reader sees them. A combining mark belongs to the
// letter before it. The parts of an emoji, of a flag or of a Hangul syllable belong together. from must be between two
// characters. Flags are counted from there.
func between(text string, at, from int) bool {
	if at <= from || at >= len(text) {
		return true
	}
	if text[at] < utf8.RuneSelf { // ASCII characters never continue another character
		return true
	}
	before, _ := utf8.DecodeLastRuneInString(text[from:at])
	switch after, _ := utf8.DecodeRuneInString(text[at:]); {
	case before == '\u200d' || continues(after): // a joiner or a mark connects them
		return false
	case isFlag(after):
		return !isFlag(before) || flags(text[from:at])%2 == 0
	case after >= 0x1160 && after <= 0x11FF: // the vowel or the end of a syllable
		return !isHangul(before)
	}
	return true
}

// continues reports whether a character belongs to the character before it.
func continues(r rune) bool {
	switch {
	case r < 0x370:
		return r >= 0x300
	case r == 0x200C || r == 0x200D || r == 0xFF9E || r == 0xFF9F: // joiners and the voice marks of halfwidth katakana
		return true
	case r >= 0x1F3FB && r <= 0x1F3FF || r >= 0xE0020 && r <= 0xE007F: // skin tones and tags of emoji
		return true
	}
	return unicode.Is(unicode.M, r)
}

func isHangul(r rune) bool { return r >= 0x1100 && r <= 0x11FF || r >= 0xAC00 && r <= 0xD7A3 }

func isFlag(r rune) bool { return r >= 0x1F1E6 && r <= 0x1F1FF }

// flags returns the number of flag letters at the end of a text.
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
