package handlers

import (
	"fmt"
	"io"
)

// Secret is a string of a configuration that shows itself nowhere: printing, formatting, encoding and logging it give [set], or
// nothing if it is empty. Only [Secret.Reveal] returns its value.
type Secret string

const mask = "[set]"

// Reveal returns the secret itself: for the connection that needs it, and for nothing that is kept.
func (s Secret) Reveal() string { return string(s) }

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return mask
}

// GoString is what %#v shows.
func (s Secret) GoString() string { return fmt.Sprintf("%q", s.String()) }

// Format serves the verbs of fmt, also those that do not fit a string, which fmt would show in its complaint. Only %p and
// a misused %w pass it by, and go vet refuses both.
func (s Secret) Format(f fmt.State, verb rune) {
	if f.Flag('#') || verb == 'q' {
		_, _ = io.WriteString(f, s.GoString())
		return
	}
	_, _ = io.WriteString(f, s.String())
}

// MarshalText masks the secret in XML and in structured logs. (A key of a JSON object is beyond its reach.)
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON masks the secret in JSON.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + s.String() + `"`), nil }
