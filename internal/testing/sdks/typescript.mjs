// Tests of the SDK in TypeScript, without a worker: node typescript.mjs
import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import { test } from 'node:test'
import { Cancelled, Failure, Transient, durable, serve, tool } from '../../../sdk/typescript/gem-handlers.js'
import { test as worker } from '../../../sdk/typescript/gem-testing.js'

const secret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'
const LARGEST = 4 << 20, MOST = 1000 // of an answer, in bytes and in operations
const pause = ms => new Promise(resolve => setTimeout(resolve, ms))
const noop = () => {}

// exchange runs a handler in one exchange, and returns the answer.
async function exchange(run, { journal = [], keep, input = {}, ...state } = {}) {
  const reply = await serve({ secret, tools: { 'a.b': durable(run) }, keep }).said({ gem: 1, input, journal,
    call: { id: 'c', tool: 'a.b', attempt: 1, session_id: null, created_by: null }, exchange: { number: 1,
      left_ms: 60_000, cancelled: false, replay: false, may_run: [], steps: journal.length, token: 'x', ...state } })
  const text = await reply.text()
  assert.ok(Buffer.byteLength(text) <= LARGEST, `the answer takes ${Buffer.byteLength(text)} bytes`)
  const answer = JSON.parse(text)
  assert.ok((answer.ops ?? []).length <= MOST, `the answer has ${answer.ops?.length} operations`)
  return answer
}

// running is a test worker for one durable tool, a.b.
const running = (run, more = {}) => worker(serve({ secret, tools: { 'a.b': durable(run), ...more } }))
const names = answer => answer.ops.map(op => op.name)

test('an operation may fail before the handler awaits it', async () => {
  const fails = () => { throw new Failure('no', { code: 'mine' }) }
  for (const run of [
    async call => {
      const a = call.step('a', fails)
      await call.stepOnce('o', () => pause(5))
      await call.step('b', noop)
      await a
    },
    async call => {
      const a = call.run('a', 't.fails', {}), b = call.run('b', 't.fails', {})
      await call.sleep('s', 1)
      await a.catch(noop)
      await b
    },
    async call => {
      const a = call.start('a', 't.fails', {})
      const all = [call.all(a), a.then(), a.finally(noop)]
      await call.sleep('s', 1)
      await call.step('b', noop)
      await all[0]
    },
    async call => {
      const cleaned = call.cleanup(() => call.step('a', fails))
      await call.step('b', noop)
      await call.step('c', noop)
      await cleaned
    },
  ]) {
    const t = running(run)
    t.tools['t.fails'] = fails
    await assert.rejects(t.run('a.b'), { code: 'mine' })
  }
  await assert.rejects(running(async call => {
    const all = [call.version('v', 1), call.tools('t'), call.sleep('s', 1), call.first(call.receive('r'))]
    await pause(1)
    await all[1]
  }).run('a.b', {}, { cancelled: true }), { code: 'cancelled' })
})

test('if the time for keep is over, the next exchange records the beginning of a stepOnce', async () => {
  const kept = []
  const keep = async step => { kept.push(`${step.name} ${step.kind}`) }
  const after = ms => async call => {
    await call.step('a', noop)
    await pause(ms)
    return call.stepOnce('o', noop)
  }
  const late = await exchange(after(80), { keep, left_ms: 100 })
  assert.deepEqual([late.steps, late.ops, late.wait, kept], [1, [], undefined, ['a step']])
  const journal = [{ name: 'a', kind: 'step', ended: 1, result: null }]
  assert.equal((await exchange(after(0), { keep, journal })).result, null)
  assert.deepEqual(kept, ['a step', 'o began', 'o once'])
  const stuck = await exchange(after(80), { keep, journal, left_ms: 100 })
  assert.deepEqual(stuck.ops, [{ op: 'began', name: 'o' }], 'without progress, the answer has the beginning')
})

test('an answer has at most 1,000 operations', async () => {
  const many = one => call => Promise.all(Array.from({ length: 2 * MOST + 1 }, (_, i) => one(call, i)))
  for (const [what, one] of Object.entries({
    steps: (call, i) => call.step(`s${i}`, () => i),
    'steps that must not run twice': (call, i) => call.stepOnce(`s${i}`, () => i),
    calls: (call, i) => call.run(`s${i}`, 't.echo', i),
    'steps and calls': (call, i) => i % 2 ? call.run(`s${i}`, 't.echo', i) : call.stepOnce(`s${i}`, () => i),
  })) {
    assert.equal((await exchange(many(one))).ops.length, MOST, what)
    const t = running(many(one))
    t.tools['t.echo'] = i => i
    assert.deepEqual(await t.run('a.b'), Array.from({ length: 2 * MOST + 1 }, (_, i) => i), what)
    await t.replay()
  }
})

