package prose

import (
	"cmp"
	"strings"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/oneline"
)

// Asker describes the asker of a question, to be shown before its text. waiting reports whether a call waits for the
// answer: then a model chose a user's question.
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
		return "A handler asks, on behalf of " + whose
	case waiting:
		return "A model asks, on behalf of " + whose + ". Neither a rule nor a handler's code asks this; the text is the " +
			"model's own"
	}
	if by == "" {
		whose = "A server or a database login"
	}
	return whose + " asks. Neither a rule nor a handler asks this; the text is the caller's own"
}

// AskerOf is [Asker] of a question.
func AskerOf(q *client.Question) string { return Asker(q.AskedFor, q.AskedBy, q.CallID != "") }

// Said quotes others' text, on one line and cut to a number of characters, so that it cannot look like the text
// around it.
func Said(text string, most int) string {
	return "\u201c" + cmp.Or(Inside(oneline.Text(text, most)), oneline.Missing) + "\u201d"
}

// Inside replaces the quotation marks of a text, so that it cannot end a quotation.
func Inside(text string) string {
	return strings.NewReplacer("\u201c", `"`, "\u201d", `"`).Replace(text)
}
