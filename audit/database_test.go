package audit_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

func TestAHealthyDatabaseHasNoFault(t *testing.T) {
	t.Parallel()
	env := everyKind(t)
	report, err := audit.Database(t.Context(), env.DB, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if found := reported(report); len(found) > 0 || report.Faults != 0 {
		t.Errorf("%d faults: %v", report.Faults, found)
	}
	for _, c := range report.Checks {
		if c.LookedAt == 0 {
			t.Errorf("%s looked at nothing", c.Check)
		}
	}
	healthyByThemselves(t, env)
}

// inside lets an audit begin its transaction inside another one, so that it sees what that has not committed.
type inside struct{ pgx.Tx }

func (i inside) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) { return i.Begin(ctx) }

// unready makes Postgres ignore a unique index during statements, as if it were damaged.
func unready(index string, statements ...string) []string {
	set := func(to string) string {
		return "update pg_index set indisready = " + to + " where indexrelid = 'public." + index + "'::regclass"
	}
	return append(append([]string{set("false")}, statements...), set("true"))
}

const (
	// untouched writes a row's own value to it, for a break that does not change rows.
	untouched = "update gem.limits set only_row = true"
	nothing   = "00000000-0000-4000-8000-000000000000"
	parentOfX = "c.id = (select k.parent_call_id from core_tool_calls k where k.parent_step = 'x')"
)

// madeAgain makes a call again, and again is that call.
var madeAgain = []string{"set local session_replication_role = origin",
	"select gem.operator_again(c.id, 'ada', null, c.tool_name) from core_tool_calls c where c.tool_name = " +
		"'no.such_tool' limit 1", "set local session_replication_role = replica"}

const again = "id = (select call_id from core_tool_events where data ? 'again_of')"

// keepK gives the key K to the durable call whose child is x. The calls that have long waited for it are not due.
// minutely is a schedule with some occurrences.
var minutely = []string{"select gem.save_schedule('s', '* * * * *', 'os.health_check', '{}', 'UTC', " +
	`'{"missed": "all", "overlap": "allow"}')`,
	"update gem.schedules set since = now() - interval '5 minutes', next_at = gem.cron_next(cron, zone, now() - " +
		"interval '5 minutes'), look_at = now()",
	"select gem.run_schedules(100)"}

var keepK = []string{"update core_tool_calls set computed_key = null where status = 'running' and computed_key = 'K'",
	"update core_tool_calls c set computed_key = 'K' where " + parentOfX,
	"update core_tool_calls set updated_at = now() - interval '2 minutes' where waits_for = 'key'"}

// told changes what the journal of a parent says of a child.
func told(event, name, data string) []string {
	return []string{"update core_tool_events set data = data || '" + data + "' where event = '" + event +
		"' and data ->> 'name' = '" + name + "'"}
}

// endLater moves the end of the call whose child is `five`.
func endLater(by string) []string {
	const five = "(select parent_call_id from core_tool_calls where parent_step = 'five')"
	return []string{"set local session_replication_role = replica",
		"update core_tool_receipts set created_at = created_at + interval '" + by + "', duration = duration + interval '" +
			by + "' where call_id = " + five,
		"update core_tool_events set at = at + interval '" + by + "' where event = 'succeeded' and call_id = " + five}
}

// add adds an event of the worker `d` to journals.
func add(event, data, of string) []string {
	return []string{"insert into core_tool_events (call_id, seq, at, event, attempt, worker_id, data) select id, events " +
		"+ 1, now(), '" + event +
		"', attempt, 'd', " + data + " from core_tool_calls where " + of,
		"update core_tool_calls set events = events + 1 where " + of}
}

// moved shifts where the first extractions of that unit are said to begin or end.
func moved(unit, what string, by int) []string {
	return []string{fmt.Sprintf(
		`update core_tool_receipts set result = jsonb_set(result, '{extractions,0,%s}', to_jsonb((result #>> '{extractions,0,%[1]s}')::integer + %[2]d))
		where result #>> '{document,offsets}' = '%[3]s'`, what, by, unit)}
}

