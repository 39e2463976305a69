package supabase_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/supabase"
	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestACallerHasOnlySoManyOpenCalls(t *testing.T) {
	testdb.Long(t, "TestRequestsAtTheSameTimeDoNotGetPastTheLimit")
	t.Parallel()
	d := desk{supabase.Start(t, supabase.Options{}), t}
	d.Exec("update gem.limits set max_open_calls = 5")
	rows := func(n int) string { return "[" + strings.Repeat("{tool_name: 'a.b'},", n) + "]" }
	const one = `from('core_tool_calls').insert({tool_name: 'a.b'})`
	hint := "Send less in one request."
	refused := func(query string) {
		t.Helper()
		d.unchanged(query, func() {
			a := d.must("ada", query, "429 PT429")
			if a.Message != "too many open calls: you may have 5 that have not ended" || !strings.Contains(a.Hint, hint) {
				t.Errorf("%s says %s (%s)", query, a.Message, a.Hint)
			}
		})
	}

	refused("from('core_tool_calls').insert(" + rows(6) + ")") // an insert counts as a whole
	hint = "cancel them"
	d.must("ada", "from('core_tool_calls').insert("+rows(4)+")", "201")
	refused("from('core_tool_calls').insert(" + rows(2) + ")")
	d.must("ada", ids.Replace(`rpc('enqueue_tool_call', {tool_name: 'a.b', id: 'NEW_CALL'})`), "200")
	refused(one)
	refused(`rpc('enqueue_tool_call', {tool_name: 'a.b'})`)
	refused(`from('core_tool_calls').insert({tool_name: 'a.b', run_at: '2999-01-01'.replace('2999', new Date().getFullYear() + 1)})`)
	// Repeated after its answer was lost.
	d.must("ada", `rpc('enqueue_tool_call', {tool_name: 'a.b', id: 'NEW_CALL'})`, "200")
	// The other users have their own limits, and the server has none.
	d.must("grace", one, "201")
	d.must("server", "from('core_tool_calls').insert("+rows(6)+")", "201")
	d.must("server", `from('core_tool_calls').insert({tool_name: 'a.b', created_by: 'ada'})`, "201")
	refused(one)
	// Ended calls make room.
	for range 2 {
		d.must("ada", `from('core_tool_calls').select('id').eq('status',
			'queued').limit(1).single().then(({data}) => supabase.rpc('cancel_tool_call', data))`, "200")
	}
	d.must("ada", one, "201")
	refused(one)
}

func TestRequestsAtTheSameTimeDoNotGetPastTheLimit(t *testing.T) {
	t.Parallel()
	d := desk{supabase.Start(t, supabase.Options{}), t}
	d.Exec("update gem.limits set max_open_calls = 5")
	var statuses []int
	text := d.Client().Run(d.User("ada"), `
		const sent = await Promise.all(Array.from({length: 40}, (_, i) => i % 2
			? supabase.from('core_tool_calls').insert({tool_name: 'a.b'})
			: supabase.rpc('enqueue_tool_call', {tool_name: 'a.b'})))
		return sent.map(r => r.status)`)
	if err := json.Unmarshal(text, &statuses); err != nil {
		t.Fatal(err)
	}
	count := map[int]int{}
	for _, s := range statuses {
		count[s]++
	}
	if count[200]+count[201] != 5 || count[429] != 35 {
		t.Errorf("got these statuses, want 5 successes and 35 refusals with 429: %v", count)
	}
	if n := d.Value("select count(*) from core_tool_calls"); n != "5" {
		t.Errorf("there are %s calls, want 5", n)
	}
}

func TestOneCallSentManyTimesAtOnceIsOneCall(t *testing.T) {
	testdb.Long(t, "TestRequestsAtTheSameTimeDoNotGetPastTheLimit")
	t.Parallel()
	d := desk{supabase.Start(t, supabase.Options{}), t}
	text := d.Client().Run(d.User("ada"), ids.Replace(`
		const sent = await Promise.all(Array.from({length: 20}, () =>
			supabase.rpc('enqueue_tool_call', {tool_name: 'a.b', input: {n: 1.0}, id: 'NEW_CALL'})))
		return [...new Set(sent.map(r => r.status + ' ' + r.data))]`))
	if want := ids.Replace(`["200 NEW_CALL"]`); string(text) != want {
		t.Errorf("got %s, want %s alone", text, want)
	}
	if n := d.Value("select count(*) from core_tool_calls"); n != "1" {
		t.Errorf("there are %s calls, want 1", n)
	}
}

func TestTheOwnerSetsTheLimits(t *testing.T) {
	testdb.Long(t, "TestRequestsAtTheSameTimeDoNotGetPastTheLimit")
	t.Parallel()
	d := desk{supabase.Start(t, supabase.Options{}), t}
	for _, c := range []struct{ limit, query, says string }{
		{"max_input_bytes = 20", `rpc('enqueue_tool_call', {tool_name: 'a.b', input: {text: 'äöü and some more'}})`,
			"may take 20"},
		{"max_run_ahead = '1 hour'",
			`rpc('enqueue_tool_call', {tool_name: 'a.b', run_at: new Date(Date.now() + 2 * 3600_000)})`,
			"at most 01:00:00 ahead"},
		{"min_priority = -2", `rpc('enqueue_tool_call', {tool_name: 'a.b', priority: -3})`, "must be from -2 to 0"},
	} {
		d.must("ada", c.query, "200")
		d.Exec("update gem.limits set " + c.limit)
		d.unchanged(c.query, func() {
			if a := d.must("ada", c.query, "400 23514"); !strings.Contains(a.Message, c.says) {
				t.Errorf("%s: got %s, want %s", c.limit, a.Message, c.says)
			}
		})
		d.must("server", c.query, "200")
	}
	d.must("ada", `rpc('enqueue_tool_call', {tool_name: 'a.b', input: {n: 1}, run_at: new Date(), priority: -2})`, "200")
	// The input is within all limits of a signed-in user, but larger than a row may be.
	d.Exec("update gem.limits set max_input_bytes = 100000000")
	big := `rpc('enqueue_tool_call', {tool_name: 'a.b', input: {text: 'x'.repeat(1_100_000)}})`
	for _, who := range []string{"ada", "server"} {
		d.unchanged("1.1 MB", func() { d.must(who, big, "400 23514") })
	}
}
