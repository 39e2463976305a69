package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/rulesreplay"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Keep is delta.keep: a row in the call's transaction.
func (d *Delta) Keep(ctx context.Context, tx handlers.Tx, call *handlers.Call, in keep) (keep, error) {
	var id string
	if err := tx.QueryRow(ctx, "insert into delta_rows (call_id, mark, key) values ($1, $2, nullif($3, '')) returning "+
		"id::text", call.ID, in.Mark, in.Key).Scan(&id); err != nil {
		return in, err
	}
	call.Wrote("delta_rows", handlers.Insert, id)
	if in.How == "fail" {
		return in, &handlers.Failure{Code: "no_luck", Message: "It did not work."}
	}
	return in, nil
}

// KeepOnce is delta.keep_once: the same, once a key.
func (d *Delta) KeepOnce(ctx context.Context, tx handlers.Tx, call *handlers.Call, in keep) (keep, error) {
	return d.Keep(ctx, tx, call, in)
}

var crowdTools = []string{"delta.*", "wait.answer", "agent.run"}

// scarce is how many calls of that kind a session may make.
const scarce = 6

// crowdRules block some calls, and let people decide on others.
var crowdRules = fmt.Sprintf(`{"version": "1.0.0", "rules": [
	{"name": "forbidden", "tools": ["delta.keep"], "when": {"input": {"how": {"const": "forbidden"}}}, "action": "block"},
	{"name": "scarce", "tools": ["delta.keep"], "when": {"input": {"how": {"const": "scarce"}}}, "action": "block", "limit": {"max": %d, "within": "24h", "per": ["session"]}},
	{"name": "big", "tools": ["delta.keep"], "when": {"input": {"how": {"const": "big"}}}, "action": "ask", "ask": {"of": ["approver"]}}]}`, scarce)

// crowd is many agents at once, whose workers are killed, stopped and paused.
type crowd struct {
	agents
	seed    uint64
	draw    *rand.Rand
	model   *crowdModel
	workers []*process // nil while none runs there
	paused  *process
	started int
	counts  map[string]int // what went wrong

	mu      sync.Mutex
	answers map[string]int // of people, by the code that refused them
}

// callOf is the id of an agent of the crowd.
func callOf(name string) string { return fmt.Sprintf("00000000-0000-4000-8000-%012s", name) }

func newCrowd(t *testing.T, workers int, seed uint64) *crowd {
	t.Helper()
	c := &crowd{agents: agents{delta: newDelta(t)}, seed: seed, draw: rand.New(rand.NewPCG(seed, 0)),
		workers: make([]*process, workers),
		counts:  map[string]int{}, answers: map[string]int{}}
	entry := func(name string, idempotency map[string]any, required ...string) map[string]any {
		text := map[string]any{"type": "string"}
		return map[string]any{"name": name, "output_schema": true, "permissions": []string{"write:db"},
			"idempotency": idempotency, "timeout_ms": 600000, "receipt_fields": []string{},
			"retry": map[string]any{"max_attempts": 20, "backoff_ms": 10},
			"input_schema": map[string]any{"type": "object", "additionalProperties": false,
				"required": append(required, "mark", "how"), "properties": map[string]any{"mark": text, "how": text, "key": text}}}
	}
	c.registry = agentRegistry(t, entry("delta.keep", map[string]any{"mode": "none"}),
		entry("delta.keep_once", map[string]any{"mode": "keyed", "key_field": "key", "on_other_input": "replay"}, "key"))
	testdb.Exec(t, c.db, `create table delta_rows (id bigint generated always as identity, call_id uuid not null,
		mark text not null, key text);
		create table delta_requests (n integer, name text, turn integer, input_tokens bigint, output_tokens bigint);
		insert into gem.roles (subject, role) values (session_user, 'approver')`)
	c.model = &crowdModel{seed: seed, heard: map[string][]string{}, cancel: func(name string) {
		if _, err := c.db.Exec(context.Background(), "select cancel_tool_call($1)", callOf(name)); err != nil {
			c.model.fault("cancel agent %s: %v", name, err)
		}
	}}
	c.model.server = llmtest.Start(t, llmtest.Options{Answer: c.model.think})
	providers, targets, routes := map[string]any{}, map[string]any{}, map[string]any{}
	for _, d := range llmtest.Dialects {
		providers[string(d)] = map[string]any{"dialect": d, "base_url": c.model.server.BaseURL(d), "local": true}
		targets[string(d)] = map[string]any{"provider": d, "model": "model-" + d, "context": 1_000_000, "max_output": 4000,
			"capabilities": []string{"tools"},
			"usd_per_mtok": []any{map[string]any{"input": "1", "output": "2", "cache_write": "1"}}}
		routes[string(d)] = map[string]any{"targets": []any{d}}
	}
	routes["default"] = routes[string(llmtest.Anthropic)] // of helpers
	encoded, err := json.Marshal(map[string]any{"version": "1", "providers": providers, "targets": targets,
		"routes": routes})
	if err != nil {
		t.Fatal(err)
	}
	c.routes = string(encoded)
	return c
}

