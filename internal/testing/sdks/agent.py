"""An agent of the acceptance tests: it thinks, acts and observes. Its model is a script."""
import http.client
import os
from datetime import datetime

from gem_handlers import Cancelled, Failure, NotConfigured, durable

version = os.environ.get("AGENT_VERSION")  # of this program: some cannot read the journals of others


def perform(what):
    """Has an effect that cannot be undone. The test counts it, and may delay the answer."""
    world = http.client.HTTPConnection(os.environ["SDK_WORLD"])
    world.request("POST", "/", what.encode())
    status = world.getresponse().status
    world.close()
    if status != 200:
        raise RuntimeError(f"the world answered {status}")


@durable
async def agent(call, input):
    script, limit, seen = input["script"], input.get("max_turns", 30), []
    offered = await call.tools("tools")
    for turn in range(1, limit + 1):
        def model():
            said = script[min(turn, len(script)) - 1]
            if said.get("refuses"):
                raise Failure("The model does not answer.", "model_refused")
            perform(f"think {turn}")
            return said
        think = call.step_once if version == "another kind" else call.step
        thought = await think("think", model)
        if "actions" not in thought:
            names = [tool["name"] for tool in offered]
            return {"answer": thought["content"], "turns": turn, "seen": seen, "offered": names}
        acts = [act(call, **action) for action in thought["actions"]]
        try:
            await call.all(*acts)  # one wait for all of them
        except Cancelled:
            raise
        except (Failure, NotConfigured):
            pass  # the failure of a tool is an observation
        seen += [await observed(one) for one in acts]
    raise Failure(f"The agent was not done after {limit} turns.", "turn_limit", {"turns": limit})


def act(call, tool, input):
    if version == "another tool":
        return call.start("act", "remote.act", input)
    if tool == "wait.answer":
        until = input.get("until")
        return call.ask("act", input["text"], input.get("schema"), until=until and datetime.fromisoformat(until))
    return call.start("act", tool, input)


async def observed(act):
    try:
        return await act
    except NotConfigured:
        return {"error": "not_configured"}
    except Cancelled:
        raise
    except Failure as error:
        return {"error": error.code}


def do(input, call):
    if input.get("fail"):
        raise Failure("It did not work.", "no_luck")
    perform(input["text"])
    return input["text"]


def unset(input, call):
    raise NotConfigured("It lacks its key.")


tools = {"remote.agent": agent, "remote.act": do, "remote.unset": unset}
