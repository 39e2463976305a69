"""The agent of the acceptance tests. In each turn it takes the next line of a script in place of a model's answer. The
line either lists actions, and the agent collects their results, or contains the answer with which the agent ends."""
import http.client
import os
from datetime import datetime

from gem_handlers import Cancelled, Failure, NotConfigured, durable

version = os.environ.get("AGENT_VERSION")  # of the agent's code: the journal of one version does not fit the others


def perform(what):
    """Reports an effect to the server of the test, which counts it and may delay the answer."""
    effects = http.client.HTTPConnection(os.environ["SDK_WORLD"])
    effects.request("POST", "/", what.encode())
    status = effects.getresponse().status
    effects.close()
    if status != 200:
        raise RuntimeError(f"the server of the test answered {status}")


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
            pass  # observed returns the error of a tool
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
