package migrations_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/extract"
	"github.com/gemworker/gem/handlers/leads"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/receipts"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const operatorsRegistry = `{"version": "1", "tools": [
	{"name": "mail.send", "idempotency": {"mode": "none"}, "timeout_ms": 1000},
	{"name": "notes.find", "idempotency": {"mode": "safe-retry"}, "timeout_ms": 1000},
	{"name": "orders.pay", "idempotency": {"mode": "keyed", "key_field": "order"}, "timeout_ms": 1000}]}`

// operated is a database with tools of each mode, its owner, and an operator.
func operated(t *testing.T) (owner, operator *pgxpool.Pool) {
	t.Helper()
	u := testdb.New(t)
	owner = testdb.Pool(t, u)
	testdb.Exec(t, owner, "select gem.record_registry('1', repeat('a', 64), '"+operatorsRegistry+
		"'); select gem.start_worker('w', 50, '', '1', '1 hour')")
	return owner, asMember(t, owner, u, "gem_operator")
}

// ran inserts a call, lets a worker run it as attempt 1, and returns its id. result is the end; empty: it still runs.
func ran(t *testing.T, db *pgxpool.Pool, tool, input, status, result string) (id string) {
	t.Helper()
	id = testdb.Value[string](t, db,
		fmt.Sprintf("insert into core_tool_calls (tool_name, input, created_by, session_id) values "+
			"('%s', '%s', 'bob', 's') returning id", tool, input))
	testdb.Exec(t, db, "select gem.claim('w', 50, true)")
	if result != "" {
		testdb.Exec(t, db, fmt.Sprintf("select gem.finish('%s', 1, 'w', '%s', '%s', '{}', '1')", id, status, result))
	}
	return id
}

func failure(code string) string {
	return `{"error": {"error_code": "` + code + `", "message": "no", "details": {}}}`
}

func event(t *testing.T, db *pgxpool.Pool, id string, last bool) (e map[string]any) {
	t.Helper()
	order := "seq"
	if last {
		order = "seq desc"
	}
	said := testdb.Value[string](t, db,
		"select jsonb_build_object('event', event) || data - 'run_at' - 'receipt_id' from "+
			"core_tool_events where call_id = '"+id+"' order by "+order+" limit 1")
	if err := json.Unmarshal([]byte(said), &e); err != nil {
		t.Fatal(err)
	}
	return e
}

// clean fails the test if gem audit finds anything.
func clean(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	report, err := audit.Database(t.Context(), db, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Checks {
		if r.Error != "" || r.Found > 0 && !r.Remark {
			t.Errorf("gem audit: %s: %s %v", r.Check, r.Error, r.Examples)
		}
	}
}

func TestTheJournalNamesTheOperatorWhoCancels(t *testing.T) {
	t.Parallel()
	owner, operator := operated(t)
	login := testdb.Value[string](t, operator, "select session_user")
	queued := testdb.Value[string](t, owner, "insert into core_tool_calls (tool_name) values ('mail.send') returning id")
	got := texts(t, operator, "select outcome from gem.operator_cancel(array['"+queued+
		"']::uuid[], 'ada', 'no longer needed')")
	if diff := cmp.Diff([]string{"cancelled"}, got); diff != "" {
		t.Error(diff)
	}
	want := map[string]any{"event": "failed", "by": "ada", "reason": "no longer needed", "login": login}
	if diff := cmp.Diff(want, event(t, owner, queued, true)); diff != "" {
		t.Error(diff)
	}

	running := ran(t, owner, "mail.send", "{}", "", "")
	ended := ran(t, owner, "mail.send", "{}", "succeeded", "{}")
	const nobody = "00000000-0000-7000-8000-000000000000"
	for range 2 { // the second time nothing happens
		got = texts(t, operator, fmt.Sprintf("select id || ' ' || outcome from gem.operator_cancel(array['%[1]s', '%[2]s', "+
			"'%[3]s', null, '%[1]s']::uuid[], '%[4]s')", running, ended, nobody, login))
		if diff := cmp.Diff([]string{nobody + " unknown", running + " requested", ended + " succeeded"}, got); diff != "" {
			t.Error(diff)
		}
	}
	if diff := cmp.Diff(map[string]any{"event": "cancel_requested", "by": login},
		event(t, owner, running, true)); diff != "" {
		t.Error(diff)
	}
	if n := number(t, owner, "select count(*) from core_tool_events where event = 'cancel_requested'"); n != 1 {
		t.Errorf("%v events", n)
	}
	testdb.Exec(t, owner, fmt.Sprintf("select gem.finish('%s', 1, 'w', 'failed', '%s', '{}', '1')", running,
		failure("cancelled")))
	clean(t, owner)
}

// A handler that cleans up is not cut off by a second operator who wants the same.
func TestASecondOperatorDoesNotEndACleanUp(t *testing.T) {
	t.Parallel()
	owner, operator := operated(t)
	id := ran(t, owner, "mail.send", "{}", "", "")
	testdb.Exec(t, owner, "select gem.wait('"+id+"', 1, 'w', '[]', 'answer', '{#a}', 1, null, null)")
	cancel := func(more string) string {
		return testdb.Value[string](t, operator,
			"select outcome from gem.operator_cancel(array['"+id+"']::uuid[], 'ada', null"+more+")")
	}
	for i, c := range []struct{ more, want string }{{"", "requested"}, {"", "requested"}, {", true", "cancelled"},
		{", true", "failed"}} {
		if got := cancel(c.more); got != c.want {
			t.Errorf("%d: %s, want %s", i, got, c.want)
		}
	}
	clean(t, owner)
}

func TestTwoOperatorsAtOnceLeaveOneEvent(t *testing.T) {
	t.Parallel()
	owner, operator := operated(t)
	var ids []string
	for range 20 {
		ids = append(ids, ran(t, owner, "mail.send", "{}", "", ""))
	}
	forth, back := "'"+strings.Join(ids, "', '")+"'", ""
	for _, id := range ids {
		back = "'" + id + "', " + back
	}
	outcomes := make(chan []string, 2)
	for _, order := range []string{forth, strings.TrimSuffix(back, ", ")} {
		go func() {
			var all []string
			if err := operator.QueryRow(t.Context(), "select array_agg(outcome) from gem.operator_cancel(array["+order+
				"]::uuid[], 'ada')").Scan(&all); err != nil {
				t.Error(err)
			}
			outcomes <- all
		}()
	}
	for range 2 {
		for _, outcome := range <-outcomes {
			if outcome != "requested" {
				t.Errorf("an outcome is %s", outcome)
			}
		}
	}
	if n := number(t, owner, "select count(*) from core_tool_events where event = 'cancel_requested'"); n != 20 {
		t.Errorf("%v events of 20 calls", n)
	}
}

func TestACallThatIsLockedIsBusyAndTheOthersAreCancelled(t *testing.T) {
	t.Parallel()
	owner, operator := operated(t)
	testdb.Exec(t, owner, "insert into core_tool_calls (tool_name) select 'mail.send' from generate_series(1, 20)")
	tx, err := owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "select from core_tool_calls order by seq limit 10 for update"); err != nil {
		t.Fatal(err)
	}
	got := texts(t, operator, "select count(*) || ' ' || outcome from gem.operator_cancel(array(select id from "+
		"core_tool_calls), 'ada') group by outcome order by outcome")
	if diff := cmp.Diff([]string{"10 busy", "10 cancelled"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestACallIsMadeAgainAsANewOne(t *testing.T) {
	t.Parallel()
	owner, operator := operated(t)
	login := testdb.Value[string](t, operator, "select session_user")
	testdb.Exec(t, owner, "update gem.limits set max_priority = 3")
	if _, err := request(t, owner, "gem_frontend", "bob", `insert into core_tool_calls (tool_name, input, session_id,
		idempotency_key, priority, traceparent, run_at)
		values ('notes.find', '{"a": 12345678901234567890.123}', 's', 'k', 3,
			'00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', now())`); err != nil {
		t.Fatal(err)
	}
	old := testdb.Value[string](t, owner, "select id from core_tool_calls")
	const row = "select to_jsonb(c)::text || to_jsonb(r) || (select jsonb_agg(e) from core_tool_events e where call_id " +
		"= c.id) from core_tool_calls c join core_tool_receipts r on call_id = c.id where c.id = "
	testdb.Exec(t, owner, "select cancel_tool_call('"+old+"')")
	before := testdb.Value[string](t, owner, row+"'"+old+"'")
	made := testdb.Value[string](t, operator, "select gem.operator_again('"+old+"', ' ada ', 'the disk is back')")
	const copied = `select jsonb_build_array(tool_name, input, session_id, created_by, idempotency_key, priority)::text
		from core_tool_calls where id = `
	if got, want := testdb.Value[string](t, owner, copied+"'"+made+"'"), testdb.Value[string](t, owner,
		copied+"'"+old+"'"); got != want {
		t.Errorf("the new call is %s, want %s", got, want)
	}
	got := testdb.Value[string](t, owner,
		"select concat_ws(' ', status, attempt, parent_call_id, parent_step, signed_in, "+
			"traceparent, run_at = created_at, events) from core_tool_calls where id = '"+made+"'")
	if want := "queued 0 " + old + " t t 1"; got != want {
		t.Errorf("it is %s, want %s", got, want)
	}
	want := map[string]any{"event": "queued", "again_of": old, "by": "ada", "reason": "the disk is back", "login": login,
		"priority": 3.0}
	if diff := cmp.Diff(want, event(t, owner, made, false)); diff != "" {
		t.Error(diff)
	}
	if after := testdb.Value[string](t, owner, row+"'"+old+"'"); after != before {
		t.Errorf("the old one was %s, and is %s", before, after)
	}
	testdb.Exec(t, owner, "select gem.claim('w', 50, true)")
	testdb.Exec(t, owner, "select gem.finish('"+made+"', 1, 'w', 'succeeded', '{}', '{}', '1')")
	clean(t, owner)
}

// An operator lends the user of a call none of a server's rights: the call stays that of a signed-in user, and may do
// what that user may do today.
func TestACallThatIsMadeAgainHasTheRightsOfItsUser(t *testing.T) {
	t.Parallel()
	owner, operator := operated(t)
	const ask = `'wait.answer', '{"text": "Which one?", "by": ["role:finance", "owner"]}'`
	made := map[string]string{}
	for what, call := range map[string]string{"open": "'notes.find', '{}'", "closed": "'mail.send', '{}'",
		"question": ask} {
		if _, err := request(t, owner, "gem_frontend", "bob", "insert into core_tool_calls (tool_name, input, session_id) "+
			"values ("+call+", '"+what+"')"); err != nil {
			t.Fatal(err)
		}
		made[what] = testdb.Value[string](t, owner, "select id from core_tool_calls where session_id = '"+what+"'")
		testdb.Exec(t, owner, "select cancel_tool_call('"+made[what]+"')")
	}
	byServer := testdb.Value[string](t, owner, "insert into core_tool_calls (tool_name, input, created_by) values ("+ask+
		", 'bob') returning id")
	testdb.Exec(t, owner, "select cancel_tool_call('"+byServer+"')")
	testdb.Exec(t, owner, "update gem.tools set frontends = name <> 'mail.send'; "+
		"insert into gem.role_settings values ('finance', now(), 'eve')")

	again := testdb.Value[string](t, operator, "select gem.operator_again('"+made["open"]+"', 'ada')")
	if got := testdb.Value[string](t, owner,
		"select created_by || ' ' || signed_in from core_tool_calls where id = '"+again+
			"'"); got != "bob true" {
		t.Errorf("the call is %s", got)
	}
	for what, want := range map[string]string{"closed": "mail.send is closed to signed-in users",
		"question": "asks a role that is closed to questions from users"} {
		got := testdb.Value[string](t, operator,
			"select coalesce(refused, '') from gem.operator_again_means('"+made[what]+"')")
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s", what, got)
		}
		_, err := operator.Exec(t.Context(), "select gem.operator_again('"+made[what]+
			"', 'ada', null, (select tool_name from core_tool_calls where id = '"+made[what]+"'))")
		refusedWith(t, what, err, "PT409", want)
	}
	again = testdb.Value[string](t, operator, "select gem.operator_again('"+byServer+"', 'ada', null, 'wait.answer')")
	if got := testdb.Value[string](t, owner,
		"select signed_in::text from core_tool_calls where id = '"+again+"'"); got != "false" {
		t.Errorf("the question of a server is one of a signed-in user: %s", got)
	}
}

func TestWithOneIDACallIsMadeAgainOnce(t *testing.T) {
	t.Parallel()
	owner, operator := operated(t)
	old := ran(t, owner, "notes.find", "{}", "failed", failure("execution_error"))
	other := ran(t, owner, "notes.find", "{}", "failed", failure("execution_error"))
	const id = "01a2c000-0000-7000-8000-000000000001"
	made := make(chan error, 4)
	for range cap(made) {
		go func() {
			_, err := operator.Exec(t.Context(), "select gem.operator_again('"+old+"', 'ada', null, null, '"+id+"')")
			made <- err
		}()
	}
	for range cap(made) {
		if err := <-made; err != nil {
			t.Error(err)
		}
	}
	if n := number(t, owner, "select count(*) from core_tool_calls where parent_call_id = '"+old+"'"); n != 1 {
		t.Errorf("it was made %v times", n)
	}
	for what, sql := range map[string]string{"of another call": "'" + other + "', 'ada', null, null, '" + id + "'",
		"an id that is taken": "'" + old + "', 'ada', null, null, '" + other + "'"} {
		_, err := operator.Exec(t.Context(), "select gem.operator_again("+sql+")")
		refusedWith(t, what, err, "23505", "another call with the id")
	}
}

func TestBeforeACallIsMadeAgainItIsSaidWhatThatMeans(t *testing.T) {
	t.Parallel()
	owner, operator := operated(t)
	paid := ran(t, owner, "orders.pay", `{"order": " A1 "}`, "", "")
	testdb.Exec(t, owner, "select gem.hold_key('"+paid+"', 1, 'w', 'orders.pay:order=\"A1\"')")
	testdb.Exec(t, owner, "select gem.finish('"+paid+"', 1, 'w', 'succeeded', '{}', '{}', '1')")
	holder := ran(t, owner, "orders.pay", `{"order": 2}`, "", "")
	testdb.Exec(t, owner, "select gem.hold_key('"+holder+"', 1, 'w', 'orders.pay:order=2')")
	queued := ran(t, owner, "mail.send", "{}", "", "")
	testdb.Exec(t, owner, "insert into core_tool_calls (tool_name, priority) values ('mail.send', -600)")
	cancelled := testdb.Value[string](t, owner, "select id from core_tool_calls where priority = -600")
	testdb.Exec(t, owner, "select cancel_tool_call('"+cancelled+"')")
	unkeyed := ran(t, owner, "orders.pay", `{"order": 3}`, "", "") // when the tool's mode was none
	testdb.Exec(t, owner, "select gem.finish('"+unkeyed+
		`', 1, 'w', 'succeeded', '{}', '{"idempotency": {"mode": "none"}}', '1')`)
	durable := ran(t, owner, "mail.send", "{}", "", "")
	testdb.Exec(t, owner, "select gem.finish('"+durable+"', 1, 'w', 'failed', '"+failure("unknown_tool")+
		`', '{"durable": {"steps": 0, "calls": 1}}', '1')`)
	for what, c := range map[string]struct{ id, want string }{
		"one of mode none that ran": {ran(t, owner, "mail.send", "{}", "failed", failure("execution_error")),
			"failed execution_error none twice"},
		"one that was refused before it ran": {ran(t, owner, "mail.send", "{}", "failed", failure("validation_error")),
			"failed validation_error none"},
		"one whose handler ran, and failed with the error of a call that it made": {durable,
			"failed unknown_tool none twice"},
		"one that was never claimed": {cancelled, "failed cancelled none"},
		"one whose setup was missing": {ran(t, owner, "mail.send", "{}", "not_configured",
			`{"status": "not_configured", "reason": "no"}`), "not_configured none"},
		"one that nobody knows": {ran(t, owner, "old.tool", "{}", "succeeded", "{}"), "succeeded twice"},
		"one that may be made again": {ran(t, owner, "notes.find", "{}", "failed", failure("worker_lost")),
			"failed worker_lost safe-retry"},
		"one with an unknown outcome": {ran(t, owner, "notes.find", "{}", "failed", failure("outcome_unknown")),
			"failed outcome_unknown safe-retry twice"},
		"one whose key has succeeded since": {ran(t, owner, "orders.pay", `{"order": "A1"}`, "failed",
			failure("outcome_unknown")), "failed outcome_unknown keyed hit " + paid},
		"one whose key another holds": {ran(t, owner, "orders.pay", `{"order": 2}`, "failed",
			failure("execution_error")), "failed execution_error keyed holder " + holder},
		"one that ran under mode none, before it had a key": {unkeyed, "succeeded keyed twice"},
		"one that has not ended":                            {queued, "running none twice refused"},
		"one that has succeeded with its key":               {paid, "succeeded keyed hit " + paid},
	} {
		got := testdb.Value[string](t, operator, `select concat_ws(' ', status, error_code, mode, case
			when may_happen_twice then 'twice' end, 'hit ' || succeeded, 'holder ' || holder,
			case when refused is not null then 'refused' end) from gem.operator_again_means('`+c.id+"')")
		if got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
		_, err := operator.Exec(t.Context(), "select gem.operator_again('"+c.id+"', 'ada')")
		switch {
		case strings.HasSuffix(c.want, "refused"):
			refusedWith(t, what, err, "PT409", "has not ended")
		case strings.HasSuffix(c.want, "twice"):
			refusedWith(t, what, err, "PT428", "may happen twice")
			_, err = operator.Exec(t.Context(), "select gem.operator_again($1, 'ada', null, (select tool_name from "+
				"core_tool_calls where id = $1))", c.id)
		}
		if err != nil && !strings.HasSuffix(c.want, "refused") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := operator.Exec(t.Context(), "select gem.operator_again(gen_random_uuid(), 'ada')")
	refusedWith(t, "no call", err, "PT404", "there is no call")
	if n := number(t, operator, "select count(*) from gem.operator_again_means(gen_random_uuid())"); n != 0 {
		t.Errorf("%v rows", n)
	}
}

