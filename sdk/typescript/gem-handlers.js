// @ts-self-types="./gem-handlers.d.ts"
// Serves tools to a worker of GEM over HTTP. gem-handlers.d.ts describes every function, and docs/sdk.md has examples.
//
// A durable tool runs in exchanges. Each request has the journal of the call. The handler runs from its beginning, and
// operations in the journal return at once. A new operation goes into the answer, and its promise never settles: the
// worker writes the operation into the journal, and the next request contains it.

const TOLERANCE = 5 * 60 // seconds by which the clocks of the worker and the service may differ
const LARGEST = 4 << 20 // bytes of a request, and of an answer
const LARGEST_OPS = LARGEST - 65_536 // bytes of the operations in an answer
const MOST_OPS = 1000 // in an answer
const STEP_ROOM = 2048 // bytes reserved for each running step, enough for TOO_LARGE with the longest name
const LARGEST_RESULT = 1 << 20 // bytes of a step's result, and of a call's input
const LONGEST_MESSAGE = 10_000 // characters
const LARGEST_ERROR = 61_000 // bytes of an error with such a message, without its details
const LONGEST = 5_000 // milliseconds for which a request keeps steps: a cancellation waits for the end of the request

// The store is { step: name } in a step and { cleanup: true } in a clean-up. Not every platform has AsyncLocalStorage.
const { AsyncLocalStorage } = await import('node:async_hooks').catch(() => ({}))
const scope = AsyncLocalStorage ? new AsyncLocalStorage() : { run: (_, fn) => fn(), getStore: () => undefined }

export class Failure extends Error {
  name = 'Failure'
  constructor(message, { code = 'execution_error', details = null } = {}) {
    super(message)
    Object.assign(this, { code: String(code), details })
  }
}

const failure = (name, code, text) => class extends Failure {
  name = name
  constructor(message = text) { super(message, { code }) }
}
export const Unknown = failure('Unknown', 'outcome_unknown',
  'A step that must not run twice had begun, and was lost: whether it took effect is not known.')
export const Timeout = failure('Timeout', 'timeout', 'Nothing arrived within the time limit of the wait.')
export const Cancelled = failure('Cancelled', 'cancelled', 'Someone asked to cancel the call.')

export class NotConfigured extends Error {
  name = 'NotConfigured'
  constructor(reason, { requiredEnv = [], nextSteps = [] } = {}) {
    super(reason)
    Object.assign(this, { requiredEnv, nextSteps })
  }
}

export class Transient extends Error {
  name = 'Transient'
  constructor(cause, afterMs = 0) {
    super(cause instanceof Error ? cause.message : String(cause), { cause })
    this.afterMs = Math.min(Math.max(Number(afterMs) || 0, 0), 24 * 60 * 60 * 1000)
  }
}

export const tool = run => ({ run, durable: false })
export const durable = run => ({ run, durable: true })

export function serve({ secret, tools, keep }) {
  const secrets = [secret].flat().map(keyOf)
  const answer = async request => {
    if (request.method !== 'POST') return reply(405, { error: 'Only POST is served here.' })
    const body = await bodyOf(request)
    return body ? answer.bytes(request.headers, body) : reply(413, { error: 'The request is too large.' })
  }
  answer.bytes = async (headers, body) => {
    if (body.length > LARGEST) return reply(413, { error: 'The request is too large.' })
    if (!await isSigned(headers, body, secrets)) {
      return reply(401, { error: 'The signature does not fit: the worker and the service need the same secret.' })
    }
    const said = JSON.parse(new TextDecoder().decode(body))
    if (keep && said.gem && !said.exchange.token && !said.exchange.replay) {
      console.warn('keep needs "sql": true in domains.json. Without it, each step takes a request.')
    }
    return answer.said(said)
  }
  // for gem-testing.js, whose requests are not signed
  answer.said = async said => {
    const served = Object.hasOwn(tools, said.call.tool) ? tools[said.call.tool] : undefined
    if (!served) return reply(501, { reason: `This service has no tool ${said.call.tool}.` })
    if (served.durable !== (said.gem !== undefined)) {
      return reply(404, { error: `${said.call.tool} is ${served.durable ? '' : 'not '}durable in the service, but it ` +
        `is ${served.durable ? 'not ' : ''}listed under durable in domains.json.` })
    }
    return served.durable ? exchange(served.run, said, keep) : once(served.run, said)
  }
  // for node:http
  answer.node = async (req, res) => {
    let answered
    try {
      const parts = []
      let size = 0
      for await (const part of req) if ((size += part.length) <= LARGEST) parts.push(part)
      answered = req.method !== 'POST' ? reply(405, { error: 'Only POST is served here.' })
        : size > LARGEST ? reply(413, { error: 'The request is too large.' })
          : await answer.bytes(new Headers(Object.entries(req.headers).map(([name, value]) => [name, String(value)])),
            Buffer.concat(parts))
    } catch (error) { // for example, the request was cut off
      console.error(error)
      answered = reply(500, { error: 'The service failed: see its output.' })
    }
    res.writeHead(answered.status, Object.fromEntries(answered.headers)).end(await answered.text())
  }
  answer.listen = async (port, host = '127.0.0.1') => {
    const { createServer } = await import('node:http')
    const server = createServer(answer.node)
    await new Promise((resolve, reject) => server.once('error', reject).listen(port, host, resolve))
    return server
  }
  return answer
}

