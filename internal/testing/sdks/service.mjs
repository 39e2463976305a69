// The tools of the tests in TypeScript: node service.mjs prints its port.
import { execFileSync } from 'node:child_process'
import { Failure, NotConfigured, Transient, Unknown, durable, serve, tool }
  from '../../../sdk/typescript/gem-handlers.js'
import { tools as ofTheAgent } from './agent.mjs'

// play runs a program, which is a list of operations, and returns their results. It skips an operation that names
// another attempt, so a program can change between two attempts as code does.
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
  for (const op of program.filter(op => (op.attempt ?? call.attempt) === call.attempt)) {
    out.push(op.do === 'together' ? await Promise.all(op.ops.map(one)) : await one(op))
  }
  return { out }
}

const failures = new Map() // of transient steps, by call and name

async function perform(call, op) {
  const child = of => of.do === 'receive' ? call.receive(of.name)
    : of.tool ? call.start(of.name, of.tool, of.value) : call.start(of.name, 'go.echo', { value: of.value ?? null })
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
    case 'call': return op.tool ? child(op) : (await child(op)).value
    case 'all': return (await call.all(op.of.map(child))).map(echo => echo.value)
    case 'first': return call.first(...op.of.map(child))
    case 'sleep': return call.sleep(op.name, 1)
    case 'version': return call.version(op.name, op.value)
    case 'tools': return (await call.tools(op.name)).map(tool => tool.name)
    case 'ask': return call.ask(op.name, { text: 'Well?' })
    case 'receive': return call.receive(op.name)
    case 'late': return call.receive(op.name).within(1)
    case 'until': return call.receive(op.name).until(new Date(op.value))
    case 'fail': throw new Failure(op.error, { code: 'of_mine', details: [1] })
    case 'throw': throw new RangeError(op.error)
    case 'transient': throw new Transient('not yet', op.after)
    case 'unconfigured': throw new NotConfigured('It is not set up.', { requiredEnv: ['A'], nextSteps: ['Set A.'] })
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

// pause lets the other branches continue first.
async function pause() {
  for (let i = 0; i < 20; i++) await null
}

const cases = {
  'a clean-up that always runs': async call => {
    try {
      await call.step('work', () => 1)
    } finally {
      await call.cleanup(() => call.step('release', () => 1))
    }
    return 'done'
  },
  'a wait that was cancelled': async call => {
    let got
    try {
      got = await call.receive('x')
    } catch {
      await call.cleanup(async () => {
        await call.receive('y')
        await call.step('undo', () => 1)
      })
      return 'cleaned'
    }
    return `got ${got}`
  },
  'a beginning beside a failure': async call => {
    let tries = 0
    const all = await Promise.all([call.step('a', () => {
      failures.set(call.id, (failures.get(call.id) ?? 0) + 1)
      if (failures.get(call.id) === 1) throw new Transient('not yet')
      return tries
    }), call.stepOnce('o', () => 'once')])
    return all[1]
  },
  'a step beside a question': call => Promise.all([call.ask('q', { text: 'Seen it?' }),
    call.step('send link', () => 1)]),
  'a call before a step that may run': call => Promise.all([call.step('a', () => 1).then(() =>
    call.run('c', 'go.echo', { value: 1 })), pause().then(() => call.stepOnce('o', () => 2))]),
  'a result that is too large': call => call.step('big', () => 'x'.repeat(5 << 20)),
  'results that are too large together': async call => {
    const large = i => call.step(`big ${i}`, () => 'x'.repeat(900_000)).catch(() => 'none')
    return (await Promise.all([1, 2, 3, 4, 5].map(large))).filter(text => text !== 'none').length
  },
  'a result that is no JSON': async () => 10n,
  'a step inside a step': call => call.step('a', () => call.step('b', () => 1)),
  'one child twice': async call => {
    const child = call.start('c', 'go.echo', { value: 1 })
    return (await call.all(child, child)).length
  },
  'effects outside of steps': async call => {
    call.called('bank', 'https://bank.example.com', 200)
    for (const name of ['a', 'b', 'c']) await call.step(name, () => 1)
    return 'done'
  },
}

const service = serve({ secret: process.env.SDK_SECRET, tools: {
  ...ofTheAgent,
  'remote.play': durable(play),
  'remote.refund': durable(async (call, input) => {
    const cents = await call.step('price', () => 4200)
    const reason = await call.ask('reason', { text: `Why is ${input.order} refunded?` })
    const approval = call.approve('approval', { tool: 'remote.pay', input: { order: input.order, cents }, by: ['role:boss'],
      text: reason })
    await approval
    return call.startApproved('pay', approval)
  }),
  'remote.pay': tool((input, call) => {
    if (input.transient && call.attempt === 1) throw new Transient('not yet')
    if (input.missing) throw new NotConfigured('It is not set up.', { requiredEnv: ['A'], nextSteps: ['Set A.'] })
    if (!(input.cents > 0)) {
      throw new Failure('Nothing is to be paid.', { code: 'nothing', details: { cents: input.cents } })
    }
    call.wrote('payments', 'insert', 7)
    return { paid: input.cents }
  }),
  'remote.plain': tool(() => 1), // a plain handler, although domains.json lists the tool under durable
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
  'remote.mortal': durable(async call => {
    const at = point => fetch(`${process.env.SDK_CONTROL}/${call.id}/${point}`, { method: 'POST' })
    await call.step('a', async () => { await at('step') })
    await call.run('c', 'go.echo', { value: 2 })
    let rung
    try {
      rung = await call.stepOnce('o', async () => { await at('once'); return 'rung' })
    } catch (error) {
      if (!(error instanceof Unknown)) throw error
      rung = 'unknown'
    }
    await call.stepTx('book', async step => {
      await at('tx')
      psql(step, {})
      await at('booked')
    })
    await call.sleep('s', 1)
    return rung
  }),
  'remote.case': durable(async (call, input) => cases[input.case](call)),
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
