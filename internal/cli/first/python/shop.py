"""The tools shop.refund and shop.pay. It needs Python 3.10 or newer."""

import os

from gem_handlers import Failure, durable, serve

# In your own service, both are tables of a database.
left = {1: 40, 2: 250, 3: 300}  # what can still be refunded
payments = {}  # by the id of the call, which is the same if GEM sends it again


@durable
async def refund(call, input):
    # It runs from its beginning whenever something that it waited for has come. What the journal has is not done again.
    order, amount = input["order_id"], input["amount"]
    most = await call.step("look", lambda: left.get(order, 0))
    if amount > most:
        raise Failure(f"There is no order {order} with {amount} left to refund.", "not_refundable")
    if amount <= 100:
        return {"refunded": amount, **await call.run("pay", "shop.pay", {"order_id": order, "amount": amount})}
    approval = call.approve("approval", "shop.pay", {"order_id": order, "amount": amount}, by=["role:manager"],
                            text=f"Refund {amount} of order {order}?")
    await approval  # nothing runs until a manager has decided, and a denial makes the next line raise
    return {"refunded": amount, **await call.start_approved("pay", approval)}


def pay(input, call):
    if call.id not in payments:
        left[input["order_id"]] -= input["amount"]
        payments[call.id] = f"payment {len(payments) + 1}"
    return {"payment": payments[call.id]}


service = serve(secret=os.environ["SHOP_SECRET"], tools={"shop.refund": refund, "shop.pay": pay})

if __name__ == "__main__":
    print(f"listening on 127.0.0.1:{os.environ['PORT']}", flush=True)
    service.run(int(os.environ["PORT"]))