// What a call did counts by the promise of its time: a deploy that changes the tool's mode or key does not let an
// operator repeat it without confirmation.
func TestADeployDoesNotLetACallBeMadeAgainUnconfirmed(t *testing.T) {
	t.Parallel()
	const (
		none      = `{"mode": "none"}`
		safe      = `{"mode": "safe-retry"}`
		byOrder   = `{"mode": "keyed", "key_field": "order"}`
		byInvoice = `{"mode": "keyed", "key_field": "invoice"}`
		paid      = `'succeeded', '{}'`
	)
	timeout := "'failed', '" + failure("timeout") + "'"
	cases := map[string]struct {
		before, after, end string // end: empty: its worker is lost, and the call is cancelled in the queue
		twice              bool
	}{
		"lost.none":        {none, safe, "", true},
		"lost.safe":        {safe, byOrder, "", false},
		"paid.other_key":   {byOrder, byInvoice, paid, true},
		"paid.keyless_now": {byOrder, safe, paid, true},
		"paid.none_now":    {safe, none, paid, true},
		"paid.safe":        {safe, byOrder, paid, false},
		"late.other_key":   {byOrder, byInvoice, timeout, true},
		"late.same_key":    {byOrder, byOrder, timeout, false},
	}
	owner, operator := operated(t)
	deploy := func(version string, entry func(tool string) string) {
		var tools, modes []string
		for tool := range cases {
			tools = append(tools, fmt.Sprintf(`{"name": %q, "idempotency": %s, "timeout_ms": 1000}`, tool, entry(tool)))
			modes = append(modes, fmt.Sprintf("'%s', '%s'::jsonb -> 'mode'", tool, entry(tool)))
		}
		testdb.Exec(t, owner, fmt.Sprintf(`select gem.stop_worker(worker_id) from core_workers;
			select gem.record_registry('%[1]s', repeat('b', 64), '{"tools": [%[2]s]}');
			select gem.start_worker('w%[1]s', 50, '', '%[1]s', '1 hour', '{}', null, jsonb_build_object(%[3]s))`,
			version, strings.Join(tools, ", "), strings.Join(modes, ", ")))
	}
	deploy("2", func(tool string) string { return cases[tool].before })
	ids := map[string]string{}
	for tool := range cases {
		ids[tool] = testdb.Value[string](t, owner, `insert into core_tool_calls (tool_name, input)
			values ('`+tool+`', '{"order": "7", "invoice": "9"}') returning id`)
	}
	testdb.Exec(t, owner, "select gem.claim('w2', 50, true)")
	for tool, c := range cases {
		if c.before == byOrder {
			testdb.Exec(t, owner, fmt.Sprintf("select gem.hold_key('%s', 1, 'w2', '%s:order=\"7\"')", ids[tool], tool))
		}
		if c.end != "" {
			testdb.Exec(t, owner, fmt.Sprintf("select gem.finish('%s', 1, 'w2', %s, jsonb_build_object('idempotency', "+
				"'%s'::jsonb), '2')", ids[tool], c.end, c.before))
		}
	}
	testdb.Exec(t, owner, "update core_workers set alive_until = gem.now() where worker_id = 'w2'; "+
		"select gem.recover('w', null); "+
		"select cancel_tool_call(id) from core_tool_calls where status = 'queued'")
	deploy("3", func(tool string) string { return cases[tool].after })
	for tool, c := range cases {
		if got := testdb.Value[string](t, operator, "select may_happen_twice::text from gem.operator_again_means('"+ids[tool]+
			"')"); got != fmt.Sprint(c.twice) {
			t.Errorf("%s: it may happen twice: %s", tool, got)
		}
		_, err := operator.Exec(t.Context(), "select gem.operator_again('"+ids[tool]+"', 'ada')")
		if c.twice {
			refusedWith(t, tool, err, "PT428", "may happen twice")
		} else if err != nil {
			t.Errorf("%s: %v", tool, err)
		}
	}
}

