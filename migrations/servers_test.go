package migrations_test

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The vectors are those of RFC 4231 whose keys are not longer than a block.
func TestTheCodesOfClaimsAreHMACs(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	hexOf := func(text string) string { return hex.EncodeToString([]byte(text)) }
	for _, v := range [][3]string{
		{strings.Repeat("0b", 20), hexOf("Hi There"), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
		{hexOf("Jefe"), hexOf("what do ya want for nothing?"),
			"5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
		{strings.Repeat("aa", 20), strings.Repeat("dd", 50),
			"773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
		{"0102030405060708090a0b0c0d0e0f10111213141516171819", strings.Repeat("cd", 50),
			"82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
	} {
		var got string
		if err := db.QueryRow(t.Context(), `select encode(gem.hmac(gem.hmac_key(decode($1, 'hex')),
			decode($2, 'hex')), 'hex')`, v[0], v[1]).Scan(&got); err != nil || got != v[2] {
			t.Errorf("%s: %s, %v", v[1], got, err)
		}
	}
	// what a claim computes is the same
	var same bool
	if err := db.QueryRow(t.Context(), `
		select gem.claim_code(gem.hmac_key(k), null, 1, 'w', 't', '{}', null, false, null, null)
			= gem.hmac(gem.hmac_key(k), convert_to(
				jsonb_build_array(null, 1, 'w', 't', encode(sha256('{}'), 'hex'), null, false, null,
				null)::text, 'UTF8'))
		from (select convert_to('a key', 'UTF8') as k) k`).Scan(&same); err != nil || !same {
		t.Errorf("the code of a claim is another one: %v", err)
	}
}

// lostCall is a database on whose server the worker w has claimed a call, and which now has another server that lacks
// the call. The table given has what the worker was given: call and code.
func lostCall(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, ownClock)
	testdb.Exec(t, db, `
		create table server (at timestamptz);
		insert into server values ('2026-01-01');
		create or replace function gem.server() returns timestamptz language sql stable as 'select at from public.server';
		select gem.start_worker('w', 1, '', '1', '1 hour', p_outside => '{"a.send": "none"}');
		insert into core_tool_calls (tool_name, input, created_by, session_id) values ('a.send', '{"to": "x"}', 'ada', 's');
		create table given as
		select c.id, k.code, jsonb_build_object('id', c.id, 'tool_name', c.tool_name, 'input', c.input, 'created_by',
			c.created_by, 'signed_in', c.signed_in, 'session_id', c.session_id, 'parent_call_id', c.parent_call_id) as call
		from gem.claim('w', 1, true) k join core_tool_calls c on c.id = k.id;
		grant select on given to gem_worker;
		set session_replication_role = replica;
		delete from core_tool_calls;
		delete from core_tool_events;
		reset session_replication_role;
		update gem.epochs set timeline = '00000000';
		update server set at = '2026-01-02';
		select gem.meet_server('w')`)
	return db
}

// restoring is a statement with which the worker restores the call, with changes of what it was given.
func restoring(worker, epoch, attempt, code, call string) string {
	return fmt.Sprintf(`select gem.restore(%s, %s, %s, %s, %s, true, '{"registry_version": "1", "status": "succeeded",
		"result": {}, "effects": {}}') from given`, worker, epoch, attempt, code, call)
}

const lastEpoch = "2"

func TestAWorkerRestoresOnlyWhatItWasGiven(t *testing.T) {
	t.Parallel()
	db := lostCall(t)
	for what, sql := range map[string]string{
		"another input":     restoring("'w'", lastEpoch, "1", "code", `call || '{"input": {"to": "y"}}'`),
		"another tool":      restoring("'w'", lastEpoch, "1", "code", `call || '{"tool_name": "a.pay"}'`),
		"another caller":    restoring("'w'", lastEpoch, "1", "code", `call || '{"created_by": "bob"}'`),
		"no caller":         restoring("'w'", lastEpoch, "1", "code", `call || '{"created_by": null}'`),
		"a user":            restoring("'w'", lastEpoch, "1", "code", `call || '{"signed_in": true}'`),
		"another session":   restoring("'w'", lastEpoch, "1", "code", `call || '{"session_id": "t"}'`),
		"a parent":          restoring("'w'", lastEpoch, "1", "code", `call || jsonb_build_object('parent_call_id', id)`),
		"another call":      restoring("'w'", lastEpoch, "1", "code", `call || jsonb_build_object('id', gen_random_uuid())`),
		"another attempt":   restoring("'w'", lastEpoch, "2", "code", "call"),
		"another worker":    restoring("'v'", lastEpoch, "1", "code", "call"),
		"another code":      restoring("'w'", lastEpoch, "1", "sha256(code)", "call"),
		"no code":           restoring("'w'", lastEpoch, "1", "null", "call"),
		"the first epoch":   restoring("'w'", "1", "1", "code", "call"),
		"an unknown epoch":  restoring("'w'", "3", "1", "code", "call"),
		"the key of codes":  "select * from gem.secrets",
		"a code of its own": "select gem.claim_code('', null, 1, 'w', 't', '{}', null, false, null, null)",
	} {
		if _, err := request(t, db, "gem_worker", "", sql); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := number(t, db, "select count(*) from core_tool_calls"); n != 0 {
		t.Errorf("%v calls", n)
	}
	if _, err := request(t, db, "gem_worker", "", restoring("'w'", lastEpoch, "1", "code", "call")); err != nil {
		t.Error(err)
	}
	if n := number(t, db, "select count(*) from core_tool_calls c join core_tool_receipts r on r.call_id = c.id "+
		"where c.status = 'succeeded' and c.created_by = 'ada' and not c.signed_in"); n != 1 {
		t.Errorf("%v calls are restored", n)
	}
}

func TestNothingIsRestoredAfterAQuarterOfAnHourOrARestart(t *testing.T) {
	t.Parallel()
	for change, want := range map[string]string{
		"select 1":                                              "",
		"update gem.epochs set why = 'restart'":                 "42501",
		"update server set at = '2026-01-03'":                   "42501",
		"update gem.epochs set at = at - interval '16 minutes'": "42501",
	} {
		db := lostCall(t)
		testdb.Exec(t, db, change)
		_, err := request(t, db, "gem_worker", "",
			restoring("'w'", lastEpoch, "1", "code", "call"))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", change, err)
		}
	}
}

func TestAServerThatRestartsAllDayDoesNotFillTheList(t *testing.T) {
	t.Parallel()
	db := lostCall(t)
	before := number(t, db, "select count(*) from gem.epochs")
	for range 80 {
		testdb.Exec(t, db, "update server set at = at + interval '1 minute'")
		testdb.Exec(t, db, "select gem.meet_server('w')")
	}
	if n := number(t, db, "select count(*) from gem.epochs"); n < 50 || n > 51+before {
		t.Errorf("%v epochs after 80 restarts", n)
	}
	n := number(t, db, "select count(*) from gem.epochs where why = 'promotion' or server = (select at from server)")
	if n != 2 {
		t.Errorf("got %v of the promotion and the last restart, want both", n)
	}
}

// A claim that is lost runs again, so that the claim of a call that must not run twice is on disk, and on a synchronous
// standby, before its handler begins.
func TestClaimsOfCallsThatMustNotRunTwiceAreSynchronous(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `select gem.start_worker('w', 9, '', '1', '1 hour', '{steps}', p_outside => '{"a.send": "none",
		"a.keyed": "keyed"}')`)
	for _, c := range []struct{ tool, before, after string }{
		{"a.send", "off", "on"}, {"a.send", "local", "on"}, {"a.send", "remote_apply", "remote_apply"},
		{"a.keyed", "off", "off"}, {"a.write", "local", "local"},
	} {
		var after string
		if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), fmt.Sprintf(`insert into core_tool_calls (tool_name) values ('%s');
				set local synchronous_commit = '%s'; select gem.claim('w', 1, true)`, c.tool, c.before))
			if err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), "show synchronous_commit").Scan(&after)
		}); err != nil || after != c.after {
			t.Errorf("%v: %s, %v", c, after, err)
		}
	}
	for event, want := range map[string]string{"began": "on", "step": "off"} {
		var after string
		if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), fmt.Sprintf(`insert into core_tool_calls (tool_name) values ('a.write');
				set local synchronous_commit = off;
				select gem.step(id, attempt, 'w', '%s', '{"name": "x"}', 0, false) from gem.claim('w', 1, true)`, event))
			if err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), "show synchronous_commit").Scan(&after)
		}); err != nil || after != want {
			t.Errorf("%s: %s, %v", event, after, err)
		}
	}
}