// bodyOf returns the body of a request, or nothing if it is too large.
async function bodyOf(request) {
  const parts = [], reader = request.body?.getReader()
  let size = Number(request.headers.get('content-length')) > LARGEST ? Infinity : 0
  for (let part; reader && size <= LARGEST && !(part = await reader.read()).done; size += part.value.length) {
    parts.push(part.value)
  }
  if (size <= LARGEST) return new Uint8Array(await new Blob(parts).arrayBuffer())
  reader?.cancel().catch(() => {})
}

const bytesOf = base64 => Uint8Array.from(atob(base64), c => c.charCodeAt(0))

function keyOf(secret) {
  const key = bytesOf(String(secret ?? '').replace(/^whsec_/, ''))
  if (key.length < 24) throw new Error('The secret must be whsec_ followed by at least 24 bytes in base64.')
  return key
}

// isSigned verifies the signature of a request, according to the specification of Standard Webhooks.
async function isSigned(headers, body, secrets) {
  const [id, at, signatures] = ['webhook-id', 'webhook-timestamp', 'webhook-signature'].map(name => headers.get(name))
  if (!id || !signatures || !(Math.abs(Date.now() / 1000 - Number(at)) <= TOLERANCE)) return false
  const prefix = new TextEncoder().encode(`${id}.${at}.`)
  const signed = new Uint8Array(prefix.length + body.length)
  signed.set(prefix)
  signed.set(body, prefix.length)
  for (const secret of secrets) {
    const key = await crypto.subtle.importKey('raw', secret, { name: 'HMAC', hash: 'SHA-256' }, false, ['verify'])
    for (const signature of signatures.split(' ').filter(s => /^v1,[\w+/]{43}=$/.test(s)).slice(0, 5)) {
      if (await crypto.subtle.verify('HMAC', key, bytesOf(signature.slice(3)), signed)) return true
    }
  }
  return false
}

const reply = (status, body, headers = {}) =>
  new Response(JSON.stringify(body), { status, headers: { 'content-type': 'application/json', ...headers } })

const sizeOf = value => new TextEncoder().encode(JSON.stringify(value)).length

// asJSON returns a value as the journal will contain it, or throws a Failure.
function asJSON(what, value, largest = LARGEST_RESULT, code = 'output_invalid') {
  let text
  try {
    text = JSON.stringify(value ?? null) ?? 'null'
  } catch (error) {
    throw new Failure(`${what} cannot be written as JSON: ${error.message}`, { code })
  }
  const size = new TextEncoder().encode(text).length
  if (size <= largest) return JSON.parse(text)
  throw new Failure(`${what} takes ${size} bytes as JSON; the limit is ${largest}.`, { code })
}

// Notes are the effects that a handler records.
class Notes {
  effects = {}
  #note(list, effect) { (this.effects[list] ??= []).push(effect) }
  wrote(table, action, id) {
    this.#note('db_writes', { table: String(table), action: String(action), id: String(id) })
  }
  read(table, count) { this.#note('db_reads', { table: String(table), count: Number(count) }) }
  sent(type, recipient, messageId) {
    this.#note('messages_sent', { type: String(type), recipient: String(recipient),
      message_id: String(messageId ?? '') })
  }
  wroteFile(path) { this.#note('files_written', String(path)) }
  called(service, endpoint, statusCode = 0) {
    this.#note('external_calls', { service: String(service), endpoint: String(endpoint),
      status_code: Number(statusCode) })
  }
  add(effects = {}) { for (const [list, all] of Object.entries(effects)) (this.effects[list] ??= []).push(...all) }
  take() {
    const all = this.effects
    this.effects = {}
    return Object.keys(all).length > 0 ? all : undefined
  }
}