// begin inserts the agents.
func (c *crowd) begin(size, turns int) {
	c.Helper()
	kinds := []string{thatWorks, thatNeverEnds, thatWorks, thatRefuses, thatWorks, thatIsPoor, thatWorks, thatIsCancelled,
		thatWorks, thatWorks}
	for i := range size {
		e := errand{fmt.Sprint(i), kinds[i%len(kinds)], turns}
		task, err1 := json.Marshal(e)
		in := map[string]any{"task": string(task), "tools": crowdTools, "route": llmtest.Dialects[c.draw.IntN(3)],
			"max_turns": turns, "max_output_tokens": 1000}
		if e.Kind == thatIsPoor {
			in["max_cost_usd"] = fmt.Sprintf("0.%03d", 6+c.draw.IntN(10))
		}
		input, err2 := json.Marshal(in)
		if err := errors.Join(err1, err2); err != nil {
			c.Fatal(err)
		}
		testdb.Exec(c.T, c.db, "insert into core_tool_calls (id, tool_name, input, created_by, session_id) values ($1, "+
			"'agent.run', $2, 'ada', $3)", callOf(e.Name), input, fmt.Sprintf("s-%d", i/10))
	}
}

func (c *crowd) start(slot int) {
	c.Helper()
	c.started++
	c.workers[slot] = c.worker(fmt.Sprintf("WORKER_ID=%d-%d", slot, c.started), "TOOLS_RULES="+crowdRules)
}

// trouble kills a worker, or stops one, or pauses one until the next trouble.
func (c *crowd) trouble(kind string) {
	c.Helper()
	c.resume()
	slot := c.draw.IntN(len(c.workers))
	p := c.workers[slot]
	c.counts[kind]++
	switch kind {
	case "kill -9":
		if err := p.cmd.Process.Kill(); err != nil {
			c.Fatal(err)
		}
		_ = p.cmd.Wait()
		c.start(slot)
	case "SIGTERM":
		p.stop(c.T)
		c.start(slot)
	case "SIGSTOP":
		p.signal(c.T, syscall.SIGSTOP)
		c.paused = p
	}
}

func (c *crowd) resume() {
	c.Helper()
	if c.paused != nil {
		c.paused.signal(c.T, syscall.SIGCONT)
		c.paused = nil
	}
}

// rage makes troubles, evenly over the requests to models that there will be about, until all calls have ended.
func (c *crowd) rage(troubles []string, requests int) {
	c.Helper()
	made, last, moved := 0, -1, time.Now()
	for ; ; time.Sleep(20 * time.Millisecond) {
		if made < len(troubles) && c.model.server.Counts().Requests >= (made+1)*requests/(len(troubles)+1) {
			c.trouble(troubles[made])
			made++
		}
		var open, events int
		if err := c.db.QueryRow(c.Context(), "select count(*) filter (where status in ('queued', 'running', 'waiting')), "+
			"sum(events) from core_tool_calls").Scan(&open, &events); err != nil {
			c.Fatal(err)
		}
		switch {
		case open == 0:
			c.resume()
			return
		case events != last:
			last, moved = events, time.Now()
		case time.Since(moved) > patience:
			c.Fatalf("%d calls are open, and nothing moves:\n%s", open, testdb.Value[string](c.T, c.db, `
				select string_agg(concat_ws(' ', id, tool_name, status, waits_for, parent_step), e'\n')
					from (select * from core_tool_calls where status in ('queued', 'running', 'waiting') limit 20) c`))
		}
	}
}

