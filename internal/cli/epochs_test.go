package cli

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestEpochsListsTheChangesOfTheServer(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	db := testdb.Pool(t, url)
	testdb.Exec(t, db, `
		insert into gem.epochs (server, system_id, timeline, at, why, reran) values
			('2026-01-01', '7', '00000009', '2026-01-01', 'first', 0), (now(), '7', '0000000A', now(), 'promotion', 2);
		insert into gem.epoch_calls values
			(2, '01a21db1-c790-779e-aefa-f408d87d490a', 1, 'web-1', 'comms.send_email', 'restored',
				'01a21db1-c7d0-779e-ae06-f8cff1d054dc', 'queued, attempt 0', '{}', now()),
			(2, '01a21db1-c790-779e-aefa-f408d87d490b', 1, 'web-2', 'comms.send_sms', 'ran_twice', null,
				'succeeded, attempt 1', null, now())`)
	for args, wanted := range map[string][]string{
		"epochs":          {"2      20", "promotion  10        1         0        1          0        2", "first      9"},
		"epochs 2":        {"(promotion, timeline 9 → 10): 1 receipt restored", "2 calls run again", "ran_twice"},
		"epochs 1":        {"(first)."},
		"status":          {"! the Postgres server changed at", "gem epochs 2"},
		"epochs 2 --json": {`"what": "restored"`, `"reran": 2`},
		"epochs 3":        {"there is no epoch 3: gem epochs lists them"},
		"epochs x":        {"x is not the number of an epoch"},
	} {
		got := gemWith(t, []string{"DATABASE_URL=" + url}, strings.Fields(args)...)
		for _, want := range wanted {
			if !strings.Contains(got.stdout+got.stderr, want) {
				t.Errorf("gem %s lacks %q:\n%s%s", args, want, got.stdout, got.stderr)
			}
		}
	}
}
