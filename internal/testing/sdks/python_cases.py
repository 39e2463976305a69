"""Tests of the Python SDK in one process, without a worker: python3 python_cases.py runs them."""
import asyncio
import contextlib
import datetime
import gc
import io
import json
import logging
import pathlib
import socket
import sys
import threading
import time
import unittest
import uuid
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "sdk" / "python"))
sys.dont_write_bytecode = True
import gem_handlers  # noqa: E402
import gem_testing  # noqa: E402
from gem_handlers import Failure, NotConfigured, Transient, durable, serve  # noqa: E402

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
LARGEST = 4 << 20  # bytes of an answer that the worker reads
MOST = 1000  # operations in an answer that the worker takes
logging.disable(logging.CRITICAL)


def service(handler, keep=None, **tools):
    return serve(secret=SECRET, tools={"a.b": durable(handler), **{"a." + name: tool for name, tool in tools.items()}},
                 keep=keep)


def request(journal=(), may_run=(), keep=None, cancelled=False):
    return {"gem": 1, "input": {}, "journal": list(journal),
            "call": {"id": "c", "tool": "a.b", "attempt": 1, "session_id": None, "created_by": None},
            "exchange": {"number": 1, "left_ms": 60_000, "cancelled": cancelled, "replay": False,
                         "may_run": list(may_run), "steps": len(journal), "token": "t"}}


def exchange(handler, *journal, keep=None, **more):
    """Returns the answer to one request, which must be one that the worker accepts."""
    status, said, _ = asyncio.run(asyncio.wait_for(service(handler, keep).said(request(journal, **more)), 20))
    if status != 200:
        raise AssertionError(f"{status} {said}")
    text = json.dumps(said, allow_nan=False, ensure_ascii=False).encode(errors="backslashreplace")
    if len(text) > LARGEST or len(said["ops"]) > MOST:
        raise AssertionError(f"the answer has {len(text)} bytes and {len(said['ops'])} operations")
    return said


def ended(name, kind="step", **more):
    return {"name": name, "kind": kind, "ended": 1, **more}


def plain(tool):
    """Returns the answer to a request for a plain tool."""
    message = request()
    del message["gem"], message["journal"], message["exchange"]
    answer = asyncio.run(serve(secret=SECRET, tools={"a.b": tool}).said(message))
    json.dumps(answer[1], allow_nan=False)
    return answer


class Keeping(unittest.TestCase):
    def after_the_time_to_keep(self, *before):
        """A step_once begins when the time to keep is over, after other operations."""
        kept = []

        async def handler(call, input):
            for name in before:
                await call.step(name, lambda: 1)
            call._until = 0
            return await call.step_once("o", lambda: kept.append("ran"))
        return exchange(handler, keep=lambda step, result: kept.append(step["name"])), kept

    def test_the_next_request_keeps_the_beginning_when_the_time_is_over(self):
        answer, kept = self.after_the_time_to_keep("a")
        self.assertEqual((answer["ops"], answer["steps"], kept), ([], 1, ["a"]))

    def test_an_exchange_without_progress_answers_the_beginning(self):
        answer, kept = self.after_the_time_to_keep()
        self.assertEqual((answer["ops"], kept), ([{"op": "began", "name": "o"}], []))

    def test_the_beginning_is_in_the_answer_when_keep_fails(self):
        def keep(step, result):
            if step["name"] == "o":
                raise RuntimeError("no connection")

        async def handler(call, input):
            await call.step("a", lambda: 1)
            return await call.step_once("o", lambda: 1)
        answer = exchange(handler, keep=keep)
        self.assertEqual((answer["ops"], answer["unsure"]), ([{"op": "began", "name": "o"}], True))


