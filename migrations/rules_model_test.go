package migrations_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/big"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/rules"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"
)

// gem.gate and rules.Memory see the same in every check, after any history. What one call comes to never gets milder by
// more or tighter rules, and does not depend on their order.
func TestTheGateAnswersAsItsModel(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, ownClock)
	drawMany()
	histories := 0
	rapid.Check(t, func(rt *rapid.T) {
		histories++
		h := &history{rt: rt, db: db, name: fmt.Sprint(histories), ends: map[int]bool{}}
		rt.Repeat(map[string]func(*rapid.T){"call": h.call, "again": h.again, "end": h.end, "decide": h.decide})
		h.counters()
	})
}

// drawMany sets how many random runs a test has, and their length, once for all tests.
var drawMany = sync.OnceFunc(func() {
	checks := "6"
	if os.Getenv("GEM_TEST_LONG") != "" {
		checks = "1000"
	}
	for name, value := range map[string]string{"rapid.checks": checks, "rapid.steps": "60"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
})

// history is a run of calls through the gate and through the model. Others in the same database have other names.
type history struct {
	rt    *rapid.T
	db    *pgxpool.Pool
	name  string
	model rules.Memory
	ms    int          // of the clock: tens, so that times often meet to the point
	ends  map[int]bool // when calls ended and people decided: no two at once, since nobody says which was the last
	open  []*gatedCall
}

// gatedCall is a call that has not ended.
type gatedCall struct {
	rules.MemoryCall
	tool    string
	attempt int
	changes int // of the rules
	checks  []rules.Check
	outcome rules.Outcome
	asked   []string // digests that people have not decided
}

func (h *history) exec(sql string, args ...any) {
	h.rt.Helper()
	if _, err := h.db.Exec(context.Background(), sql, args...); err != nil {
		h.rt.Fatalf("%s %v: %v", sql, args, err)
	}
}

// counters asks whether what was counted is in order, however the clock went.
func (h *history) counters() {
	h.rt.Helper()
	var wrong int
	h.row(`select count(*) from (
		select n = row_number() over w and at >= lag(at, 1, at) over w and total is not distinct
			from sum(amount) over w as right
		from gem.rule_runs window w as (partition by counter order by n)) r where not r.right`, nil, &wrong)
	if wrong > 0 {
		h.rt.Fatalf("%d rows of counters do not follow from those before", wrong)
	}
}

// row scans the one row of a statement.
func (h *history) row(sql string, args []any, into ...any) {
	h.rt.Helper()
	if err := h.db.QueryRow(context.Background(), sql, args...).Scan(into...); err != nil {
		h.rt.Fatalf("%s %v: %v", sql, args, err)
	}
}

// move lets some time pass, or go back, and returns the time.
func (h *history) move(rt *rapid.T) (now time.Time) {
	h.ms += rapid.SampledFrom([]int{0, 0, 0, 10, 10, 20, 50, 100, -10, -50}).Draw(rt, "ms")
	return h.setClock()
}

// moveOn moves to the next time at which no call ended and nobody decided, and returns it.
func (h *history) moveOn() (now time.Time) {
	for h.ends[h.ms] {
		h.ms += 10
	}
	h.ends[h.ms] = true
	return h.setClock()
}

func (h *history) setClock() (now time.Time) {
	h.row("update public.clock set at = began + $1 * interval '1 ms' returning at", []any{h.ms}, &now)
	return now
}

// call makes a call, and brings it to the gate.
func (h *history) call(rt *rapid.T) {
	h.rt = rt
	c := &gatedCall{tool: rapid.SampledFrom([]string{"t.a", "t.b", "t.c"}).Draw(rt, "tool")}
	c.SessionID = rapid.SampledFrom([]string{"", h.name + "s", h.name + "s", h.name + "z"}).Draw(rt, "session")
	c.CreatedBy = rapid.SampledFrom([]string{"", "ada", "ada", "bob"}).Draw(rt, "caller")
	h.move(rt)
	h.row("insert into core_tool_calls (tool_name, session_id, created_by) values ($1, nullif($2, ''), nullif($3, '')) "+
		"returning id::text, created_at",
		[]any{c.tool, c.SessionID, c.CreatedBy}, &c.ID, &c.CreatedAt)
	c.checks = h.checks(rt, c)
	h.open = append(h.open, c)
	h.claim(c)
	h.gate(rt, c)
}

// claim gives a call to its next attempt.
func (h *history) claim(c *gatedCall) {
	h.exec(`update core_tool_calls set status = 'running', attempt = attempt + 1, claimed_by = 'w', claimed_at = gem.now(),
		waits_for = null, waits = null, need = null where id = $1`, c.ID)
	c.attempt++
}

// checks draws what rules ask of a call. The counter has the mode of counting.
func (h *history) checks(rt *rapid.T, c *gatedCall) (checks []rules.Check) {
	span := rapid.SampledFrom([]int64{10, 20, 50, 100, 300, 1000})
	for _, rule := range rapid.SliceOfNDistinct(rapid.IntRange(0, 9), 1, 4, rapid.ID).Draw(rt, "rules") {
		k := rules.Check{Rule: fmt.Sprint("r", rule), Kind: []rules.Kind{rules.ItsCall, rules.Count, rules.Count, rules.Count,
			rules.Sum, rules.Sum,
			rules.FailureRow, rules.FailureRow, rules.Required, rules.Afterwards}[rule]}
		k.Action = rapid.SampledFrom([]rules.Action{rules.Block, rules.Block, rules.Warn, rules.Ask}).Draw(rt, "action")
		word := ""
		switch {
		case k.Kind == rules.ItsCall:
			k.Action = rules.Ask
		case rule <= 2: // most limits are paces
			k.Action, k.AtMostMS, word = rules.Wait, rapid.SampledFrom([]int64{0, 20, 50, 100, 1000}).Draw(rt, "at most"),
				"starts"
		}
		switch k.Kind {
		case rules.Count:
			k.Max, k.WithinMS = json.Number(rapid.SampledFrom([]string{"0", "1", "1", "2", "3"}).Draw(rt, "max")),
				span.Draw(rt, "within")
		case rules.Sum:
			k.Max, k.WithinMS = json.Number(rapid.SampledFrom([]string{"0", "0.3", "2.50", "1e1"}).Draw(rt, "max")),
				span.Draw(rt, "within")
			k.Add = json.Number(rapid.SampledFrom([]string{"0", "0.1", "0.10", "0.2", "1E-3", "2.40", "7", "11"}).Draw(rt,
				"add"))
		case rules.FailureRow:
			k.InARow, k.CooldownMS = rapid.IntRange(1, 3).Draw(rt, "in a row"), span.Draw(rt, "cooldown")
		case rules.Required, rules.Afterwards:
			k.Tools = rapid.SampledFrom([][]string{{"t.a"}, {"t.a", "t.b"}, {"t.none"}}).Draw(rt, "tools")
			k.WithinMS = rapid.SampledFrom([]int64{0, 10, 20, 100}).Draw(rt, "within")
		}
		if k.Kind == rules.Afterwards {
			k.Ended = rapid.SampledFrom([][]string{{"succeeded"}, {"not_configured", "succeeded"}, {"rule_blocked", "x"},
				{"failed"}}).Draw(rt, "ended")
		}
		if k.Kind == rules.Count || k.Kind == rules.Sum || k.Kind == rules.FailureRow {
			k.CoarseMS = rapid.SampledFrom([]int64{0, 0, 30}).Draw(rt, "coarse")
			k.Counter = fmt.Sprintf("%s/%s%s %s %d", k.Rule, k.Kind, word, h.name,
				rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(rt, "scope"))
		}
		if k.Action == rules.Ask {
			k.Digest, k.AskMS, k.Question = fmt.Sprint(c.ID, k.Rule, c.changes), 1000,
				json.RawMessage(`{"by": ["role:boss"], "tool": "t.a", "input": {}}`)
		}
		checks = append(checks, k)
	}
	return checks
}

// gate asks about a call, and compares what SQL and the model say.
func (h *history) gate(rt *rapid.T, c *gatedCall) {
	now := h.move(rt)
	attempt := store.Attempt{CallID: c.ID, Number: c.attempt, WorkerID: "w"}
	stricter := h.stricter(rt, c)
	order := rapid.Permutation(c.checks).Draw(rt, "order")
	tightened := h.undone(attempt, stricter)
	reordered := h.undone(attempt, order)
	_, got, err := store.Gate{Checks: c.checks, Version: "1", Again: true}.Do(context.Background(), h.db, attempt)
	if err != nil {
		rt.Fatal(err)
	}
	want := h.model.Gate(now, c.MemoryCall, c.checks)
	if got.Outcome != rules.Delayed {
		got.StartsAt = time.Time{} // it has none, whatever it would be
	}
	if diff := cmp.Diff(want, got, sameAnswer); diff != "" {
		rt.Fatalf("gem.gate differs from the model (-model +gem.gate) in\n%s\nchecks %s", diff, asText(c.checks))
	}
	if mild, strict := strictness(got.Outcome), strictness(tightened.Outcome); strict < mild {
		rt.Fatalf("%s, and %s with stricter rules\nbefore %s\nstricter %s", got.Outcome, tightened.Outcome, asText(c.checks),
			asText(stricter))
	}
	if reordered.Outcome != rules.Delayed {
		reordered.StartsAt = time.Time{}
	}
	if diff := cmp.Diff(inOrder(got, c.checks), inOrder(reordered, order), sameAnswer); diff != "" {
		rt.Fatalf("another order of checks makes another answer:\n%s\nchecks %s", diff, asText(c.checks))
	}

	c.outcome = got.Outcome
	switch got.Outcome {
	case rules.Stopped, rules.Denied, rules.Expired:
		h.finish(c, "failed", "rule_blocked")
	case rules.Asked:
		c.asked = nil
		for _, m := range got.Met {
			d := c.checks[m.Check].Digest
			if d != "" && !slices.ContainsFunc(got.Approvals, func(a receipts.Approval) bool { return a.Digest == d }) {
				c.asked = append(c.asked, d)
			}
		}
	}
}

// undone is what the gate answers about a call with other checks. Nothing comes of it.
func (h *history) undone(attempt store.Attempt, checks []rules.Check) rules.Answer {
	h.rt.Helper()
	tx, err := h.db.Begin(context.Background())
	if err != nil {
		h.rt.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, answer, err := store.Gate{Checks: checks, Version: "1", Again: true}.Do(context.Background(), tx, attempt)
	if err != nil {
		h.rt.Fatal(err)
	}
	return answer
}

// stricter draws checks of a call that restrict it more: one is added, or lets fewer through.
func (h *history) stricter(rt *rapid.T, c *gatedCall) []rules.Check {
	checks := slices.Clone(c.checks)
	limits := slices.DeleteFunc([]int{0, 1, 2, 3}, func(i int) bool { return i >= len(checks) || checks[i].Max == "" })
	if len(limits) > 0 && rapid.Bool().Draw(rt, "tighten") {
		i := rapid.SampledFrom(limits).Draw(rt, "limit")
		fewer := map[json.Number]json.Number{"1": "0", "2": "1", "3": "2", "0.3": "0", "2.50": "0.3", "1e1": "2.50"}
		if most, ok := fewer[checks[i].Max]; ok {
			checks[i].Max = most
		}
		return checks
	}
	for _, more := range h.checks(rt, c) {
		if !slices.ContainsFunc(checks, func(c rules.Check) bool { return c.Rule == more.Rule }) {
			return append(checks, more)
		}
	}
	return checks
}

// again brings a call to the gate that has been there: after a retry, at its turn or before, with what people have
// decided, or not.
func (h *history) again(rt *rapid.T) {
	h.rt = rt
	c := h.draw(rt, func(*gatedCall) bool { return true })
	if c.outcome != rules.Passed || rapid.Bool().Draw(rt, "lost") {
		h.claim(c)
	}
	if rapid.IntRange(0, 4).Draw(rt, "rules have changed") == 0 {
		c.changes++ // other rules ask other questions
		c.checks = h.checks(rt, c)
	}
	h.gate(rt, c)
}

// end ends a call that runs.
func (h *history) end(rt *rapid.T) {
	h.rt = rt
	c := h.draw(rt, func(c *gatedCall) bool { return c.outcome == rules.Passed })
	h.move(rt)
	status := rapid.SampledFrom([]string{"succeeded", "failed", "failed", "failed", "not_configured"}).Draw(rt, "status")
	code := ""
	if status == "failed" {
		code = rapid.SampledFrom([]string{"x", "x", "cancelled"}).Draw(rt, "code")
	}
	h.finish(c, status, code)
}

func (h *history) finish(c *gatedCall, status, code string) {
	h.moveOn()
	result := map[string]string{"succeeded": `{}`, "failed": fmt.Sprintf(`{"error": {"error_code": %q, "message": "y"}}`,
		code),
		"not_configured": `{"status": "not_configured", "reason": "z"}`}[status]
	e := rules.CallEnd{CallID: c.ID, Tool: c.tool, Status: status, Code: code, SessionID: c.SessionID,
		CreatedBy: c.CreatedBy}
	h.row("select gem.finish($1, $2, 'w', $3, $4, '{}', '1')::text, gem.now()", []any{c.ID, c.attempt, status, result},
		&e.ReceiptID, &e.At)
	h.model.Ended(e)
	h.open = slices.DeleteFunc(h.open, func(o *gatedCall) bool { return o == c })
}

// decide lets somebody decide a question, or its time run out.
func (h *history) decide(rt *rapid.T) {
	h.rt = rt
	c := h.draw(rt, func(c *gatedCall) bool { return len(c.asked) > 0 && c.outcome == rules.Asked })
	digest := c.asked[0]
	c.asked = c.asked[1:]
	d := rules.Decision{CallID: c.ID, Digest: digest,
		Outcome: rapid.SampledFrom([]rules.Outcome{rules.Passed, rules.Passed, rules.Denied, rules.Expired}).Draw(rt,
			"decision")}
	h.move(rt)
	d.At = h.moveOn()
	result := map[string]any{"approved": d.Outcome == rules.Passed}
	if d.Outcome != rules.Passed {
		d.Reason = rapid.SampledFrom([]string{"no", "expired"}).Draw(rt, "reason")
	}
	if d.Outcome == rules.Expired {
		d.Reason = "expired"
	} else {
		d.By = "eve"
		result["by"], result["at"] = d.By, d.At.UTC()
	}
	if d.Reason != "" {
		result["reason"] = d.Reason
	}
	if d.By != "" {
		value := map[string]any{"approved": d.Outcome == rules.Passed, "reason": d.Reason}
		h.exec(`select gem.came(id, 'answered', array[$3::jsonb], null) from core_tool_calls
			where parent_call_id = $1 and parent_step = '##' || $2`, c.ID, digest,
			map[string]any{"name": "#answer", "value": value, "by": d.By})
	}
	if d.Outcome == rules.Denied && rapid.Bool().Draw(rt, "the question has not ended yet") {
		h.model.Denied(d)
		return
	}
	h.row(`update core_tool_calls set status = 'running', attempt = attempt + 1, claimed_by = 'w', claimed_at = gem.now()
		where parent_call_id = $1 and parent_step = '##' || $2 returning id::text`, []any{c.ID, digest}, &d.ID)
	h.exec("select gem.finish($1, 1, 'w', 'succeeded', $2, '{}', '1')", d.ID, result)
	h.model.Decided(d)
}

// draw draws one of the open calls.
func (h *history) draw(rt *rapid.T, fits func(*gatedCall) bool) *gatedCall {
	among := slices.DeleteFunc(slices.Clone(h.open), func(c *gatedCall) bool { return !fits(c) })
	if len(among) == 0 {
		rt.Skip("there is no such call")
	}
	return rapid.SampledFrom(among).Draw(rt, "call")
}

// strictness is the place of an outcome among all.
func strictness(o rules.Outcome) int {
	return slices.Index([]rules.Outcome{rules.Passed, rules.Delayed, rules.Asked, rules.Expired, rules.Denied,
		rules.Stopped}, o)
}

// inOrder sorts the parts of an answer by the names of the rules.
func inOrder(a rules.Answer, checks []rules.Check) rules.Answer {
	byName := slices.SortedFunc(slices.Values(checks),
		func(a, b rules.Check) int { return strings.Compare(a.Rule, b.Rule) })
	a.Met = slices.Clone(a.Met)
	for i := range a.Met {
		if a.Met[i].Check == rules.NoCheck {
			continue
		}
		a.Met[i].Check = slices.IndexFunc(byName, func(c rules.Check) bool { return c.Rule == checks[a.Met[i].Check].Rule })
	}
	slices.SortFunc(a.Met, func(a, b rules.Met) int { return a.Check - b.Check })
	slices.SortFunc(a.Approvals, func(a, b receipts.Approval) int { return strings.Compare(a.Rule, b.Rule) })
	return a
}

// sameAnswer compares times and numbers by what they are, and nothing as none.
var sameAnswer = cmp.Options{
	cmpopts.EquateEmpty(),
	cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) }),
	cmp.Comparer(func(a, b json.Number) bool {
		if a == "" || b == "" {
			return a == b
		}
		x, ok := new(big.Rat).SetString(string(a))
		y, also := new(big.Rat).SetString(string(b))
		return ok && also && x.Cmp(y) == 0
	}),
}

func asText(checks []rules.Check) string {
	text, _ := json.MarshalIndent(checks, "", " ")
	return string(text)
}
