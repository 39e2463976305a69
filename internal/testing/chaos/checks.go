//go:build !windows

package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/internal/rulesreplay"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// check is a promise with the query that finds violations. The query returns one text for each.
type check struct {
	promise string
	sort    sort
	broken  string
}

// sort is the count to which a broken promise is added.
type sort string

const (
	lost  sort = "lost"  // a call without its receipt
	twice sort = "twice" // an effect that happened more than once
	other sort = "other"
)

// checks are the checks at the end of a run, in addition to those of package audit, which compare GEM's own tables with
// each other. lab_plan has the requested calls, lab_arrivals the requests to the server outside, and lab_requests the
// requests to providers of models.
var checks = []check{
	{"a call that was inserted is there", lost, `
		select p.call_id::text from lab_plan p left join core_tool_calls c on c.id = p.call_id where c.tool_name is distinct
			from p.tool`},
	{"a call ends", lost, `
		select id || ' is ' || status from core_tool_calls where status not in ('succeeded', 'failed', 'not_configured')`},
	{"a call that ended has a receipt", lost, `
		select id::text from core_tool_calls c where status in ('succeeded', 'failed', 'not_configured')
			and not exists (select from core_tool_receipts r where r.call_id = c.id)`},
	{"a call has no second receipt", twice, `
		select call_id || ' has ' || count(*) from core_tool_receipts group by call_id having count(*) > 1`},

	{"a transactional success has its row", lost, `
		select r.call_id || ' ' || r.tool_name from core_tool_receipts r
		where r.tool_name in ('lab.write', 'lab.write_once') and r.status = 'succeeded' and r.replay_of is null
			and not exists (
			select from lab_rows w where w.call_id = r.call_id and w.attempt = r.attempt
				and r.effects -> 'db_writes' -> 0 ->> 'id' = w.id::text)`},
	{"a transactional success has no second row, and what did not succeed by running has none", twice, `
		select w.call_id || ': ' || count(*) from lab_rows w left join core_tool_receipts r on r.call_id = w.call_id
		group by w.call_id having count(*) > 1 or bool_or((r.status = 'succeeded' and r.replay_of is null) is not true)`},
	{"an effect that may not happen twice happens at most once", twice, `
		select call_id || ': ' || count(*) from lab_arrivals where tool = 'lab.send' group by call_id having count(*) > 1`},
	{"an attempt has its effect at most once", twice, `
		select call_id || ' attempt ' || attempt || ': ' || count(*) from lab_arrivals group by call_id, attempt,
			tool having count(*) > 1`},
	{"a success outside is one: its attempt reached the server", other, `
		select r.call_id || ' ' || r.tool_name from core_tool_receipts r
		where r.tool_name in ('lab.send', 'lab.charge', 'lab.ping', 'lab.tell') and r.status = 'succeeded'
			and r.replay_of is null and not exists (select from lab_arrivals a where a.call_id = r.call_id and a.attempt = r.attempt)`},
	{"what reached the server is an attempt that was made", other, `
		select a.call_id || ' attempt ' || a.attempt from lab_arrivals a
		where not exists (select from core_tool_events e where e.call_id = a.call_id and e.attempt = a.attempt
			and e.event = 'claimed')`},

	{"a step that must not run twice has its effect at most once", twice, `
		select call_id || ': ' || count(*) from lab_arrivals where tool = 'flow.once' group by call_id having count(*) > 1`},
	{"the row of a step is there once", twice, `
		select call_id || ': ' || count(*) from lab_steps group by call_id having count(*) > 1`},
	{"a flow that succeeded has the effect of each step", lost, `
		select r.call_id::text from core_tool_receipts r where r.tool_name = 'lab.flow' and r.status = 'succeeded'
			and (not exists (select from lab_steps s where s.call_id = r.call_id)
				or (select count(distinct a.tool) from lab_arrivals a where a.call_id = r.call_id
					and a.tool in ('flow.step', 'flow.once')) < 2)`},
	{"a flow is answered, and by the right answer", other, `
		select r.call_id::text from core_tool_receipts r where r.tool_name = 'wait.answer' and r.status = 'succeeded'
			and r.result ->> 'answer' <> 'yes'`},
	{"a call of which people were to decide has an effect only once they approved it", other, `
		select e.call_id || ' ' || c.tool_name from (select call_id from lab_arrivals union select call_id from lab_rows union
			select call_id from lab_steps) e
		join core_tool_calls c on c.id = e.call_id
		where c.tool_name in ('lab.write', 'lab.charge', 'lab.flow') and c.parent_step is null
			and (c.input ->> 'takes_ms')::int >= 220 -- by rules.json
			and exists (select from core_rules_versions) and not exists (
				select from core_tool_calls q join core_tool_receipts r on r.call_id = q.id
				where q.parent_call_id = c.id and q.tool_name = 'wait.approval' and r.result ->> 'approved' = 'true')`},

	{"a key succeeds once by running", twice, `
		select p.tool || ' ' || p.key || ': ' || count(*) from lab_plan p
		join core_tool_receipts r on r.call_id = p.call_id and r.status = 'succeeded' and r.replay_of is null
		where p.key is not null group by p.tool, p.key having count(*) > 1`},
	{"an attempt that began after its key's success has no effect", twice, `
		select a.call_id || ' attempt ' || a.attempt from lab_plan first
		join core_tool_receipts r on r.call_id = first.call_id and r.status = 'succeeded' and r.replay_of is null
		join lab_plan p on p.tool = first.tool and p.key = first.key
		join lab_arrivals a on a.call_id = p.call_id
		join core_tool_events e on e.call_id = a.call_id and e.attempt = a.attempt and e.event = 'claimed'
		where e.at > r.created_at`},
	{"the result of a call that ran is its attempt's own", other, `
		select call_id || ': ' || result from core_tool_receipts where status = 'succeeded' and replay_of is null
			and tool_name like 'lab.%'
			and (result ->> 'call_id', result ->> 'attempt') is distinct from (call_id::text, attempt::text)`},

	{"each failure is in one notice", lost, `
		select failed || ' failures, and ' || told || ' in notices' from (
			select (select count(*) from core_tool_receipts r where r.status <> 'succeeded' and gem.failure_kind(
					case r.status when 'failed' then r.result #>> '{error,error_code}' else r.status end) = 'failed'
					and not gem.is_delivery(r.call_id)) as failed,
				(select coalesce(sum((notice ->> 'count')::int), 0) from gem.notice_calls)
					+ (select coalesce(sum(count), 0) from gem.notice_batches) + (select count(*) from gem.notices) as told) n
		where failed <> told and exists (select from gem.notify_versions)`},
	{"a notice reaches the server outside", lost, `
		select n.call_id || ' ' || coalesce(r.status, 'has no receipt') from gem.notice_calls n
		left join core_tool_receipts r on r.call_id = n.call_id where r.status is distinct from 'succeeded'`},
	{"nobody has a place, or waits for one, when all calls have ended", other, `
		select distinct on (p.counter) p.counter || ': ' || cardinality(p.holders) || ', ' || p.waiting from gem.rule_places p
		where (cardinality(p.holders) > 0 or p.waiting > 0) and not exists (
			select from gem.rule_places later where later.counter = p.counter and later.n > p.n)
		order by p.counter`},

	{"a request that reached a model is in the ledger", lost, `
		select r.call_id || ' ' || r.target || ': ' || count(*) from lab_requests r group by r.call_id, r.target
		having count(*) > (select count(*) from core_llm_requests l where l.call_id = r.call_id and l.target = r.target)`},
	{"a request of the ledger reached its model, unless its attempt was cut short", other, `
		select l.call_id || ' ' || l.target || ': ' || count(*) from core_llm_requests l
		where l.status in ('done', 'cut') or l.status = 'failed' and l.error_kind not in ('unreachable', 'late')
			group by l.call_id, l.target
		having count(*) > (select count(*) from lab_requests r where r.call_id = l.call_id and r.target = l.target)`},
	{"a whole answer is in the ledger as its provider counted it", other, `
		select l.call_id || ' request ' || l.n from core_llm_requests l
		left join lab_requests r on 'req_' || r.n = l.request_id and r.call_id = l.call_id and r.target = l.target
		where l.status = 'done' and (r.n is null
			or l.usage_source = 'provider' and (l.input_tokens, l.output_tokens) is distinct
				from (r.input_tokens, r.output_tokens))`},
	{"an answer is bought once", twice, `
		select call_id || ': ' || count(*) from core_llm_requests where status = 'done' group by call_id,
			label having count(*) > 1`},
	{"a call's answer is that of its request", other, `
		select r.call_id::text from core_tool_receipts r where r.tool_name = 'llm.chat' and r.status = 'succeeded'
			and r.replay_of is null and not exists (
			select from core_llm_requests l where l.call_id = r.call_id and l.status = 'done'
				and r.result ->> 'text' = l.call_id || ' ' || substr(l.request_id, 5))`},
	{"a session's models cost no more than it has", other, `
		select session_id || ': ' || sum(coalesce(cost, reserved)) from core_llm_requests
			group by session_id having sum(coalesce(cost, reserved)) > 30000000`},

	{"a call ends as it was to end, or with a reason that its journal shows", other, `
		select c.id || ' ' || c.tool_name || ' was to end with "' || p.ending || '": ' || c.status || ' ' ||
			coalesce(c.error::text, '')
		from core_tool_calls c join lab_plan p on p.call_id = c.id join core_tool_receipts r on r.call_id = c.id
		where case coalesce(c.error ->> 'error_code', c.status)
			when 'succeeded' then p.ending in ('', 'transient') or r.replay_of is not null
			when 'not_configured' then c.tool_name = 'lab.unbuilt'
			when 'unknown_tool' then c.tool_name = 'lab.unknown'
			when 'execution_error' then p.ending = 'fail' or p.ending = 'transient' and c.tool_name = 'lab.send'
			when 'panic' then p.ending = 'panic'
			when 'cancelled' then c.cancel_requested_at is not null and p.cancelled
			when 'outcome_unknown' then c.tool_name in ('lab.send', 'lab.flow') or c.tool_name = 'lab.unknown' and c.losses > 0
			when 'worker_lost' then c.losses + c.retries >= 20
			when 'limit_reached' then c.tool_name = 'lab.write' and c.parent_step is null -- by rules.json
			when 'rule_blocked' then c.tool_name = 'lab.send'
			when 'approval_denied' then exists (select from core_tool_calls q join core_tool_receipts a on a.call_id = q.id
				where q.parent_call_id = c.id and q.tool_name = 'wait.approval' and a.result ->> 'approved' = 'false'
					and a.result ? 'by')
			when 'approval_expired' then exists (select from core_tool_calls q join core_tool_receipts a on a.call_id = q.id
				where q.parent_call_id = c.id and q.tool_name = 'wait.approval' and a.result ->> 'reason' = 'expired')
			when 'budget_exceeded' then c.tool_name = 'llm.chat'
			when 'provider_refused' then c.tool_name = 'llm.chat'
			when 'request_too_large' then c.tool_name = 'llm.chat'
			when 'provider_unavailable' then c.tool_name = 'llm.chat' and c.losses + c.retries >= 20
			when 'rate_limited' then c.tool_name = 'llm.chat' and c.losses + c.retries >= 20
			when 'stream_cut' then c.tool_name = 'llm.chat' and c.losses + c.retries >= 20
			when 'first_content_late' then c.tool_name = 'llm.chat' and c.losses + c.retries >= 20
			when 'timeout' then true -- its connection was silent for that long
			else false end is not true`},
}

