// Calls the tools of GEM through a client of supabase-js, and waits for their receipts. gem.d.ts describes every function.

// The connection of supabase-js for Realtime stays open for a minute after its last channel, and keeps a process of Node alive for that long.
const inNode = Boolean(globalThis.process?.versions?.node)

export function gem(supabase, options = {}) {
  const { patience = 10 * 60_000, realtime = !inNode } = options

  // ask sends one request of the API. A request that may be sent twice is sent again when no answer came, or none of the database's own.
  async function ask(request, { signal, again = true } = {}) {
    for (let tries = 1, pause = 200; ; tries++, pause *= 2) {
      throwIfAborted(signal)
      let query = request()
      if (signal && query.abortSignal) query = query.abortSignal(signal)
      const { data, error, status } = await query.then(answer => answer, error => ({ error, status: 0 }))
      if (!error) return data
      throwIfAborted(signal)
      const failed = new GemError(error, status)
      if (!again || !failed.passing || tries === 5) throw failed
      await sleep(pause * (0.5 + Math.random()), signal)
    }
  }

  async function enqueue(tool, input = {}, { key, session, parent, priority, runAt, id = newId(), signal } = {}) {
    // The same id, tool, input and key are the same call, so that this request may be repeated.
    const call = { tool_name: tool, input, id }
    if (key !== undefined) call.idempotency_key = key
    if (session !== undefined) call.session_id = session
    if (parent !== undefined) call.parent_call_id = parent
    if (priority !== undefined) call.priority = priority
    if (runAt !== undefined) call.run_at = runAt instanceof Date ? runAt.toISOString() : runAt
    return ask(() => supabase.rpc('enqueue_tool_call', call), { signal })
  }

  const receipt = (id, { signal } = {}) => ask(() => supabase.rpc('get_receipt', { call_id: id }), { signal })

  // look asks for a receipt, and gives up after some milliseconds: a connection may be dead and not say so.
  async function look(id, ms, signal) {
    throwIfAborted(signal)
    const lost = new AbortController()
    const aborted = () => lost.abort(signal.reason)
    signal?.addEventListener('abort', aborted)
    const timer = setTimeout(() => lost.abort(), ms)
    try {
      return await receipt(id, { signal: lost.signal })
    } catch (error) {
      if (lost.signal.aborted && !signal?.aborted) return null
      throw error
    } finally {
      clearTimeout(timer)
      signal?.removeEventListener('abort', aborted)
    }
  }

  async function wait(id, { timeout = patience, signal } = {}) {
    const until = Date.now() + timeout
    const told = bell()
    let channel, listening = false
    try {
      for (let pause = 100, round = 0; ; round++) {
        const found = await look(id, Math.min(Math.max(until - Date.now(), 1000), 60_000), signal)
        if (found) return found
        const left = until - Date.now()
        if (left <= 0) throw new GemTimeout(id, timeout)
        if (round === 4 && realtime && supabase.channel) { // most calls have ended by then, and a channel costs a connection
          try {
            channel = supabase.channel(`gem:${id}`)
            channel.on('postgres_changes', { event: 'INSERT', schema: 'public', table: 'core_tool_receipts', filter: `call_id=eq.${id}` }, told.ring)
              .subscribe(status => { listening = status === 'SUBSCRIBED'; told.ring() })
          } catch {} // polling does without
        }
        await told.within(Math.min(pause, left), signal)
        pause = Math.min(pause * 1.5, listening ? 15_000 : 3_000) // a notice may be lost, so that it never only listens
      }
    } finally {
      if (channel) (async () => supabase.removeChannel(channel))().catch(() => {}) // the receipt is what counts
    }
  }

  async function call(tool, input, options = {}) {
    return wait(await enqueue(tool, input, options), options)
  }

  const cancel = (id, { signal } = {}) => ask(() => supabase.rpc('cancel_tool_call', { id }), { signal })

  const answer = (id, value, { name = 'answer', signal } = {}) =>
    ask(() => supabase.rpc('answer_tool_call', { call_id: id, answer: value, name }), { signal })

  const questions = ({ signal } = {}) => ask(() => supabase.from('open_questions').select('*').order('place').limit(100), { signal })

  const tools = ({ signal } = {}) => ask(() => supabase.rpc('list_tools'), { signal })

  return { call, enqueue, wait, receipt, cancel, answer, questions, tools }
}

export class GemError extends Error {
  constructor({ message, code, details, hint }, status) {
    super(hint ? `${message}: ${hint}` : message)
    this.name = 'GemError'
    this.code = code || undefined
    this.details = details || undefined
    this.hint = hint || undefined
    this.status = status
  }

  get passing() {
    return !(this.status >= 400 && this.status < 500) || this.status === 408
  }
}

export class GemTimeout extends Error {
  constructor(callId, ms) {
    super(`The call ${callId} has no receipt after ${ms} ms. It goes on: wait(callId) waits further, cancel(callId) ends it.`)
    this.name = 'GemTimeout'
    this.callId = callId
  }
}

// A UUID of version 7: it begins with the time, so that new rows stand side by side in an index.
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16))
  new DataView(bytes.buffer).setBigUint64(0, (BigInt(Date.now()) << 16n) | BigInt((bytes[6] << 8) | bytes[7]))
  bytes[6] = (bytes[6] & 0x0f) | 0x70
  bytes[8] = (bytes[8] & 0x3f) | 0x80
  const hex = Array.from(bytes, byte => byte.toString(16).padStart(2, '0')).join('')
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}

// A bell ends the pause that it rings in, or the next one.
function bell() {
  let rung = false, wake = () => {}
  return {
    ring() { rung = true; wake() },
    async within(ms, signal) {
      if (!rung) await sleep(ms, signal, stop => { wake = stop })
      rung = false
    },
  }
}

// sleep ends after ms milliseconds, or when the function that it hands out is called. It throws the signal's reason when that comes first.
function sleep(ms, signal, handOut = () => {}) {
  return new Promise((done, fail) => {
    const end = then => { clearTimeout(timer); signal?.removeEventListener('abort', aborted); then() }
    const aborted = () => end(() => fail(signal.reason))
    const timer = setTimeout(() => end(done), ms)
    signal?.addEventListener('abort', aborted)
    handOut(() => end(done))
  })
}

function throwIfAborted(signal) {
  if (signal?.aborted) throw signal.reason
}
