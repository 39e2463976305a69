import { createServer } from 'node:http'
import { Webhook } from 'standardwebhooks'

const webhook = new Webhook(process.env.CRM_SECRET)

const tools = {
  '/crm/invite': async (input, call) => {
    if (input.email.endsWith('@example.org')) return [422, { error: { error_code: 'unknown_customer', message: `${input.email} is no customer.` } }]
    // … send the mail, with call.id as the idempotency key, if the mail service takes one
    return [200, { result: { invited: true }, effects: { messages_sent: [{ type: 'email', recipient: input.email, message_id: call.id }] } }]
  },
}

createServer(async (request, response) => {
  const answer = (status, body) => response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
  const body = Buffer.concat(await request.toArray()).toString()
  try {
    webhook.verify(body, request.headers)
  } catch {
    return answer(401, { error: { error_code: 'bad_signature', message: 'The request is not signed with CRM_SECRET.' } })
  }
  const { input, call } = JSON.parse(body)
  const tool = tools[request.url]
  answer(...(tool ? await tool(input, call) : [501, { reason: `This service has no ${request.url}.` }]))
}).listen(process.env.PORT ?? 8787, '127.0.0.1')