test('steps that may run only now have room next to new calls', async () => {
  const began = Array.from({ length: MOST }, (_, i) => `o${i}`)
  let ran = 0
  const answer = await exchange(async call => {
    await call.step('a', noop)
    const calls = call.start('c', 't.echo', {})
    await Promise.all(began.map(name => call.stepOnce(name, () => { ran++ })))
    await calls
  }, { journal: [{ name: 'a', kind: 'step', ended: 1, result: null },
    ...began.map(name => ({ name, kind: 'once', ended: null }))], may_run: began })
  assert.deepEqual([ran, answer.ops.filter(op => op.kind === 'once').length], [MOST, MOST])
})

test('large inputs are divided among answers', async () => {
  const values = Array.from({ length: 9 }, (_, i) => `${i}`.repeat(900_000))
  const run = async call =>
    (await call.all(values.map((value, i) => call.start(`c${i}`, 't.echo', { value })))).map(value => value[0])
  assert.deepEqual(names(await exchange(run)), ['c0', 'c1', 'c2', 'c3'])
  const t = running(run)
  t.tools['t.echo'] = ({ value }) => value
  assert.equal((await t.run('a.b')).join(''), '012345678')
  const approvals = call => call.all(values.map((value, i) => call.approve(`c${i}`, { tool: 't.echo', input: { value },
    by: ['role:boss'], text: '' })))
  assert.deepEqual(names(await exchange(approvals)), ['c0', 'c1', 'c2', 'c3'])
})

test('an answer with large results, errors and effects keeps its limit, and no step is lost', async () => {
  const text = '\0'.repeat(1 << 20)
  const failing = { message: () => { throw new Error(text) },
    details: () => { throw new Failure('no', { details: 'x'.repeat(30_000) }) },
    effects: call => { for (let i = 0; i < 10; i++) call.called('api', 'x'.repeat(900), 200) },
    results: () => 'x'.repeat(30_000), 'small results': () => 'x'.repeat(3000) }
  for (const [what, step] of Object.entries(failing)) {
    const began = Array.from({ length: MOST }, (_, i) => '\u0001'.repeat(190) + i)
    let ran = 0
    const error = console.error
    console.error = noop
    const answer = await exchange(call => Promise.all(began.map(name => call.stepOnce(name, () => {
      ran++
      return step(call)
    }))), { journal: began.map(name => ({ name, kind: 'once', ended: null })), may_run: began, steps: 0 })
    console.error = error
    assert.deepEqual([ran, answer.ops.length], [MOST, MOST], what)
  }
})

test("a handler's result fits beside the operations that it did not await", async () => {
  const run = result => async call => {
    for (let i = 0; i < 4; i++) call.step(`s${i}`, () => 'x'.repeat(900_000))
    await pause(1)
    return 'x'.repeat(result)
  }
  const small = await exchange(run(100_000))
  assert.deepEqual([small.ops.length, small.result.length], [4, 100_000])
  assert.equal((await exchange(run(800_000))).error.error_code, 'output_invalid')
  assert.equal((await exchange(async () => 'x'.repeat(LARGEST - 10))).error.error_code, 'output_invalid')
  assert.equal((await exchange(async () => 'x'.repeat(LARGEST - 1000))).result.length, LARGEST - 1000)
  const effects = await exchange(async call => { for (let i = 0; i < 5000; i++) call.wroteFile('x'.repeat(1000)) })
  assert.equal(effects.error.error_code, 'output_invalid')
  const large = await exchange(async () => { throw new Failure('\0'.repeat(1 << 20), { code: 'mine', details: [1] }) })
  assert.deepEqual(large.error, { error_code: 'mine', message: '\0'.repeat(10_000), details: [1] })
})

test('a wait that does not fit next to the operations goes into the next answer', async () => {
  const answer = await exchange(call => call.all([
    ...['a', 'b', 'c'].map(name => call.start(name, 't.echo', 'x'.repeat(1_000_000))),
    ...Array.from({ length: 9000 }, (_, i) => call.receive(`${i}`.padEnd(190, 'x')))]))
  assert.deepEqual([names(answer), answer.wait], [['a', 'b', 'c'], undefined])
})