// people answers questions until ctx ends: late, wrongly, twice, and correctly.
func (c *crowd) people(ctx context.Context, draw *rand.Rand) {
	say := func(id, answer string) (code string) {
		_, err := c.db.Exec(ctx, "select answer_tool_call($1, $2)", id, answer)
		if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) {
			code = pgErr.Code
		} else if err != nil {
			code = "unknown"
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answers[cmp.Or(code, "taken")]++
		return code
	}
	for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		rows, err := c.db.Query(ctx, "select id::text, tool, text, coalesce(input ->> 'mark', input #>> '{input,mark}', "+
			"'') from open_questions")
		if err != nil {
			continue
		}
		open, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ ID, Tool, Text, Mark string }])
		if err != nil {
			continue
		}
		for _, q := range open {
			right, other := `{"approved": true}`, `{"approved": false, "reason": "too big"}`
			switch {
			case q.Tool == "wait.answer":
				right, other = fmt.Sprintf("%q", answerTo(q.Text)), `"no"`
			case !approves(q.Mark):
				right, other = other, right
			}
			if draw.IntN(3) == 0 {
				continue // later
			}
			if draw.IntN(3) == 0 && say(q.ID, "7") == "" {
				c.model.fault("question %s took a number", q.ID)
			}
			if say(q.ID, right) != "" || draw.IntN(3) > 0 {
				continue
			}
			say(q.ID, right)
			if say(q.ID, other) == "" {
				c.model.fault("question %s took another answer", q.ID)
			}
		}
	}
}

// Agents of ten turns: of ten, seven go through all of them, and the others are cancelled, run out of money, or are
// refused by their model. Their tools write, fail when they have written, are blocked by a rule, wait for people to
// approve them, are unknown, ask, and are agents. Workers are killed, stopped and paused. People answer late, wrongly,
// and twice. Each call has its one receipt, each success its one effect, and each journal comes to its receipt again.
func TestACrowdOfAgentsLosesNothingAndDoesNothingTwice(t *testing.T) {
	size, workers, troubles := 10, 2, []string{"kill -9", "SIGTERM", "kill -9"}
	long := os.Getenv("GEM_TEST_LONG") != ""
	seed := uint64(time.Now().UnixMilli() % 1_000_000)
	if long {
		size, workers, troubles = 720, 3, nil
		for range 15 {
			troubles = append(troubles, "kill -9", "SIGTERM", "kill -9", "SIGSTOP", "kill -9", "SIGTERM")
		}
	}
	const turns = 10
	c := newCrowd(t, workers, seed)
	c.begin(size, turns)
	began := time.Now()
	ctx, stop := context.WithCancel(t.Context())
	var people sync.WaitGroup
	for i := range 2 {
		people.Go(func() { c.people(ctx, rand.New(rand.NewPCG(seed, uint64(i+1)))) })
	}
	defer people.Wait()
	defer stop()
	for slot := range c.workers {
		c.start(slot)
	}
	c.rage(troubles, size*turns*8/10)
	took := time.Since(began)
	stop()
	people.Wait()
	faults := c.check(size)
	for _, fault := range faults[:min(20, len(faults))] {
		t.Errorf("seed %d: %.1000s", seed, fault)
	}
	if long || t.Failed() {
		fmt.Printf("a crowd of %d agents, seed %d, %s\n%s", size, seed, took.Round(time.Second), c.figures())
	}
}