func TestKeysOfCallsAreThoseThatWorkersCompute(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	long := strings.Repeat("ä", 150)
	for _, value := range []string{`"a"`, `" a\t\n"`, `""`, `" "`, `null`, `12345678901234567890.10`, `1`, `1.0`, `1.00`, `-0.0`, `0.10`,
		`1e3`, `100`, `[1.0, {"a": "1.0", "b": [2.50, 0.0]}]`, `true`, `[1, 2]`,
		`{"b": "c"}`, `"` + long + `"`, `["` + long + `"]`, `"%s:\""`} {
		want, _ := receipts.Key("a.b", "f", json.RawMessage(testdb.Value[string](t, db, "select ('"+value+"'::jsonb)::text")))
		got := testdb.Value[string](t, db,
			`select coalesce(gem.key_of('a.b', '{"mode": "keyed", "key_field": "f"}', '{"f": `+value+
				`}', null, null), '')`)
		if got != want {
			t.Errorf("%s: %s, want %s", value, got, want)
		}
	}
	for _, caller := range []string{"", "ada", `a"b`, `a\b`, "ä", strings.Repeat("a", 198), strings.Repeat("a", 199)} {
		for _, key := range []string{"k", " k ", strings.Repeat("k", 201)} {
			want := receipts.ClientKey("a.b", caller, receipts.TrimKey(key))
			if strings.ContainsAny(caller, `"\ä`) {
				want = "" // not known
			}
			got := testdb.Value[string](t, db, fmt.Sprintf(`select coalesce(gem.key_of('a.b', '{"mode": "safe-retry"}', '{}', '%s', '%s'),
				'')`, key, caller))
			if got != want {
				t.Errorf("%q of %q: %s, want %s", key, caller, got, want)
			}
		}
	}
}

