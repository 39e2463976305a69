"""A service that keeps its steps with keep_tool_step. python3 keep.py prints its port."""
import asyncio
import json
import os
import pathlib
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "sdk" / "python"))
sys.dont_write_bytecode = True
from gem_handlers import durable, serve  # noqa: E402


def quoted(value):
    return "'" + json.dumps(value).replace("'", "''") + "'"


def psql(sql):
    done = subprocess.run(["psql", "-qAt", "-v", "ON_ERROR_STOP=1", os.environ["SDK_DATABASE"], "-c", sql],
                          capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)


def ran(call, name):
    """Counts a run of a step: inserts a row, in another transaction than the one that keeps the step."""
    psql(f"insert into things (call_id) values ('{call.id} {name}')")
    return name


kept = 0
broken = threading.Event()  # set once keep has written b, just before keep fails


def keep(step, result):
    global kept
    kept += 1
    flaps = os.environ.get("SDK_KEEP") == "flaps"
    if flaps and kept == 1:
        raise RuntimeError("no connection")
    if os.environ.get("SDK_KEEP") == "refused":
        raise RuntimeError("no connection")
    psql(f"select keep_tool_step({quoted(step)}, {quoted(result)})")
    if flaps and step["name"] == "b":
        broken.set()
        raise RuntimeError("the connection broke")
    if os.environ.get("SDK_KEEP") == "lost":
        raise RuntimeError("the connection broke")


@durable
async def play(call, input):
    async def a_and_b():
        await call.step("a", lambda: ran(call, "a"))
        return await call.step("b", lambda: ran(call, "b"))

    def o():
        ran(call, "o")
        broken.wait()
        return "o"
    if input.get("parallel"):
        return await asyncio.gather(call.step_once("o", o), a_and_b())
    if input.get("once"):
        return [await call.step_once("o", lambda: ran(call, "o"))]
    out = [await call.step(f"s{i}", lambda: ran(call, f"s{i}")) for i in range(input["steps"])]
    out += await asyncio.gather(*[call.step(name, lambda name=name: call.wrote("things", "insert", name))
                                  for name in ("a", "b")])
    return [*out, await call.step_once("o", lambda: ran(call, "o"))]


@durable
async def case(call, input):
    pay = call.start("pay", "go.echo", {"value": 1})
    return [await call.step("a", lambda: 1), (await pay)["value"], await call.step("b", lambda: 2)]


async def booked(call, name):
    """Runs a step_tx, and counts its runs and its commits."""
    def run(step):
        ran(call, f"{name}-ran")
        psql(f"insert into things (call_id) values ('{call.id} {name}'); select keep_tool_step({quoted(step)}, '1')")
        return 1
    return await call.step_tx(name, run)


@durable
async def book(call, input):
    def a():
        return ran(call, "a")
    if input["beside"]:
        return await asyncio.gather(call.step("a", a), booked(call, "b"), call.step_once("o", lambda: ran(call, "o")))
    return [await call.step("a", a), await booked(call, "b"), await call.step("c", lambda: ran(call, "c"))]


@durable
async def unknown(call, input):
    try:
        await call.step_once("o", lambda: 1)
    finally:
        await call.cleanup(lambda: booked(call, "undo"))


service = serve(secret=os.environ["SDK_SECRET"], keep=keep, tools={
    "remote.play": play, "remote.case": case, "remote.book": book, "remote.unknown": unknown})
server = service.server(int(os.environ.get("SDK_PORT", "0")))
print(server.server_port, flush=True)
server.serve_forever()
