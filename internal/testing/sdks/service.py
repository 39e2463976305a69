"""The tools of the tests in Python: python3 service.py prints its port."""
import asyncio
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections import Counter

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "sdk" / "python"))
sys.dont_write_bytecode = True
from gem_handlers import Failure, Transient, Unknown, durable, serve  # noqa: E402

failures: Counter = Counter()  # of transient steps, by call and name


@durable
async def play(call, input):
    """Runs a program: a list of operations, whose results it collects."""

    async def one(op):
        try:
            return await perform(call, op)
        except Exception as error:
            if op.get("fatal"):
                raise
            return f"{getattr(error, 'code', type(error).__name__)}: {error}"

    out = []
    for op in input["program"]:
        if op["do"] == "together":
            out.append(list(await asyncio.gather(*[one(inner) for inner in op["ops"]])))
        else:
            out.append(await one(op))
    return {"out": out}


async def perform(call, op):
    def child(of):
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
            return (await child(op))["value"]
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
        case "fail":
            raise Failure(op["error"], "of_mine", [1])
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
    "remote.play": play, "remote.refund": refund, "remote.pay": pay, "remote.forge": forge, "remote.book": book, "remote.unknown": unknown})
application = service.wsgi
if __name__ == "__main__":
    server = service.server(int(os.environ.get("SDK_PORT", "0")))
    print(server.server_port, flush=True)
    server.serve_forever()
