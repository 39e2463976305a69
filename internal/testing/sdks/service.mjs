// The tools of the tests in TypeScript: node service.mjs prints its port.
import { execFileSync } from 'node:child_process'
import { Failure, Transient, Unknown, durable, serve, tool } from '../../../sdk/typescript/gem-handlers.js'

// play runs a program: a list of operations, whose results it collects.
async function play(call, { program }) {
  const out = []
  const one = async op => {
    try {
      return await perform(call, op)
    } catch (error) {
      if (!(error instanceof Error) || op.fatal) throw error
      return `${error.code ?? error.name}: ${error.message}`
    }
  }
  for (const op of program) {
    out.push(op.do === 'together' ? await Promise.all(op.ops.map(one)) : await one(op))
  }
  return { out }
}

const failures = new Map() // of transient steps, by call and name

async function perform(call, op) {
  const child = of => call.start(of.name, 'go.echo', { value: of.value ?? null })
  switch (op.do) {
    case 'step':
    case 'once':
      return call[op.do === 'step' ? 'step' : 'stepOnce'](op.name, () => {
        const key = `${call.id} ${op.name}`
        failures.set(key, (failures.get(key) ?? 0) + 1)
        if (failures.get(key) <= (op.transient ?? 0)) throw new Transient('not yet')
        if (op.error) throw new Failure(op.error, { code: 'of_mine', details: { a: 1 } })
        if (op.wrote) call.wrote('things', 'insert', op.name)
        return op.value
      })
    case 'call': return (await child(op)).value
    case 'all': return (await call.all(op.of.map(child))).map(echo => echo.value)
    case 'first': return call.first(...op.of.map(child))
    case 'sleep': return call.sleep(op.name, 1)
    case 'version': return call.version(op.name, op.value)
    case 'tools': return (await call.tools(op.name)).map(tool => tool.name)
    case 'ask': return call.ask(op.name, { text: 'Well?' })
    case 'receive': return call.receive(op.name)
    case 'late': return call.receive(op.name).within(1)
    case 'fail': throw new Failure(op.error, { code: 'of_mine', details: [1] })
    case 'cleanup': return call.cleanup(async () => {
      for (const inner of op.ops) await perform(call, inner)
      return 'clean'
    })
  }
}

// psql inserts a row and ends the step in one transaction. It stands for a driver of Postgres.
function psql(step, { then, text = 'x' }) {
  const quoted = value => `'${JSON.stringify(value).replaceAll("'", "''")}'`
  execFileSync('psql', ['-qAt', '-v', 'ON_ERROR_STOP=1', process.env.SDK_DATABASE, '-c', `begin;
    insert into things (call_id) values (${quoted(step)}::jsonb ->> 'token');
    select gem.wrote('things', 'insert', 7);
    select keep_tool_step(${quoted(step)}, ${quoted(text)});
    ${then === 'twice' ? `select keep_tool_step(${quoted(step)}, '1');` : ''}
    commit`], { stdio: 'pipe' })
  if (then === 'throw') throw new Error('after the commit')
  return text
}

const service = serve({ secret: process.env.SDK_SECRET, tools: {
  'remote.play': durable(play),
  'remote.refund': durable(async (call, input) => {
    const cents = await call.step('price', () => 4200)
    const reason = await call.ask('reason', { text: `Why is ${input.order} refunded?` })
    const approval = call.approve('approval', { tool: 'remote.pay', input: { order: input.order, cents }, by: ['role:boss'],
      text: reason })
    await approval
    return call.startApproved('pay', approval)
  }),
  'remote.pay': tool(input => ({ paid: input.cents })),
  'remote.forge': durable(async call => {
    const asked = { id: 'no such approval', asked: { tool: 'remote.pay', input: { order: 'A7', cents: 1 } } }
    return call.startApproved('pay', asked)
  }),
  'remote.book': durable(async (call, input) => {
    call.called('bank', 'https://bank.example.com', 200)
    return call.stepTx('book', async step => {
      if (input.forget) return 'forgotten'
      return psql(step, input)
    })
  }),
  'remote.unknown': durable(async call => {
    try {
      return await call.stepOnce('ring', async () => {
        if (call.attempt === 1) process.kill(process.pid, 'SIGKILL')
        return 'rung'
      })
    } catch (error) {
      if (error instanceof Unknown) return 'unknown'
      throw error
    }
  }),
} })
const server = await service.listen(Number(process.env.SDK_PORT ?? 0))
console.log(server.address().port)