const aboutOf = said => ({ id: said.call.id, tool: said.call.tool, attempt: said.call.attempt,
  sessionId: said.call.session_id, createdBy: said.call.created_by })

// once serves a plain tool.
async function once(run, said) {
  const call = Object.assign(new Notes(), aboutOf(said))
  try {
    const result = await run(said.input, call)
    const effects = call.take() ?? {}
    const room = LARGEST_RESULT - 30 - sizeOf(effects) // the worker reads 1 MiB of the answer of a plain tool
    return reply(200, { result: asJSON(`The result of ${said.call.tool}`, result, room), effects })
  } catch (error) {
    if (error instanceof NotConfigured) return reply(501, unconfigured(error))
    if (isTransient(error)) return reply(503, { error: shortened(error.message) }, retryAfter(error))
    if (!(error instanceof Failure)) console.error(error)
    return reply(422, { error: described(error) })
  }
}

const retryAfter = error => error.afterMs > 0 ? { 'retry-after': String(Math.ceil(error.afterMs / 1000)) } : {}
const shortened = text => [...String(text).slice(0, 2 * LONGEST_MESSAGE)].slice(0, LONGEST_MESSAGE).join('')
const unconfigured = e => ({ reason: shortened(e.message), required_env: e.requiredEnv, next_steps: e.nextSteps })
function described(e, largest = LARGEST_RESULT) {
  let details = e instanceof Failure && e.details || undefined
  try {
    details = details && asJSON('details', details, Math.min(largest, LARGEST_RESULT))
  } catch {
    details = undefined
  }
  return { error_code: e instanceof Failure ? String(e.code).slice(0, 100) : 'execution_error',
    message: shortened(e instanceof Error ? e.message : e), details }
}
const TOO_LARGE = { result: undefined, not_configured: undefined, effects: undefined,
  error: { error_code: 'output_invalid',
    message: 'The outcome and the effects of the step do not fit into the answer.' } }
// Postgres asks to run a transaction again with these states.
const isTransient = e => e instanceof Transient || ['40001', '40P01'].includes(e?.code)

// exchange runs a durable handler to the end of the journal, and one operation further.
async function exchange(run, said, keep) {
  const call = new Call(said, keep)
  let end
  Promise.resolve().then(() => run(call, said.input)).then(result => { end = { result } }, error => { end = { error } })
    .then(() => { call.returned = true; call.changed() })
  while (!end && !call.end) await call.idle()
  call.closed = true
  if (end?.error && !(end.error instanceof Failure || end.error instanceof NotConfigured)) console.error(end.error)
  const answer = { gem: 1, steps: call.steps, unsure: call.unsure, ops: call.ops, ...call.end }
  if (call.end?.stopped) answer.unread = call.unread()
  if (!call.end && 'error' in end && isTransient(end.error)) {
    if (call.ops.length === 0) return reply(503, { error: shortened(end.error.message) }, retryAfter(end.error))
  } else if (!call.end) {
    // calls that nobody waits for would be cancelled at once
    answer.ops = call.ops.filter(op => op.op !== 'call' && op.op !== 'approve')
    Object.assign(answer, { unread: call.unread(), effects: call.allNotes() })
    const room = () => LARGEST - 100 - sizeOf(answer)
    if (room() < LARGEST_ERROR) {
      end = { error: new Failure('The effects do not fit into an answer.', { code: 'output_invalid' }) }
      answer.unread = answer.effects = undefined
    }
    Object.assign(answer, endOf(end, said.call.tool, room()))
  }
  return reply(200, answer)
}

// endOf returns how a handler has ended, as a part of the answer.
function endOf({ result, ...failed }, tool, largest) {
  try {
    if (!('error' in failed)) return { result: asJSON(`The result of ${tool}`, result, largest) }
  } catch (error) {
    failed = { error }
  }
  return failed.error instanceof NotConfigured ? { not_configured: unconfigured(failed.error) }
    : { error: described(failed.error, largest - LARGEST_ERROR) }
}

