// The server of other people's making that aimock.go starts: one line of JSON in, one line with its address out, and it ends with its input.
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { LLMock } from '@copilotkit/aimock'

const input = createInterface({ input: process.stdin })
const [line] = await once(input, 'line')
const { fixtures, key } = JSON.parse(line)
const options = { port: 0, host: '127.0.0.1', strict: true }
if (key) options.auth = { apiKeys: [key] }
const mock = new LLMock(options)
mock.addFixturesFromJSON(fixtures)
console.log(await mock.start())
await once(input, 'close')
await mock.stop()