// breaks are statements that break one check and no other. says is part of the finding.
var breaks = []struct {
	check, what string
	says        string
	by          []string
}{
	{"guards", "a trigger is disabled", "core_tool_receipts.gem_written_once: the trigger is disabled",
		[]string{"alter table core_tool_receipts disable trigger gem_written_once"}},
	{"guards", "documents may be changed", "extract_document_parts.gem_append_only: the trigger is disabled",
		[]string{"alter table extract_document_parts disable trigger gem_append_only"}},
	{"guards", "documents are open to everyone", "extract_documents.row_security: the row level security is switched off",
		[]string{"alter table extract_documents disable row level security"}},
	{"guards", "a trigger is missing", "is missing", []string{"drop trigger gem_append_only on core_tool_events"}},
	{"guards", "the holders of keys are not unique",
		"core_tool_calls.gem_calls_one_holder_per_key: the unique index is missing",
		[]string{"drop index gem_calls_one_holder_per_key"}},
	{"guards", "the names of children are not unique",
		"core_tool_calls.gem_calls_one_child_per_step: the unique index is missing",
		[]string{"drop index gem_calls_one_child_per_step"}},
	{"guards", "a unique index is missing", "core_tool_receipts.gem_receipts_one_per_call: the unique index is missing",
		[]string{"drop index gem_receipts_one_per_call"}},
	{"guards", "a unique index is an index", "is not unique",
		[]string{"drop index gem_receipts_one_per_call",
			"create index gem_receipts_one_per_call on core_tool_receipts (call_id)"}},
	{"guards", "the journal is open to everyone", "row level security is switched off",
		[]string{"alter table core_tool_events disable row level security"}},

	{"rights", "a policy opens all receipts", "core_tool_receipts.anyone: the policy is not GEM's, and may open rows " +
		"that GEM closes: drop policy anyone on public.core_tool_receipts",
		[]string{"create policy anyone on core_tool_receipts using (true)", untouched}},
	{"rights", "a policy of GEM's opens all calls", "core_tool_calls.gem_own_calls: the policy is not GEM's",
		[]string{"alter policy gem_own_calls on core_tool_calls using (true)"}},
	{"rights", "a policy of the worker's is for everyone", "core_workers.gem_worker_reads: the policy is not GEM's",
		[]string{"alter policy gem_worker_reads on core_workers to public"}},
	{"rights", "everyone may write notes", "notes.Anyone at all: the policy is not GEM's, and may open rows that GEM " +
		"closes: drop policy \"Anyone at all\" on public.notes",
		[]string{`create policy "Anyone at all" on notes using (true)`, untouched}},
	{"rights", "an old table may be emptied", "tasks.gem_monitor: gem_monitor may delete, truncate, which GEM did not " +
		"grant: revoke delete, truncate on public.tasks from gem_monitor",
		[]string{"grant select, delete, truncate on tasks to gem_monitor", untouched}},
	{"rights", "everyone may read receipts", "core_tool_receipts.public: public may select, which GEM did not grant: " +
		"revoke select on public.core_tool_receipts from public",
		[]string{"grant select on core_tool_receipts to public", untouched}},
	{"rights", "a user may read the names of workers",
		"core_tool_events.gem_frontend: gem_frontend may select (worker_id), which",
		[]string{"grant select (worker_id) on core_tool_events to gem_frontend", untouched}},
	{"rights", "a user may insert every column of a call",
		"core_tool_calls.gem_frontend: gem_frontend may insert, which GEM " +
			"did not grant: revoke insert on public.core_tool_calls from gem_frontend; grant insert (id, tool_name, input, " +
			"status, " +
			"idempotency_key, session_id, parent_call_id, priority, run_at, traceparent, awaited) on public.core_tool_calls " +
			"to " +
			"gem_frontend",
		[]string{"grant insert on core_tool_calls to gem_frontend", untouched}},
	{"rights", "a user may insert who made a call",
		"core_tool_calls.gem_frontend: gem_frontend may insert (created_by), which",
		[]string{"grant insert (created_by) on core_tool_calls to gem_frontend", untouched}},
	{"rights", "a role of the product may insert every column of a call",
		"core_tool_calls.gem_monitor: gem_monitor may insert, " +
			"which", []string{"grant insert on core_tool_calls to gem_monitor", untouched}},
	{"rights", "a worker may change a receipt", "core_tool_receipts.gem_worker: gem_worker may update (result), which",
		[]string{"grant update (result) on core_tool_receipts to gem_worker", untouched}},
	{"rights", "a user may change its limits", "limits.gem_frontend: gem_frontend may update, which GEM did not grant: " +
		"revoke update on gem.limits from gem_frontend",
		[]string{"grant update on gem.limits to gem_frontend", untouched}},
	{"rights", "everyone may use the schema", "schema gem.public: public may usage on the schema gem, which GEM did not " +
		"grant: revoke usage on schema gem from public", []string{"grant usage on schema gem to public", untouched}},
	{"rights", "users may create functions in the schema",
		"gem_frontend may create on the schema gem, which GEM did not grant",
		[]string{"grant create on schema gem to gem_frontend", untouched}},
	{"rights", "users may use all functions", "gem_frontend may execute gem.",
		[]string{"grant execute on all functions in schema gem to gem_frontend", untouched}},
	{"rights", "everyone may create tools", "schema tools.public: public may create on the schema tools",
		[]string{"grant create on schema tools to public", untouched}},
	{"rights", "a user is a worker",
		"gem_frontend.gem_worker: gem_frontend is a member of gem_worker: revoke gem_worker from gem_frontend",
		[]string{"grant gem_worker to gem_frontend", untouched}},
	{"rights", "everyone may answer",
		"answer_tool_call.public: public may execute public.answer_tool_call(uuid,jsonb,text), " +
			"which GEM did not grant: revoke execute on function",
		[]string{"grant execute on function answer_tool_call to public", untouched}},
	{"rights", "the list of questions has the rights of its owner", "open_questions: the view public.open_questions has " +
		"the rights of its owner: alter view public.open_questions set (security_invoker = true)",
		[]string{"alter view open_questions set (security_invoker = false)", untouched}},
	{"rights", "a view passes on the rights of its owner", "notes.public.all_notes: the view public.all_notes has the " +
		"rights of its owner on it, and gem_frontend may use the view: alter view public.all_notes set (security_invoker = " +
		"true), or revoke all on public.all_notes from gem_frontend",
		[]string{"create view first_notes as select * from notes", "create view all_notes as select * from first_notes",
			"grant select on all_notes to gem_frontend", untouched}},
	{"rights", "a rule of a table writes notes", "notes.public.pages: a rule on public.pages has the rights of its owner",
		[]string{"create table pages (id uuid)", "create rule copied as on delete to pages do also delete from notes",
			"grant delete on pages to public", untouched}},
	{"rights", "a rule hides new notes", "notes.hidden: the rule is not GEM's, and changes what statements do: " +
		"drop rule hidden on public.notes", []string{"create rule hidden as on insert to notes do instead nothing",
		untouched}},
	{"rights", "an index runs a function of another role", "notes.public.norm(pg_catalog.text): the function " +
		"public.norm(pg_catalog.text) belongs to gem_monitor, who may change what it does, and is used by: index public.odd",
		[]string{"create function norm(text) returns text language sql immutable as 'select $1'",
			"create index odd on notes (norm(title))", "alter function norm(text) owner to gem_monitor"}},
	{"rights", "a check runs an operator of another role", "belongs to gem_monitor, who may change what it does, and is " +
		"used by: constraint odd on table public.notes",
		[]string{"create function eq(text, text) returns boolean language sql immutable as 'select true'",
			"create operator === (function = eq, leftarg = text, rightarg = text)",
			"alter table notes add constraint odd check (title === 'x')", "alter operator === (text, text) owner to gem_monitor",
			untouched}},
	{"rights", "a column has a type of another role", "the type public.lines belongs to gem_monitor, who may change what",
		[]string{"create domain lines as text", "alter table notes add column odd lines[]",
			"alter domain lines owner to gem_monitor"}},

	{"receipt-missing", "a receipt was deleted", "the call is failed, and has no receipt",
		[]string{"delete from core_tool_receipts where tool_name = 'no.such_tool'"}},
	{"receipt-second", "there are two", "the call has 2 receipts: ", unready("gem_receipts_one_per_call",
		`insert into core_tool_receipts (id, call_id, tool_name, status, result, effects, created_at, attempt, worker_id)
		select gen_random_uuid(), call_id, tool_name, status, result, effects, created_at + interval '1 s', attempt, worker_id
			from core_tool_receipts where tool_name = 'no.such_tool'`)},
	{"receipt-early", "a queued call has one", "the call is queued, and has the receipt ",
		[]string{"insert into core_tool_receipts (id, created_at, call_id, tool_name, status, result, effects, attempt) " +
			"select gen_random_uuid(), now(), id, 'a.b', 'succeeded', '{}', '{}', 1 from core_tool_calls where status = " +
			"'queued'"}},
	{"receipt-orphan", "its call is gone", "belongs to a call that does not exist",
		[]string{"insert into core_tool_receipts (id, created_at, call_id, tool_name, status, result, effects, attempt) " +
			"values (gen_random_uuid(), now(), gen_random_uuid(), 'a.b', 'succeeded', '{}', '{}', 1)"}},
	{"receipt-status", "another status", "the call is failed, and its receipt is succeeded",
		[]string{"update core_tool_receipts set status = 'succeeded' where tool_name = 'no.such_tool'"}},
	{"receipt-error", "another error", `the call's error is {"error_code": "x"}`,
		[]string{`update core_tool_calls set error = '{"error_code": "x"}' where tool_name = 'no.such_tool'`}},
	{"receipt-error", "an error of a success", "and its receipt's is null",
		[]string{`update core_tool_calls set error = '{}' where tool_name = 'os.create_note'`}},
	{"receipt-attempt", "another worker", "by w-x",
		[]string{"update core_tool_receipts set worker_id = 'w-x' where tool_name = 'no.such_tool'"}},
	{"receipt-attempt", "another attempt", "attempt 7 of no.such_tool",
		[]string{"update core_tool_receipts set attempt = 7 where tool_name = 'no.such_tool'"}},
	{"receipt-attempt", "another tool", "attempt 1 of a.b",
		[]string{"update core_tool_receipts set tool_name = 'a.b' where tool_name = 'no.such_tool'"}},
	{"receipt-result", "no reason", "the result of its receipt, not_configured, is {}",
		[]string{"update core_tool_receipts set result = '{}' where tool_name = 'comms.send_email'"}},
	{"effects-form", "a list", "the effects of its receipt are []",
		[]string{"update core_tool_receipts set effects = '[]' where tool_name = 'no.such_tool'"}},
	{"effects-form", "an object for a list", "db_writes",
		[]string{`update core_tool_receipts set effects = '{"db_writes": {}}' where tool_name = 'no.such_tool'`}},
	{"effects-form", "none", "are null",
		[]string{`update core_tool_receipts set effects = null where tool_name = 'no.such_tool'`}},

	{"journal-gaps", "an event is missing", "there are 2 events, from 1 to 3, and the call counts 3",
		[]string{"delete from core_tool_events where seq = 2 and call_id = (select id from core_tool_calls where tool_name " +
			"= 'no.such_tool')"}},
	{"journal-gaps", "the last is missing", "there are 2 events, from 1 to 2, and the call counts 3",
		[]string{"delete from core_tool_events where seq = 3 and call_id = (select id from core_tool_calls where tool_name " +
			"= 'no.such_tool')"}},
	{"journal-gaps", "there is none", "there is no journal, and the call counts 3 events",
		[]string{"delete from core_tool_events where call_id = (select id from core_tool_calls where tool_name = " +
			"'no.such_tool')"}},
	{"journal-order", "woken without waiting", "event 2 is woken, and the call was queued before",
		[]string{"update core_tool_events set event = 'woken' where seq = 2 and call_id = (select id from core_tool_calls " +
			"where tool_name = 'no.such_tool')"}},
	{"journal-order", "two beginnings", "event 2 is queued, and the call was queued before",
		[]string{"update core_tool_events set event = 'queued' where seq = 2 and call_id = (select id from core_tool_calls " +
			"where tool_name = 'no.such_tool')"}},
	{"journal-order", "a cancel of nothing", "event 2 is cancel_requested, and no such attempt ran",
		[]string{"update core_tool_events set event = 'cancel_requested', worker_id = null where seq = 2 and call_id = " +
			"(select id from core_tool_calls where tool_name = 'no.such_tool')",
			"update core_tool_events set event = 'claimed', attempt = 1 where seq = 3 and call_id = (select id from " +
				"core_tool_calls where tool_name = 'no.such_tool')"}},
	{"journal-holder", "a forged worker", "and the call was with attempt 1 of test-",
		[]string{"update core_tool_events set worker_id = 'w-x' where seq = 3 and call_id = (select id from " +
			"core_tool_calls where tool_name = 'no.such_tool')"}},
	{"journal-holder", "a stale attempt", "event 5 is succeeded of attempt 1",
		[]string{"update core_tool_events e set attempt = 1 where event = 'succeeded' and exists (select from " +
			"core_tool_events l where l.call_id = e.call_id and l.event = 'retried')"}},
	{"journal-holder", "another worker lost", "event 3 is lost",
		[]string{`update core_tool_events set data = '{"lost_worker": "w-x"}' where event = 'lost'
			and call_id = (select id from core_tool_calls where losses = 1 and status = 'succeeded')`}},
	{"journal-replay", "status", "status is waiting, and queued by the journal",
		[]string{"update core_tool_calls set status = 'waiting', computed_key = 'x' where status = 'queued'"}},
	{"journal-replay", "attempt", "attempt is 5, and 0 by the journal",
		[]string{"update core_tool_calls set attempt = 5 where status = 'queued'"}},
	{"journal-replay", "claimed_by", "claimed_by is a, and null by the journal",
		[]string{"update core_tool_calls set claimed_by = 'a' where status = 'waiting'"}},
	{"journal-replay", "claimed_at", "claimed_at is ", []string{"update core_tool_calls set claimed_at = claimed_at + " +
		"interval '1 s' where status = 'running' and computed_key is not null"}},
	{"journal-replay", "retries", "retries is 2, and 1 by the journal",
		[]string{"update core_tool_calls set retries = 2 where retries = 1"}},
	{"journal-replay", "losses", "losses is 1, and 0 by the journal",
		[]string{"update core_tool_calls set losses = 1 where status = 'queued'"}},
	{"journal-replay", "run_at", "run_at is ", []string{"update core_tool_calls set run_at = run_at - interval '1 s' " +
		"where status = 'queued'"}},
	{"journal-replay", "priority", "priority is 5, and -3 by the journal",
		[]string{"update core_tool_calls set priority = 5 where status = 'queued'"}},
	{"journal-replay", "cancel_requested_at", "cancel_requested_at is null, and ",
		[]string{"update core_tool_calls set cancel_requested_at = null where status = 'running'"}},
	{"journal-replay", "the key that it waits for", "computed_key is x, and K by the journal",
		[]string{"update core_tool_calls set computed_key = 'x' where waits_for = 'key'"}},
	{"journal-receipt", "another receipt", "the last event names the receipt 1",
		[]string{`update core_tool_events set data = '{"receipt_id": 1}' where seq = 3
			and call_id = (select id from core_tool_calls where tool_name = 'no.such_tool')`}},
	{"journal-receipt", "another moment", "the last event names the receipt ",
		[]string{"update core_tool_receipts set created_at = created_at + interval '1 s' where tool_name = 'no.such_tool'"}},
	{"journal-orphan", "its call is gone", "2 events belong to a call that does not exist",
		[]string{"insert into core_tool_events (call_id, seq, at, event, attempt) select gen_random_uuid(), 1, now(), " +
			"'queued', 0 from generate_series(1, 1)",
			"insert into core_tool_events (call_id, seq, at, event, attempt) select call_id, 2, now(), 'cancel_requested', 0 " +
				"from core_tool_events e where not exists (select from core_tool_calls c where c.id = e.call_id)"}},

	{"journal-order", "a step of no attempt", "event 5 is ", []string{"update core_tool_events set attempt = 1 where " +
		"event in ('step', 'began') and seq = 5"}},
	{"journal-order", "a step of another worker", "event 5 is ",
		[]string{"update core_tool_events set worker_id = 'b' where event in ('step', 'began') and seq = 5"}},
	{"journal-replay", "steps", "steps is 9, and 3 by the journal",
		[]string{"update core_tool_calls set steps = 9 where steps > 0"}},
	{"step-once", "a step ended twice", "its step once ended 2 times, in the events ",
		[]string{`update core_tool_events set data = data || '{"name": "once"}' where event = 'step'`}},
	{"step-effects", "a receipt without the effect of a step", `its step sent wrote {"type": "sms", `,
		[]string{"update core_tool_receipts set effects = effects - 'messages_sent' where call_id in (select id from " +
			"core_tool_calls where steps > 0)"}},
	{"step-effects", "a receipt without the effect of a step before a wait",
		`a step that was not kept wrote {"type": "sms"}`,
		[]string{"update core_tool_receipts set effects = effects - 'messages_sent' where call_id in (select " +
			"parent_call_id from core_tool_calls where parent_step = 'eight')"}},
	{"step-effects", "a receipt with one of two that steps did",
		`steps wrote {"type": "sms"} 2 times, and its receipt has it 1 times`,
		[]string{`update core_tool_events set data = data ||
			'{"effects": {"messages_sent": [{"type": "sms"}, {"type": "sms"}]}}' where event = 'step'
				and data ->> 'name' = 'sent'
			and call_id in (select call_id from core_tool_receipts)`,
			`update core_tool_receipts set effects = effects || '{"messages_sent": [{"type": "sms", "recipient": "x"}]}'
				where call_id in (select call_id from core_tool_events where data ->> 'name' = 'sent')`}},
	{"step-effects", "a receipt without a request to a model", `a step that was not kept wrote {"llm": {`,
		[]string{`update core_tool_receipts set effects = jsonb_set(effects, '{external_calls}', '[]')
			where call_id in (select call_id from core_llm_requests where attempt = 2)`}},
	{"step-effects", "a receipt that counts other steps", "its receipt counts 3 steps, and its journal has 2",
		[]string{`update core_tool_receipts set effects = effects || '{"durable": {"steps": 3, "calls": 0}}'
			where call_id in (select call_id from core_tool_events where data ->> 'name' = 'once')`}},

	{"journal-order", "another worker called a child", "is called, and no such attempt ran",
		[]string{"update core_tool_events set worker_id = 'b' where event = 'called' and data ->> 'name' = 'eight'"}},
	{"journal-order", "a child returned to another attempt", "is returned, and no such attempt ran",
		[]string{"update core_tool_events set attempt = 1 where event = 'returned' and data ->> 'name' = 'six'"}},
	{"journal-order", "a child returned before the call ran", "event 2 is returned, and no such attempt ran",
		[]string{"update core_tool_events set event = 'returned', attempt = 0 where seq = 2 and call_id = (select id from " +
			"core_tool_calls where tool_name = 'no.such_tool')",
			"update core_tool_events set event = 'claimed', attempt = 1 where seq = 3 and call_id = (select id from " +
				"core_tool_calls where tool_name = 'no.such_tool')"}},
	{"journal-order", "a child returned after the end", "event 4 is returned, and no such attempt ran",
		add("returned", "'{}'", "tool_name = 'no.such_tool'")},
	{"journal-order", "another worker's time came", "is timed_out, and no such attempt ran",
		[]string{"update core_tool_events set worker_id = 'b' where event = 'timed_out' and data -> 'names' ? 'three'"}},
	{"journal-order", "a time came to a call that waits for a key", "is timed_out, and no such attempt ran",
		add("timed_out", "'{}'", "waits_for = 'key'")},
	{"journal-holder", "nobody's time came", "is timed_out of attempt ", []string{"update core_tool_events set " +
		"worker_id = null where event = 'timed_out' and data -> 'names' ? 'four'"}},
	{"journal-replay", "when it was made", "created_at is ", []string{"update core_tool_calls set created_at = " +
		"created_at + interval '1 second' where tool_name = 'no.such_tool'"}},
	{"journal-replay", "its level", "level is 7, and no level of the priority 0",
		[]string{"update core_tool_calls set level = 7 where tool_name = 'no.such_tool'"}},
	{"journal-replay", "nobody crowds", "level is -503, and no level of the priority -3",
		[]string{"insert into gem.levels values (-503)", "update core_tool_calls set level = -503 where priority = -3",
			"update core_tool_calls set level = priority - 500 where created_by is not null and priority <= 0"}},
	{"journal-receipt", "another duration", "the duration of the call's receipt is 01:00:00, and ",
		[]string{"update core_tool_receipts set duration = '1 hour' where tool_name = 'no.such_tool'"}},
	{"journal-receipt", "a duration of what nobody ran",
		"the duration of the call's receipt is 00:00:01, and null by the journal",
		[]string{"update core_tool_receipts set duration = '1 second' where duration is null"}},
	{"journal-replay", "that it waits for a key", "waits_for is null, and key by the journal",
		[]string{"update core_tool_calls set waits_for = null where waits_for = 'key'"}},
	{"journal-replay", "that it waits for no key", "waits_for is key, and call, answer or time by the journal",
		[]string{"update core_tool_calls set waits_for = 'key' where waits_for = 'time'"}},
	{"journal-replay", "that it waits", "waits_for is null, and call, answer or time by the journal",
		[]string{"update core_tool_calls set waits_for = null where waits_for = 'time'"}},
	{"journal-replay", "that it does not wait", "waits_for is call, and null by the journal",
		[]string{"update core_tool_calls set waits_for = 'call' where status = 'queued'"}},
	{"journal-replay", "waits", `waits is ["z"], and ["x"] by the journal`,
		[]string{"update core_tool_calls set waits = '{z}' where waits_for = 'call'"}},
	{"journal-replay", "waits for a key only", `waits is ["z"], and null by the journal`,
		[]string{"update core_tool_calls set waits = '{z}' where waits_for = 'key'"}},
	{"journal-replay", "a need of more than is to come", "need is 2, and at most 1 by the journal",
		[]string{"update core_tool_calls set need = 2 where waits_for = 'call'"}},
	{"journal-replay", "a need of nothing", "need is 0, and at most 1 by the journal",
		[]string{"update core_tool_calls set need = 0 where waits_for = 'call'"}},
	{"journal-replay", "no need", "need is null, and at most 1 by the journal",
		[]string{"update core_tool_calls set need = null where waits_for = 'call'"}},
	{"journal-replay", "a need with a key", "need is 1, and null by the journal",
		[]string{"update core_tool_calls set need = 1 where waits_for = 'key'"}},
	{"journal-replay", "the key that a durable call waits for", "computed_key is x, and K by the journal",
		[]string{"update core_tool_calls set computed_key = 'x' where waits_for = 'key' and steps > 0"}},

	{"answer-once", "a second answer", "it was answered 2 times under the name #x, in the events 2, 3",
		[]string{`insert into core_tool_events (call_id, seq, at, event, attempt, data) select c.id, n, now(), 'answered', 0,
			'{"name": "#x", "value": 1, "by": "ada"}'
			from core_tool_calls c, generate_series(2, 3) n where c.priority = -3`,
			"update core_tool_calls set events = 3 where priority = -3"}},
	{"answer-by", "another answer", `its receipt has the answer "red" by `,
		[]string{`update core_tool_receipts set result = result || '{"answer": "red"}' where tool_name = 'wait.answer'`}},
	{"answer-by", "another event", `its receipt has the answer 8 by `,
		[]string{`update core_tool_receipts set result = result || '{"event": 8}' where tool_name = 'wait.event'`}},
	{"answer-by", "another decision", `its receipt has the answer {"reason": "no", "approved": true} by `,
		[]string{`update core_tool_receipts set result = result || '{"approved": true}' where tool_name = 'wait.approval' and result ? 'by'`}},
	{"answer-by", "an approval that expired was given",
		`its receipt has the answer {"reason": "expired", "approved": true} by nobody, and its journal none by nobody`,
		[]string{`update core_tool_receipts set result = result || '{"approved": true}' where tool_name = 'wait.approval' and not result ? 'by'`}},
	{"answer-by", "someone else's", ` by ada, and its journal `,
		[]string{`update core_tool_receipts set result = result || '{"by": "ada"}' where tool_name = 'wait.event'`}},
	{"journal-holder", "an answer of a worker", "is answered of attempt ", []string{"update core_tool_events set " +
		"worker_id = 'b' where event = 'answered' and data ->> 'value' = 'blue'"}},
	{"journal-order", "an answer to another attempt", "is answered, and no such attempt ran",
		[]string{"update core_tool_events set attempt = 7 where event = 'answered' and data ->> 'value' = 'blue'"}},
	{"wait-stuck", "its answer came", "the call waits for #answer, and all of these have arrived",
		[]string{`with asks as (update core_tool_calls set events = events + 1 where tool_name = 'wait.answer'
			and status = 'waiting' returning *)
			insert into core_tool_events (call_id, seq, at, event, attempt, data) select id, events, now(), 'answered', attempt,
				'{"name": "#answer", "value": 1, "by": "ada"}' from asks`}},

	{"question-input", "other people", "its columns say by {user:eve}, others false, until ",
		[]string{`update core_tool_calls set answer_by = '{user:eve}' where tool_name = 'wait.answer'`}},
	{"question-input", "the one who asks", ", others false, until ",
		[]string{`update core_tool_calls set answer_others = false where tool_name = 'wait.approval'`}},
	{"question-input", "longer", "until 2200-01-01T00:00:00Z",
		[]string{`update core_tool_calls set answer_until = answer_until + interval '1 minute'`}},
	{"question-input", "without end", "until null, and its input ",
		[]string{`update core_tool_calls set answer_until = null`}},
	{"question-input", "no question", "its columns say by {owner}, others null, until null, and its input by null, ",
		[]string{`update core_tool_calls set answer_by = '{owner}' where tool_name = 'no.such_tool'`}},

	{"again-same", "another input", "ada repeated the call ",
		append(madeAgain, "update core_tool_calls set input = '{\"x\": 1}' where "+again)},
	{"again-same", "somebody else's", " with it, and the two differ",
		append(madeAgain, "update core_tool_calls set created_by = 'eve' where "+again)},
	{"again-same", "another call's", " with it, and its parent is null",
		append(madeAgain, "update core_tool_calls set parent_call_id = null where "+again)},
	{"again-same", "nobody's", "nobody repeated the call ", append(madeAgain, "update core_tool_events set data = data - "+
		"'by' where data ? 'again_of'")},

	{"child-called", "an open call has none", "is called of x, the call " + nothing +
		", made, and that call does not exist",
		told("called", "x", `{"call_id": "`+nothing+`"}`)},
	{"child-called", "a call that has ended does not say so", ", whose journal has 0 events of this",
		told("called", "eight", `{"call_id": "`+nothing+`"}`)},
	{"child-called", "it says so twice", ", whose journal has 2 events of this",
		[]string{"update core_tool_events e set event = 'called', data = c.data from core_tool_events c where e.event = " +
			"'timed_out' and e.data -> 'names' ? 'three' and c.event = 'called' and c.data ->> 'name' = 'eight'"}},
	{"child-called", "another name", "is called of x, the call ", told("called", "eight", `{"name": "x"}`)},
	{"child-called", "another parent's", "made, and that call is eight of the call ",
		[]string{"update core_tool_calls k set parent_call_id = other.parent_call_id from core_tool_calls other where " +
			"k.parent_step = 'eight' and other.parent_step = 'left'"}},
	{"child-returned", "another status", ", and that call succeeded with the receipt ",
		told("returned", "five", `{"status": "failed"}`)},
	{"child-returned", "another receipt", " succeeded with the receipt x, and that call succeeded with the receipt ",
		told("returned", "five", `{"receipt_id": "x"}`)},
	{"child-returned", "another name", "is returned of x, the call ", told("returned", "five", `{"name": "x"}`)},
	{"child-returned", "it has not ended", ", failed with the receipt null, and that call has not ended with the " +
		"receipt null",
		add("returned", "(select jsonb_build_object('name', 'y', 'call_id', k.id, 'status', 'failed') from core_tool_calls "+
			"k where k.parent_step = 'y')", "waits_for = 'call'")},
	{"child-returned", "there is none", "the call " + nothing +
		", failed with the receipt null, and that call does not exist",
		add("returned", `'{"name": "z", "status": "failed", "call_id": "`+nothing+`"}'`, "waits_for = 'call'")},
	{"child-returned", "an open call does not know", " and ended as failed, and that call's journal has 0 events of this",
		[]string{"select gem.cancel(id) from core_tool_calls where parent_step = 'x'",
			"update core_tool_calls set waits_for = null, wake_at = null where parent_step = 'x'"}},
	{"child-returned", "a call that ended later does not know", "it is five of the call ",
		append(told("returned", "five", `{"call_id": "`+nothing+`"}`), endLater("2 minutes")...)},
	{"child-returned", "it returned twice", ", and that call's journal has 2 events of this",
		[]string{"update core_tool_events e set data = c.data from core_tool_events c where e.event = 'returned' and " +
			"e.data ->> 'name' = 'one' and c.event = 'returned' and c.data ->> 'name' = 'two'"}},

	{"approval-given", "by another", " by eve of ",
		[]string{`update core_tool_receipts set effects = jsonb_set(effects, '{rules,approvals,0,by}', '"eve"') where effects ? 'rules'`}},
	{"approval-given", "for another reason", "and that call ended as {",
		[]string{`update core_tool_receipts set effects = jsonb_set(effects, '{rules,approvals,0,reason}', '"x"')
			where effects ? 'rules'`}},
	{"approval-given", "of something else", "and that call asked something else",
		[]string{`update core_tool_receipts set effects = jsonb_set(effects, '{rules,approvals,0,digest}', '"x"') where effects ? 'rules'`}},
	{"approval-given", "of nothing", "and that call is not one that it made",
		[]string{`update core_tool_receipts set effects = jsonb_set(effects, '{rules,approvals,0,id}', '"` + nothing + `"')
			where effects ? 'rules'`}},
	{"approval-denied", "and it ran", " had denied it at ", []string{
		`update core_tool_events e set data = jsonb_set(data, '{value,approved}', 'false')
			from core_tool_calls k where k.id = e.call_id and e.event = 'answered' and k.parent_step like '##%'`,
		`update core_tool_receipts r set result = jsonb_set(result, '{approved}', 'false') from core_tool_calls k
			where k.id = r.call_id and k.parent_step like '##%' and r.result ? 'by'`,
		`update core_tool_receipts set effects = effects #- '{rules,approvals}' where effects ? 'rules'`}},
	{"approval-given", "by a denial", `and that call ended as {"error": `,
		[]string{`update core_tool_receipts r set effects = jsonb_set(jsonb_set(effects, '{rules,approvals,0,digest}', to_jsonb(substr(k.parent_step, 3))),
			'{rules,approvals,0,id}', to_jsonb(k.id)) from core_tool_calls k where effects ? 'rules' and k.parent_call_id = r.call_id and k.status = 'failed'`}},
	{"hit-source", "another result", "has another result",
		[]string{`update core_tool_receipts set result = '{}' where replay_of is not null and tool_name = 'leads.create'`}},
	{"hit-source", "a hit of a hit", "is a repetition itself",
		[]string{`update core_tool_receipts h set replay_of = x.id from core_tool_receipts x where h.replay_of is not null and h.tool_name = 'os.list_tasks' and x.replay_of is not null and x.tool_name = 'leads.create'`}},
	{"hit-orphan", "a source that is not there", "which does not exist",
		[]string{`update core_tool_receipts set replay_of = gen_random_uuid() where replay_of is not null and tool_name = 'leads.create'`}},
	{"hit-source", "another key", "has the key leads.create:phone=",
		[]string{`update core_tool_receipts h set replay_of = x.id from core_tool_receipts x where h.replay_of is not null and h.tool_name = 'leads.create' and x.idempotency_key = 'leads.create:phone="2"'`}},
	{"hit-effects", "a hit that did something", "its receipt repeats ",
		[]string{`update core_tool_receipts set effects = effects || '{"db_reads": []}' where replay_of is not null and tool_name = 'leads.create'`}},
	{"hit-effects", "a hit that denies it", `"hit": false`,
		[]string{`update core_tool_receipts set effects = jsonb_set(effects, '{idempotency,hit}', 'false') where replay_of is not null and tool_name = 'leads.create'`}},
	{"hit-effects", "no hit that claims it", "its receipt repeats none",
		[]string{`update core_tool_receipts set effects = jsonb_set(effects, '{idempotency,hit}', 'true') where tool_name = 'os.create_note'`}},
	{"key-once", "it succeeded twice", `the key leads.create:phone="1" succeeded 2 times`,
		unready("gem_receipts_one_success_per_key",
			`update core_tool_calls set input = '{"phone": "1"}', computed_key = 'leads.create:phone="1"' where input ->> 'phone' = '2'`,
			`update core_tool_receipts set idempotency_key = 'leads.create:phone="1"' where idempotency_key = 'leads.create:phone="2"'`)},
	{"key-once", "it succeeded again after it was pruned", `the key leads.create:phone="1" succeeded 2 times`,
		[]string{`insert into gem.kept_keys (key, receipt_id, call_id, ended_at)
			values ('leads.create:phone="1"', gen_random_uuid(), gen_random_uuid(), now())`}},
	{"key-running", "two run with it", "the key K is held by 2 calls", unready("gem_calls_one_holder_per_key",
		"update core_tool_calls set computed_key = 'K' where status = 'running'")},
	{"key-running", "a durable call kept it", "the key K is held by 2 calls", unready("gem_calls_one_holder_per_key",
		"update core_tool_calls set computed_key = 'K' where waits_for = 'call'")},
	{"key-running", "a durable call kept it that is to go on", "the key K is held by 2 calls",
		unready("gem_calls_one_holder_per_key",
			"select gem.cancel(id) from core_tool_calls where parent_step = 'x'",
			"update core_tool_calls c set computed_key = 'K' where "+parentOfX)},
	{"key-computed", "another value",
		`its receipt has the key leads.create:phone="3", and the call leads.create:phone="2"`,
		[]string{`update core_tool_calls set computed_key = 'leads.create:phone="3"' where computed_key = 'leads.create:phone="2"'`,
			`update core_tool_receipts set idempotency_key = 'leads.create:phone="3"' where idempotency_key = 'leads.create:phone="2"'`}},
	{"key-computed", "another caller",
		`its receipt has the key os.list_tasks:caller="ada":client=k, and the call os.list_tasks:caller="eve":client=k`,
		[]string{`update core_tool_calls set created_by = 'eve' where created_by = 'ada'
			and id in (select call_id from core_tool_receipts where replay_of is null)`}},
	{"key-computed", "not the call's", "and the call has x",
		[]string{"update core_tool_calls set computed_key = 'x' where tool_name = 'os.create_note'"}},
	{"key-computed", "a keyed success without", "its receipt has the key null",
		[]string{`update core_tool_calls set computed_key = null where computed_key = 'leads.create:phone="2"'`,
			`update core_tool_receipts set idempotency_key = null where idempotency_key = 'leads.create:phone="2"'`}},

	{"restored-listed", "its receipt is another", " was restored in the epoch ",
		[]string{`insert into gem.epochs (server, at, why) values (now() - interval '1 day', now(), 'promotion')`,
			`insert into gem.epoch_calls (epoch, call_id, attempt, worker_id, tool_name, what, receipt_id, at)
			select max(epoch), call_id, 1, 'w', 'a.b', 'restored', gen_random_uuid(), now()
			from core_tool_receipts r, gem.epochs group by call_id order by call_id limit 1`}},
	{"restored-listed", "it is not listed", ", which does not list it",
		[]string{`insert into gem.epochs (server, at, why) values (now() - interval '1 day', now(), 'promotion')`,
			`update core_tool_events e set data = data || jsonb_build_object('restored', (select max(epoch) from gem.epochs))
			where event = 'succeeded' and call_id = (select call_id from core_tool_receipts where status = 'succeeded'
				order by call_id limit 1)`}},

	{"rule-counted", "a row is missing", `pace/starts per tool ["a.b"]: its row 3 comes after the row 1`,
		[]string{"delete from gem.rule_runs where n = 2 and counter like 'pace/%'"}},
	{"rule-counted", "its time fell", "its row 2 is of ", []string{"update gem.rule_runs set at = at + interval '1 day' " +
		"where n = 1 and counter like 'few/%'"}},
	{"rule-counted", "another total", "its row 2 has the amount 40 and the total 90, and the row before the total 40",
		[]string{"update gem.rule_runs set total = 90 where n = 2 and counter like 'budget/%'"}},
	{"rule-counted", "another first total", "its row 1 has the amount 30 and the total 40, and the row before the total 0",
		[]string{"update gem.rule_runs set amount = 30 where n = 1 and counter like 'budget/%'"}},
	{"rule-counted", "no amount", "its row 2 has the amount null and the total 80",
		[]string{"update gem.rule_runs set amount = null where n = 2 and counter like 'budget/%'"}},
	{"rule-counted", "less than nothing", "its row 2 has the amount -40",
		[]string{"update gem.rule_runs set amount = -40, total = 0 where n = 2 and counter like 'budget/%'"}},
	{"rule-counted", "a call that did not run", "which no worker has claimed",
		[]string{"update gem.rule_runs set call_id = (select id from core_tool_calls where status = 'queued' and attempt = " +
			"0 limit 1) where n = 2 and counter like 'few/%'"}},
	{"place-counted", "a row is missing", `narrow/running per tool ["a.b"]: its row 3 comes after the row 1`,
		[]string{"delete from gem.rule_places where n = 2"}},
	{"place-counted", "its time fell", "its row 3 is of ", []string{"update gem.rule_places set at = at - interval '1 " +
		"day' where n = 3"}},
	{"place-counted", "its queue went back", "has served the queue up to the row 0, and the row before to 2",
		[]string{"update gem.rule_places set head = 0 where n = 5"}},
	{"place-counted", "its queue is longer", "its row 3 counts 7 calls in the queue, and the row before 1",
		[]string{"update gem.rule_places set waiting = 7 where n = 3", "update gem.rule_places set waiting = 6 where n > 3"}},
	{"place-counted", "another call was first", "its row 4 serves the row 2 of the queue, which is of the call ",
		[]string{"update gem.rule_places set call_id = gen_random_uuid() where n = 2"}},
	{"place-counted", "it left without leaving", "its row 3 has the holders {",
		[]string{"update gem.rule_places p set holders = f.holders from gem.rule_places f where p.n = 3 and f.n = 1"}},
	{"place-most", "one call too many", "by the rules 1 it has 0 places, and its row 1 gives them to 1 calls",
		[]string{"update gem.rule_places set max = 0 where n = 1"}},
	{"place-held", "a call that has ended", " has a place, and is succeeded",
		[]string{"insert into gem.rule_places select 'x', 1, now(), id, 'took', array[id], 0, 0, 1, '1' from core_tool_calls " +
			"where status = 'succeeded' limit 1"}},
	{"place-held", "in no counter", "the call has a place or waits for one, and no counter names it",
		[]string{"update core_tool_calls set placed = true where id = (select id from core_tool_calls where status = " +
			"'queued' limit 1)"}},
	{"place-idle", "a free place", "x: it has 1 places and 0 calls in them since ",
		[]string{"insert into gem.rule_places select 'x', 1, now() - interval '2 minutes', id, 'queued', '{}', 1, 0, 1, '1' " +
			"from core_tool_calls where status = 'queued' limit 1",
			"update core_tool_calls set placed = true where id = (select call_id from gem.rule_places where counter = 'x')"}},
	{"rule-window", "one call too many", "by the rules 1 it lets 2 through in 24:00:00, and its row 3 is ",
		[]string{"insert into gem.rule_runs select counter, 3, at + interval '23 hours', gen_random_uuid(), null, null, " +
			"'1' from gem.rule_runs where n = 1 and counter like 'few/%'"}},
	{"rule-window", "a turn too early", "by the rules 1 it lets 1 through in 00:00:03, and its row 3 is 00:00:02.999 " +
		"after the row 2",
		[]string{"update gem.rule_runs r set at = o.at + interval '2999 ms' from gem.rule_runs o where r.n = 3 and o.n = 2 " +
			"and r.counter like 'pace/%' and o.counter = r.counter"}},
	{"rule-window", "too large a sum", "by the rules 1 it lets 100 through in 168:00:00, and up to its row 3 these were " +
		"100.5",
		[]string{"insert into gem.rule_runs select counter, 3, at + interval '167 hours', gen_random_uuid(), 20.5, 100.5, " +
			"'1' from gem.rule_runs where n = 2 and counter like 'budget/%'"}},
	{"rule-window", "no call may run", "it lets 0 through",
		[]string{`update core_rules_versions set rules = jsonb_set(rules, '{rules,0,limit,max}', '0')`}},

	{"llm-call", "its call is gone", "of a call that does not exist",
		[]string{"update core_llm_requests set call_id = gen_random_uuid() where status = 'sent'"}},
	{"llm-call", "an attempt to come", "the ledger has a request of its attempt 7, and the call is attempt 1",
		[]string{"update core_llm_requests set attempt = 7 where status = 'sent'"}},
	{"llm-call", "a gap", "the ledger has 1 requests of it, and the last is number 2",
		[]string{"update core_llm_requests set n = 2 where status = 'sent'"}},
	{"llm-entries", "one more on the receipt", "its receipt has a request 9 to a model, and the ledger does not",
		[]string{`update core_tool_receipts set effects = jsonb_insert(effects, '{external_calls,0}', '{"llm": {"request": 9}}') where effects @? '$.external_calls[*].llm'`}},
	{"llm-entries", "one on the receipt of a call that asked nothing",
		"its receipt has a request 1 to a model, and the ledger does not",
		[]string{`update core_tool_receipts set effects = jsonb_set(effects, '{external_calls}', '[{"llm": {"request": 1}}]') where tool_name = 'os.list_tasks' and replay_of is null and idempotency_key like '%ada%'`}},
	{"llm-entries", "one less on the receipt", "the ledger has its request 1, which was lost, and its receipt does not",
		[]string{`update core_tool_receipts set effects = effects #- '{external_calls,0}' where effects @? '$.external_calls[*].llm'`}},
	{"llm-entries", "twice on the receipt", "its receipt has its request 3 2 times",
		[]string{`update core_tool_receipts set effects = jsonb_insert(effects, '{external_calls,0}', effects #> '{external_calls,2}') where effects @? '$.external_calls[*].llm'`}},
	{"llm-entries", "cheaper on the receipt", "its request 3: done by y for 0.1 USD; and the ledger: done by y for 0.25",
		[]string{`update core_tool_receipts set effects = jsonb_set(effects, '{external_calls,2,llm,cost_usd}', '"0.1"') where effects @? '$.external_calls[*].llm'`}},
	{"llm-entries", "a cost that is not known", "its request 1: lost by x for 0 USD; and the ledger: lost by x for " +
		"unknown",
		[]string{`update core_tool_receipts set effects = jsonb_set(effects, '{external_calls,0,llm,cost_usd}', '"0"') where effects @? '$.external_calls[*].llm'`}},
	{"llm-entries", "another target", "its request 2: failed by y for 0 USD; and the ledger: failed by x for 0",
		[]string{`update core_tool_receipts set effects = jsonb_set(effects, '{external_calls,1,llm,target}', '"y"') where effects @? '$.external_calls[*].llm'`}},
	{"llm-entries", "another end", "its request 2: done by x for 0 USD; and the ledger: failed by x for 0",
		[]string{`update core_tool_receipts set effects = jsonb_set(effects, '{external_calls,1,llm,outcome}', '"done"') where effects @? '$.external_calls[*].llm'`}},
	{"llm-usage", "it was cheaper", "and the ledger 3 requests, 1 of them with unknown cost, for 0.25",
		[]string{`update core_tool_receipts set result = jsonb_set(result, '{usage,call,cost_usd}', '"0.1"') where result #> '{usage,call}' is not null`}},
	{"llm-usage", "all of it is known", `"unknown_requests": 0} for its requests, and the ledger 3 requests, 1 of them`,
		[]string{`update core_tool_receipts set result = jsonb_set(result, '{usage,call,unknown_requests}', '0') where result #> '{usage,call}' is not null`}},
	{"llm-spend", "less was spent", "it has 4 requests, which spent 1 and have 1000000000 reserved; its requests, with " +
		"0 that were pruned, and its corrections add up to 4, 1250000000 and 1000000000",
		[]string{"update gem.llm_spend set spent = 1"}},
	{"llm-spend", "less is reserved", "which spent 1250000000 and have 0 reserved",
		[]string{"update gem.llm_spend set reserved = 0"}},
	{"llm-spend", "more was pruned", "with 1 that were pruned, and its corrections add up to 5, 1250000007",
		[]string{"update gem.llm_spend set pruned = 7, pruned_requests = 1"}},
	{"llm-spend", "a correction that was not counted", "which spent 1250000000", []string{
		"insert into gem.llm_corrections (spend, amount, by, reason, at) select min(id), 5, 'ada', 'an invoice', now() " +
			"from gem.llm_spend"}},
	{"llm-spend", "its row is gone", "4 requests count in a budget that does not exist",
		[]string{"delete from gem.llm_spend"}},
	{"llm-due", "nobody closed it", ", and its request 1 is still open",
		[]string{"update core_llm_requests set at = at - interval '2 hours' where status = 'sent'",
			"update core_tool_calls c set updated_at = c.updated_at - interval '2 hours', created_at = c.created_at - " +
				"interval " +
				"'2 hours', cancel_requested_at = c.cancel_requested_at - interval '2 hours' from core_llm_requests r where " +
				"r.call_id = c.id and r.status = 'sent'",
			"update core_tool_events e set at = e.at - interval '2 hours' from core_llm_requests r where r.call_id = " +
				"e.call_id " +
				"and r.status = 'sent'",
			"update core_tool_receipts t set created_at = t.created_at - interval '2 hours' from core_llm_requests r where " +
				"r.call_id = t.call_id and r.status = 'sent'"}},

	{"extract-text", "another text", "the hash of its document differs from the text in its input",
		[]string{`update core_tool_receipts set result = jsonb_set(result, '{document,sha256}', '"x"') where tool_name = 'extract.run'`}},
	{"extract-quote", "in bytes", "its name from 8000 to 8005 differs from the text there", moved("byte", "end", 1)},
	{"extract-quote", "in characters", "its name from 4000 to 4003 differs from the text there",
		moved("codepoint", "start", 1)},
	{"extract-quote", "in units of UTF-16", "its name from 3999 to 4004 differs from the text there",
		moved("utf16", "start", -1)},
	{"extract-quote", "in a text of ASCII", "its name from 6 to 9 differs from the text there", moved("utf16", "end", -1)},
	{"extract-quote", "before the text", "its name from -1 to 4004 differs from the text there",
		moved("utf16", "start", -4001)},
	{"extract-quote", "behind the text", "its name from 3999 to 900003999 differs from the text there",
		moved("codepoint", "end", 899_999_996)},
	{"extract-quote", "another quote", "its name from 4000 to 4004 differs from the text there",
		[]string{`update core_tool_receipts set result = jsonb_set(result, '{extractions,0,quote}', '"beta"') where tool_name = 'extract.run'`}},
	{"extract-shard", "a hit that was none", "its shard 0 is listed as a hit that was read, and the receipt of the call",
		[]string{`update core_tool_receipts set result = jsonb_set(result, '{shards,0,cached}', 'true') where tool_name = 'extract.run'`}},
	{"extract-shard", "another's call", "which is not its child",
		[]string{`update core_tool_receipts set result = jsonb_set(result, '{shards,0,call_id}', to_jsonb(call_id)) where tool_name = 'extract.run'`}},
	{"extract-part", "another text", "the hash or the size of its part 1 differs from the text",
		[]string{"update extract_document_parts set text = 'e' where seq = 1"}},
	{"extract-part", "a gap", "its part 3 comes after the part 1",
		[]string{"update extract_document_parts set seq = 3 where seq = 2"}},
	{"extract-part", "another user's", "its part 2 belongs to another user than the document",
		[]string{"update extract_document_parts set created_by = 'ada' where seq = 2"}},
	{"extract-part", "its document is gone", "its part 2 exists, but the document does not",
		[]string{"delete from extract_documents"}},

	{"effects-missing", "an inserted row", "its receipt lists insert of notes ", []string{"delete from notes"}},
	{"effects-missing", "an updated row", "its receipt lists update of comms_log ",
		[]string{`update core_tool_receipts set effects = jsonb_set(effects, '{db_writes}', '[{"table": "comms_log", "action": "update", "id": "7"}]') where tool_name = 'os.list_tasks' and replay_of is null and idempotency_key like '%ada%'`}},
	{"effects-foreign", "nobody's row", "and that row is of call null", []string{"update notes set call_id = null"}},
	{"effects-unlisted", "a row of a failed call", "names the call, and the call has a receipt without it",
		[]string{"insert into tasks (title, call_id) select 'x', id from core_tool_calls where tool_name = 'no.such_tool'"}},
	{"effects-unlisted", "a row of a call that runs", "and the call is running",
		[]string{"insert into notes (title, call_id) select 'x', id from core_tool_calls where status = 'running' and " +
			"computed_key is not null"}},

	{"queue-level", "nobody looks there", "the call is queued at level -3",
		[]string{"delete from gem.levels where level = -3"}},
	{"call-parent", "it is gone", "which does not exist", []string{"update core_tool_calls set parent_call_id = " +
		"gen_random_uuid() where status = 'queued' and parent_step is null"}},
	{"recovery-due", "its worker died", "the call runs on a, which was alive until ",
		[]string{"update core_workers set alive_until = now() - interval '2 minutes' where worker_id = 'a'"}},
	{"waiting-due", "its key is free", "for the key K, and no call holds it",
		[]string{"update core_tool_calls set computed_key = null where status = 'running' and computed_key = 'K'",
			"update core_tool_calls set updated_at = now() - interval '2 minutes' where status = 'waiting'"}},
	{"wake-due", "its time came", "the call should have continued at ", // and it waits for no key
		[]string{"update core_tool_calls set wake_at = now() - interval '2 minutes', updated_at = now() - interval '2 " +
			"minutes' where waits_for = 'time'"}},
	{"wake-due", "its children go on", ", and 2 of its children continue",
		// a frontend's
		[]string{"update core_tool_calls k set parent_call_id = c.id from core_tool_calls c where k.status = 'queued' and " +
			"k.parent_step is null and " + parentOfX,
			"select gem.claim('d', 1, true)", "select gem.cancel(c.id) from core_tool_calls c where " + parentOfX,
			"select gem.cancel(c.id) from core_tool_calls c where " + parentOfX,
			"update core_tool_calls c set updated_at = now() - interval '2 minutes' where " + parentOfX}},
	{"wake-due", "a child goes on, and another one was asked to end", ", and 1 of its children continue",
		[]string{"select gem.claim('d', 1, true)", "select gem.cancel(c.id) from core_tool_calls c where parent_step = 'x'",
			"select gem.cancel(c.id) from core_tool_calls c where " + parentOfX,
			"select gem.cancel(c.id) from core_tool_calls c where " + parentOfX,
			"update core_tool_calls c set updated_at = now() - interval '2 minutes' where " + parentOfX}},
	{"wait-stuck", "its times came", "the call waits for x, and all of these have arrived",
		append(append(add("timed_out", `'{"names": ["x"]}'`, "waits_for = 'call'"),
			"update core_tool_calls set steps = steps + 1 where waits_for = 'call'"), keepK...)},
	{"wait-stuck", "its child returned", "the call waits for x, and all of these have arrived",
		[]string{"select gem.cancel(id) from core_tool_calls where parent_step = 'x'", "select gem.run_timers('d', 99)",
			"delete from core_tool_events e using core_tool_calls c where c.id = e.call_id and e.seq = c.events and " +
				parentOfX,
			"update core_tool_calls c set status = 'waiting', waits_for = 'call', waits = '{x}', need = 1, events = events - " +
				"1 where " + parentOfX}},
	{"instant-covered", "a second cover", "the instant is covered twice",
		append(minutely, "insert into gem.occurrences select schedule_id, due_at + interval '1 second', due_at + interval "+
			"'1 minute', 1, false, null, 'missed', null, at from gem.occurrences order by due_at desc limit 1 offset 1")},
	{"instant-covered", "a row is gone", ", and is not covered",
		append(minutely, "delete from gem.occurrences o where o.due_at = (select due_at from gem.occurrences "+
			"order by due_at limit 1 offset 2)")},
	{"instant-covered", "the last row is gone", ", and is not covered",
		append(minutely, "delete from gem.occurrences o where o.due_at = (select max(due_at) from gem.occurrences)")},
	{"instant-covered", "the next instant is a later one", ", and is not covered",
		append(minutely, "update gem.schedules set next_at = next_at + interval '2 minutes'")},
	{"cancel-due", "it goes on", "and its cancellation was requested at ",
		[]string{"update core_tool_calls set cancel_requested_at = date_trunc('day', now() - interval '1 day') where " +
			"status = 'running' and cancel_requested_at is not null",
			"update core_tool_events e set at = c.cancel_requested_at from core_tool_calls c where c.id = e.call_id and " +
				"c.status = 'running' and e.event = 'cancel_requested'"}},
	{"cancel-waits", "it waits for what it would have waited for anyway", "and it waits for nap without cleaning up",
		[]string{"select gem.claim('d', 1, true)", "select gem.cancel(id) from core_tool_calls where claimed_by = 'd' and " +
			"status = 'running'",
			`select gem.wait(id, attempt, 'd', '[]', 'time', '{nap}', 1, '{"nap": 3600000}', null, true)
			from core_tool_calls where claimed_by = 'd' and status = 'running' and cancel_requested_at is not null`,
			"update core_tool_events set data = data - 'clean_up' where data ? 'clean_up'"}},
	{"overdue", "its timeout is long over", " may take -01:00:00", // the calls are new, so it is the timeout that is moved
		[]string{`update core_registry_versions set registry = jsonb_build_object('tools', (
			select jsonb_agg(jsonb_build_object('name', tool_name, 'timeout_ms', -3600000))
				from (select distinct tool_name from core_tool_calls) t))
			where version = 'x'`}},
	{"registry-recorded", "it is not", "receipts name the registry x",
		[]string{"delete from core_registry_versions where version = 'x'"}},
}

