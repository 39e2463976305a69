package dashboard_test

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestAChangeOfTheServerIsShownWithWhatItLost(t *testing.T) {
	t.Parallel()
	server, db := pages(t, dashboard.User{Name: "ada", Operator: true})
	testdb.Exec(t, db, `
		insert into gem.epochs (server, system_id, timeline, at, why, reran) values
			('2026-01-01', '7', '00000001', '2026-01-01', 'first', 0), (now(), '7', '00000002', now(), 'promotion', 2);
		insert into gem.epoch_calls values
			(2, '01a21db1-c790-779e-aefa-f408d87d490a', 1, 'web-1', 'comms.send_email', 'restored',
				'01a21db1-c7d0-779e-ae06-f8cff1d054dc', 'queued, attempt 0', '{"secret": 1}', now()),
			(2, '01a21db1-c790-779e-aefa-f408d87d490b', 1, 'web-2', '<b>', 'ran_twice', null,
				'succeeded, attempt 1', null, now())`)
	for path, wanted := range map[string][]string{
		"/":              {"The Postgres server changed", "1 receipt was restored; calls that ran twice: 1", `href="/epochs/2"`},
		"/epochs":        {"promotion", `href="/epochs/1"`},
		"/epochs/2":      {"01a21db1-c790-779e-aefa-f408d87d490b", "it ran twice", "2 calls whose ends were lost run again", "&lt;b&gt;"},
		"/epochs/1":      {"A restart loses no commit"},
		"/epochs/2.json": {`"what":"ran_twice"`},
		"/epochs.json":   {`"reran":2`},
	} {
		status, body := get(t, server, path)
		for _, want := range wanted {
			if status != 200 || !strings.Contains(body, want) || strings.Contains(body, "secret") {
				t.Errorf("%s: %d lacks %q", path, status, want)
			}
		}
	}
	for _, path := range []string{"/epochs/3", "/epochs/x", "/epochs/99999999999999999999"} {
		if status, _ := get(t, server, path); status != 404 {
			t.Errorf("%s: %d", path, status)
		}
	}
}
