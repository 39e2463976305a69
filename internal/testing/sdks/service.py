"""The tools of the tests in Python: python3 service.py prints its port."""
import asyncio
import json
import os
import pathlib
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from datetime import datetime

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "sdk" / "python"))
sys.dont_write_bytecode = True
import agent  # noqa: E402
from gem_handlers import Failure, NotConfigured, Transient, Unknown, durable, serve  # noqa: E402

failures: Counter = Counter()  # of transient steps, by call and name


@durable
async def play(call, input):
    """Runs a program, which is a list of operations, and returns their results. It skips an operation that names
    another attempt, so a program can change between two attempts as code does."""

    async def one(op):
        try:
            return await perform(call, op)
        except Exception as error:
            if op.get("fatal"):
                raise
            return f"{getattr(error, 'code', type(error).__name__)}: {error}"

    out = []
    for op in input["program"]:
        if op.get("attempt", call.attempt) != call.attempt:
            continue
        if op["do"] == "together":
            out.append(list(await asyncio.gather(*[one(inner) for inner in op["ops"]])))
        else:
            out.append(await one(op))
    return {"out": out}


async def perform(call, op):
    def child(of):
        if of.get("do") == "receive":
            return call.receive(of["name"])
        if "tool" in of:
            return call.start(of["name"], of["tool"], of["value"])
        return call.start(of["name"], "go.echo", {"value": of.get("value")})

    def work():
        key = call.id, op["name"]
        failures[key] += 1
        if failures[key] <= op.get("transient", 0):
            raise Transient("not yet")
        if "error" in op:
            raise Failure(op["error"], "of_mine", {"a": 1})
        if op.get("wrote"):
            call.wrote("things", "insert", op["name"])
        return op.get("value")

    match op["do"]:
        case "step":
            return await call.step(op["name"], work)
        case "once":
            return await call.step_once(op["name"], work)
        case "call":
            got = await child(op)
            return got if "tool" in op else got["value"]
        case "all":
            return [echo["value"] for echo in await call.all(*[child(of) for of in op["of"]])]
        case "first":
            return await call.first(*[child(of) for of in op["of"]])
        case "sleep":
            return await call.sleep(op["name"], 0.001)
        case "version":
            return await call.version(op["name"], op["value"])
        case "tools":
            return [tool["name"] for tool in await call.tools(op["name"])]
        case "ask":
            return await call.ask(op["name"], "Well?")
        case "receive":
            return await call.receive(op["name"])
        case "late":
            return await call.receive(op["name"]).within(0.001)
        case "until":
            return await call.receive(op["name"]).until(datetime.fromisoformat(op["value"]))
        case "fail":
            raise Failure(op["error"], "of_mine", [1])
        case "throw":
            raise ValueError(op["error"])
        case "transient":
            raise Transient("not yet", op.get("after", 0) / 1000)
        case "unconfigured":
            raise NotConfigured("It is not set up.", ["A"], ["Set A."])
        case "cleanup":
            async def clean():
                for inner in op["ops"]:
                    await perform(call, inner)
                return "clean"
            return await call.cleanup(clean)


@durable
async def refund(call, input):
    cents = await call.step("price", lambda: 4200)
    reason = await call.ask("reason", f"Why is {input['order']} refunded?")
    approval = call.approve("approval", "remote.pay", {"order": input["order"], "cents": cents}, ["role:boss"], reason)
    await approval
    return await call.start_approved("pay", approval)


def pay(input, call):
    if input.get("transient") and call.attempt == 1:
        raise Transient("not yet")
    if input.get("missing"):
        raise NotConfigured("It is not set up.", ["A"], ["Set A."])
    if not input.get("cents", 0) > 0:
        raise Failure("Nothing is to be paid.", "nothing", {"cents": input.get("cents")})
    call.wrote("payments", "insert", 7)
    return {"paid": input["cents"]}


@durable
async def forge(call, input):
    asked = call.receive("no")
    asked.id, asked.asked = "no such approval", {"tool": "remote.pay", "input": {"order": "A7", "cents": 1}}
    return await call.start_approved("pay", asked)


@durable
async def book(call, input):
    call.called("bank", "https://bank.example.com", 200)

    def run(step):
        return "forgotten" if input.get("forget") else psql(step, **input)
    return await call.step_tx("book", run)


