package dashboard_test

import (
	"testing"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestRefusedCallsAreShownApartFromFailures(t *testing.T) {
	t.Parallel()
	server, db := pages(t, dashboard.User{Name: "ada", Operator: true})
	testdb.Exec(t, db, "select gem.start_worker('w', 500, '', '1', '1 hour')")
	broken := failed(t, db, client.NewCall{Tool: "mail.send", SessionID: "s1"}, "timeout", "It took too long.")
	refused := failed(t, db, client.NewCall{Tool: "mail.send", SessionID: "s1"}, "rule_error",
		"The rule big could not be judged.")
	cancelled := failed(t, db, client.NewCall{Tool: "mail.send", SessionID: "s1"}, "cancelled", "No longer needed.")
	for path, want := range map[string][]string{
		"/":                 {"A rule could not be judged, and 1 call was refused", "It took too long."},
		"/failures":         {"It took too long."},
		"/sessions?id=s1":   {"<strong>1</strong> failed", "<strong>1</strong> refused", "<strong>1</strong> cancelled"},
		"/tools/mail.send":  {"<strong>1</strong> failed", "<strong>1</strong> refused", "<strong>1</strong> cancelled"},
		"/calls/" + refused: {`<span class="state refused">Refused</span>`, "<title>mail.send: refused"},
		"/calls": {`<span class="state refused">`, `<span class="state cancelled">`,
			`<span class="state failed">`, broken, refused, cancelled},
		"/calls?code=rule_error":                       {refused, "state=refused"},
		"/calls/bulk?do=again&all=yes&code=timeout":    {"1 call"},
		"/calls/bulk?do=again&all=yes&code=rule_error": {"1 call"},
	} {
		_, body := get(t, server, path)
		says(t, body, want...)
		if path == "/failures" || path == "/" {
			lacks(t, body, "No longer needed.", `code rule_error"`)
		}
	}
}