// A repeated child has no parent, and a question of rules is asked again by the call that it is about.
func TestAChildIsMadeAgainWithoutItsParentAndAQuestionOfRulesIsNot(t *testing.T) {
	t.Parallel()
	owner, operator := operated(t)
	parent := ran(t, owner, "notes.find", "{}", "", "")
	testdb.Exec(t, owner,
		`insert into core_tool_calls (tool_name, parent_call_id, parent_step) values ('notes.find', '`+parent+
			`', 'find'), ('wait.approval', '`+parent+`', '##ab')`)
	id := func(step string) string {
		return testdb.Value[string](t, owner, "select id from core_tool_calls where parent_step = '"+step+"'")
	}
	for _, step := range []string{"find", "##ab"} {
		testdb.Exec(t, owner, "select cancel_tool_call('"+id(step)+"')")
	}
	made := testdb.Value[string](t, operator, "select gem.operator_again('"+id("find")+"', 'ada')")
	got := testdb.Value[string](t, owner,
		"select concat_ws(' ', parent_call_id, parent_step) from core_tool_calls where id = '"+made+
			"'")
	if got != id("find") {
		t.Errorf("its parent is %s", got)
	}
	_, err := operator.Exec(t.Context(), "select gem.operator_again('"+id("##ab")+"', 'ada')")
	refusedWith(t, "a question", err, "PT409", "is a question of the call "+parent)
}

