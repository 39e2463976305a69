package registry

import (
	"net/url"
	"strconv"
	"strings"
)

// A JSON pointer (RFC 6901) says where in a document a value stands: "" is the document, /tags/0 the first of tags.

var (
	pointerEscape   = strings.NewReplacer("~", "~0", "/", "~1")
	pointerUnescape = strings.NewReplacer("~1", "/", "~0", "~")
)

func pointer(path []step) string {
	var b strings.Builder
	for _, s := range path {
		b.WriteByte('/')
		if s.index >= 0 {
			b.WriteString(strconv.Itoa(s.index))
		} else {
			b.WriteString(pointerEscape.Replace(s.key))
		}
	}
	return b.String()
}

func joinPointer(pointer, key string) string { return pointer + "/" + pointerEscape.Replace(key) }

// tokens splits a pointer into its unescaped keys and indexes.
func tokens(pointer string) []string {
	if pointer == "" {
		return nil
	}
	parts := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for i, p := range parts {
		parts[i] = pointerUnescape.Replace(p)
	}
	return parts
}

// libraryPointer undoes the URL escaping that the library applies to its pointers.
func libraryPointer(s string) string {
	if plain, err := url.PathUnescape(s); err == nil {
		return plain
	}
	return s
}

// child returns the value under a key or an index.
func child(v any, token string) (any, bool) {
	switch v := v.(type) {
	case map[string]any:
		c, ok := v[token]
		return c, ok
	case []any:
		if i, ok := index(token); ok && i < len(v) {
			return v[i], true
		}
	}
	return nil, false
}

// index reads a token that is the index of a list.
func index(token string) (int, bool) {
	if token == "" || token[0] < '0' || token[0] > '9' {
		return 0, false
	}
	i, err := strconv.Atoi(token)
	return i, err == nil
}

// lookup returns the value that a pointer names.
func lookup(v any, pointer string) (any, bool) {
	for _, token := range tokens(pointer) {
		var ok bool
		if v, ok = child(v, token); !ok {
			return nil, false
		}
	}
	return v, true
}

// comparePointers orders pointers as a reader of the document meets them: by level, indexes by number.
func comparePointers(a, b string) int {
	for a != "" && b != "" {
		var left, right string
		left, a = cutToken(a)
		right, b = cutToken(b)
		if left == right {
			continue
		}
		i, isLeft := index(left)
		j, isRight := index(right)
		switch {
		case isLeft && isRight && i != j:
			return i - j
		case isLeft && !isRight:
			return -1
		case isRight && !isLeft:
			return 1
		}
		return strings.Compare(left, right)
	}
	return len(a) - len(b)
}

func cutToken(pointer string) (token, rest string) {
	pointer = pointer[1:]
	if i := strings.IndexByte(pointer, '/'); i >= 0 {
		return pointer[:i], pointer[i:]
	}
	return pointer, ""
}
