// @ts-self-types="./gem-testing.d.ts"
// An in-memory worker for tests of durable tools. gem-testing.d.ts describes it.
//
//   const t = test(service)
//   t.tools['shop.pay'] = input => ({ payment: 'p1' })
//   t.answer('reason', 'broken')
//   t.approve('approval')
//   assert.deepEqual(await t.run('shop.refund', { order: 'A7' }), { payment: 'p1' })
//   await t.replay()
import { Failure, NotConfigured } from './gem-handlers.js'

const MOST = 1000 // exchanges of a call

export const test = service => new Test(service)

class Test {
  tools = {} // functions in place of other tools
  journal = [] // of the last call
  #service
  #answers = {}
  #sent = {}
  #last

  constructor(service) { this.#service = service }

  answer(name, value) { this.#answers[name] = { answer: value, by: 'test' } }
  approve(name, by = 'test') { this.#answers[name] = { approved: true, by } }
  deny(name, reason = 'no', by = 'test') { this.#answers[name] = { approved: false, by, reason } }
  send(name, value) { this.#sent[`#${name}`] = { value, by: 'test', at: new Date().toISOString() } }

  // run runs a call to its end. With crash, each answer is lost once, so steps run again.
  async run(tool, input = {}, { crash = false, cancelled = false, id = crypto.randomUUID(), createdBy = null } = {}) {
    const call = { id, tool, attempt: 1, session_id: null, created_by: createdBy }
    const state = { entries: new Map(), steps: 0, mayRun: [], cancelled }
    let failed = ''
    for (let number = 1; number <= MOST; number++) {
      if (crash) {
        const lost = await this.#ask(call, input, state, number)
        if (lost.status === 200 && 'result' in lost.body === false) {
          call.attempt++
          state.mayRun = []
        }
      }
      const { status, body } = await this.#ask(call, input, state, number)
      if (status === 501) throw new NotConfigured(body.reason)
      if (status !== 200) {
        if (status !== 503) throw new Error(`The service answered ${status}: ${JSON.stringify(body)}`)
        call.attempt++
        failed = ` The service last answered: ${body.error}`
        continue
      }
      this.journal = [...state.entries.values()]
      if (body.misfit) throw new Error(`The handler does not fit its journal: ${body.misfit.message}`)
      await this.#record(call, body.ops ?? [], state)
      this.journal = [...state.entries.values()]
      if ('result' in body || body.error || body.not_configured) {
        this.#last = { call, input, state, end: body }
        return ending(body)
      }
      if (body.wait) this.#wait(body.wait, state)
    }
    throw new Error(`The call has not ended after ${MOST} exchanges. Do the names of its steps change from run to ` +
      `run?${failed}`)
  }

  // replay runs the handler of the last call again on its whole journal. It throws if the handler behaves differently.
  async replay() {
    if (!this.#last) throw new Error('No call has ended: use t.run before t.replay.')
    const { call, input, state, end } = this.#last
    const { body } = await this.#ask(call, input, state, 1, true)
    const differs = body.stopped ? `it reached ${body.stopped}` : body.misfit ? body.misfit.message
      : body.unread?.length > 0 ? `it did not ask for ${body.unread.join(', ')}`
        : asText([body.result, body.error]) !== asText([end.result, end.error]) ? 'it ended differently' : undefined
    if (differs) throw new Error(`The handler is not deterministic: when it ran again, ${differs}.`)
  }

  async #ask(call, input, state, number, replay = false) {
    const answer = await this.#service.said(JSON.parse(JSON.stringify({ gem: 1, call, input, journal:
      [...state.entries.values()], exchange: { number, left_ms: 60_000, cancelled: state.cancelled, replay,
      may_run: state.mayRun, steps: state.steps } })))
    return { status: answer.status, body: await answer.json() }
  }

  async #record(call, ops, state) {
    state.mayRun = []
    const add = (name, kind, more) => {
      state.steps++
      state.entries.set(name, { ...state.entries.get(name), name, kind, ended: state.steps, ...more })
    }
    for (const op of ops) {
      switch (op.op) {
        case 'began':
          state.entries.set(op.name, { name: op.name, kind: 'once', ended: null })
          state.mayRun.push(op.name)
          break
        case 'step':
          if (op.transient && op.kind !== 'once') call.attempt++
          else add(op.name, op.kind, { result: op.result, error: op.error, not_configured: op.not_configured })
          break
        case 'version': add(op.name, 'version', { result: op.result }); break
        case 'tools': add(op.name, 'step', { result: Object.keys(this.tools).map(name => ({ name })) }); break
        case 'cancelled': add(op.name, 'cancelled', {}); break
        case 'approve': add(op.name, 'call', { tool: 'wait.approval',
          ...this.#said(op.name, op.text ?? `May ${op.tool} run?`) }); break
        case 'call': add(op.name, 'call', { tool: op.tool, ...await this.#made(call, op, state) }); break
      }
    }
  }

  // said returns the answer to a question.
  #said(name, text) {
    const answer = this.#answers[name.replace(/#\d+$/, '')]
    if (!answer) throw new Error(`The handler asks ${name} (${text}), and the test has no answer to it.`)
    return { result: answer }
  }

  // made returns the end of a call that the handler makes.
  async #made(call, op, state) {
    if (op.tool === 'wait.answer') return this.#said(op.name, op.input.text)
    if (op.approved && !state.entries.get(op.approved)?.result?.approved) {
      return { error: { error_code: 'not_allowed', message: `The call ${op.name} was not approved.` } }
    }
    try {
      const stub = this.tools[op.tool]
      return stub ? { result: await stub(op.input) ?? null } : await this.#plain(call, op)
    } catch (error) {
      if (!(error instanceof Failure)) throw error
      return { error: { error_code: error.code, message: error.message, details: error.details } }
    }
  }

  // plain runs a plain tool of the same service.
  async #plain(call, op) {
    const answer = await this.#service.said({ input: op.input, call: { id: crypto.randomUUID(), tool: op.tool, attempt: 1,
      session_id: null, created_by: call.created_by } })
    const body = await answer.json()
    switch (answer.status) {
      case 200: return { result: body.result }
      case 422: return { error: body.error }
      case 503: return { error: { error_code: 'execution_error', message: body.error } }
    }
    throw new Error(`The test has no function for ${op.tool}: set t.tools['${op.tool}']. ${body.reason ?? body.error}`)
  }

  // wait records the arrival of everything that the handler waits for.
  #wait(wait, state) {
    let come = 0
    for (const one of wait.for) {
      const entry = state.entries.get(one.name)
      if (entry && entry.ended !== null) {
        come++
        continue
      }
      const sent = this.#sent[one.name]
      if (!sent && !one.within_ms && !one.until) continue
      state.steps++
      come++
      state.entries.set(one.name, { name: one.name, kind: one.name.startsWith('#') ? 'answer' : 'time',
        ended: state.steps, ...(sent ? { result: sent } : { timed_out: true }) })
    }
    if (come < wait.need) {
      throw new Error(`The handler waits for ${wait.for.map(one => one.name).join(', ')}, which never comes: see t.send.`)
    }
  }
}

// ending returns the result of a call, or throws its error.
function ending({ result, error, not_configured: missing }) {
  if (missing) throw new NotConfigured(missing.reason)
  if (error) throw new Failure(error.message, { code: error.error_code, details: error.details })
  return result
}

const asText = value => JSON.stringify(value)