// The operator who repeats a call is its requester: somebody else must approve it.
func TestWhoMakesACallAgainDoesNotApproveIt(t *testing.T) {
	t.Parallel()
	owner, operator := operated(t)
	login := testdb.Value[string](t, operator, "select session_user")
	testdb.Exec(t, owner, "insert into gem.roles values ('ada', 'boss'), ('cleo', 'boss'), ('"+login+"', 'boss')")
	old := testdb.Value[string](t, owner, `insert into core_tool_calls (tool_name, input, created_by)
		values ('wait.approval', '{"by": ["role:boss"], "tool": "a.b", "input": {}}', 'bob') returning id`)
	testdb.Exec(t, owner, "select cancel_tool_call('"+old+"')")
	id := testdb.Value[string](t, operator, "select gem.operator_again('"+old+"', 'ada', null, 'wait.approval')")
	const give = `select answer_tool_call('%s', '{"approved": true}')`
	_, err := operator.Exec(t.Context(), fmt.Sprintf(give, id))
	refusedWith(t, "the login", err, "PT404", "that you can answer")
	_, err = request(t, owner, "gem_frontend", "ada", fmt.Sprintf(give, id))
	refusedWith(t, "the operator", err, "PT404", "that you can answer")
	if _, err = request(t, owner, "gem_frontend", "cleo", fmt.Sprintf(give, id)); err != nil {
		t.Error(err)
	}
}