// check returns what is broken.
func (c *crowd) check(size int) (faults []string) {
	c.Helper()
	c.model.mu.Lock()
	faults = append(faults, c.model.faults...)
	asked := c.model.asked
	c.model.mu.Unlock()
	_, err := c.db.CopyFrom(c.Context(), pgx.Identifier{"delta_requests"},
		[]string{"n", "name", "turn", "input_tokens", "output_tokens"},
		pgx.CopyFromSlice(len(asked), func(i int) ([]any, error) {
			r := asked[i]
			return []any{r.n, r.name, r.turn, r.input, r.output}, nil
		}))
	if err != nil {
		c.Fatal(err)
	}
	for promise, broken := range crowdPromises {
		if cases := testdb.Value[string](c.T, c.db,
			"select coalesce(string_agg(broken, '; '), '') from (select * from ("+broken+
				") b (broken) limit 5) b"); cases != "" {
			faults = append(faults, "not so that "+promise+": "+cases)
		}
	}
	replayed, err := rulesreplay.Recorded(c.Context(), c.db, time.Time{})
	if err != nil {
		c.Fatal(err)
	}
	if len(replayed.Differences) > 0 {
		faults = append(faults, fmt.Sprintf("rules decide otherwise: %+v", replayed.Differences[0]))
	}
	c.counts["rules' decisions"] = replayed.Decisions
	c.sound()
	got := gemWith(c.T, []string{"DATABASE_URL=" + c.url, "TOOLS_REGISTRY=" + c.registry, "LLM_ROUTES=" + c.routes,
		"TOOLS_RULES=" + crowdRules}, "replay", "--tool", "agent.run", "--last", "10000")
	agents := testdb.Value[int](c.T, c.db,
		"select count(*)::int from core_tool_receipts where tool_name = 'agent.run' and "+
			"replay_of is null")
	c.counts["replays"] = strings.Count(got.stdout, "  the same: ")
	if got.code != exitDone || c.counts["replays"] != agents || agents < size {
		faults = append(faults, fmt.Sprintf("%d of %d agents come to the same again: %.2000s%s", c.counts["replays"], agents,
			odd(got.stdout), got.stderr))
	}
	return faults
}