class Room(unittest.TestCase):
    def test_calls_that_do_not_fit_into_the_answer_are_made_in_the_next(self):
        async def handler(call, input):
            return len(await call.all(*[call.start(f"c{i}", "x.y", {}) for i in range(2500)]))
        answer, journal, sizes = exchange(handler), [], []
        while "result" not in answer:
            self.assertEqual("wait" in answer, len(journal) + len(answer["ops"]) == 2500)
            sizes.append(len(answer["ops"]))
            journal += [ended(op["name"], "call", tool="x.y", result=1) for op in answer["ops"]]
            answer = exchange(handler, *journal)
        self.assertEqual((answer["result"], sizes), (2500, [1000, 1000, 500]))

    def test_the_inputs_of_calls_count(self):
        async def handler(call, input):
            return await call.all(*[call.start(f"c{i}", "x.y", {"text": "é" * 450_000}) for i in range(10)])
        self.assertEqual([op["name"] for op in exchange(handler)["ops"]], ["c0", "c1", "c2", "c3"])

    def test_an_input_that_is_too_large_is_an_error(self):
        async def handler(call, input):
            return await call.run("c", "x.y", {"text": "x" * (5 << 20)})
        error = exchange(handler)["error"]
        self.assertEqual(error["error_code"], "validation_error")
        self.assertIn("The input of x.y takes 52", error["message"])

    def test_no_step_begins_beyond_a_thousand_operations(self):
        ran = []

        async def handler(call, input):
            async def one():
                ran.append(1)
            return len(await asyncio.gather(*[call.step(f"s{i}", one) for i in range(1200)]))
        answer = exchange(handler)
        self.assertEqual((len(answer["ops"]), len(ran)), (1000, 1000))
        again = exchange(handler, *[ended(op["name"], result=None) for op in answer["ops"]])
        self.assertEqual((len(again["ops"]), len(ran)), (200, 1200))

    def test_a_step_that_may_run_has_room(self):
        async def handler(call, input):
            calls = [call.start(f"c{i}", "x.y", {}) for i in range(1200)]
            return await asyncio.gather(call.step_once("o", lambda: 1), call.all(*calls))
        answer = exchange(handler, {"name": "o", "kind": "once", "ended": None}, may_run=["o"])
        self.assertEqual(len(answer["ops"]), 1000)
        self.assertIn({"op": "step", "name": "o", "kind": "once", "result": 1}, answer["ops"])

    def test_large_results_errors_and_effects_fit(self):
        def large(call, i):
            async def run():
                if i % 3 == 0:
                    raise Failure("é" * 100_000)
                if i % 3 == 1:
                    raise Failure("no", details="x" * 50_000)
                for _ in range(50):
                    call.wrote_file("x" * 500)
                return "x" * 50_000
            return run

        async def handler(call, input):
            return await asyncio.gather(*[call.step(f"\x01{i}" + "\x01" * 190, large(call, i)) for i in range(1000)])
        ops = exchange(handler)["ops"]
        self.assertEqual(len(ops), 1000)
        self.assertEqual(max(len(op.get("error", {}).get("message", "")) for op in ops), 10_000)

    def test_the_result_fits_next_to_steps_that_nobody_awaited(self):
        async def handler(call, input):
            async def large():
                return "x" * 1_000_000
            left = [asyncio.ensure_future(call.step(f"s{i}", large)) for i in range(3)]
            await asyncio.sleep(0)
            call.left = left
            return "x" * 2_000_000
        self.assertEqual(exchange(handler)["error"]["error_code"], "output_invalid")

    def test_sizes_count_bytes_of_utf_8(self):
        async def handler(call, input):
            return await call.step("a", lambda: "中" * 300_000)
        self.assertIn("result", exchange(handler)["ops"][0])

    def test_a_lone_surrogate_becomes_an_escape(self):
        async def handler(call, input):
            return await call.step("a", lambda: "\ud800中")
        said = service(handler)
        with mock.patch.object(said, "_is_signed", lambda *_: True):
            answer = asyncio.run(said.answer("POST", {}, json.dumps(request()).encode()))
        self.assertIn('"\\ud800中"'.encode(), answer[2])