// archived checks that an archive of the calls that have ended shows the same fault, if it has the call. earlier holds
// the reports of archives by their lines: most breaks change no call that has ended.
func archived(t *testing.T, tx pgx.Tx, earlier map[string]*audit.Report, check string, findings []audit.Finding) {
	t.Helper()
	rows, err := tx.Query(t.Context(), `
		select c.id::text, jsonb_build_object('gem_archive', 1, 'call', to_jsonb(c),
			'receipt', (select to_jsonb(r) from core_tool_receipts r where r.call_id = c.id limit 1),
			'events', (select jsonb_agg(to_jsonb(e) order by e.seq) from core_tool_events e where e.call_id = c.id))::text ||
				e'\n',
			p.id is not null
		from core_tool_calls c
		left join core_tool_calls p on p.id = c.parent_call_id and p.status not in ('succeeded', 'failed', 'not_configured')
		where c.status in ('succeeded', 'failed', 'not_configured') order by c.id`)
	if err != nil {
		t.Fatal(err)
	}
	var ids, lines []string
	var id, line string
	var orphan bool // its parent has not ended, and is not in the archive
	if _, err := pgx.ForEachRow(rows, []any{&id, &line, &orphan}, func() error {
		lines = append(lines, line)
		if !orphan {
			ids = append(ids, id)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(lines, "")
	report := earlier[text]
	if report == nil {
		report = auditLines(t, inside{tx}, lines...)
		earlier[text] = report
	}
	var want []string
	if slices.ContainsFunc(report.Checks, func(r audit.Result) bool { return r.Check == check }) &&
		slices.ContainsFunc(findings, func(f audit.Finding) bool { return slices.Contains(ids, f.ID) }) &&
		check != "receipt-second" { // a line has one receipt
		want = []string{check}
	}
	found := reported(report)
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(found))); diff != "" {
		t.Errorf("in an archive: %s%v", diff, found)
	} else if want != nil && !slices.Contains(findings, found[check][0]) {
		t.Errorf("in an archive: got %v, want %v", found[check], findings)
	}
}

func TestEachCheckReportsWhatBreaksIt(t *testing.T) {
	t.Parallel()
	env := everyKind(t)
	// One session, in which no trigger fires and whose temporary schema is there: Postgres then keeps the plans of the
	// audit's long statements from break to break.
	conn, err := env.DB.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), "set session_replication_role = replica; create temp table kept ()"); err != nil {
		t.Fatal(err)
	}
	archives := map[string]*audit.Report{}
	untested := map[string]bool{}
	for _, c := range audit.Checks {
		untested[c.Name] = !strings.HasPrefix(c.Name, "archive-")
	}
	all := slices.Collect(maps.Keys(untested))
	for _, b := range breaks {
		// In the short form, further breaks of a check are looked for by that check alone.
		var skipped []string
		whole := untested[b.check] || os.Getenv("GEM_TEST_LONG") != ""
		if !whole {
			skipped = slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == b.check })
		}
		untested[b.check] = false
		t.Run(b.check+": "+b.what, func(t *testing.T) {
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			// The calls of the scene must not have waited for over a minute, however long the test has run.
			if _, err := tx.Exec(t.Context(),
				"update core_tool_calls set updated_at = now() where status = 'waiting'"); err != nil {
				t.Fatal(err)
			}
			changed := int64(0)
			for _, sql := range b.by {
				tag, err := tx.Exec(t.Context(), sql)
				if err != nil {
					t.Fatalf("%s: %v", sql, err)
				}
				changed += tag.RowsAffected()
				if strings.HasPrefix(sql, "alter ") || strings.HasPrefix(sql, "drop ") {
					changed++
				}
			}
			if changed == 0 {
				t.Fatal("nothing was broken")
			}
			report, err := audit.Database(t.Context(), inside{tx}, audit.Options{Skip: skipped})
			if err != nil {
				t.Fatal(err)
			}
			found := reported(report)
			if diff := cmp.Diff([]string{b.check}, slices.Sorted(maps.Keys(found))); diff != "" {
				t.Fatalf("%s\n%v", diff, found)
			}
			if !slices.ContainsFunc(found[b.check], func(f audit.Finding) bool {
				return strings.Contains(f.ID+": "+f.What, b.says)
			}) {
				t.Errorf("got %q, want %q", found[b.check], b.says)
			}
			if whole {
				archived(t, tx, archives, b.check, found[b.check])
				foundOfCall(t, tx, b.check, found[b.check])
			}
			remark := slices.Contains([]string{"recovery-due", "waiting-due", "wake-due", "wait-stuck", "cancel-due", "overdue",
				"registry-recorded", "llm-due", "place-idle"}, b.check)
			if (report.Faults == 0) != remark || (report.Remarks > 0) != remark {
				t.Errorf("%d faults, %d remarks", report.Faults, report.Remarks)
			}
		})
	}
	for name, is := range untested {
		if is {
			t.Errorf("nothing breaks %s", name)
		}
	}
}

