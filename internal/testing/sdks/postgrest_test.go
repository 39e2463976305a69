package sdks

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/npmrig"
	"github.com/gemworker/gem/internal/testing/supabase"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/google/go-cmp/cmp"
)

// bookRefund is a function for PostgREST that writes a row and ends a step.
const bookRefund = `
create table refunds (id bigint generated always as identity primary key, cents integer);
alter table refunds enable row level security;
create policy all_rows on refunds using (true);
grant insert, select on refunds to anon, authenticated, service_role;
create function book_refund(step jsonb, cents integer) returns jsonb language plpgsql
  security definer set search_path = public, pg_temp as $$
declare
  made bigint;
begin
  insert into refunds (cents) values (cents) returning id into made;
  perform gem.wrote('refunds', 'insert', made);
  perform keep_tool_step(step, to_jsonb(cents));
  return to_jsonb(cents);
end $$;
revoke execute on function book_refund from public, anon, authenticated;
grant execute on function book_refund to service_role`

// A stepTx through PostgREST and supabase-js commits its row once, even if a proxy delivers each request twice.
// Postgres rejects a token that is forged or belongs to another attempt, and calls with the role of a user.
func TestAStepThroughPostgREST(t *testing.T) {
	testdb.Long(t, "TestRowsAndTheirStepCommitTogether")
	t.Parallel()
	p := supabase.Start(t, supabase.Options{})
	p.Exec(bookRefund)
	dir, port := folder(t, map[string]string{"refunds.mjs": `
import { createClient } from '@supabase/supabase-js'
import { Failure, Transient, durable, serve } from './gem-handlers.js'
const clientOf = token => createClient(process.env.SUPABASE_URL, process.env.SUPABASE_KEY,
  { accessToken: async () => token })
const supabase = clientOf(process.env.SERVICE_ROLE)
const tokens = new Map() // by call and attempt

// attack calls the function with another token or as another role, and returns the status and the error.
async function attack(step, token, client = supabase) {
  const { status, error } = await client.rpc('book_refund',
    { step: { ...JSON.parse(JSON.stringify(step)), token }, cents: 666 })
  return status + ' ' + error?.message
}

const book = (call, { cents, old, attacks }) => call.stepTx('book', async step => {
  tokens.set(call.id + call.attempt, step.token)
  if (attacks && call.attempt === 1) throw new Transient('once more')
  const [id, attempt, code] = step.token.split('.')
  if (attacks) {
    attacks.forged = await attack(step, [id, attempt, '0'.repeat(code.length)].join('.'))
    attacks.foreign = await attack(step, [id, attempt, old.split('.')[2]].join('.'))
    attacks.ended = await attack(step, old)
    attacks.earlier = await attack(step, tokens.get(call.id + '1'))
    attacks.none = await attack(step, null)
    for (const [role, client] of Object.entries({ anon: process.env.ANON, authenticated: process.env.USER_TOKEN })) {
      attacks[role] = await attack(step, step.token, clientOf(client))
    }
  }
  const { data, status, error } = await supabase.rpc('book_refund', { step, cents })
  if (error) throw new Failure(status + ' ' + error.message)
  if (attacks) seen = { ...attacks, again: await attack(step, step.token) }
  return data
})

let seen
await serve({ secret: process.env.SDK_SECRET, tools: { 'remote.book': durable(async (call, input) => {
  const booked = await book(call, { ...input, attacks: input.old && {} })
  return { booked, token: tokens.get(call.id + call.attempt), seen: await call.step('seen', () => seen) }
}) } }).listen(Number(process.env.SDK_PORT))
`}), freePort(t)
	served(t, dir, port, []string{"SDK_SECRET=" + secret, fmt.Sprint("SDK_PORT=", port), "SUPABASE_URL=" + p.URL,
		"SUPABASE_KEY=" + supabase.APIKey, "SERVICE_ROLE=" + p.Server(), "ANON=" + p.Anon(),
		"USER_TOKEN=" + p.User("ada")}, npmrig.ModernNode(t), "refunds.mjs")
	proxy := httptest.NewServer(twice(t, fmt.Sprint("http://127.0.0.1:", port)))
	t.Cleanup(proxy.Close)
	env := beginAt(t, p.DatabaseURL, proxy.URL)
	type result struct {
		Booked int
		Token  string
		Seen   map[string]string
	}
	run := func(input string) (said result) {
		t.Helper()
		r := env.Run(handlertest.Call{Tool: "remote.book", Input: input})
		if !strings.Contains(string(r.Effects), `"table": "refunds"`) {
			t.Errorf("the effects lack the row in refunds: %s", r.Effects)
		}
		if err := json.Unmarshal(r.Result, &said); err != nil || r.Status != receipts.Succeeded {
			t.Fatal(told(r), err)
		}
		return said
	}
	first := run(`{"cents": 1}`)
	second := run(fmt.Sprintf(`{"cents": 2, "old": %q}`, first.Token))
	if first.Booked != 1 || second.Booked != 2 {
		t.Error(first, second)
	}
	const invalid = "409 the token of the step is not valid"
	denied := strings.NewReplacer("401 permission denied for ", "", "403 permission denied for ", "")
	for name, status := range second.Seen {
		second.Seen[name] = denied.Replace(status)
	}
	if diff := cmp.Diff(map[string]string{"forged": invalid, "foreign": invalid, "ended": invalid, "earlier": invalid,
		"none": invalid, "anon": "function book_refund", "authenticated": "function book_refund",
		"again": "409 the journal has 1 steps, and had 0 when the step began"}, second.Seen); diff != "" {
		t.Error(diff)
	}
	if got := p.Value("select string_agg(cents::text, ' ' order by id) from refunds"); got != "1 2" {
		t.Errorf("the rows are %s", got)
	}
	for _, token := range []string{"", p.User("ada")} {
		a := p.Client().Query(token, fmt.Sprintf(`rpc('keep_tool_step', {step: {token: %q}, result: 1})`, first.Token))
		if a.Code != "42501" {
			t.Errorf("the call of keep_tool_step with the token %q of a user is not denied: %+v", token, a)
		}
	}
}

// twice returns a proxy that delivers each request twice, one after the other, and returns the second answer.
func twice(t *testing.T, url string) http.Handler {
	p := &proxy{to: url}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		for i := range 2 {
			status, answer := p.pass(r, body)
			if status == http.StatusBadGateway {
				t.Errorf("delivery %d has no answer", i+1)
				return
			}
			if i == 1 {
				w.WriteHeader(status)
				_, _ = w.Write(answer)
			}
		}
	})
}
