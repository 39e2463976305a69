package worker_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
)

// Postgres's objection to a handler's statement is for operators: its texts contain names of tables, values of rows and
// code.
func TestAnErrorOfPostgresIsForOperators(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write"})
	if _, err := env.DB.Exec(t.Context(), `create table lab_customers (mail text unique); insert into lab_customers
		values ('hunter2');
		create function lab_raise(t text) returns void language plpgsql as $$ begin
			raise exception 'ledger closed' using detail = t, hint = 'ask the treasury', constraint = 'lab_ledger'; end $$;
		create function lab_run(t text) returns void language plpgsql as $$ begin execute 'select ' || t; end $$`); err != nil {
		t.Fatal(err)
	}
	env.StartWorker()
	for then, c := range map[string]struct{ sqlstate, operators string }{
		"duplicate": {"23505", "add a customer: ERROR: duplicate key value violates unique constraint " +
			"\"lab_customers_mail_key\""},
		"no number": {"22P02", "invalid input syntax for type integer: \"…\""},
		"raise":     {"P0001", "ledger closed"},
		"dynamic": {"42703", "Postgres refused a statement (SQLSTATE 42703)\n" +
			"PL/pgSQL function lab_run(text) line 1 at EXECUTE"},
	} {
		id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "hunter2", Then: then})})
		want := fmt.Sprintf(
			`{"error": {"details": {"sqlstate": %q, "reference": %q}, "message": "Postgres refused a statement. `+
				`Its operators can look up the cause by the reference %s.", "error_code": "execution_error"}}`, c.sqlstate, id, id)
		if r := env.Await(id); string(r.Result) != want {
			t.Errorf("%s: the receipt says %s, want %s", then, r.Result, want)
		}
		var journal, row string
		if err := env.DB.QueryRow(t.Context(), `select e.data ->> 'context', c.error::text from core_tool_events e
			join core_tool_calls c on c.id = e.call_id
			where call_id = $1 and event = 'failed'`, id).Scan(&journal, &row); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(journal, c.operators) || strings.Contains(journal, "hunter2") || strings.Contains(row, "lab_") {
			t.Errorf("%s: the journal says %q, and the call %s", then, journal, row)
		}
		env.Until("the log has the context", func() bool { return strings.Contains(fmt.Sprint(env.Logs.All()), c.operators) })
	}
	if said := fmt.Sprint(env.Logs.All()); strings.Contains(said, "hunter2") {
		t.Errorf("the log has a value: %s", said)
	}
	own := env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "hunter2", Then: "duplicate that the " +
		"author reports"})})
	if !strings.Contains(string(own.Result), `"message": "This customer is known."`) {
		t.Errorf("the author's failure became %s", own.Result)
	}
}