test('a wait may end at any time that the worker can read', async () => {
  const wait = date => exchange(call => call.receive('x').until(date))
  assert.deepEqual((await wait(0)).wait.for, [{ name: '#x', until: '1970-01-01T00:00:00.000Z' }])
  for (const date of [new Date(8.64e15), '-000001-01-01T00:00:00Z', 'tomorrow']) {
    assert.match((await wait(date)).error.message, /is not a time/)
  }
})

test('codes are texts, and pauses are at most a day', async () => {
  assert.equal(new Failure('no', { code: 404 }).code, '404')
  const pauses = [-1, NaN, undefined, 'soon', 0.5, 1e21, Infinity].map(ms => new Transient('no', ms).afterMs)
  assert.deepEqual(pauses, [0, 0, 0, 0, 0.5, 86_400_000, 86_400_000])
})

test('an answer that came early does not change a version', async () => {
  const run = async call => [await call.version('v', 3), await call.receive('paid')]
  const paid = { name: '#paid', kind: 'answer', ended: 1, result: { value: 7 }, early: true }
  assert.deepEqual((await exchange(run, { journal: [paid] })).ops, [{ op: 'version', name: 'v', result: 3 }])
  assert.deepEqual((await exchange(run, { journal: [{ ...paid, early: undefined }] })).result, [0, 7])
  const later = [{ name: 's', kind: 'step', ended: 2, result: 1 }]
  assert.deepEqual((await exchange(run, { journal: [paid, ...later] })).result, [0, 7])
})

test('a body that is too large is not read to its end', async () => {
  const service = serve({ secret, tools: {} })
  let read = 0
  const body = new ReadableStream({ pull(stream) {
    if (read > 100 << 20) return stream.close()
    read += 1 << 20
    stream.enqueue(new Uint8Array(1 << 20))
  } })
  const answer = await service(new Request('http://x/', { method: 'POST', body, duplex: 'half' }))
  assert.equal(answer.status, 413)
  assert.ok(read <= 8 << 20, `${read} bytes were read`)
  const declared = await service(new Request('http://x/', { method: 'POST', body: 'x',
    headers: { 'content-length': `${LARGEST + 1}` } }))
  assert.equal(declared.status, 413)
  assert.equal((await service(new Request('http://x/', { method: 'POST' }))).status, 401)
})

test('a request may have five signatures', async () => {
  const service = serve({ secret, tools: { 'a.t': tool(() => 1) } })
  const body = JSON.stringify({ input: {}, call: { id: 'c', tool: 'a.t', attempt: 1, session_id: null,
    created_by: null } })
  const at = `${Math.floor(Date.now() / 1000)}`
  const right = 'v1,' + createHmac('sha256', Buffer.from(secret.slice(6), 'base64')).update(`m.${at}.${body}`)
    .digest('base64')
  const status = async before => (await service(new Request('http://x/', { method: 'POST', body, headers: {
    'webhook-id': 'm', 'webhook-timestamp': at,
    'webhook-signature': [...Array(before).fill(`v1,${'A'.repeat(43)}=`), 'v1a,x', right].join(' ') } }))).status
  assert.deepEqual([await status(0), await status(4), await status(5)], [200, 200, 401])
})

test('an input that is no JSON fails, and the error names the tool', async () => {
  const cycle = {}
  cycle.itself = cycle
  for (const input of [{ value: 10n }, cycle]) {
    for (const make of [call => call.start('c', 't.echo', input), call => call.run('c', 't.echo', input),
      call => call.approve('c', { tool: 't.echo', input, by: [] })]) {
      const { error } = await exchange(async call => make(call))
      assert.equal(error.error_code, 'validation_error')
      assert.match(error.message, /^The input of t\.echo cannot be written as JSON/)
    }
  }
  const { error } = await exchange(call => call.run('c', 't.echo', 'x'.repeat(5 << 20)))
  assert.match(error.message, /^The input of t\.echo takes \d+ bytes/)
})

test('an input is what it was when the call was made', async () => {
  const { ops } = await exchange(async call => {
    const input = { at: new Date(0), n: 1 }
    const child = call.start('c', 't.echo', input)
    input.n = 2
    await child
  })
  assert.deepEqual(ops, [{ op: 'call', name: 'c', tool: 't.echo', input: { at: '1970-01-01T00:00:00.000Z', n: 1 } }])
})

