package supabase_test

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/supabase"
)

// desk is a project with two users, a server and a visitor, and with their calls. In queries, a name such as ADAS_CALL
// is replaced by the id of that call.
type desk struct {
	*supabase.Project
	t *testing.T
}

var ids = strings.NewReplacer(
	"ADAS_CALL", "00000000-0000-7000-8000-0000000000a1", // queued
	"ADAS_ENDED", "00000000-0000-7000-8000-0000000000a2", // cancelled, so it has a receipt
	"GRACES_CALL", "00000000-0000-7000-8000-0000000000b1",
	"GRACES_ENDED", "00000000-0000-7000-8000-0000000000b2",
	"NOBODYS_CALL", "00000000-0000-7000-8000-0000000000c1", // the server's own: created_by is null
	"NEW_CALL", "00000000-0000-7000-8000-0000000000d1",
	"NO_CALL", "00000000-0000-7000-8000-0000000000ff",
)

func newDesk(t *testing.T, o supabase.Options) desk {
	t.Helper()
	d := desk{supabase.Start(t, o), t}
	d.Exec(ids.Replace(`
		insert into core_tool_calls (id, tool_name, input, session_id, created_by, idempotency_key) values
			('ADAS_CALL',    'os.create_note', '{"title": "hers"}', 'morning', 'ada',   null),
			('ADAS_ENDED',   'os.create_note', '{}',                null,      'ada',   'k'),
			('GRACES_CALL',  'os.create_note', '{"title": "hers"}', 'morning', 'grace', null),
			('GRACES_ENDED', 'os.create_note', '{}',                null,      'grace', 'k'),
			('NOBODYS_CALL', 'os.create_note', '{}',                null,      null,    null);
		select cancel_tool_call('ADAS_ENDED'), cancel_tool_call('GRACES_ENDED');
		insert into core_tool_progress (call_id, attempt, seq, at, kind, data) values
			('ADAS_CALL',    1, 1, now(), 'text', '{"text": "hers"}'),
			('GRACES_CALL',  1, 1, now(), 'text', '{"text": "hers"}'),
			('NOBODYS_CALL', 1, 1, now(), 'text', '{"text": "nobodys"}');
		insert into notes (title) values ('a note of the business');`))
	return d
}

// token returns the token of ada, grace or the server, or "" for the visitor.
func (d desk) token(who string) string {
	switch who {
	case "server":
		return d.Server()
	case "visitor":
		return ""
	}
	return d.User(who)
}

// ask runs a query with supabase-js and returns the answer.
func (d desk) ask(who, query string) supabase.Answer {
	d.t.Helper()
	return d.Client().Query(d.token(who), ids.Replace(query))
}

// must fails the test unless a query has the given outcome.
func (d desk) must(who, query, outcome string) supabase.Answer {
	d.t.Helper()
	a := d.ask(who, query)
	if a.Outcome() != outcome {
		d.t.Errorf("%s: %s: got %s (%s), want %s", who, query, a.Outcome(), a.Message, outcome)
	}
	return a
}

// unchanged fails the test if run changes something.
func (d desk) unchanged(what string, run func()) {
	d.t.Helper()
	before := d.State()
	run()
	if after := d.State(); after != before {
		d.t.Errorf("%s changed something; before:\n%s\nafter:\n%s", what, before, after)
	}
}
