package migrations_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/rules"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"
)

// admitting is a claim of calls that need admission, in a transaction that is rolled back.
type admitting struct {
	*rapid.T
	name   string // of the session, and in counters and keys
	tx     pgx.Tx
	locker *pgxpool.Pool
	calls  []toAdmit
}

// toAdmit is a call with what its worker asks about it.
type toAdmit struct {
	store.Attempt
	store.Gate
	locked bool // by another transaction
	stale  bool // the attempt no longer holds the call
}

// Calls that are admitted together get the same verdicts, rows and events as one by one in the same order. Locked
// calls come last.
func TestCallsAreAdmittedTogetherAsOneByOne(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, ownClock+"; select gem.start_worker('w', 99, '', '', '1 hour')")
	drawMany()
	decided := map[string]int{}
	histories := 0
	check := func(rt *rapid.T) {
		histories++
		ctx := context.Background()
		name := fmt.Sprint("s", histories)
		a := &admitting{T: rt, name: name, locker: db, calls: drawClaim(rt, db, name)}
		tx, err := db.Begin(ctx)
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = tx.Rollback(ctx) }()
		a.tx = tx
		together, rows := a.undo(a.together)
		alone, want := a.undo(a.alone)
		if diff := cmp.Diff(alone, together); diff != "" {
			rt.Fatalf("the verdicts differ (-alone +together):\n%s", diff)
		}
		if diff := cmp.Diff(want, rows); diff != "" {
			rt.Fatalf("the rows differ (-alone +together):\n%s", diff)
		}
		for _, v := range together {
			decided[strings.Fields(v)[0]]++
		}
	}
	for len(decided) < 7 { // until each verdict has come: run, hit, wait, stopped, delayed, parked, not held
		rapid.Check(t, check)
	}
	t.Log(decided)
}

// drawClaim draws calls that the worker w has claimed, some after others with the same keys and counters have run.
func drawClaim(rt *rapid.T, db *pgxpool.Pool, name string) (calls []toAdmit) {
	h := &history{rt: rt, db: db, name: name, ends: map[int]bool{}}
	var locked []toAdmit
	n := rapid.IntRange(2, 9).Draw(rt, "calls")
	for i := range n {
		c := &gatedCall{tool: "t.a"}
		c.SessionID, c.CreatedBy = name, "ada"
		h.row("insert into core_tool_calls (tool_name, session_id, created_by) values ($1, $2, $3) returning id::text",
			[]any{c.tool, c.SessionID, c.CreatedBy}, &c.ID)
		h.claim(c)
		one := toAdmit{Attempt: store.Attempt{CallID: c.ID, Number: 1, WorkerID: "w"}, Gate: store.Gate{Version: "1"}}
		one.Key = rapid.SampledFrom([]string{"", "k1" + name, "k2" + name, "k3" + name}).Draw(rt, "key")
		if one.Key == "" || rapid.Bool().Draw(rt, "rules") {
			one.Checks = slices.DeleteFunc(h.checks(rt, c), func(k rules.Check) bool { return k.Digest != "" })
			switch places := h.atOnce(rt); rapid.IntRange(0, 3).Draw(rt, "running") {
			case 0:
				one.Checks = places
			case 1:
				one.Checks = append(one.Checks, places...)
			}
		}
		if i < n/2 && rapid.IntRange(0, 2).Draw(rt, "earlier") == 0 {
			_, _, err := one.Do(context.Background(), db, one.Attempt)
			if err != nil {
				rt.Fatal(err)
			}
			if rapid.Bool().Draw(rt, "ends") {
				h.exec("select gem.finish(id, 1, 'w', 'succeeded', '{}', '{}', '1') from core_tool_calls where id = $1 and "+
					"status = 'running'", c.ID)
			}
			continue
		}
		if one.Key == "" && len(one.Checks) == 0 {
			continue // it needs no admission
		}
		switch rapid.IntRange(0, 9).Draw(rt, "trouble") {
		case 0:
			one.locked = true
			locked = append(locked, one)
			continue
		case 1:
			one.stale = true
			h.exec("select gem.release($1, 1, 'w')", c.ID)
		}
		calls = append(calls, one)
	}
	return append(calls, locked...) // a worker admits these after the others
}

