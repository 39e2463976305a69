// The agent of the acceptance tests. In each turn it takes the next line of a script in place of a model's answer. The
// line either lists actions, and the agent collects their results, or contains the answer with which the agent ends.
import { Cancelled, Failure, NotConfigured, durable, tool } from '../../../sdk/typescript/gem-handlers.js'

const version = process.env.AGENT_VERSION // of the agent's code: the journal of one version does not fit the others

// perform reports an effect to the server of the test, which counts it and may delay the answer.
async function perform(what) {
  const answer = await fetch(`http://${process.env.SDK_WORLD}/`, { method: 'POST', body: what })
  if (!answer.ok) throw new Error(`the server of the test answered ${answer.status}`)
}

const agent = durable(async (call, { script, max_turns: limit = 30 }) => {
  const offered = await call.tools('tools')
  const seen = []
  for (let turn = 1; turn <= limit; turn++) {
    const think = version === 'another kind' ? 'stepOnce' : 'step'
    const thought = await call[think]('think', async () => {
      const said = script[Math.min(turn, script.length) - 1]
      if (said.refuses) throw new Failure('The model does not answer.', { code: 'model_refused' })
      await perform(`think ${turn}`)
      return said
    })
    if (!thought.actions) return { answer: thought.content, turns: turn, seen, offered: offered.map(tool => tool.name) }
    const acts = thought.actions.map(action => act(call, action))
    try {
      await call.all(...acts) // one wait for all of them
    } catch (error) {
      if (error instanceof Cancelled) throw error // observed returns any other error of a tool
    }
    for (const one of acts) seen.push(await observed(one))
  }
  throw new Failure(`The agent was not done after ${limit} turns.`, { code: 'turn_limit', details: { turns: limit } })
})

function act(call, { tool, input }) {
  if (version === 'another tool') return call.start('act', 'remote.act', input)
  return tool === 'wait.answer' ? call.ask('act', input) : call.start('act', tool, input)
}

async function observed(act) {
  try {
    return await act
  } catch (error) {
    if (error instanceof NotConfigured) return { error: 'not_configured' }
    if (error instanceof Failure && !(error instanceof Cancelled)) return { error: error.code }
    throw error
  }
}

export const tools = {
  'remote.agent': agent,
  'remote.act': tool(async ({ text, fail }) => {
    if (fail) throw new Failure('It did not work.', { code: 'no_luck' })
    await perform(text)
    return text
  }),
  'remote.unset': tool(() => { throw new NotConfigured('It lacks its key.') }),
}