test('effects have texts and numbers', async () => {
  const { ops } = await exchange(call => call.step('a', () => {
    call.sent('email', 5, 10n)
    call.sent('sms', 'x')
    call.read('orders', '5')
    call.called('api', new URL('https://example.com/'), '200')
    call.wrote('orders', 'insert', 7n)
    call.wroteFile(new URL('file:///a'))
  }))
  assert.deepEqual(ops[0].effects, {
    messages_sent: [{ type: 'email', recipient: '5', message_id: '10' },
      { type: 'sms', recipient: 'x', message_id: '' }],
    db_reads: [{ table: 'orders', count: 5 }],
    external_calls: [{ service: 'api', endpoint: 'https://example.com/', status_code: 200 }],
    db_writes: [{ table: 'orders', action: 'insert', id: '7' }],
    files_written: ['file:///a'],
  })
})

test('a step in the clean-up in a step fails', { timeout: 5000 }, async () => {
  const t = running(call => call.step('a', () => call.cleanup(() => call.step('b', noop))))
  await assert.rejects(t.run('a.b'), /b was begun inside of the step a/)
})

test('a stepOnce that may run now is not postponed by a stepTx', async () => {
  for (let ticks = 0; ticks < 25; ticks++) {
    let once = 0, tx = 0
    const answer = await exchange(call => Promise.all([
      (async () => { await call.run('c', 't.echo', {}); return call.stepTx('t', async () => { tx++ }) })(),
      (async () => { for (let i = 0; i < ticks; i++) await null; return call.stepOnce('o', () => { once++ }) })(),
    ]), { journal: [{ name: 'c', kind: 'call', tool: 't.echo', ended: 2, result: 1 },
      { name: 'o', kind: 'once', ended: null }], may_run: ['o'] })
    assert.deepEqual([once, tx, names(answer)], [1, 0, ['o']], `after ${ticks} ticks`)
  }
  let undone = 0
  await exchange(async call => {
    try {
      await call.stepOnce('o', noop)
    } catch (error) {
      assert.ok(error instanceof Cancelled)
      await call.cleanup(() => call.stepTx('undo', async () => { undone++ }))
    }
  }, { journal: [{ name: 'o', kind: 'once', ended: null }], may_run: ['o'], cancelled: true })
  assert.equal(undone, 1, 'the stepOnce will not run after a cancellation')
})

test('the answer of a plain tool has at most 1 MiB', async () => {
  const said = { input: {}, call: { id: 'c', tool: 'a.b', attempt: 1, session_id: null, created_by: null } }
  const answer = rows => serve({ secret: `whsec_${btoa('s'.repeat(24))}`, tools: { 'a.b': tool((_, call) => {
    for (let i = 0; i < rows; i++) call.wrote('rows', 'insert', i)
    return 'x'.repeat((1 << 20) - 100)
  }) } }).said(said)
  const small = await answer(0)
  assert.deepEqual([small.status, (await small.text()).length <= 1 << 20], [200, true])
  assert.equal((await (await answer(10)).json()).error.error_code, 'output_invalid')
})

test('a plain tool may return a value that is not JSON', async () => {
  const t = running(call => call.run('c', 'a.f', {}), { 'a.f': tool(() => noop) })
  assert.equal(await t.run('a.b'), null)
})

test('an operation named cancelled counts as unread', async () => {
  const entries = ['cancelled', 'cancelled#2', 'cancelled#1 of ["x"]']
    .map((name, i) => ({ name, kind: i < 2 ? 'step' : 'cancelled', ended: i, result: null }))
  const { unread } = await exchange(async call => { await call.step('cancelled', noop) }, { journal: entries })
  assert.deepEqual(unread, ['cancelled#2'])
})

test('the test worker says why something failed', async () => {
  const transient = tool(() => { throw new Transient('not yet') })
  await assert.rejects(running(call => call.run('c', 'a.t', {}), { 'a.t': transient }).run('a.b'),
    { name: 'Failure', code: 'execution_error', message: 'not yet' })
  await assert.rejects(running(() => { throw new Transient('not yet') }).run('a.b'), /last answered: not yet$/)
  await assert.rejects(running(call => call.approve('ok', { tool: 't.pay', by: [] })).run('a.b'),
    /The handler asks ok \(May t\.pay run\?\), and the test has no answer to it/)
  await assert.rejects(running(call => call.run('c', 't.none', {})).run('a.b'), /has no function for t\.none/)
  await assert.rejects(running(noop).replay(), /t\.run/)
})
