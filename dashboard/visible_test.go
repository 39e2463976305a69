package dashboard_test

import (
	"strings"
	"testing"
	"unicode"

	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// odd has every character that controls, reorders or hides text, except NUL, which Postgres does not store, and line
// ends and tabs, which every page has.
var odd = func() string {
	var all strings.Builder
	for c := rune(1); c < 0xa0; c++ {
		if unicode.IsControl(c) && c != '\n' && c != '\t' {
			all.WriteRune(c)
		}
	}
	return all.String() +
		"\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff\U000e0041" +
		"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b\u180e\u2064\u2065\u206f\u3164\ufe00\ufe0f\uffa0\U0001d173\U000e0100\U000e0fff"
}()

func TestNoPageHasACharacterThatControlsOrReordersText(t *testing.T) {
	t.Parallel()
	m := newMuseum(t, func(place string) string {
		switch place {
		case "status", "code", "hash": // short ones: pages show only their beginning
			return odd[:10]
		case "recipient", "question", "argument", "message": // long ones
			return place + strings.Repeat(odd+"\n", 300)
		}
		return place + " <b>" + odd + "\"'"
	})
	for _, user := range []dashboard.User{{Name: "ada" + odd, Subject: "ada", Operator: true},
		{Name: "vera" + odd, OtherName: odd, Subject: odd[:8]}} {
		for _, s := range m.walk(t, user) {
			for i, c := range s.body {
				if strings.ContainsRune(odd, c) {
					t.Errorf("%s has %U: …%s…", s.path, c, s.body[max(0, i-200):min(len(s.body), i+100)])
					break
				}
			}
			if page := strings.HasPrefix(s.header.Get("Content-Type"), "text/html"); page && strings.Contains(s.body, "<b>") {
				t.Errorf("%s has markup:\n%s", s.path, s.body)
			} else if page && len(s.body) > 250_000 {
				t.Errorf("%s has %d bytes", s.path, len(s.body))
			}
			for name, values := range s.header {
				for _, v := range values {
					if strings.ContainsFunc(v, func(c rune) bool { return c < ' ' || c > '~' }) {
						t.Errorf("%s answers with %s: %q", s.path, name, v)
					}
				}
			}
		}
	}
}

// A page shows the hidden characters of a filter as symbols, but its form acts on the calls that match the filter.
func TestAFormForManyCallsKeepsTheCharactersOfItsFilter(t *testing.T) {
	t.Parallel()
	m := newMuseum(t, func(place string) string { return place + odd })
	m.user = dashboard.User{Name: "ada", Operator: true}
	// Without effects it can be repeated without typing the name of its tool.
	testdb.Exec(t, m.db, "set session_replication_role = replica; update core_tool_receipts set effects = '{}' "+
		"where call_id = '"+
		m.failed+"'; set session_replication_role = origin")
	_, list := get(t, m.server, "/calls?state=failed")
	if !strings.Contains(list, m.failed) {
		t.Fatal(list)
	}
	path := "/calls/bulk?do=again&all=yes&state=failed&" + m.names.Encode()
	path = strings.Replace(path, "key=", "none=", 1) // the call has no key
	_, page := get(t, m.server, path)
	says(t, page, "Run 1 call again")
	form := fill(t, m.server, path, "/calls/bulk")
	form.Set("confirm", form.Get("tool_named"))
	_, _, page = send(t, m.server, "/calls/bulk", form)
	says(t, page, "Run again: 1 call.")
}
