package audit

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// MostEvents is the maximum length of a journal that [Call] checks.
const MostEvents = 3000

// filesOfCall are the statements that Call runs. The others check guards, budgets, counts of limits and tables of
// domains, or find calls that are due.
var filesOfCall = []string{"receipts.sql", "journal.sql", "steps.sql", "children.sql", "answers.sql", "keys.sql",
	"llm.sql", "extract.sql"}

// CallReport is the result of [Call].
type CallReport struct {
	Checks  []Check        `json:"-"`                  // that were made
	Found   []CheckFinding `json:"found"`              // empty if all checks passed
	TooLong bool           `json:"too_long,omitempty"` // nothing was checked: the journal has more than MostEvents events
}

// CheckFinding is something that a check found about a call.
type CheckFinding struct {
	Check  string `json:"check"`
	What   string `json:"what"`
	Remark bool   `json:"remark,omitempty"` // not a fault, but worth knowing
}

// Querier runs queries: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// notOfCall are the checks of these statements that do not apply to an existing call, or need all calls.
var notOfCall = []string{"receipt-orphan", "journal-orphan", "key-running"}

// ChecksOfCall are the checks that [Call] makes.
func ChecksOfCall() (made []Check) {
	for _, c := range Checks {
		if slices.Contains(filesOfCall, c.file) && !slices.Contains(notOfCall, c.Name) {
			made = append(made, c)
		}
	}
	return made
}

// aboutCall replaces the tables by the rows that concern one call: its own rows, the rows of its parent and its
// children, and the receipt that its receipt repeats.
const aboutCall = `
with this as materialized (
  select c.id, c.parent_call_id, c.parent_step from public.core_tool_calls c
  where c.id = $1 and not exists (select from public.core_tool_events e where e.call_id = $1 and e.seq > $2)
), one_call as materialized (
  select c.* from public.core_tool_calls c where c.id in (
    select id from this
    union select parent_call_id from this
    union select k.id from this join public.core_tool_calls k on k.parent_call_id = $1 and k.parent_step is not null
    union select (e.data ->> 'call_id')::uuid from this join public.core_tool_events e on e.call_id = this.id
      and e.event in ('called', 'returned'))
), one_receipt as materialized (
  select r.* from public.core_tool_receipts r where r.id in (
    select o.id from this, public.core_tool_receipts o where o.call_id = this.id
    union select o.id from public.core_tool_calls k join public.core_tool_receipts o on o.call_id = k.id
      where k.parent_call_id = $1 and k.parent_step is not null
    union select o.replay_of from this join public.core_tool_receipts o on o.call_id = this.id)
), one_event as materialized (
  select e.* from this join public.core_tool_events e on e.call_id = this.id
  union all
  select e.* from one_call k, this, public.core_tool_events e where k.id <> this.id
    and k.id <> coalesce(this.parent_call_id, this.id) and e.call_id = k.id and e.seq = k.events
  union all
  select e.* from this join public.core_tool_events e on e.call_id = this.parent_call_id
  where this.parent_step is not null and (e.data ->> 'call_id' = this.id::text
    or e.event in ('succeeded', 'failed', 'not_configured'))
), one_request as materialized (
  select q.* from this join public.core_llm_requests q on q.call_id = this.id
)
select name, what from (`

// Call checks one call and its related rows, with the statements that check a whole database, and returns the checks
// that found nothing. The role must see these rows, as gem_operator does. It does not check the rows that the call's
// handler wrote: [Database] does.
func Call(ctx context.Context, db Querier, id string) (*CallReport, error) {
	rows, err := db.Query(ctx, callStatement, id, MostEvents)
	if err != nil {
		return nil, err
	}
	made := ChecksOfCall()
	report := &CallReport{Checks: made, Found: []CheckFinding{}}
	var name, what string
	_, err = pgx.ForEachRow(rows, []any{&name, &what}, func() error {
		if name == "" {
			report.TooLong, report.Checks = true, nil
		} else if i := slices.IndexFunc(made, func(c Check) bool { return c.Name == name }); i >= 0 {
			report.Found = append(report.Found, CheckFinding{name, what, made[i].Remark})
		}
		return nil
	})
	return report, err
}

var callStatement = func() string {
	var all []string
	for _, file := range filesOfCall {
		sql, _ := statements.ReadFile("sql/" + file) // which is embedded
		all = append(all, "select * from (\n"+string(sql)+"\n) "+strings.TrimSuffix(file, ".sql")+" (name, id, what)")
	}
	checks := strings.NewReplacer("public.core_tool_calls", "one_call", "public.core_tool_receipts", "one_receipt",
		"public.core_tool_events", "one_event",
		"public.core_llm_requests", "one_request").Replace(strings.Join(all, "\nunion all\n"))
	return aboutCall + checks + `
) found (name, id, what) where id = $1::text
union all
(select '', '' from public.core_tool_events e where e.call_id = $1 and e.seq > $2 limit 1)
limit 100`
}()
