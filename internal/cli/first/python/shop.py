"""The tools shop.refund and shop.pay. They need Python 3.10 or newer."""

import os
from typing import Any

from gem_handlers import Call, DurableCall, Failure, durable, serve

# In a real service, both would be tables in a database.
left: dict[int, float] = {1: 40, 2: 250, 3: 300}  # what can still be refunded, by order
payments: dict[str, str] = {}  # by the id of the call, which stays the same if GEM sends the call again


@durable
async def refund(call: DurableCall, input: dict[str, Any]) -> dict[str, Any]:
    # The handler starts from the top each time that something it waited for arrives. Operations that are already in the
    # journal do not run again.
    order, amount = input["order_id"], input["amount"]
    most = await call.step("look", lambda: left.get(order, 0))
    if amount > most:
        raise Failure(f"Order {order} has less than {amount} left to refund.", "not_refundable")
    if amount <= 100:
        return {"refunded": amount, **await call.run("pay", "shop.pay", {"order_id": order, "amount": amount})}
    approval = call.approve("approval", "shop.pay", {"order_id": order, "amount": amount}, by=["role:manager"],
                            text=f"Refund {amount} of order {order}?")
    await approval  # nothing runs until a manager has decided; after a denial, the next line raises
    return {"refunded": amount, **await call.start_approved("pay", approval)}


def pay(input: dict[str, Any], call: Call) -> dict[str, Any]:
    if call.id not in payments:
        left[input["order_id"]] = left.get(input["order_id"], 0) - input["amount"]
        payments[call.id] = f"payment of {call.id}"
    return {"payment": payments[call.id]}


service = serve(secret=os.environ["SHOP_SECRET"], tools={"shop.refund": refund, "shop.pay": pay})

if __name__ == "__main__":
    print(f"listening on 127.0.0.1:{os.environ['PORT']}", flush=True)
    service.run(int(os.environ["PORT"]))
