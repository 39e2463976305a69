// Property tests of the SDK in TypeScript: fast-check runs random programs. node properties.mjs RUNS
import assert from 'node:assert/strict'
import fc from 'fast-check'
import { Failure, Transient, durable, serve } from '../../../sdk/typescript/gem-handlers.js'
import { test } from '../../../sdk/typescript/gem-testing.js'

const runs = new Map() // how often each step has run, by call and then by the step's place in the program

// perform runs a list of operations and returns their results. path is the place of the list in the program.
async function perform(call, program, path) {
  const out = []
  for (const [i, op] of program.entries()) {
    try {
      out.push(await one(call, op, `${path}.${i}`, path))
    } catch (error) {
      if (!(error instanceof Failure) || op.fatal) throw error
      out.push(error.code)
    }
  }
  return out
}

async function one(call, op, place, path) {
  const name = op.do + op.name + path // path keeps the names in parallel branches apart
  const echo = (value, fails) => call.start(name, 'p.echo', { value, fails })
  switch (op.do) {
    case 'step':
    case 'stepOnce': return call[op.do](name, async () => {
      const ran = runs.get(call.id)
      ran.set(place, (ran.get(place) ?? 0) + 1)
      if (op.later) await new Promise(resolve => setTimeout(resolve))
      if (ran.get(place) <= op.transient) throw new Transient('not yet')
      if (op.fails) throw new Failure('no', { code: 'mine' })
      return op.value
    })
    case 'run': return echo(op.value, op.fails)
    case 'all': return call.all(echo(op.value), echo(2))
    case 'first': return call.first(call.receive(name), echo(op.value))
    case 'sleep': return call.sleep(name, 1000)
    case 'receive': return call.receive(name).within(1000)
    case 'version': return call.version(name, 3)
    case 'fail': throw new Failure('no', { code: 'mine' })
    case 'together': return Promise.all(op.of.map((branch, i) => perform(call, branch, `${place}.${i}`)))
  }
}

// expected is the result of a program. If answers are lost (crash), a stepOnce fails with outcome_unknown.
const expected = (program, crash) => program.map(op => {
  if (op.do === 'together') return op.of.map(branch => expected(branch, crash))
  if (op.do === 'stepOnce' && crash) return 'outcome_unknown'
  if (op.do === 'stepOnce' && op.transient > 0) return 'execution_error'
  if (op.do === 'fail' || op.fails && ['step', 'stepOnce', 'run'].includes(op.do)) return 'mine'
  return { all: [op.value, 2], first: 1, sleep: undefined, receive: 'timeout', version: 3 }[op.do] ??
    (op.do === 'sleep' ? undefined : op.value)
})

const service = serve({ secret: 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', tools: {
  'p.play': durable((call, { program }) => perform(call, program, '')) } })

// after is a service that runs calls as if their journal already contained some entries.
const after = entries => ({ said: said => service.said({ ...said,
  journal: [...entries, ...said.journal.map(entry => ({ ...entry, ended: entry.ended && entry.ended + 1000 }))],
  exchange: { ...said.exchange, steps: said.exchange.steps + entries.length } }) })

async function run(program, options, to = service) {
  const id = crypto.randomUUID(), ran = new Map()
  runs.set(id, ran)
  const t = test(to)
  t.tools['p.echo'] = ({ value, fails }) => {
    if (fails) throw new Failure('no', { code: 'mine' })
    return value
  }
  const result = await t.run('p.play', { program }, { ...options, id }).catch(error => {
    if (!(error instanceof Failure)) throw error
    return error.code
  })
  return { t, result, ran }
}

const plain = value => JSON.parse(JSON.stringify(value ?? null))

const kinds = ['step', 'step', 'stepOnce', 'run', 'all', 'first', 'sleep', 'receive', 'fail']
const operation = more => fc.record({
  do: fc.constantFrom(...kinds, ...more),
  name: fc.oneof(fc.constantFrom('a', 'b'), fc.string({ unit: 'grapheme', minLength: 1, maxLength: 5 })
    .filter(name => !/[#\0]/.test(name))),
  value: fc.jsonValue({ maxDepth: 2 }), fails: fc.boolean(), later: fc.boolean(),
  transient: fc.constantFrom(0, 0, 0, 1),
})
// a branch must not call call.version, whose result would depend on how far the other branches are
const { together, branch } = fc.letrec(tie => ({
  together: fc.record({ do: fc.constant('together'), name: fc.constant(''),
    of: fc.array(tie('branch'), { maxLength: 3 }) }),
  branch: fc.array(fc.oneof({ depthSize: 'small', withCrossShrink: true }, operation([]), tie('together')),
    { maxLength: 4 }),
}))
const program = fc.array(fc.oneof(operation(['version']), together), { maxLength: 5 })

const property = fc.asyncProperty(program, fc.boolean(), fc.nat(), async (program, fatal, cut) => {
  if (fatal) program = [...program, { do: 'fail', name: '', fatal }]
  const want = crash => plain(fatal ? 'mine' : expected(program, crash))
  const calm = await run(program)
  assert.deepEqual(plain(calm.result), want(false))
  await calm.t.replay()
  const steps = (list, path) => list.flatMap((op, i) => op.do === 'together'
    ? op.of.flatMap((branch, j) => steps(branch, `${path}.${i}.${j}`))
    : ['step', 'stepOnce'].includes(op.do) ? [[`${path}.${i}`, op]] : [])
  for (const [place, op] of steps(program, '')) {
    assert.equal(calm.ran.get(place), op.do === 'step' ? 1 + op.transient : 1, 'a step runs once if no answer is lost')
  }
  const crashed = await run(program, { crash: true })
  assert.deepEqual(plain(crashed.result), want(true))
  await crashed.t.replay()
  for (const [place, op] of steps(program, '')) {
    assert.ok(op.do === 'step' ? crashed.ran.get(place) >= 1 : crashed.ran.get(place) === 1, 'a stepOnce runs once')
  }
  const journal = calm.t.journal.toSorted((a, b) => a.ended - b.ended)
  const cutOff = await run(program, {}, after(journal.slice(0, cut % (journal.length + 1))))
  assert.deepEqual(plain(cutOff.result), want(false))
  assert.equal((await run(program, { cancelled: true })).ran.size, 0, 'nothing runs after a cancellation')
})
// eight at a time, because the programs mostly wait
await Promise.all(Array.from({ length: 8 }, () => fc.assert(property, { numRuns: Number(process.argv[2]) / 8 })))
console.log(`${process.argv[2]} programs`)