// An operator who is not a user of the frontends may answer questions and events, but not approvals.
func TestAnOperatorAnswersForAnyoneButApprovesNothing(t *testing.T) {
	t.Parallel()
	owner, operator := operated(t)
	for tool, input := range map[string]string{"wait.answer": `{"text": "When?"}`, "wait.event": "{}",
		"wait.approval": `{"by": ["role:boss"], "tool": "a.b", "input": {}}`} {
		id := ran(t, owner, tool, input, "", "")
		testdb.Exec(t, owner, "select gem.wait('"+id+"', 1, 'w', '[]', 'answer', '{#answer}', 1, null, null)")
	}
	if diff := cmp.Diff([]string{"wait.answer", "wait.event"},
		texts(t, operator, "select tool from open_questions order by tool")); diff != "" {
		t.Error(diff)
	}
	testdb.Exec(t, operator, `select answer_tool_call(id, '"now"') from open_questions`)
	_, err := operator.Exec(t.Context(), `select answer_tool_call(id, '{"approved": true}') from core_tool_calls
		where tool_name = 'wait.approval'`)
	refusedWith(t, "an approval", err, "PT404", "that you can answer")
	if n := number(t, owner, "select count(*) from core_tool_events where event = 'answered'"); n != 2 {
		t.Errorf("%v answers", n)
	}
}

