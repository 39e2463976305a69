// Durable tools of a service that keeps its steps: node keep.mjs prints its port.
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { durable, serve } from '../../../sdk/typescript/gem-handlers.js'

const quoted = value => `'${JSON.stringify(value).replaceAll("'", "''")}'`
const psql = sql => promisify(execFile)('psql', ['-qAt', '-v', 'ON_ERROR_STOP=1', process.env.SDK_DATABASE, '-c', sql])

// ran inserts a row that says that a step ran. No transaction has it together with the step.
const ran = (call, name) => psql(`insert into things (call_id) values ('${call.id} ${name}')`).then(() => name)

const service = serve({
  secret: process.env.SDK_SECRET,
  keep: (step, result) => psql(process.env.SDK_BROKEN ? 'select no_such_function()'
    : `select keep_tool_step(${quoted(step)}, ${quoted(result)})`),
  tools: {
    'remote.play': durable(async (call, { steps }) => {
      const out = []
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
    'remote.book': durable(call => call.stepTx('book', async step => {
      await psql(`insert into things (call_id) values ('${call.id}'); select keep_tool_step(${quoted(step)}, '1')`)
      return 1
    })),
  },
})
console.log((await service.listen(Number(process.env.SDK_PORT ?? 0))).address().port)