// record stores the data that the checks compare with.
func record(ctx context.Context, db *pgxpool.Pool, plan []call, arrivals []arrival, requests []request) error {
	orNull := func(s string) pgtype.Text { return pgtype.Text{String: s, Valid: s != ""} }
	_, err1 := db.CopyFrom(ctx, pgx.Identifier{"lab_plan"}, []string{"call_id", "tool", "ending", "key", "cancelled"},
		pgx.CopyFromSlice(len(plan), func(i int) ([]any, error) {
			c := plan[i]
			return []any{c.ID, c.Tool, c.Task.Then, orNull(c.key()), c.Cancelled}, nil
		}))
	_, err2 := db.CopyFrom(ctx, pgx.Identifier{"lab_arrivals"}, []string{"call_id", "attempt", "tool", "key"},
		pgx.CopyFromSlice(len(arrivals), func(i int) ([]any, error) {
			a := arrivals[i]
			return []any{a.CallID, a.Attempt, a.Tool, orNull(a.Key)}, nil
		}))
	_, err3 := db.CopyFrom(ctx, pgx.Identifier{"lab_requests"},
		[]string{"n", "call_id", "target", "input_tokens", "output_tokens"},
		pgx.CopyFromSlice(len(requests), func(i int) ([]any, error) {
			r := requests[i]
			return []any{r.n, r.call, r.target, r.input, r.output}, nil
		}))
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("write down what was asked for: %w", err)
	}
	return nil
}