func TestTheOperatorsRoleReadsCallsAndActsByItsFunctionsAlone(t *testing.T) {
	t.Parallel()
	u := testdb.New(t, migrations.Sources(leads.Domain(), extract.Domain(handlers.Domain{}))...)
	owner := testdb.Pool(t, u)
	id := finished(t, owner)
	testdb.Exec(t, owner, "insert into core_tool_calls (tool_name) values ('a.b')")
	db := asMember(t, owner, u, "gem_operator")
	for _, table := range []string{"core_tool_calls", "core_tool_receipts", "core_tool_events"} {
		if n := number(t, db, "select count(*) from "+table); n < 1 {
			t.Errorf("it sees nothing of %s", table)
		}
	}
	for _, sql := range []string{"select * from gem.queue", "select * from gem.outcomes", "select * from gem.workers",
		"select * from core_llm_requests", "select * from core_tool_progress",
		"select * from core_workers", "select * from core_registry_versions", "select * from core_rules_versions",
		"select * from gem.tools", "select * from open_questions"} {
		testdb.Exec(t, db, sql)
	}
	for what, sql := range map[string]string{
		"a call":                 "insert into core_tool_calls (tool_name) values ('a.b')",
		"a call by the function": "select enqueue_tool_call('a.b')",
		"a changed input":        "update core_tool_calls set input = '{}'",
		"a status":               "update core_tool_calls set status = 'failed'",
		"a deleted call":         "delete from core_tool_calls",
		"a receipt": "insert into core_tool_receipts (id, created_at, call_id, tool_name, status, result, " +
			"attempt) select gen_random_uuid(), now(), id, 'a.b', 'succeeded', '{}', 1 from core_tool_calls",
		"a changed receipt": "update core_tool_receipts set result = '{}'",
		"an event": "insert into core_tool_events (call_id, seq, at, event, attempt) select id, 9, " +
			"now(), 'claimed', 1 from core_tool_calls",
		"a deleted event":           "delete from core_tool_events",
		"a role":                    "insert into gem.roles values (session_user, 'boss')",
		"a limit":                   "update gem.limits set max_open_calls = 1",
		"an end without a name":     "select cancel_tool_call('" + id + "')",
		"an end by the inner way":   "select gem.cancel('" + id + "')",
		"a claim":                   "select gem.claim('w', 1, true)",
		"a forged end":              "select gem.finish('" + id + "', 1, 'w', 'succeeded', '{}', '{}', '1')",
		"a woken call":              "select gem.resume('" + id + "')",
		"pruning":                   "select gem.prune(array['" + id + "']::uuid[])",
		"an answer written by hand": "select gem.came('" + id + "', 'answered', array['{}'::jsonb], null)",
		"the rows of a domain":      "select * from leads",
		"rows written to a domain":  "insert into leads (name) values ('Ada')",
		"documents that it changes": "delete from extract_documents",
		"a table":                   "create table public.mine ()",
		"a table of GEM":            "create table gem.mine ()",
		"a function that is a tool": "create function tools.mine(jsonb) returns jsonb language sql as 'select null::jsonb'",
		"the worker's role":         "set role gem_worker",
		"the role of gem mcp":       "set role gem_mcp",
		"a frontend's role":         "set role gem_frontend",
		"the owner's role":          "set role " + testdb.Value[string](t, owner, "select quote_ident(current_user)"),
		"another session": "set session authorization " + testdb.Value[string](t, owner,
			"select quote_ident(current_user)"),
		"a disabled guard":           "alter table core_tool_receipts disable trigger all",
		"a replica":                  "set session_replication_role = replica",
		"more calls than it may end": "select gem.operator_cancel(array_fill(gen_random_uuid(), '{501}'), 'ada')",
		"too long a name":            "select gem.operator_cancel('{}', repeat('a', 256))",
		"too long a reason":          "select gem.operator_again('" + id + "', 'ada', repeat('a', 1001))",
	} {
		_, err := db.Exec(t.Context(), sql)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != "42501" &&
			(pgErr.Code != "PT422" || !strings.Contains(what, " than ") && !strings.Contains(what, "too long")) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A login that is also a member of gem_mcp makes calls for its users, and their tokens do not touch what it does as an
// operator.
func TestATokenInTheSessionDoesNotChangeWhatAnOperatorDoes(t *testing.T) {
	t.Parallel()
	owner, operator := operated(t)
	login := testdb.Value[string](t, operator, "select session_user")
	testdb.Exec(t, owner, "update gem.limits set max_open_calls = 1; grant gem_mcp to "+login)
	old := ran(t, owner, "notes.find", "{}", "failed", failure("execution_error"))
	var made, claims string
	err := pgx.BeginFunc(t.Context(), operator, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), `select gem.operator_again($1, 'ada')::text, current_setting('request.jwt.claims')
			from set_config('request.jwt.claims', '{"sub": "eve", "role": "gem_frontend"}', true)`, old).Scan(&made, &claims)
	})
	if err != nil || !strings.Contains(claims, "eve") {
		t.Fatalf("%v, claims %s", err, claims)
	}
	if got := testdb.Value[string](t, owner,
		"select created_by || ' ' || signed_in from core_tool_calls where id = '"+made+
			"'"); got != "bob false" {
		t.Errorf("the call is %s", got)
	}
	// A call that a user makes names no operator.
	testdb.Exec(t, operator, `begin; set local role gem_frontend;
		set local request.jwt.claims = '{"role": "gem_frontend", "sub": "eve"}';
		insert into core_tool_calls (tool_name) values ('notes.find'); commit`)
	if got := testdb.Value[string](t, owner,
		"select count(*) from core_tool_events e join core_tool_calls c on c.id = e.call_id "+
			"where created_by = 'eve' and data ? 'by'"); got != "0" {
		t.Errorf("%s events name an operator", got)
	}
}

