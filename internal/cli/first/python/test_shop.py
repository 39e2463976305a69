import unittest

from gem_handlers import Failure
from gem_testing import Test
from shop import service


class Refunds(unittest.TestCase):
    def test_a_small_amount_is_refunded_at_once(self):
        t = Test(service)
        t.tools["shop.pay"] = lambda input: {"payment": "p1"}
        self.assertEqual(t.run("shop.refund", {"order_id": 1, "amount": 20}), {"refunded": 20, "payment": "p1"})
        t.replay()

    def test_a_manager_approves_a_large_one_and_it_continues_after_a_crash(self):
        t = Test(service)
        t.tools["shop.pay"] = lambda input: {"payment": "p2"}
        t.approve("approval")
        self.assertEqual(t.run("shop.refund", {"order_id": 2, "amount": 150}, crash=True),
                         {"refunded": 150, "payment": "p2"})
        t.deny("approval", "too much")
        with self.assertRaises(Failure) as raised:
            t.run("shop.refund", {"order_id": 2, "amount": 150})
        self.assertEqual(raised.exception.code, "not_allowed")
