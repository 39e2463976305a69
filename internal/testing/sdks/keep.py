"""Durable tools of a service that keeps its steps: python3 keep.py prints its port."""
import asyncio
import json
import os
import pathlib
import subprocess
import sys

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
    """Inserts a row that says that a step ran. No transaction has it together with the step."""
    psql(f"insert into things (call_id) values ('{call.id} {name}')")
    return name


def keep(step, result):
    psql("select no_such_function()" if os.environ.get("SDK_BROKEN")
         else f"select keep_tool_step({quoted(step)}, {quoted(result)})")


@durable
async def play(call, input):
    out = [await call.step(f"s{i}", lambda: ran(call, f"s{i}")) for i in range(input["steps"])]
    out += await asyncio.gather(*[call.step(name, lambda name=name: call.wrote("things", "insert", name))
                                  for name in ("a", "b")])
    return [*out, await call.step_once("o", lambda: ran(call, "o"))]


@durable
async def case(call, input):
    pay = call.start("pay", "go.echo", {"value": 1})
    return [await call.step("a", lambda: 1), (await pay)["value"], await call.step("b", lambda: 2)]


@durable
async def book(call, input):
    def run(step):
        psql(f"insert into things (call_id) values ('{call.id}'); select keep_tool_step({quoted(step)}, '1')")
        return 1
    return await call.step_tx("book", run)


service = serve(secret=os.environ["SDK_SECRET"], keep=keep, tools={
    "remote.play": play, "remote.case": case, "remote.book": book})
server = service.server(int(os.environ.get("SDK_PORT", "0")))
print(server.server_port, flush=True)
server.serve_forever()
