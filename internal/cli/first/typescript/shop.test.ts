import assert from 'node:assert/strict'
import { test as it } from 'node:test'
import { test } from './gem-testing.js'
import { service } from './shop.ts'

it('refunds a small amount at once', async () => {
  const t = test(service)
  t.tools['shop.pay'] = () => ({ payment: 'p1' })
  assert.deepEqual(await t.run('shop.refund', { order_id: 1, amount: 20 }), { refunded: 20, payment: 'p1' })
  await t.replay()
})

it('asks a manager about a large one, and continues after a crash', async () => {
  const t = test(service)
  t.tools['shop.pay'] = () => ({ payment: 'p2' })
  t.approve('approval')
  assert.deepEqual(await t.run('shop.refund', { order_id: 2, amount: 150 }, { crash: true }),
    { refunded: 150, payment: 'p2' })
  t.deny('approval', 'too much')
  await assert.rejects(t.run('shop.refund', { order_id: 2, amount: 150 }), { code: 'not_allowed' })
})
