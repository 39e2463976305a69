package supabase_test

import (
	"encoding/json"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/supabase"
)

// jsClient gives the bodies of a test the module of clients/js, and a supabase-js client whose answers can be lost.
// `flaky.lose = n` loses the next n answers after the database has sent them. `flaky.asked` lists the names of the
// requests.
func jsClient(t *testing.T) (prelude string) {
	t.Helper()
	path, err := filepath.Abs("../../../clients/js/gem.js")
	if err != nil {
		t.Fatal(err)
	}
	return `const {gem, GemError, GemTimeout} = await import(` + strconv.Quote("file://"+filepath.ToSlash(path)) + `)
		const flaky = {lose: 0, asked: [],
			rpc(name, args) {
				flaky.asked.push(name)
				const query = supabase.rpc(name, args)
				if (flaky.lose <= 0) return query
				flaky.lose--
				return {then: (done, failed) => query.then(() =>
					({error: {message: 'TypeError: fetch failed'}, status: 0})).then(done, failed)}
			},
			from: table => supabase.from(table)}
		const tools = gem(flaky, {realtime: false})
		const thrown = promise => promise.then(() => 'nothing', e => [e.name, e.status ?? null, e.code ?? null])
		`
}

func TestTheClientForJavaScriptCallsAndWaits(t *testing.T) {
	t.Parallel()
	p := supabase.Start(t, supabase.Options{})
	shop := Shop{began: make(chan struct{}, 10), finish: make(chan struct{})}
	handlertest.Start(t, handlertest.Options{Database: p.DatabaseURL, Registry: shopRegistry(t), Domains: []any{shop}})
	c, prelude := p.Client(), jsClient(t)
	check := func(name, body, want string) {
		t.Helper()
		got := c.Run(p.User("ada"), prelude+body)
		if string(got) != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}

	check("a success",
		`const r = await tools.call('shop.order', {article: 'a chair'}, {session: 's'}); return [r.status, r.tool_name, r.attempt, typeof r.result.number]`,
		`["succeeded","shop.order",1,"string"]`)
	check("a hit", `const r = await tools.call('shop.order', {article: 'a chair'}); return [r.status, r.replay_of !== null]`, `["succeeded",true]`)
	check("a failure",
		`const r = await tools.call('shop.repair', {article: 'a vase'}); return [r.status, r.result.error.error_code]`,
		`["failed","out_of_glue"]`)
	check("what is not set up",
		`const r = await tools.call('shop.deliver', {article: 'a sofa'}); return [r.status, r.result.required_env]`,
		`["not_configured",["SHOP_VAN"]]`)

	check("a lost answer to the insert makes no second call", `flaky.lose = 2
		const r = await tools.call('shop.order', {article: 'a stool'})
		return [r.status, flaky.asked.filter(name => name === 'enqueue_tool_call').length]`, `["succeeded",3]`)
	if n := p.Value("select count(*) from core_tool_calls where input ->> 'article' = 'a stool'"); n != "1" {
		t.Errorf("%s calls were made for one request", n)
	}
	check("answers that stay away", `flaky.lose = 5; return thrown(tools.enqueue('shop.order', {article: 'a stool'}))`,
		`["GemError",0,null]`)
	check("another call under an id", `const id = await tools.enqueue('shop.order', {article: 'a stool'})
		return thrown(tools.enqueue('shop.order', {article: 'a bench'}, {id}))`, `["GemError",409,"23505"]`)
	check("ids are UUIDs of version 7, and rise with the time",
		`const {setTimeout: sleep} = await import('node:timers/promises'), all = []
		for (let i = 0; i < 3; i++) { all.push(await tools.enqueue('shop.order', {article: 'a stool'})); await sleep(2) }
		return [all.every(id => /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/.test(id)), String(all) === String(all.toSorted())]`, `[true,true]`)
	check("a refusal",
		`try { await tools.enqueue('shop.order', {article: 'a stool'}, {priority: 5}) } catch (e) { return [e.name, e.code, e.passing] }`,
		`["GemError","23514",false]`)

	check("no receipt in time, and more patience", `const id = await tools.enqueue('shop.fetch', {article: 'a lamp'})
		const early = await tools.wait(id, {timeout: 50}).catch(e => [e.name, e.callId === id])
		return [await tools.receipt(id), ...early]`, `[null,"GemTimeout",true]`)
	check("an answer that never comes", `const dead = {rpc() { let signal
			return {abortSignal(s) { signal = s; return this }, then: (done, failed) =>
				new Promise((_, gone) => signal.addEventListener('abort', () => gone(signal.reason))).then(done, failed)}}}
		return thrown(gem(dead).wait('x', {timeout: 50}))`, `["GemTimeout",null,null]`)
	check("a Realtime that fails", `let asked = 0
		const rpc = () => Promise.resolve({data: ++asked > 6 ? {status: 'succeeded'} : null})
		const mute = {on() { return mute }, subscribe() { throw new Error('no') }}
		const none = {rpc, channel() { throw new Error('no') }}
		const half = {rpc, channel: () => mute, removeChannel: async () => { throw new Error('no') }}
		const ends = [await gem(none, {realtime: true}).wait('x')]
		asked = 0
		return [...ends, await gem(half, {realtime: true}).wait('x')].map(r => r.status)`, `["succeeded","succeeded"]`)
	check("a wait leaves no timer and no connection",
		`const {createClient} = await import('@supabase/supabase-js'), {default: ws} = await import('ws')
		const nowhere = createClient('http://127.0.0.1:9', 'key', {realtime: {transport: ws}})
		const there = () => process.getActiveResourcesInfo().filter(kind => /Timeout|TCP/.test(kind)).sort()
		let asked = 0
		nowhere.rpc = () => Promise.resolve({data: ++asked > 6 ? {status: 'succeeded'} : null})
		const before = there(), r = await gem(nowhere).wait('x')
		return [r.status, String(before) === String(there()) || [before, there()]]`, `["succeeded",true]`)
	check("a wait that is given up", `const id = await tools.enqueue('shop.fetch', {article: 'a lamp'})
		const stop = new AbortController()
		setTimeout(() => stop.abort(new Error('enough')), 30)
		return [await tools.wait(id, {signal: stop.signal}).catch(e => e.message), await tools.receipt(id)]`, `["enough",null]`)
	check("the wait asks less and less often", `const id = await tools.enqueue('shop.fetch', {article: 'a lamp'})
		await tools.wait(id, {timeout: 1500}).catch(() => 0)
		return flaky.asked.length < 12`, `true`)
	check("the end of a call that runs", `const id = await tools.enqueue('shop.fetch', {article: 'a lamp'})
		await tools.cancel(id)
		const r = await tools.wait(id)
		return [r.status, r.result.error.error_code, await tools.cancel(id)]`, `["failed","cancelled","failed"]`)

	close(shop.finish) // frees the slots
	check("Realtime ends a pause, and its channel is left",
		`const id = await tools.enqueue('shop.repair', {article: 'a vase'})
		await tools.wait(id)
		const log = []
		let notify
		const channel = {on(kind, what, ring) {
				log.push(kind, what.table, what.filter === 'call_id=eq.' + id); notify = ring; return channel },
			subscribe(say) { setTimeout(() => { say('SUBSCRIBED'); hide = false; notify() }, 20); return channel }}
		let hide = true, asked = 0
		const live = gem({channel: () => channel, removeChannel: () => log.push('left'),
			rpc: (name, args) => {
				asked++
				return hide ? Promise.resolve({data: null, status: 200}) : supabase.rpc(name, args) }}, {realtime: true})
		return [(await live.wait(id)).status, ...log]`, `["failed","postgres_changes","core_tool_receipts",true,"left"]`)

	var id string
	if err := json.Unmarshal(c.Run(p.User("ada"), prelude+`return tools.enqueue('shop.repair', {article: 'a vase'})`),
		&id); err != nil {
		t.Fatal(err)
	}
	if got := c.Run(p.User("grace"), prelude+`return thrown(tools.receipt('`+id+
		`'))`); string(got) != `["GemError",404,"PT404"]` {
		t.Errorf("another's receipt: %s", got)
	}
	check("no question is open", `return tools.questions()`, `[]`)
}