// Rights that the docs allow an owner to grant are not a finding.
func TestRightsThatTheDocsGiveAreNoFault(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t, migrations.Sources(builtin.Domains()...)...))
	testdb.Exec(t, db, `
		create policy only_these_tools on core_tool_calls as restrictive for insert to gem_frontend with
			check (tool_name in ('os.create_task'));
		grant insert (tool_name, input) on core_tool_calls to gem_monitor;
		create policy visitors on core_tool_calls for insert to gem_monitor with check (tool_name = 'leads.create'
			and created_by is null);
		grant select on notes to gem_frontend;
		create policy own_notes on notes for select to gem_frontend using (created_by = (select gem_caller()));
		create view mine with (security_invoker = true) as select title from notes; grant select on mine to gem_frontend;
		create view mine_too with (security_invoker = yes) as select title from notes;
		grant select on mine_too to gem_frontend;
		alter view open_questions set (security_invoker = on);
		create view for_the_owner as select * from core_tool_calls`)
	report, err := audit.Database(t.Context(), db, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if found := reported(report); len(found) > 0 {
		t.Error(found)
	}
}

// Each column that a migration does not give to users is known to the check.
func TestEachColumnThatUsersMayNotReadIsFoundWhenTheyMay(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	var closed []string
	err := db.QueryRow(t.Context(), `
		select array_agg(format('%s (%s)', attrelid::regclass, attname)) from pg_attribute
		where attrelid in ('core_tool_calls'::regclass, 'core_tool_receipts'::regclass, 'core_tool_events'::regclass)
			and attnum > 0
			and not has_column_privilege('gem_frontend', attrelid, attnum, 'select')`).Scan(&closed)
	if err != nil || len(closed) == 0 {
		t.Fatalf("closed columns: %v, %v", closed, err)
	}
	for _, c := range closed {
		table, column, _ := strings.Cut(c, " ")
		testdb.Exec(t, db, fmt.Sprintf("grant select %s on %s to gem_frontend", column, table))
		report, err := audit.Database(t.Context(), db, audit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		found := reported(report)["rights"]
		if !slices.ContainsFunc(found, func(f audit.Finding) bool {
			return strings.HasPrefix(f.ID, table) && strings.Contains(f.What, column)
		}) {
			t.Errorf("select on %s is not found: %v", c, found)
		}
	}
}

// It may have found its parent ended, though it says that it ended before.
func TestAChildThatEndedWithItsParentNeedNotHaveReturned(t *testing.T) {
	t.Parallel()
	env := everyKind(t)
	tx, err := env.DB.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, sql := range append(endLater("30 seconds"), told("returned", "five", `{"call_id": "`+nothing+`"}`)...) {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	report, err := audit.Database(t.Context(), inside{tx}, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if found := reported(report); len(found) > 0 {
		t.Error(found)
	}
}

// Whatever an earlier GEM left is not a fault of this one.
func TestADatabaseOfTheEarlierGEMHasNoFault(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	db := testdb.Pool(t, url)
	testdb.Exec(t, db, `
		create table core_tool_calls (
			id uuid primary key default gen_random_uuid(), tool_name text not null, input jsonb not null default '{}',
				status text not null default 'queued',
			idempotency_key text, error jsonb, claimed_at timestamptz, claimed_by text, created_at timestamptz default now(),
				updated_at timestamptz default now());
		create table core_tool_receipts (
			id uuid primary key default gen_random_uuid(), call_id uuid references core_tool_calls (id) on delete cascade,
			tool_name text not null, status text not null, result jsonb, effects jsonb, created_at timestamptz default now());
		create table tasks (id uuid primary key default gen_random_uuid(), title text, call_id uuid);
		insert into core_tool_calls (id, tool_name, input, status, error, claimed_by, claimed_at) values
			('00000000-0000-4000-8000-000000000001', 'leads.create', '{"phone": "1"}', 'succeeded', null, 'old', now()),
			('00000000-0000-4000-8000-000000000002', 'leads.create', '{"phone": "1"}', 'succeeded', null, 'old', now()),
			('00000000-0000-4000-8000-000000000003', 'leads.create', '{}', 'failed', '{"message": "no phone"}', null, null),
			('00000000-0000-4000-8000-000000000004', 'os.create_task', '{"title": "x", "domain": "both"}', 'queued', null, null,
				null),
			('00000000-0000-4000-8000-000000000005', 'os.create_task', '{"title": "y", "domain": "both"}', 'claimed', null,
				'old', now()),
			('00000000-0000-4000-8000-000000000006', 'os.create_task', '[1]', 'queued', null, null, null);
		insert into core_tool_receipts (call_id, tool_name, status, result, effects) values
			('00000000-0000-4000-8000-000000000001', 'leads.create', 'succeeded', '{"lead_id": "L1"}',
				'{"db_writes": [{"table": "leads", "action": "insert", "id": "L1"}],
				 "idempotency": {"mode": "keyed", "hit": false, "key_field": "phone", "key_value": "1"}}'),
			('00000000-0000-4000-8000-000000000002', 'leads.create', 'succeeded', '{"lead_id": "L1"}',
				'{"idempotency": {"mode": "keyed", "hit": true}, "db_writes": 1}'),
			('00000000-0000-4000-8000-000000000002', 'leads.create', 'failed', null, null);
		insert into tasks (title, call_id) values ('y, by a worker that died', '00000000-0000-4000-8000-000000000005');`)
	if _, err := migrations.Apply(t.Context(), url,
		migrations.Options{Adopt: []string{"core_tool_calls", "core_tool_receipts", "tasks"}},
		migrations.Sources(builtin.Domains()...)...); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, "insert into leads (name) values ('unrelated')")

	faults := func() map[string][]audit.Finding {
		t.Helper()
		report, err := audit.Database(t.Context(), db, audit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		found := reported(report)
		delete(found, "recovery-due")
		return found
	}
	if found := faults(); len(found) > 0 {
		t.Error(found)
	}
	testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 hour'), gem.recover('w', null)")
	testdb.Exec(t, db, `select gem.finish(c.id, c.attempt, 'w', 'succeeded', '{}', '{}', null) from gem.claim('w', 9, true) c`)
	if found := faults(); len(found) > 0 {
		t.Error(found)
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	archived(t, tx, map[string]*audit.Report{}, "", nil)
}
