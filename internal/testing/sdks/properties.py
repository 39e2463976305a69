"""Property tests of the SDK in Python: hypothesis runs random programs. python3 properties.py RUNS"""
import asyncio
import os
import pathlib
import sys
import tempfile

os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.path.join(tempfile.gettempdir(), "hypothesis")
from hypothesis import HealthCheck, given, settings, strategies as st  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "sdk" / "python"))
sys.dont_write_bytecode = True
import gem_testing  # noqa: E402
from gem_handlers import Failure, Transient, durable, serve  # noqa: E402

ran: dict = {}  # how often each step has run, by the step's place in the program


async def perform(call, program, path):
    """Runs a list of operations and returns their results. path is the place of the list in the program."""
    out = []
    for i, op in enumerate(program):
        try:
            out.append(await one(call, op, f"{path}.{i}", path))
        except Failure as failure:
            if op.get("fatal"):
                raise
            out.append(failure.code)
    return out


async def one(call, op, place, path):
    name = op["do"] + op.get("name", "") + path  # path keeps the names in parallel branches apart

    def work():
        ran[place] = ran.get(place, 0) + 1
        if ran[place] <= op["transient"]:
            raise Transient("not yet")
        if op["fails"]:
            raise Failure("no", "mine")
        return op["value"]

    async def work_async():
        await asyncio.sleep(0)
        return work()

    def echo(value, fails=False):
        return call.start(name, "p.echo", {"value": value, "fails": fails})

    match op["do"]:
        case "step":
            return await call.step(name, work_async if op["later"] else work)
        case "once":
            return await call.step_once(name, work_async if op["later"] else work)
        case "run":
            return await echo(op["value"], op["fails"])
        case "all":
            return await call.all(echo(op["value"]), echo(2))
        case "first":
            return await call.first(call.receive(name), echo(op["value"]))
        case "sleep":
            return await call.sleep(name, 1)
        case "receive":
            return await call.receive(name).within(1)
        case "version":
            return await call.version(name, 3)
        case "fail":
            raise Failure("no", "mine")
        case "together":
            return list(await asyncio.gather(*[perform(call, branch, f"{place}.{i}")
                                               for i, branch in enumerate(op["of"])]))


def expected(program, crash):
    """Returns the result of a program. If answers are lost (crash), a step_once results in outcome_unknown."""
    def of(op):
        match op["do"]:
            case "together":
                return [expected(branch, crash) for branch in op["of"]]
            case "once" if crash:
                return "outcome_unknown"
            case "once" if op["transient"]:
                return "execution_error"
            case "fail":
                return "mine"
            case "step" | "once" | "run" if op["fails"]:
                return "mine"
            case "step" | "once" | "run":
                return op["value"]
            case "all":
                return [op["value"], 2]
        return {"first": 1, "sleep": None, "receive": "timeout", "version": 3}[op["do"]]
    return [of(op) for op in program]


def steps(program, path=""):
    """Yields the place and the operation of each step of a program."""
    for i, op in enumerate(program):
        if op["do"] == "together":
            for j, branch in enumerate(op["of"]):
                yield from steps(branch, f"{path}.{i}.{j}")
        elif op["do"] in ("step", "once"):
            yield f"{path}.{i}", op


@durable
async def play(call, input):
    return await perform(call, input["program"], "")


service = serve(secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", tools={"p.play": play})


class After:
    """A service that runs calls as if their journal already contained some entries."""

    def __init__(self, entries):
        self.entries = entries

    async def said(self, said):
        if "exchange" in said:
            later = [{**entry, "ended": entry["ended"] and entry["ended"] + 1000} for entry in said["journal"]]
            said = {**said, "journal": self.entries + later,
                    "exchange": {**said["exchange"], "steps": said["exchange"]["steps"] + len(self.entries)}}
        return await service.said(said)


def run(program, to=service, **options):
    ran.clear()
    t = gem_testing.Test(to)

    def echo(input):
        if input["fails"]:
            raise Failure("no", "mine")
        return input["value"]
    t.tools["p.echo"] = echo
    try:
        return t, t.run("p.play", {"program": program}, **options)
    except Failure as failure:
        return t, failure.code


values = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
                      | st.text(max_size=5), lambda some: st.lists(some, max_size=3)
                      | st.dictionaries(st.text(max_size=3), some, max_size=3), max_leaves=5)
kinds = ["step", "step", "once", "run", "all", "first", "sleep", "receive", "fail"]


def operations(kinds):
    names = st.sampled_from("ab") | st.text(st.characters(blacklist_characters="#\0", blacklist_categories=["Cs"]),
                                            min_size=1, max_size=5)
    return st.fixed_dictionaries({"do": st.sampled_from(kinds), "name": names, "value": values, "fails": st.booleans(),
                                  "later": st.booleans(), "transient": st.sampled_from([0, 0, 0, 1])})


def together(branch):
    return st.fixed_dictionaries({"do": st.just("together"), "of": st.lists(branch, max_size=3)})


# a branch must not call call.version, whose result would depend on how far the other branches are
branches = st.recursive(st.lists(operations(kinds), max_size=4), lambda branch: st.lists(
    operations(kinds) | together(branch), max_size=4), max_leaves=3)


@settings(max_examples=int(sys.argv[1]), deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(st.lists(operations(kinds + ["version"]) | together(branches), max_size=4), st.booleans(), st.integers(0, 100))
def hold(program, fatal, cut):
    program = program + [{"do": "fail", "fatal": True}] * fatal
    calm, result = run(program)
    assert result == ("mine" if fatal else expected(program, False))
    for place, op in steps(program):
        assert ran[place] == (1 + op["transient"] if op["do"] == "step" else 1), "a step runs once if no answer is lost"
    calm.replay()
    crashed, result = run(program, crash=True)
    assert result == ("mine" if fatal else expected(program, True))
    for place, op in steps(program):
        assert ran[place] >= 1 if op["do"] == "step" else ran[place] == 1, "a step_once runs once"
    crashed.replay()
    journal = sorted(calm.journal, key=lambda entry: entry["ended"])
    cut_off, result = run(program, After(journal[:cut % (len(journal) + 1)]))
    assert result == ("mine" if fatal else expected(program, False))
    run(program, cancelled=True)
    assert not ran, "nothing runs after a cancellation"


hold()
print(f"{sys.argv[1]} programs")
