package handlers

import (
	"fmt"
	"io"
)

// Secret is a configured string that stays hidden: if it is printed, formatted, encoded or logged, the text "[set]"
// appears, or nothing if it is empty. Only [Secret.Reveal] returns its value.
type Secret string

// Reveal returns the value, for use in a connection.
func (s Secret) Reveal() string { return string(s) }

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "[set]"
}

// Format handles all verbs of fmt, even verbs that do not fit a string, for which fmt would print the value.
func (s Secret) Format(f fmt.State, verb rune) {
	text := s.String()
	if f.Flag('#') || verb == 'q' {
		text = fmt.Sprintf("%q", text)
	}
	_, _ = io.WriteString(f, text)
}

// MarshalText masks the secret in JSON, XML and structured logs. It cannot mask a key of a JSON object.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