// atOnce draws checks on one or two counters of calls that run at the same time.
func (h *history) atOnce(rt *rapid.T) (checks []rules.Check) {
	for _, scope := range rapid.SliceOfNDistinct(rapid.IntRange(0, 1), 1, 2, rapid.ID).Draw(rt, "places") {
		k := rules.Check{Rule: fmt.Sprint("p", scope), Kind: rules.AtOnce,
			Counter: fmt.Sprintf("p%d/running %s", scope, h.name), Max: json.Number(fmt.Sprint(1 + scope)),
			Action: rapid.SampledFrom([]rules.Action{rules.Wait, rules.Wait, rules.Block}).Draw(rt, "action")}
		if k.Action == rules.Wait {
			k.AtMostMS = rapid.SampledFrom([]int64{50, 1000}).Draw(rt, "at most")
		}
		checks = append(checks, k)
	}
	return checks
}

// undo returns the verdicts of do and the rows that it leaves, and undoes it.
func (a *admitting) undo(do func() map[string]admitted) (verdicts map[string]string, rows []string) {
	ctx := context.Background()
	tx, err := a.tx.Begin(ctx)
	if err != nil {
		a.Fatal(err)
	}
	outer := a.tx
	a.tx = tx
	defer func() { a.tx = outer; _ = tx.Rollback(ctx) }()
	verdicts = map[string]string{}
	for id, got := range do() {
		if len(got.answer.Approvals) == 0 {
			got.answer.Approvals = nil
		}
		text, err := json.Marshal(got.answer)
		if err != nil {
			a.Fatal(err)
		}
		what := string(got.answer.Outcome)
		if what == "" {
			what = string(got.key.Verdict)
		}
		if got.err != nil {
			what = "not held"
		}
		verdicts[id] = fmt.Sprint(what, " ", got.key, " ", string(text))
	}
	for _, q := range []string{
		"select row_to_json(c)::text from core_tool_calls c where session_id = $1 order by id",
		`select (to_jsonb(e) - 'id')::text from core_tool_events e join core_tool_calls c on c.id = e.call_id
			where c.session_id = $1 order by call_id, e.seq`,
		`select row_to_json(r)::text from gem.rule_runs r where split_part(counter, ' ', 2) = $1
			order by counter, n`,
		`select row_to_json(r)::text from gem.rule_places r where split_part(counter, ' ', 2) = $1
			order by counter, n`} {
		found, err := tx.Query(ctx, q, a.name)
		if err != nil {
			a.Fatal(err)
		}
		all, err := pgx.CollectRows(found, pgx.RowTo[string])
		if err != nil {
			a.Fatal(err)
		}
		rows = append(rows, all...)
	}
	return verdicts, rows
}

// admitted is the result for a call.
type admitted struct {
	key    store.Key
	answer rules.Answer
	err    error
}

// one admits a call by itself, as a worker does.
func (a *admitting) one(c toAdmit) (got admitted) {
	ctx := context.Background()
	tx, err := a.tx.Begin(ctx)
	if err != nil {
		a.Fatal(err)
	}
	if len(c.Checks) > 0 {
		got.key, got.answer, got.err = c.Do(ctx, tx, c.Attempt)
	} else {
		got.key, got.err = store.HoldKey(ctx, tx, c.Attempt, c.Key, c.KeyField, c.Refuse)
	}
	switch {
	case got.err == nil:
		err = tx.Commit(ctx)
	case store.IsNotHeld(got.err):
		err = tx.Rollback(ctx)
	default:
		err = got.err
	}
	if err != nil {
		a.Fatal(err)
	}
	return got
}

func (a *admitting) alone() map[string]admitted {
	all := map[string]admitted{}
	for _, c := range a.calls {
		all[c.CallID] = a.one(c)
	}
	return all
}

func (a *admitting) together() map[string]admitted {
	ctx := context.Background()
	all := map[string]admitted{}
	lock, err := a.locker.Begin(ctx)
	if err != nil {
		a.Fatal(err)
	}
	defer func() { _ = lock.Rollback(ctx) }()
	var gates []string
	for _, c := range a.calls {
		if c.locked {
			if _, err := lock.Exec(ctx, "select from core_tool_calls where id = $1 for update", c.CallID); err != nil {
				a.Fatal(err)
			}
		}
		gate, err := c.Item(c.Attempt)
		if err != nil || gate == "" {
			a.Fatal(err)
		}
		gates = append(gates, gate)
	}
	results, err := store.Admit(ctx, a.tx, "w", "1", gates)
	if err != nil {
		a.Fatal(err)
	}
	_ = lock.Rollback(ctx)
	for i, r := range results {
		if r.Decided {
			all[a.calls[i].CallID] = admitted{key: r.Key, answer: r.Answer}
		}
	}
	for _, c := range a.calls {
		if _, done := all[c.CallID]; !done {
			all[c.CallID] = a.one(c)
		}
	}
	return all
}