func TestTheMonitorsRoleReadsNoPayloadByAnyViewOrFunction(t *testing.T) {
	t.Parallel()
	u := testdb.New(t)
	owner := testdb.Pool(t, u)
	db := asMember(t, owner, u, "gem_monitor")
	id := payloads(t, owner)
	for _, name := range texts(t, db, `select format('%I.%I', relnamespace::regnamespace, relname) from pg_class
		where relkind in ('r', 'v', 'm', 'p') and relnamespace in ('gem'::regnamespace, 'public'::regnamespace)
			and has_any_column_privilege(oid, 'select')`) {
		if n := number(t, db, "select count(*) from "+name+" x where to_jsonb(x)::text ~ 'sesame'"); n > 0 {
			t.Errorf("%s shows the payload", name)
		}
	}
	for _, f := range texts(t, db, `select oid::regprocedure from pg_proc
		where pronamespace in ('gem'::regnamespace, 'public'::regnamespace)
		and has_function_privilege(oid, 'execute')`) {
		if strings.Contains(f, "uuid") && !strings.Contains(f, "first_id_at") {
			t.Errorf("it may call %s for call %s", f, id)
		}
	}
	for _, sql := range []string{"select input from core_tool_calls", "select result from core_tool_receipts",
		"select data from core_tool_events", "select * from core_tool_progress",
		"select * from core_llm_requests", "select gem.operator_cancel('{}', 'ada')", "select gem.operator_again(null, " +
			"'ada')", "select * from gem.operator_again_means(null)", "set role gem_operator"} {
		_, err := db.Exec(t.Context(), sql)
		refusedWith(t, sql, err, "42501", "permission denied")
	}
}

// payloads leaves a call that succeeded and one that failed, with payloads in every field that holds some.
func payloads(t *testing.T, db *pgxpool.Pool) (id string) {
	t.Helper()
	testdb.Exec(t, db, "select gem.record_registry('1', repeat('a', 64), '"+operatorsRegistry+
		"'); select gem.start_worker('w', 50, '', '1', '1 hour')")
	id = ran(t, db, "mail.send", `{"to": "sesame"}`, "", "")
	testdb.Exec(t, db, fmt.Sprintf(`select gem.finish('%s', 1, 'w', 'succeeded', '{"said": "sesame"}',
		'{"files_written": ["sesame"]}', '1')`, id))
	asks := ran(t, db, "wait.approval", `{"by": ["role:boss"], "tool": "a.b", "input": {"a": "sesame"}, "text": "sesame"}`,
		"", "")
	testdb.Exec(t, db, "select gem.wait('"+asks+"', 1, 'w', '[]', 'answer', '{#answer}', 1, null, null)")
	testdb.Exec(t, db, "insert into core_tool_events (call_id, seq, at, event, attempt, data) select id, 99, now(), "+
		"'answered', 1, '{\"name\": \"#answer\", \"by\": \"ada\", \"value\": {\"reason\": \"sesame\"}}' from "+
		"core_tool_calls where id = '"+asks+"'")
	ran(t, db, "mail.send", `{"to": "sesame"}`, "failed",
		`{"error": {"error_code": "execution_error", "message": "no", "details": {"to": "sesame"}}}`)
	return id
}