function timeOf(date) {
  if (date === undefined || date === null) return undefined
  const time = new Date(date)
  if (time >= Date.UTC(1900) && time < Date.UTC(10_000)) return time.toISOString()
  throw new Failure(`${date} is not a time between the years 1900 and 9999.`)
}

// quiet lets a promise reject before the handler awaits it: Node.js would end the process.
function quiet(promise) {
  promise.catch(() => {})
  return promise
}

// Child is something that a handler waits for.
class Child {
  #call
  constructor(call, id, { kind, field, tool }) {
    this.#call = call
    Object.assign(this, { id, kind, field, tool, limit: {} })
  }
  within(ms) {
    if (!Number.isFinite(ms) || ms > 366 * 24 * 60 * 60 * 1000) {
      throw new Failure(`A wait may last 366 days: ${ms} milliseconds are not a time.`)
    }
    this.limit = { within_ms: Math.max(1, Math.round(ms)) }
    return this
  }

  until(date) { this.limit = { until: timeOf(date) }; return this }
  then(...settled) { return quiet(this.#call.first(this).then(() => this.#call.resultOf(this)).then(...settled)) }
  catch(rejected) { return this.then(undefined, rejected) }
  finally(done) { return quiet(this.then().finally(done)) }
}

class Call {
  ops = []
  waits = []
  end // of the exchange, if the handler has not returned
  notes = new Notes() // effects since the last step
  returned = false // the handler has ended
  closed = false // true if the exchange has ended
  #outside = new Notes() // effects outside of steps: each run records them again
  #deferred = false // an operation waits for the next exchange
  #size = 0 // of the operations in the answer, in bytes
  #entries
  #read = new Set()
  #used = new Map()
  #state
  #running = 0
  #mayRun // the names of the steps that may run in this exchange only, and that the handler has not reached yet
  #alone = false // a transaction runs, or has run
  #cleaning = 0
  #changes = 0
  #wake = () => {}
  unsure // true if the journal may already contain a step that is also in the answer
  #keeper // the function keep; undefined after it has failed
  #until // the time after which no step is kept
  #lastWrite = Promise.resolve() // settles when the last call of keep has ended: keep runs once at a time

  constructor(said, keep) {
    Object.assign(this, aboutOf(said))
    this.#state = said.exchange
    this.steps = said.exchange.steps
    this.#mayRun = new Set(said.exchange.may_run)
    this.#keeper = said.exchange.token && keep
    this.#until = Date.now() + Math.min(said.exchange.left_ms / 2, LONGEST)
    this.#entries = new Map(said.journal.map(entry => [entry.name, entry]))
    this.signal = AbortSignal.timeout(said.exchange.left_ms)
    for (const effect of ['wrote', 'read', 'sent', 'wroteFile', 'called']) {
      this[effect] = (...about) => this.notes[effect](...about)
    }
  }

  step(name, fn) { return this.#step('step', name, fn) }
  stepOnce(name, fn) { return this.#step('once', name, fn) }
  stepTx(name, fn) { return this.#step('tx', name, fn) }

  async #step(kind, name, fn) {
    const id = this.#unique(name)
    const entry = await this.#found(id, kind)
    if (entry && entry.ended !== null) return outcome(entry)
    if (this.#state.replay) return this.#stop({ stopped: `the step ${id}` })
    this.#mayRun.delete(id) // nothing else runs before the step starts, so it starts now or never
    this.#mayBegin()
    if (entry && !this.#state.may_run.includes(id)) {
      return this.#add({ op: 'step', name: id, kind, error: described(new Unknown()) })
    }
    // Calls are made before the next step begins, and nothing else runs during a transaction. A stepOnce that may run
    // in this exchange is not postponed, because it may not run in a later exchange.
    const makesCalls = this.ops.some(op => op.op === 'call' || op.op === 'approve')
    if (!entry && ((this.#running === 0 || this.#keeper) && makesCalls || !this.#hasRoom(STEP_ROOM)) || this.#alone ||
      kind === 'tx' && (this.#running > 0 || this.ops.length > 0 || this.#mayRun.size > 0)) return this.#defer()
    if (kind === 'tx' && !this.#state.token) {
      throw new Failure('stepTx needs "sql": true in domains.json.', { details: { reason: 'no_token' } })
    }
    this.#alone = kind === 'tx'
    if (this.#running === 0) this.#outside.add(this.notes.take())
    this.#running++
    if (kind === 'once' && !entry && !await this.#write(id, 'began')) {
      this.#running--
      // If keep works but its time is over, the next exchange records the beginning.
      const progress = this.steps > this.#state.steps || this.ops.length > 0
      return this.#keeper && progress ? this.#defer() : this.#add({ op: 'began', name: id })
    }
    let op, written = false
    try {
      const result = await scope.run({ step: name }, () => fn(kind === 'tx' ? this.#stepFor(id) : this.signal))
      op = { op: 'step', name: id, kind, result: asJSON(`The result of the step ${id}`, result) }
      written = kind !== 'tx' && await this.#write(id, kind, op.result)
    } catch (error) {
      if (!(error instanceof Failure || error instanceof NotConfigured || isTransient(error))) console.error(error)
      op = { op: 'step', name: id, kind, ...(error instanceof NotConfigured ? { not_configured: unconfigured(error) }
        : { error: described(error), transient: isTransient(error) || undefined,
          after_ms: error instanceof Transient ? Math.ceil(error.afterMs) || undefined : undefined }) }
    }
    this.#running--
    if (written) {
      this.changed()
      return op.result
    }
    if (kind === 'tx' && !op.error && !op.not_configured) { // keep_tool_step has written it
      this.steps++
      return this.#park()
    }
    if (kind === 'tx') delete this.notes.effects.db_writes // these rows were rolled back
    return this.#add({ ...op, effects: this.notes.take() }, TOO_LARGE)
  }

  allNotes() {
    this.#outside.add(this.notes.take())
    return this.#outside.take()
  }

  // write calls keep to write a step into the journal, so that the handler continues in this request. Calls of keep run
  // one after another. write returns false if the step must go into the answer instead.
  #write(name, kind, result = null) {
    return this.#lastWrite = this.#lastWrite.then(async () => {
      if (!this.#keeper || this.closed || Date.now() > this.#until) return false
      const effects = kind === 'began' ? undefined : this.notes.take()
      try {
        const said = await this.#keeper({ ...this.#nextStep(name), kind, effects }, result)
        if (said?.error) throw said.error // supabase-js returns errors
      } catch (error) {
        console.error(`keep failed for the step ${name}:`, error)
        this.#keeper = undefined
        this.unsure = true
        this.notes.add(effects)
        return false
      }
      this.steps++
      return true
    })
  }

  // stepFor returns the argument of keep_tool_step. When it is converted to JSON, it contains the effects so far.
  #stepFor(name) {
    const step = this.#nextStep(name)
    return { ...step, toJSON: () => ({ ...step, effects: this.notes.effects }) }
  }

  #nextStep(name) { return { token: this.#state.token, before: this.steps, name } }

  start(name, tool, input = {}, approved) { return this.#make(name, { op: 'call', tool, input, approved }, tool) }

  // make makes a call, unless the journal has it.
  #make(name, op, tool) {
    const child = new Child(this, this.#unique(name), { kind: 'call', tool })
    if (this.#find(child.id, 'call', tool)) return child
    op = asJSON(`The input of ${op.tool}`, { ...op, name: child.id }, LARGEST_RESULT, 'validation_error')
    if (this.#opens()) this.#note(op)
    else child.unmade = op
    return child
  }

  run(name, tool, input) { return this.start(name, tool, input).then() }

  ask(name, { text, schema = { type: 'string' }, by, others, until }) {
    const child = this.start(name, 'wait.answer', { text, schema, by, others, until: timeOf(until) })
    child.field = 'answer'
    return child
  }

  approve(name, { tool, input = {}, by, text, ownerToo, until }) {
    const op = { op: 'approve', tool, input, by, text, owner_too: ownerToo, until: timeOf(until) }
    return Object.assign(this.#make(name, op, 'wait.approval'), { asked: { tool, input } })
  }

  startApproved(name, approval) { return this.start(name, approval.asked.tool, approval.asked.input, approval.id) }

  receive(name) { return new Child(this, this.#unique(name, '#'), { kind: 'answer', field: 'value' }) }

  sleep(name, ms) {
    const child = new Child(this, this.#unique(name), { kind: 'time' })
    this.#find(child.id, 'time')
    return this.first(child.within(ms)).then(() => {})
  }

  async version(name, current) {
    const id = this.#unique(name)
    const entry = await this.#found(id, 'version')
    if (entry) return entry.result
    if (this.unread().some(name => !this.#entries.get(name).early)) return 0 // an earlier run passed this place
    if (this.#state.replay) return this.#stop({ stopped: `the version ${id}` })
    return this.#add({ op: 'version', name: id, result: current })
  }

  async tools(name) {
    const id = this.#unique(name)
    const entry = await this.#found(id, 'step')
    if (entry) return outcome(entry)
    this.#mayBegin()
    return this.#state.replay ? this.#stop({ stopped: `the step ${id}` }) : this.#add({ op: 'tools', name: id })
  }

  async all(...children) {
    const of = children.flat()
    await this.#wait(of, of.length)
    return of.map(child => this.resultOf(child))
  }

  async first(...children) {
    const of = children.flat()
    if (of.length === 0) throw new Failure('call.first needs something to wait for.')
    await this.#wait(of, 1)
    const at = child => this.#entries.get(child.id)?.ended ?? Infinity
    return of.reduce((best, child, i) => at(child) < at(of[best]) ? i : best, 0)
  }

  async cleanup(fn) {
    this.#cleaning++
    try {
      return await scope.run({ ...scope.getStore(), cleanup: true }, fn)
    } finally {
      this.#cleaning--
    }
  }

  resultOf(child) {
    const result = outcome(this.#entries.get(child.id))
    return child.field && result ? result[child.field] : result
  }

  async #wait(children, most) {
    this.#notInStep('A wait')
    const of = children.filter((child, i) => children.findIndex(other => other.id === child.id) === i)
    const need = Math.min(most, of.length)
    const entries = of.map(child => this.#find(child.id, child.kind, child.tool))
    if (this.end) return this.#park()
    const cleanup = this.#cleans()
    const name = cancelName(need, of)
    if (this.#entries.has(name) && !cleanup) throw new Cancelled()
    const open = of.filter((_, i) => (entries[i]?.ended ?? null) === null)
    const missing = need - (of.length - open.length)
    if (missing <= 0) return
    if (this.#state.replay) return this.#stop({ stopped: `the wait for ${of.map(child => child.id).join(', ')}` })
    if (this.#state.cancelled && !cleanup) return this.#add({ op: 'cancelled', name })
    for (const child of open) { // calls that began before the clean-up and were not made
      if (child.unmade) this.#note(child.unmade)
      child.unmade = undefined
    }
    this.waits.push({ need: missing, for: open.map(child => ({ name: child.id, ...child.limit })),
      cleanup: cleanup || undefined })
    return this.#park()
  }

  // idle returns when no step runs and the handler cannot continue, after it has set the end of the exchange.
  async idle() {
    for (let before = -1; this.#running > 0 || before !== this.#changes; ) {
      before = this.#changes
      if (this.#running > 0) await new Promise(resolve => { this.#wake = resolve })
      await new Promise(resolve => setTimeout(resolve))
    }
    if (this.end || this.returned) return
    if (this.ops.length === 0 && this.waits.length === 0 && !this.#alone && !this.#deferred) {
      return new Promise(resolve => setTimeout(resolve, 1))
    }
    this.end = {}
    if (this.waits.length === 0 || this.#alone || this.#deferred) return
    if (this.ops.some(op => op.op !== 'call' && op.op !== 'approve')) return
    const names = new Map(this.waits.flatMap(wait => wait.for).map(one => [one.name, one]))
    const wait = { need: this.waits.length > 1 ? 1 : this.waits[0].need, for: [...names.values()],
      cleanup: this.waits.some(wait => wait.cleanup) || undefined }
    if (this.ops.length === 0 || this.#size + sizeOf(wait) <= LARGEST_OPS) this.end.wait = wait
  }

  changed() { this.#changes++; this.#wake() }

  unread() {
    return [...this.#entries.keys()].filter(name => !this.#read.has(name) && !/^cancelled#\d+ of /.test(name))
  }

  // note adds an operation to the answer, with the changes of `otherwise` if it is too large. If the answer has no room
  // for it, the exchange ends, and the handler makes it again in the next one.
  #note(op, otherwise) {
    if (this.closed) return
    op = { ...op, cleanup: this.#cleans() || undefined }
    let size = sizeOf(op)
    if (otherwise && !this.#hasRoom(size)) size = sizeOf(op = { ...op, ...otherwise })
    if (!this.#hasRoom(size)) return this.#defer()
    this.#size += size + 1
    this.ops.push(op)
    this.changed()
  }

  // hasRoom reports whether an operation fits into the answer, next to the steps that run or may run.
  #hasRoom(size) {
    const steps = this.#running + this.#mayRun.size
    return this.ops.length + steps < MOST_OPS && this.#size + size + STEP_ROOM * steps <= LARGEST_OPS
  }

  #add(op, otherwise) { this.#note(op, otherwise); return new Promise(() => {}) }
  #defer() { this.#deferred = true; return this.#park() }
  #park() { this.changed(); return new Promise(() => {}) }
  #stop(end) { this.end ??= end; return this.#park() }

  // opens reports whether new calls may be made.
  #opens() { return !this.#state.cancelled || this.#cleans() }
  // cleans reports whether the operation belongs to a clean-up after a cancellation.
  #cleans() { return this.#state.cancelled && (AsyncLocalStorage ? !!scope.getStore()?.cleanup : this.#cleaning > 0) }
  #mayBegin() { if (!this.#opens()) throw new Cancelled() }

  #unique(name, prefix = '') {
    this.#notInStep(name)
    if (typeof name !== 'string' || name === '' || [...name].length > 200 || /[#\0]|\p{Cs}/u.test(name)) {
      throw new Failure(`A name has 1 to 200 characters, and no # among them: ${JSON.stringify(name)} cannot be one.`,
        { details: { reason: 'step_name' } })
    }
    const n = (this.#used.get(prefix + name) ?? 0) + 1
    this.#used.set(prefix + name, n)
    const id = prefix + (n > 1 ? `${name}#${n}` : name)
    this.#read.add(id)
    return id
  }

  #notInStep(name) {
    const { step } = scope.getStore() ?? {}
    if (step === undefined) return
    throw new Failure(`${name} was begun inside of the step ${step}: begin it before the step, or after.`,
      { details: { reason: 'step_in_step' } })
  }

  async #found(id, kind) {
    const entry = this.#find(id, kind)
    return this.end || this.closed ? this.#park() : entry
  }

  // find returns the entry of an operation. If another operation has the entry with its name, the exchange ends.
  #find(id, kind, tool) {
    const entry = this.#entries.get(id)
    if (entry && (entry.kind !== kind || tool !== undefined && entry.tool !== tool)) {
      const has = entry.tool ? `a call to ${entry.tool}` : `an entry of the kind ${entry.kind}`
      this.end ??= { misfit: { name: id, message: `The journal has ${has} under this name, and the handler asks for ${
        tool ? `a call to ${tool}` : `one of the kind ${kind}`}.` } }
      this.changed()
    }
    return entry
  }
}

for (const name of ['step', 'stepOnce', 'stepTx', 'run', 'version', 'tools', 'all', 'first', 'sleep', 'cleanup']) {
  const operation = Call.prototype[name]
  Call.prototype[name] = function (...args) { return quiet(operation.apply(this, args)) }
}

// cancelName returns the name of the journal entry for a wait that a cancellation ended.
function cancelName(need, of) {
  const name = `cancelled#${need} of ${JSON.stringify(of.map(child => child.id))}`
  if ([...name].length <= 200) return name
  let hash = 14695981039346656037n
  for (const byte of new TextEncoder().encode(name)) hash = BigInt.asUintN(64, (hash ^ BigInt(byte)) * 1099511628211n)
  return `cancelled#${need} of ${of.length}: ${hash.toString(16)}`
}

// outcome returns the result of an entry that has ended, or throws its error.
function outcome(entry) {
  if (entry.timed_out && entry.kind !== 'time') throw new Timeout()
  if (entry.not_configured) {
    const { reason, required_env: requiredEnv, next_steps: nextSteps } = entry.not_configured
    throw new NotConfigured(reason, { requiredEnv, nextSteps })
  }
  if (!entry.error) return entry.result
  const { error_code: code, message, details } = entry.error
  if (code === 'outcome_unknown' && entry.kind === 'once') throw new Unknown(message)
  throw new Failure(message, { code, details })
}