def psql(step, then="", text="x"):
    """Inserts a row and ends the step in one transaction. It stands for a driver of Postgres."""
    def quoted(value):
        return "'" + json.dumps(value).replace("'", "''") + "'"
    twice = f"select keep_tool_step({quoted(step)}, '1');" if then == "twice" else ""
    done = subprocess.run(["psql", "-qAt", "-v", "ON_ERROR_STOP=1", os.environ["SDK_DATABASE"], "-c", f"""begin;
        insert into things (call_id) values ({quoted(step)}::jsonb ->> 'token');
        select gem.wrote('things', 'insert', 7);
        select keep_tool_step({quoted(step)}, {quoted(text)});
        {twice} commit"""], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    if then == "throw":
        raise RuntimeError("after the commit")
    return text


async def always_cleans(call):
    try:
        await call.step("work", lambda: 1)
    finally:
        await call.cleanup(lambda: call.step("release", lambda: 1))
    return "done"


async def cancelled_wait(call):
    async def clean():
        await call.receive("y")
        await call.step("undo", lambda: 1)
    try:
        got = await call.receive("x")
    except Failure:
        await call.cleanup(clean)
        return "cleaned"
    return f"got {got}"


async def begins_beside_failure(call):
    def a():
        failures[call.id] += 1
        if failures[call.id] == 1:
            raise Transient("not yet")
    return (await asyncio.gather(call.step("a", a), call.step_once("o", lambda: "once")))[1]


async def step_beside_question(call):
    async def ask():
        return await call.ask("q", "Seen it?")
    return await asyncio.gather(ask(), call.step("send link", lambda: 1))


async def call_before_once(call):
    async def one():
        return 1

    async def first():
        await call.step("a", one)
        return await call.run("c", "go.echo", {"value": 1})

    async def second():
        for _ in range(20):  # the other branches continue first
            await asyncio.sleep(0)
        return await call.step_once("o", lambda: 2)
    return await asyncio.gather(first(), second())


async def large_together(call):
    async def large(i):
        try:
            return await call.step(f"big {i}", lambda: "x" * 900_000)
        except Failure:
            return "none"
    return len([text for text in await asyncio.gather(*[large(i) for i in range(1, 6)]) if text != "none"])


async def no_json(call):
    return float("nan")


async def nested(call):
    async def inner():
        return await call.step("b", lambda: 1)
    return await call.step("a", inner)


async def one_child_twice(call):
    child = call.start("c", "go.echo", {"value": 1})
    return len(await call.all(child, child))


async def effects_outside(call):
    call.called("bank", "https://bank.example.com", 200)
    for name in "abc":
        await call.step(name, lambda: 1)
    return "done"


cases = {
    "a clean-up that always runs": always_cleans, "a wait that was cancelled": cancelled_wait,
    "a call before a step that may run": call_before_once,
    "a beginning beside a failure": begins_beside_failure, "a step beside a question": step_beside_question,
    "a result that is too large": lambda call: call.step("big", lambda: "x" * (5 << 20)),
    "results that are too large together": large_together, "a result that is no JSON": no_json,
    "a step inside a step": nested, "one child twice": one_child_twice, "effects outside of steps": effects_outside}


@durable
async def case(call, input):
    return await cases[input["case"]](call)


@durable
async def mortal(call, input):
    def at(point):
        urllib.request.urlopen(f"{os.environ['SDK_CONTROL']}/{call.id}/{point}", b"").read()

    def ring():
        at("once")
        return "rung"

    def run(step):
        at("tx")
        psql(step)
        at("booked")
    await call.step("a", lambda: at("step"))
    await call.run("c", "go.echo", {"value": 2})
    try:
        rung = await call.step_once("o", ring)
    except Unknown:
        rung = "unknown"
    await call.step_tx("book", run)
    await call.sleep("s", 0.001)
    return rung


@durable
async def unknown(call, input):
    def ring():
        if call.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return "rung"
    try:
        return await call.step_once("ring", ring)
    except Unknown:
        return "unknown"


service = serve(secret=os.environ["SDK_SECRET"], tools={
    **agent.tools, "remote.play": play, "remote.refund": refund, "remote.pay": pay, "remote.forge": forge,
    "remote.book": book, "remote.case": case, "remote.unknown": unknown, "remote.mortal": mortal,
    # a plain handler, although domains.json lists the tool under durable
    "remote.plain": lambda input, call: 1})
application = service.wsgi
if __name__ == "__main__":
    server = service.server(int(os.environ.get("SDK_PORT", "0")))
    print(server.server_port, flush=True)
    server.serve_forever()