// examine runs the checks. It returns the broken promises as sentences, and the number of cases of each sort.
func examine(ctx context.Context, db querier) (faults []string, found map[sort]int, err error) {
	const shown = 5
	found = map[sort]int{}
	for _, c := range checks {
		rows, err := db.Query(ctx, c.broken)
		if err != nil {
			return nil, nil, fmt.Errorf("check that %s: %w", c.promise, err)
		}
		cases, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return nil, nil, fmt.Errorf("check that %s: %w", c.promise, err)
		}
		found[c.sort] += len(cases)
		if len(cases) > 0 {
			faults = append(faults, fmt.Sprintf("not so that %s, %d times: %s", c.promise, len(cases),
				strings.Join(cases[:min(shown, len(cases))], "; ")))
		}
	}
	return faults, found, nil
}

// audited returns the faults that `gem audit` finds in the journals, the receipts and the hits.
func audited(ctx context.Context, db *pgxpool.Pool) (faults []string, err error) {
	report, err := audit.Database(ctx, db, audit.Options{Timeout: time.Minute})
	if err != nil {
		return nil, fmt.Errorf("audit the database: %w", err)
	}
	for _, c := range report.Checks {
		if c.Error != "" || c.Found > 0 {
			var b strings.Builder
			_ = c.Print(&b) // writes to memory
			faults = append(faults, "gem audit: "+strings.Join(strings.Fields(b.String()), " "))
		}
	}
	return faults, nil
}

// judgedAgain returns the faults that `gem rules replay` finds: decisions of the rules that differ when recomputed.
func judgedAgain(ctx context.Context, db *pgxpool.Pool) (replayed *rulesreplay.Report, faults []string, err error) {
	if replayed, err = rulesreplay.Recorded(ctx, db, time.Time{}); err != nil {
		return nil, nil, fmt.Errorf("judge the calls again: %w", err)
	}
	for _, d := range replayed.Differences {
		faults = append(faults, fmt.Sprintf("gem rules replay: call %s of %s, as of %s: recorded %s, recomputed %s", d.CallID,
			d.Tool, d.At.Format(time.RFC3339Nano), d.Recorded, d.Recomputed))
	}
	return replayed, faults, nil
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}