class Values(unittest.TestCase):
    def ops(self, fn):
        async def handler(call, input):
            return await call.step("a", lambda: fn(call))
        return exchange(handler)["ops"][0]

    def test_effects_are_converted(self):
        id = uuid.uuid4()

        def effects(call):
            call.sent("email", id, id)
            call.read("rows", "3")
            call.called("api", "https://example.com", "204")
            call.wrote_file(pathlib.Path("/a"))
        self.assertEqual(self.ops(effects)["effects"], {
            "messages_sent": [{"type": "email", "recipient": str(id), "message_id": str(id)}],
            "db_reads": [{"table": "rows", "count": 3}], "files_written": ["/a"],
            "external_calls": [{"service": "api", "endpoint": "https://example.com", "status_code": 204}]})

    def test_an_effect_that_is_no_json_is_named(self):
        self.assertIn("An effect (messages_sent) cannot be written as JSON",
                      self.ops(lambda call: call.sent(object(), "a", "b"))["error"]["message"])
        self.assertIn("must be a whole number", self.ops(lambda call: call.read("rows", None))["error"]["message"])
        answer = plain(lambda input, call: call.sent(object(), "a", "b"))
        self.assertIn("An effect (messages_sent)", answer[1]["error"]["message"])

    def test_an_input_that_is_no_json_names_its_tool(self):
        for make in (lambda call, input: call.start("c", "x.y", input), lambda call, input: call.run("c", "x.y", input),
                     lambda call, input: call.approve("c", "x.y", input, by=["role:a"])):
            async def handler(call, input):
                return await make(call, {"at": datetime.datetime.now()})
            self.assertIn("The input of x.y cannot be written as JSON", exchange(handler)["error"]["message"])

    def test_the_code_of_an_error_is_a_text(self):
        def fails(call):
            raise Failure("no", 404)
        self.assertEqual(self.ops(fails)["error"]["error_code"], "404")

    def test_a_pause_is_at_most_a_day(self):
        for after, want in ((float("nan"), None), (float("inf"), 86_400), (-1, None), (2, 2)):
            def fails(*_):
                raise Transient("no", after)
            self.assertEqual(self.ops(fails).get("after_ms"), want and want * 1000)
            self.assertEqual(plain(fails)[2].get("retry-after"), want and str(want))

    def test_a_step_may_raise_StopIteration(self):
        self.assertEqual(self.ops(lambda call: next(iter([])))["error"]["message"], "StopIteration")


class Plain(unittest.TestCase):
    def test_the_answer_of_a_plain_tool_has_at_most_one_mib(self):
        def tool(size, rows):
            def run(input, call):
                for i in range(rows):
                    call.wrote("rows", "insert", i)
                return "x" * size
            return run
        status, said, _ = plain(tool((1 << 20) - 100, 0))
        self.assertEqual((status, len(json.dumps(said)) <= 1 << 20), (200, True))
        status, said, _ = plain(tool((1 << 20) - 100, 10))
        self.assertEqual((status, said["error"]["error_code"]), (422, "output_invalid"))


class Journal(unittest.TestCase):
    def test_an_early_answer_does_not_change_the_version(self):
        async def handler(call, input):
            version = await call.version("v", 3)
            return [version, await call.receive("paid")]
        self.assertEqual(exchange(handler, ended("#paid", "answer", result={"value": 7}, early=True))["ops"],
                         [{"op": "version", "name": "v", "result": 3}])
        answer = exchange(handler, ended("#paid", "answer", result={"value": 7}))
        self.assertEqual(answer["result"], [0, 7])

    def test_an_operation_named_cancelled_may_be_unread(self):
        async def handler(call, input):
            return await call.step("cancelled", lambda: 1)
        answer = exchange(handler, *[ended(name, result=1) for name in
                                     ("cancelled", "cancelled#2", 'cancelled#1 of ["x"]')])
        self.assertEqual(answer["unread"], ["cancelled#2"])

    def test_steps_in_the_journal_need_no_task(self):
        async def handler(call, input):
            return sum([await call.step(f"s{i}", lambda: 1) for i in range(1000)])
        with mock.patch.object(gem_handlers.DurableCall, "_perform", side_effect=AssertionError):
            answer = exchange(handler, *[ended(f"s{i}", result=1) for i in range(1000)])
        self.assertEqual(answer["result"], 1000)

    def test_a_step_tx_waits_for_steps_that_may_run(self):
        ran = []

        async def handler(call, input):
            async def later():
                await asyncio.sleep(0)
                return await call.step_once("o", lambda: ran.append("o"))
            return await asyncio.gather(call.step_tx("t", lambda step: ran.append("t")), later())
        exchange(handler, {"name": "o", "kind": "once", "ended": None}, may_run=["o"])
        self.assertEqual(ran, ["o"])


