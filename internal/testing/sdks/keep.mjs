// A service that keeps its steps with keep_tool_step. node keep.mjs prints its port.
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { durable, serve } from '../../../sdk/typescript/gem-handlers.js'

const quoted = value => `'${JSON.stringify(value).replaceAll("'", "''")}'`
const psql = sql => promisify(execFile)('psql', ['-qAt', '-v', 'ON_ERROR_STOP=1', process.env.SDK_DATABASE, '-c', sql])

// ran counts a run of a step: it inserts a row, in another transaction than the one that keeps the step.
const ran = (call, name) => psql(`insert into things (call_id) values ('${call.id} ${name}')`).then(() => name)

// book runs a stepTx, and counts its runs and its commits.
const book = (call, name) => call.stepTx(name, async step => {
  await ran(call, `${name}-ran`)
  await psql(`insert into things (call_id) values ('${call.id} ${name}'); select keep_tool_step(${quoted(step)}, '1')`)
  return 1
})

let kept = 0
let broken
const breaks = new Promise(resolve => { broken = resolve }) // resolves once keep has written b, just before keep fails

const service = serve({
  secret: process.env.SDK_SECRET,
  keep: async (step, result) => {
    if (process.env.SDK_KEEP === 'flaps' && kept++ === 0) throw new Error('no connection')
    if (process.env.SDK_KEEP === 'refused') return { error: new Error('no connection') } // as supabase-js returns it
    await psql(`select keep_tool_step(${quoted(step)}, ${quoted(result)})`)
    if (process.env.SDK_KEEP === 'flaps' && step.name === 'b') broken()
    if (process.env.SDK_KEEP === 'lost' || process.env.SDK_KEEP === 'flaps' && step.name === 'b') {
      throw new Error('the connection broke')
    }
  },
  tools: {
    'remote.play': durable(async (call, { steps, once, parallel }) => {
      const out = []
      if (parallel) {
        return Promise.all([call.stepOnce('o', () => ran(call, 'o').then(() => breaks).then(() => 'o')),
          call.step('a', () => ran(call, 'a')).then(() => call.step('b', () => ran(call, 'b')))])
      }
      if (once) return [await call.stepOnce('o', () => ran(call, 'o'))]
      for (let i = 0; i < steps; i++) out.push(await call.step(`s${i}`, () => ran(call, `s${i}`)))
      out.push(...await Promise.all(['a', 'b'].map(name => call.step(name, () => {
        call.wrote('things', 'insert', name)
        return null
      }))))
      out.push(await call.stepOnce('o', () => ran(call, 'o')))
      return out
    }),
    'remote.case': durable(async call => {
      const pay = call.start('pay', 'go.echo', { value: 1 })
      return [await call.step('a', () => 1), (await pay).value, await call.step('b', () => 2)]
    }),
    'remote.book': durable(async (call, { beside }) => beside
      ? Promise.all([call.step('a', () => ran(call, 'a')), book(call, 'b'), call.stepOnce('o', () => ran(call, 'o'))])
      : [await call.step('a', () => ran(call, 'a')), await book(call, 'b'), await call.step('c', () => ran(call, 'c'))]),
    'remote.unknown': durable(async call => {
      try {
        await call.stepOnce('o', () => 1)
      } finally {
        await call.cleanup(() => book(call, 'undo'))
      }
    }),
  },
})
console.log((await service.listen(Number(process.env.SDK_PORT ?? 0))).address().port)
