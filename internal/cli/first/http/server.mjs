// The service of the tool shop.refund. It needs Node.js 20.6 and nothing else: node --env-file=.env server.mjs
import { createHmac, timingSafeEqual } from 'node:crypto'
import { createServer } from 'node:http'

const { PORT, SHOP_SECRET } = process.env

// In your own service, both are tables of a database.
const orders = new Map([[1, 40], [2, 250], [3, 300]]) // what can still be refunded
for (let id = 11; id <= 40; id++) orders.set(id, 100)
const answered = new Map() // by the id of the call, which is the same if GEM sends it again

const tools = {
  '/shop/refund': ({ order_id, amount }, call) => {
    if (answered.has(call.id)) return answered.get(call.id)
    const left = orders.get(order_id) ?? 0
    if (amount > left) {
      const message = `There is no order ${order_id} with ${amount} left to refund.`
      return [422, { error: { error_code: 'not_refundable', message } }]
    }
    orders.set(order_id, left - amount)
    answered.set(call.id, [200, { result: { refunded: amount } }])
    return answered.get(call.id)
  },
}

function respond(path, headers, body) {
  if (!isSigned(headers, body)) {
    return [401, { error: { error_code: 'bad_signature', message: 'The request is not signed with SHOP_SECRET.' } }]
  }
  if (!tools[path]) return [501, { reason: `This service has no ${path}.` }]
  const { input, call } = JSON.parse(body)
  return tools[path](input, call)
}

// The signature is that of Standard Webhooks (https://www.standardwebhooks.com).
function isSigned(headers, body) {
  const { 'webhook-id': id, 'webhook-timestamp': time, 'webhook-signature': signatures = '' } = headers
  if (!(Math.abs(Date.now() / 1000 - time) < 300)) return false
  const key = Buffer.from(SHOP_SECRET.replace('whsec_', ''), 'base64')
  const expected = createHmac('sha256', key).update(`${id}.${time}.${body}`).digest()
  return signatures.split(' ').some((signature) => {
    const given = Buffer.from(signature.replace('v1,', ''), 'base64')
    return given.length === expected.length && timingSafeEqual(given, expected)
  })
}

createServer(async (request, response) => {
  let status = 500, answer = { error: { message: 'The service failed; see its output.' } }
  try {
    const body = Buffer.concat(await request.toArray()).toString()
    ;[status, answer] = respond(request.url, request.headers, body)
  } catch (error) {
    console.error(error)
  }
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(answer))
}).listen(PORT, '127.0.0.1', () => console.log(`listening on 127.0.0.1:${PORT}`))