class Cancelling(unittest.TestCase):
    """The handler cancels a branch, as asyncio.TaskGroup does when another branch fails."""

    async def both(self, call, step):
        async def fails():
            await asyncio.sleep(0)
            raise Failure("no")
        branches = [asyncio.ensure_future(step()), asyncio.ensure_future(fails())]
        await asyncio.wait(branches, return_when=asyncio.FIRST_EXCEPTION)
        branches[0].cancel()
        await asyncio.wait(branches)
        await call.step("then", lambda: 1)

    def test_a_step_that_runs_is_recorded(self):
        def slow():
            time.sleep(0.1)
            return "slow"

        async def handler(call, input):
            await self.both(call, lambda: call.step("b", slow))
        self.assertIn({"op": "step", "name": "b", "kind": "step", "result": "slow"}, exchange(handler)["ops"])

    def test_a_beginning_that_is_kept_does_not_hang(self):
        kept = []

        def keep(step, result):
            time.sleep(0.1)
            kept.append((step["name"], step["kind"]))

        async def handler(call, input):
            await self.both(call, lambda: call.step_once("o", lambda: "once"))
        exchange(handler, keep=keep)
        self.assertEqual(kept[:1], [("o", "began")])
        self.assertIn(("o", "once"), kept)

    def test_a_step_may_raise_CancelledError(self):
        async def cancelled():
            raise asyncio.CancelledError()

        async def handler(call, input):
            return await call.step("a", cancelled)
        self.assertEqual(exchange(handler)["ops"][0]["error"],
                         {"error_code": "execution_error", "message": "CancelledError"})

    def test_a_handler_may_raise_CancelledError(self):
        async def handler(call, input):
            raise asyncio.CancelledError()
        self.assertEqual(exchange(handler)["error"]["message"], "CancelledError")


