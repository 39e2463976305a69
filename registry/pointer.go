package registry

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// A JSON pointer (RFC 6901) says where in a document a value stands: "" is the document, /tags/0 the first of tags.

var (
	pointerEscape   = strings.NewReplacer("~", "~0", "/", "~1")
	pointerUnescape = strings.NewReplacer("~1", "/", "~0", "~")
)

func joinPointer(pointer, key string) string { return pointer + "/" + pointerEscape.Replace(key) }

// splitPointer returns the pointer to the value around, and the last key or index.
func splitPointer(pointer string) (around, last string) {
	i := max(0, strings.LastIndexByte(pointer, '/'))
	return pointer[:i], pointerUnescape.Replace(strings.TrimPrefix(pointer[i:], "/"))
}

// tokens splits a pointer into its unescaped keys and indexes.
func tokens(pointer string) []string {
	parts := strings.Split(pointer, "/")[1:]
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

// index reads a token that is the index of a list. Any other is -1.
func index(token string) int {
	if token != "" && '0' <= token[0] && token[0] <= '9' {
		if i, err := strconv.Atoi(token); err == nil {
			return i
		}
	}
	return -1
}

// lookup returns the value that a pointer names.
func lookup(v any, pointer string) (any, bool) {
	for _, token := range tokens(pointer) {
		var ok bool
		switch around := v.(type) {
		case map[string]any:
			v, ok = around[token]
		case []any:
			if i := index(token); i >= 0 && i < len(around) {
				v, ok = around[i], true
			}
		}
		if !ok {
			return nil, false
		}
	}
	return v, true
}

// valueAt is the value that a pointer names, or nil.
func valueAt(doc any, pointer string) any {
	v, _ := lookup(doc, pointer)
	return v
}

// comparePointers orders pointers by level: indexes by number, before keys by letter.
func comparePointers(a, b string) int {
	return slices.CompareFunc(tokens(a), tokens(b), func(a, b string) int {
		return cmp.Or(cmp.Compare(uint(index(a)), uint(index(b))), strings.Compare(a, b))
	})
}

// as returns v if it is a T, and otherwise the zero value.
func as[T any](v any) T {
	t, _ := v.(T)
	return t
}
