package prose

import (
	"cmp"
	"strings"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/oneline"
)

// Asker says who asks a question, in GEM's words, which precede those of the question. waiting reports whether a call waits for the answer: of a
// user's question, a model then chose it.
func Asker(kind client.Asker, by string, waiting bool) string {
	whose := "a call that names no caller"
	if by != "" {
		whose = oneline.Value(by)
	}
	switch {
	case kind == client.AskerRule && by != "":
		return "A rule asks about a call of " + whose
	case kind == client.AskerRule:
		return "A rule asks about " + whose
	case kind == client.AskerHandler:
		return "The handler of a call asks, for " + whose
	case waiting:
		return "A model asks, for " + whose + ". No rule and no code of a handler asks this: the words are the model's own"
	}
	if by == "" {
		whose = "A server, or a login of the database,"
	}
	return whose + " asks. No rule and no handler asks this: the words are only the asker's claim"
}

// AskerOf is [Asker] of a question.
func AskerOf(q *client.Question) string { return Asker(q.AskedFor, q.AskedBy, q.CallID != "") }

// Said quotes what somebody else wrote, on one line and cut to so many characters: it cannot pass for the words around it.
func Said(text string, most int) string {
	return "\u201c" + cmp.Or(Inside(oneline.Text(text, most)), oneline.Missing) + "\u201d"
}

// Inside replaces the quotation marks of a text that is to be quoted, so that it cannot end the quotation.
func Inside(text string) string {
	return strings.NewReplacer("\u201c", `"`, "\u201d", `"`).Replace(text)
}
