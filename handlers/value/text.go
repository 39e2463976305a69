package value

import (
	"regexp"
	"strings"

	"github.com/gemworker/gem/internal/scrub"
	"github.com/gemworker/gem/receipts"
)

// IsUUID reports whether a text is a UUID in the form of ids of calls and rows. Postgres would reject other texts, and
// abort the transaction.
func IsUUID(s string) bool { return uuidForm.MatchString(s) }

var uuidForm = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// OneLine makes a text of another service fit for an error message: at most 500 bytes of valid UTF-8 on one line,
// without the secrets, in case the service echoed them.
func OneLine(s string, secrets ...string) string {
	for _, secret := range secrets {
		s = scrub.Replace(s, secret, "[secret]")
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	return receipts.Shorten(strings.TrimSpace(s), 500)
}

// maxWords limits the cost of a search with a long query.
const maxWords = 20

var literally = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

// Words converts a query into patterns for `ilike all`: a row matches if it contains each word, in upper or lower case.
// An empty query matches every row. Words after the 20th are ignored.
func Words(query string) []string {
	words := strings.Fields(query)
	words = words[:min(len(words), maxWords)]
	for i, word := range words {
		words[i] = "%" + literally.Replace(word) + "%"
	}
	return words
}
