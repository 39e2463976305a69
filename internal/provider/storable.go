package provider

import "strings"

// storable returns the text in a form that Postgres can store: invalid UTF-8 and NUL become U+FFFD.
func storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}
