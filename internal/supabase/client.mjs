// supabase-js for the tests: reads {token, body} a line, runs the body with the client as `supabase`, and writes what it
// returned, or what it threw, a line.
import { createInterface } from 'node:readline'
import { createClient } from '@supabase/supabase-js'

const [url, key] = process.argv.slice(2)
const AsyncFunction = (async () => {}).constructor
const clients = new Map()

function client(token) {
  if (!clients.has(token)) {
    const options = { realtime: { transport: class {} } } // Node 20 has no WebSocket, and no test opens one
    if (token) options.accessToken = async () => token
    clients.set(token, createClient(url, key, options))
  }
  return clients.get(token)
}

for await (const line of createInterface({ input: process.stdin })) {
  const { token, body } = JSON.parse(line)
  let result
  try {
    result = { returned: (await new AsyncFunction('supabase', body)(client(token))) ?? null }
  } catch (error) {
    result = { threw: String(error) }
  }
  process.stdout.write(JSON.stringify(result) + '\n')
}
