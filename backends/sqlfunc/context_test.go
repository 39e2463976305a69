package sqlfunc_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/handlertest"
	"go.uber.org/zap"
)

// where is what operators must find of a function that fails below: what happened, in which function, in which line, in
// which statement.
var where = []string{`relation "hidden_ledger" does not exist`, "shop.fails_below",
	"function shop_below(text) line 3 at SQL statement", "function tools.shop_order(jsonb) line 3 at PERFORM"}

func TestOperatorsFindWhereAFunctionFailedAndUsersDoNot(t *testing.T) {
	t.Parallel()
	l := newLab(t, "shop.order", "shop.busy", "shop.says")
	l.exec(t, `create function public.shop_below(item text) returns void language plpgsql as $f$
begin
  insert into hidden_ledger values ('shop.fails_below', item); -- there is no such table
end $f$`)
	l.function(t, "shop_order", "jsonb", `
		begin
		perform public.shop_below($1 ->> 'item');
		end`)
	l.function(t, "shop_busy", "jsonb", "begin raise exception 'hidden_ledger is locked' using errcode = "+
		"'serialization_failure'; end")
	l.function(t, "shop_says", "jsonb", "begin return null; end")
	l.StartWorker()
	r := l.Run(handlertest.Call{Tool: "shop.order", Input: `{"item": "a lamp"}`, CreatedBy: "ada"})
	if want := unexpected(r, "42P01"); said(r) != want {
		t.Errorf("users read %s, want %s", said(r), want)
	}
	for _, shop := range []string{"select ", "select 1 / 0 -- "} { // in a message, and in a statement
		l.function(t, "shop_says", "jsonb", "begin execute '"+shop+"' || ($1 ->> 'item'); end")
		dynamic := l.Run(handlertest.Call{Tool: "shop.says", Input: `{"item": "hunter2"}`, CreatedBy: "ada"})
		events := "core_tool_events where call_id = '" + dynamic.CallID + "' and event <> 'queued' and "
		if n := l.count(t, events+"data::text like '%hunter2%'"); n != 0 {
			t.Errorf("%s: operators read the value that the function put into a statement", shop)
		}
		if n := l.count(t, events+"data ->> 'context' like '%line 1 at EXECUTE'"); n != 1 {
			t.Errorf("%s: operators do not read where it failed", shop)
		}
	}
	l.function(t, "shop_says", "jsonb", "begin raise exception 'There is no lamp.'; end")
	busy := l.Run(handlertest.Call{Tool: "shop.busy", Input: `{"item": "a lamp"}`, CreatedBy: "ada"})
	if want := unexpected(busy, "40001"); said(busy) != want || busy.Attempt != 2 {
		t.Errorf("after attempt %d users read %s, want %s", busy.Attempt, said(busy), want)
	}

	// Operators read the journal and the log.
	var context string
	if err := l.DB.QueryRow(t.Context(), "select data ->> 'context' from core_tool_events where call_id = $1 and event "+
		"= 'failed'", r.CallID).Scan(&context); err != nil {
		t.Fatal(err)
	}
	logged := fmt.Sprint(l.Logs.FilterMessage("call ended").FilterField(zap.String("call_id", r.CallID)).
		All()[0].ContextMap()["context"])
	for _, want := range where {
		if !strings.Contains(context, want) || !strings.Contains(logged, want) {
			t.Errorf("%q is not in the journal or not in the log:\n%s\n\n%s", want, context, logged)
		}
	}
	if strings.Contains(context, "run_tool") || strings.Contains(context, "a lamp") {
		t.Errorf("the context has more than the function:\n%s", context)
	}
	if n := l.count(t, `core_tool_events where call_id = '`+busy.CallID+
		`' and (event = 'retried' and data #>> '{error,context}' ~ '^hidden_ledger.*line 1 at RAISE'
		or event = 'failed' and data ->> 'context' ~ '^hidden_ledger.*line 1 at RAISE')`); n != 2 {
		t.Errorf("%d of 2 events have the context of a transient error", n)
	}
	says := l.Run(handlertest.Call{Tool: "shop.says", Input: `{"item": "a lamp"}`, CreatedBy: "ada"})
	if said(says) != `execution_error: There is no lamp. {"sqlstate":"P0001"}` ||
		l.count(t, `core_tool_events where call_id = '`+says.CallID+
			`' and data ->> 'context' = 'PL/pgSQL function tools.shop_says(jsonb) line 1 at RAISE'`) != 1 {
		t.Errorf("what the author says to users: %s", said(says))
	}

	// Nothing that a signed-in user or a viewer may read has it.
	const monitor = "select coalesce(json_agg(v), '[]')::text from %s v"
	for role, queries := range map[string][]string{
		"gem_frontend": {
			"select json_agg(get_receipt(id))::text from core_tool_calls",
			"select json_agg(row(call_id, seq, at, event, attempt))::text from core_tool_events",
			"select json_agg(row(id, tool_name, input, status, error))::text from core_tool_calls",
			"select json_agg(row(id, result, effects))::text from core_tool_receipts",
		},
		"gem_monitor": {fmt.Sprintf(monitor, "gem.journal"), fmt.Sprintf(monitor, "gem.calls"),
			fmt.Sprintf(monitor, "gem.receipts"), fmt.Sprintf(monitor, "gem.recent_failures")},
	} {
		err := client.As(t.Context(), l.DB, client.Subject{ID: "ada", Role: role}, func(db client.DB) error {
			for _, query := range queries {
				var seen string
				if err := db.QueryRow(t.Context(), query).Scan(&seen); err != nil {
					return fmt.Errorf("%s: %w", query, err)
				}
				if !json.Valid([]byte(seen)) || !strings.Contains(seen, "failed") && !strings.Contains(seen, r.CallID) {
					t.Errorf("%s reads nothing with %s: %s", role, query, seen)
				}
				for _, secret := range []string{"hidden_ledger", "shop_below", "PL/pgSQL"} {
					if strings.Contains(seen, secret) {
						t.Errorf("%s reads %s with %s: %s", role, secret, query, seen)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	err := client.As(t.Context(), l.DB, client.Subject{ID: "ada", Role: "gem_frontend"}, func(db client.DB) error {
		_, err := db.Exec(t.Context(), "select data from core_tool_events")
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("a signed-in user reads the data of events: %v", err)
	}
}
