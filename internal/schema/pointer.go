package schema

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

// JoinPointer is the pointer to what a value has under a key.
func JoinPointer(pointer, key string) string { return pointer + "/" + pointerEscape.Replace(key) }

// splitPointer returns the pointer to the value around, and the last key or index.
func splitPointer(pointer string) (around, last string) {
	i := max(0, strings.LastIndexByte(pointer, '/'))
	return pointer[:i], pointerUnescape.Replace(strings.TrimPrefix(pointer[i:], "/"))
}

// Tokens splits a pointer into its unescaped keys and indexes.
func Tokens(pointer string) []string {
	parts := strings.Split(pointer, "/")[1:]
	for i, p := range parts {
		parts[i] = pointerUnescape.Replace(p)
	}
	return parts
}

// PlainPointer undoes the URL escaping that the library applies to its pointers.
func PlainPointer(s string) string {
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

// Lookup returns the value that a pointer names.
func Lookup(v any, pointer string) (any, bool) {
	for _, token := range Tokens(pointer) {
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

// ValueAt is the value that a pointer names, or nil.
func ValueAt(doc any, pointer string) any {
	v, _ := Lookup(doc, pointer)
	return v
}

// ComparePointers orders pointers by level: indexes by number, before keys by letter.
func ComparePointers(a, b string) int {
	return slices.CompareFunc(Tokens(a), Tokens(b), func(a, b string) int {
		return cmp.Or(cmp.Compare(uint(index(a)), uint(index(b))), strings.Compare(a, b))
	})
}

// As returns v if it is a T, and otherwise the zero value.
func As[T any](v any) T {
	t, _ := v.(T)
	return t
}