// odd are the lines of a replay that do not say that all is the same.
func odd(said string) string {
	var lines []string
	for line := range strings.Lines(said) {
		if !strings.Contains(line, "  the same: ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// crowdPromises are the promises, with the queries that find violations.
var crowdPromises = map[string]string{
	"each call ends with one receipt": `
		select id || ' ' || status from core_tool_calls c
			where (select count(*) from core_tool_receipts r where r.call_id = c.id and r.status = c.status) <> 1`,
	"an agent ends as it was to": `
		select r.call_id || ' ' || (e ->> 'kind') || ' ' || r.result from core_tool_receipts r
			join core_tool_calls c on c.id = r.call_id cross join lateral (select (c.input ->> 'task')::jsonb as e) e
		cross join lateral (select coalesce(r.result #>> '{error,error_code}', r.status) as came,
			(coalesce(r.result ->> 'turns', r.result #>> '{error,details,turns}'))::int as turns) d
		where c.tool_name = 'agent.run' and case e ->> 'kind'
			when 'works' then came = 'succeeded' and turns = (e ->> 'turns')::int
				and r.result ->> 'answer' = 'done: ' || (e ->> 'name')
				or came = 'cancelled' and c.parent_step is not null
			when 'never' then came = 'turn_limit' and turns = (e ->> 'turns')::int
			when 'refuses' then came = 'refused' and turns = ((e ->> 'turns')::int + 1) / 2
			when 'poor' then came = 'budget_exceeded'
			when 'cancelled' then came = 'cancelled' and turns <= ((e ->> 'turns')::int + 1) / 2
		end is not true`,
	"a success has its one row, and nothing else has any": `
		select c.id || ' ' || c.status || ': ' || count(w.id) from core_tool_calls c
			join core_tool_receipts r on r.call_id = c.id left join delta_rows w on w.call_id = c.id
		where c.tool_name like 'delta.%' group by c.id,
			r.id having count(w.id) <> (r.status = 'succeeded' and r.replay_of is null)::int
			or bool_or(w.mark <> c.input ->> 'mark' or w.id::text is distinct from r.effects #>> '{db_writes,0,id}')`,
	"a row is of a call": `select w.mark from delta_rows w
		where not exists (select from core_tool_calls c where c.id = w.call_id)`,
	"what a mark stands for happens once": `select mark || ': ' || count(*) from delta_rows
		group by mark having count(*) > 1`,
	"a key has one row": `select key || ': ' || count(*) from delta_rows
		group by key having count(*) > 1`,
	"what a rule forbids does not happen": `select call_id::text from delta_rows w
		join core_tool_calls c on c.id = w.call_id where c.input ->> 'how' = 'forbidden'`,
	"a session has no more than the rules allow it": fmt.Sprintf(`
		select c.session_id || ': ' || count(*) from delta_rows w join core_tool_calls c on c.id = w.call_id
			where c.input ->> 'how' = 'scarce' group by c.session_id having count(*) > %d`, scarce),
	"what people are to decide happens when they approve it": `
		select c.id::text from delta_rows w join core_tool_calls c on c.id = w.call_id where c.input ->> 'how' = 'big'
			and not exists (
			select from core_tool_calls q join core_tool_receipts r on r.call_id = q.id where q.parent_call_id = c.id
				and r.result ->> 'approved' = 'true')`,
	"a call is of a thought that was kept": `
		select c.id || ' ' || c.parent_step || ' ' || c.input from core_tool_calls c where c.parent_step like 'turn %'
			and not exists (
			select from core_llm_requests l where l.call_id = c.parent_call_id and l.status = 'done'
				and c.parent_step like l.label || ' call %'
				and 'req_' || substring(coalesce(c.input ->> 'mark', c.input ->> 'text', c.input ->> 'task')
					from '.*request (\d+) call') = l.request_id)`,
	"a thought is kept once": `select call_id || ' ' || label || ': ' || count(*) from core_llm_requests
		where status = 'done' group by call_id, label having count(*) > 1`,
	"an agent has its parent's user and session": `
		select c.id::text from core_tool_calls c join core_tool_calls p on p.id = c.parent_call_id
			where (c.created_by, c.session_id) is distinct from ('ada', p.session_id)`,
	"a receipt says what the models cost": "select * from (" + wrongCosts + ") w (broken) where broken <> ''",
	"an agent's receipt has a cost": `
		select call_id || ' ' || result from core_tool_receipts r where tool_name = 'agent.run' and replay_of is null
			and coalesce(result #>> '{usage,cost_usd}', result #>> '{error,details,usage,cost_usd}') is null
			and exists (select from core_llm_requests l where l.call_id = r.call_id and l.status = 'done')`,
	"what reached the model is in the ledger": `
		select d.name || ' turn ' || d.turn || ': ' || count(*) from delta_requests d left
			join core_tool_calls c on c.tool_name = 'agent.run' and (c.input ->> 'task')::jsonb ->> 'name' = d.name
		group by d.name, d.turn, c.id having count(*) > (select count(*) from core_llm_requests l where l.call_id = c.id
			and l.label = 'turn ' || d.turn)`,
	"the ledger has what the model counted": `
		select l.call_id || ' ' || l.label from core_llm_requests l left join delta_requests d on 'req_' || d.n = l.request_id
		where l.status = 'done' and (l.input_tokens, l.output_tokens, l.label) is distinct
			from (d.input_tokens, d.output_tokens, 'turn ' || d.turn)`,
}

// figures describes the outcome of a run.
func (c *crowd) figures() string {
	tally := func(of, sql string) string {
		return fmt.Sprintf("%-12s%s\n", of, testdb.Value[string](c.T, c.db,
			"select coalesce(string_agg(n || ' ' || what, ', ' order by n desc), 'none') from ("+sql+") t (what, n)"))
	}
	return tally("agents", `select coalesce(result #>> '{error,error_code}', status), count(*) from core_tool_receipts
		where tool_name = 'agent.run' group by 1`) +
		tally("calls", `select tool_name || ' ' || coalesce(result #>> '{error,error_code}', case
			when replay_of is not null then 'hit' end, status), count(*) from core_tool_receipts where tool_name <> 'agent.run'
				group by 1`) +
		tally("requests", `select status, count(*) from core_llm_requests group by 1`) +
		tally("events", `select event, count(*) from core_tool_events group by 1`) +
		fmt.Sprintf("%-12s%s, %s USD\n", "money", testdb.Value[string](c.T, c.db, `select count(*) || ' receipts'
			from core_tool_receipts where coalesce(result #>> '{usage,cost_usd}',
				result #>> '{error,details,usage,cost_usd}') is not null`),
			testdb.Value[string](c.T, c.db,
				"select round(sum(coalesce(cost, reserved)) / 1e9, 3)::text from core_llm_requests")) +
		fmt.Sprintf("%-12s%s rows\n", "effects", testdb.Value[string](c.T, c.db, "select count(*)::text from delta_rows")) +
		fmt.Sprintf("%-12s%v, answers %v\n", "outside", c.counts, c.answers)
}
