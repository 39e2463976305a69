// The tools shop.refund and shop.pay. They need Node.js 22.18 or newer: node --env-file=.env shop.ts
import { Failure, durable, serve, tool } from './gem-handlers.js'

type Refund = { order_id: number; amount: number }

// In a real service, both would be tables in a database.
const left = new Map([[1, 40], [2, 250], [3, 300]]) // what can still be refunded, by order
const payments = new Map<string, string>() // by the id of the call, which stays the same if GEM sends the call again

export const service = serve({ secret: process.env.SHOP_SECRET!, tools: {
  // The handler starts from the top each time that something it waited for arrives. Operations that are already in the
  // journal do not run again.
  'shop.refund': durable(async (call, { order_id, amount }: Refund) => {
    const most = await call.step('look', () => left.get(order_id) ?? 0)
    if (amount > most) {
      throw new Failure(`Order ${order_id} has less than ${amount} left to refund.`, { code: 'not_refundable' })
    }
    if (amount <= 100) return { refunded: amount, ...await call.run('pay', 'shop.pay', { order_id, amount }) }
    const approval = call.approve('approval', {
      tool: 'shop.pay', input: { order_id, amount }, by: ['role:manager'], text: `Refund ${amount} of order ${order_id}?`,
    })
    await approval // nothing runs until a manager has decided; after a denial, the next line throws
    return { refunded: amount, ...await call.startApproved('pay', approval) }
  }),

  'shop.pay': tool(({ order_id, amount }: Refund, call) => {
    if (!payments.has(call.id)) {
      left.set(order_id, (left.get(order_id) ?? 0) - amount)
      payments.set(call.id, `payment of ${call.id}`)
    }
    return { payment: payments.get(call.id) }
  }),
} })

if (process.argv[1] === import.meta.filename) {
  await service.listen(Number(process.env.PORT))
  console.log(`listening on 127.0.0.1:${process.env.PORT}`)
}