class Serving(unittest.TestCase):
    def serve(self, handler, **environ):
        """Returns the status of an answer over WSGI."""
        got = []
        body = json.dumps(request()).encode()
        with mock.patch.object(gem_handlers.Service, "_is_signed", lambda self, headers, body: bool(body)):
            service(handler).wsgi({"REQUEST_METHOD": "POST", "wsgi.input": io.BytesIO(body),
                                   "CONTENT_LENGTH": str(len(body)), **environ}, lambda status, _: got.append(status))
        return got[0]

    def in_thread(self, fn):
        """Runs a function that could block for ever."""
        out = []
        thread = threading.Thread(target=lambda: out.append(fn()), daemon=True)
        thread.start()
        thread.join(30)
        self.assertFalse(thread.is_alive(), "it hangs")
        return out[0]

    def test_a_handler_that_swallows_everything_does_not_block(self):
        async def handler(call, input):
            while True:
                try:
                    return await call.step("a", lambda: 1)
                except BaseException:
                    pass
        with contextlib.redirect_stderr(io.StringIO()):
            status = self.in_thread(lambda: self.serve(handler))
            gc.collect()
        self.assertEqual(status, "200 OK")

    def test_a_handler_that_swallows_its_cancellation_does_not_block(self):
        async def handler(call, input):
            try:
                await call.step("a", lambda: 1)
            finally:
                while True:
                    try:
                        await asyncio.sleep(3600)
                    except asyncio.CancelledError:
                        pass
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            status = self.in_thread(lambda: self.serve(handler))
            gc.collect()
        self.assertEqual(status, "200 OK")
        self.assertNotIn("Task was destroyed", errors.getvalue())

    def test_a_finally_with_steps_ends_before_the_answer(self):
        ends = []

        async def handler(call, input):
            try:
                await call.step("a", lambda: 1)
            finally:
                try:
                    await call.step("b", lambda: 1)
                finally:
                    ends.append(1)

        async def answered():
            await service(handler).said(request())
            return len(ends)
        self.assertEqual(asyncio.run(answered()), 1)

    def test_wsgi_reads_a_body_without_a_length(self):
        async def handler(call, input):
            return 1
        self.assertEqual(self.serve(handler, **{"CONTENT_LENGTH": "", "wsgi.input_terminated": True}), "200 OK")
        self.assertEqual(self.serve(handler, CONTENT_LENGTH=""), "401 Unauthorized")

    def test_asgi_stops_reading_at_the_limit(self):
        chunks, status = [], []

        async def receive():
            chunks.append(1)
            return {"type": "http.request", "body": b"x" * (1 << 20), "more_body": True}

        async def send(message):
            status.append(message.get("status"))
        asyncio.run(serve(secret=SECRET, tools={})({"type": "http", "method": "POST", "headers": []}, receive, send))
        self.assertEqual((status[0], len(chunks)), (413, 5))

    def test_an_idle_connection_is_closed(self):
        server = serve(secret=SECRET, tools={}).server(0)
        self.assertEqual(server.RequestHandlerClass.timeout, 60)
        server.RequestHandlerClass.timeout = 0.1
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
                self.assertEqual(connection.recv(1), b"")
            server.shutdown()
        server.server_close()
        self.assertEqual(errors.getvalue(), "")


class Testing(unittest.TestCase):
    def test_an_approval_needs_no_text(self):
        async def handler(call, input):
            return await call.approve("p", "x.y", {}, by=["role:a"])
        t = gem_testing.Test(service(handler))
        t.approve("p")
        self.assertTrue(t.run("a.b")["approved"])
        t.replay()

    def test_tools_run_again_after_a_temporary_error(self):
        for own in (False, True):
            attempts = []

            def pay(input, call=None):
                attempts.append(call and call.attempt)
                if len(attempts) == 1:
                    raise Transient("not yet")
                return "paid"

            async def handler(call, input):
                return await call.run("c", "a.pay", {})
            t = gem_testing.Test(service(handler, **({} if own else {"pay": pay})))
            if own:
                t.tools["a.pay"] = pay
            self.assertEqual((t.run("a.b"), attempts), ("paid", [None, None] if own else [1, 2]))

    def test_a_tool_may_not_be_configured(self):
        async def handler(call, input):
            return await call.run("c", "a.pay", {})

        def pay(input, call=None):
            raise NotConfigured("It is not set up.", ["A"], ["Set A."])
        own = gem_testing.Test(service(handler))
        own.tools["a.pay"] = pay
        for t in (gem_testing.Test(service(handler, pay=pay)), own):
            with self.assertRaises(NotConfigured) as raised:
                t.run("a.b")
            self.assertEqual(raised.exception.required_env, ["A"])
            t.replay()

    def test_a_durable_tool_that_is_called_needs_a_function(self):
        async def handler(call, input):
            return await call.run("c", "a.other", {})
        for tools in ({}, {"other": durable(handler)}):
            with self.assertRaisesRegex(AssertionError, "has no function for a.other"):
                gem_testing.Test(service(handler, **tools)).run("a.b")

    def test_replay_without_a_call_fails(self):
        with self.assertRaisesRegex(AssertionError, "nothing to replay"):
            gem_testing.Test(serve(secret=SECRET, tools={})).replay()


if __name__ == "__main__":
    unittest.main()
