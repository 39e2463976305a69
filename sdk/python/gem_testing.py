"""An in-memory worker for tests of durable tools. It needs no database, and everything that a handler waits for
arrives at once.

    t = gem_testing.Test(service)
    t.tools["shop.pay"] = lambda input: {"payment": "p1"}
    t.answer("reason", "broken")
    t.approve("approval")
    assert t.run("shop.refund", {"order": "A7"}) == {"payment": "p1"}
    t.replay()
"""

from __future__ import annotations

import json
import re
import uuid
from typing import Any, Callable, Mapping, Optional

from gem_handlers import Failure, NotConfigured, Service, Transient, run_in_new_loop

MOST = 1000  # exchanges or attempts of a call


class Test:
    __test__ = False  # for pytest
    _call: dict[str, Any]
    _entries: dict[str, dict[str, Any]]
    _may_run: list[str]
    _end: dict[str, Any]

    def __init__(self, service: Service) -> None:
        self.tools: dict[str, Callable[[Any], Any]] = {}  # replace tools that the handler calls
        self.journal: list[dict[str, Any]] = []  # of the last call
        self._service = service
        self._answers: dict[str, dict[str, Any]] = {}
        self._sent: dict[str, dict[str, Any]] = {}

    def answer(self, name: str, value: Any) -> None:
        """Sets the answer to the question with this name."""
        self._answers[name] = {"answer": value, "by": "test"}

    def approve(self, name: str, by: str = "test") -> None:
        self._answers[name] = {"approved": True, "by": by}

    def deny(self, name: str, reason: str = "no", by: str = "test") -> None:
        self._answers[name] = {"approved": False, "by": by, "reason": reason}

    def send(self, name: str, value: Any) -> None:
        """Sends an answer for `receive`. If nothing was sent, a wait with a limit times out at once."""
        self._sent["#" + name] = {"value": value, "by": "test"}

    def run(self, tool: str, input: Optional[Mapping[str, Any]] = None, crash: bool = False, cancelled: bool = False,
            created_by: Optional[str] = None) -> Any:
        """Runs a call to its end, and returns its result or raises its error. With crash, each answer of the service
        is lost once, so steps run again, and a step_once raises Unknown."""
        self._call = {"id": str(uuid.uuid4()), "tool": tool, "attempt": 1, "session_id": None, "created_by": created_by}
        self._input, self._entries, self._steps, self._may_run = input or {}, {}, 0, []
        self._cancelled, self._end = cancelled, {}
        for number in range(1, MOST + 1):
            if crash and (lost := self._ask(number))[0] == 200 and "result" not in lost[1]:
                self._call["attempt"] += 1
                self._may_run = []
            status, said = self._ask(number)
            if status == 501:
                raise _unconfigured(said)
            if status == 503:
                self._call["attempt"] += 1
                continue
            if status != 200:
                raise AssertionError(f"The service answered {status}: {said}")
            if "misfit" in said:
                raise AssertionError(f"The handler does not fit its journal: {said['misfit']['message']}")
            self._record(said.get("ops", []))
            self.journal = list(self._entries.values())
            if any(end in said for end in ("result", "error", "not_configured")):
                self._end = said
                return _ending(said)
            if "wait" in said:
                self._wait(said["wait"])
        raise AssertionError(f"The call has not ended after {MOST} exchanges. Do the names of its steps change from "
                             "run to run?")

    def replay(self) -> None:
        """Runs the handler of the last call again on its whole journal. Raises if it behaves differently."""
        if not hasattr(self, "_call"):
            raise AssertionError("There is nothing to replay: run a call first.")
        said = self._ask(1, replay=True)[1]
        differs = None
        if "stopped" in said:
            differs = "it reached " + said["stopped"]
        elif "misfit" in said:
            differs = said["misfit"]["message"]
        elif said.get("unread"):
            differs = "it did not ask for " + ", ".join(said["unread"])
        elif any(said.get(end) != self._end.get(end) for end in ("result", "error", "not_configured")):
            differs = "it ended differently"
        if differs:
            raise AssertionError(f"The handler is not deterministic: when it ran again, {differs}.")

    def _said(self, request: Mapping[str, Any]) -> tuple[int, Any]:
        status, said, _ = run_in_new_loop(self._service.said(json.loads(json.dumps(request))))
        return status, json.loads(json.dumps(said))

    def _ask(self, number: int, replay: bool = False) -> tuple[int, Any]:
        return self._said({"gem": 1, "call": self._call, "input": self._input, "journal": list(self._entries.values()),
                           "exchange": {"number": number, "left_ms": 60_000, "cancelled": self._cancelled,
                                        "replay": replay, "may_run": self._may_run, "steps": self._steps}})

    def _add(self, name: str, kind: str, **more: Any) -> None:
        self._steps += 1
        self._entries[name] = {"name": name, "kind": kind, "ended": self._steps, **more}

    def _record(self, ops: list[dict[str, Any]]) -> None:
        self._may_run = []
        for op in ops:
            name = op["name"]
            match op["op"]:
                case "began":
                    self._entries[name] = {"name": name, "kind": "once", "ended": None}
                    self._may_run.append(name)
                case "step" if op.get("transient") and op["kind"] != "once":
                    self._call["attempt"] += 1
                case "step":
                    self._add(name, op["kind"], **{key: op[key] for key in ("result", "error", "not_configured")
                                                   if key in op})
                case "version":
                    self._add(name, "version", result=op["result"])
                case "tools":
                    self._add(name, "step", result=[{"name": tool} for tool in self.tools])
                case "cancelled":
                    self._add(name, "cancelled")
                case "approve":
                    self._add(name, "call", tool="wait.approval", result=self._answered(name, op.get("text", "")))
                case _:  # a call
                    self._add(name, "call", tool=op["tool"], **self._made(op))

    def _answered(self, name: str, text: str) -> dict[str, Any]:
        answer = self._answers.get(re.sub(r"#\d+$", "", name))
        if answer is None:
            raise AssertionError(f"The handler asks {name} ({text}), and the test has no answer to it.")
        return answer

    def _made(self, op: dict[str, Any]) -> dict[str, Any]:
        """Returns the end of a call that the handler makes."""
        tool = op["tool"]
        if tool == "wait.answer":
            return {"result": self._answered(op["name"], op["input"]["text"])}
        approval: dict[str, Any] = self._entries.get(op.get("approved", ""), {}).get("result") or {}
        if "approved" in op and not approval.get("approved"):
            return {"error": {"error_code": "not_allowed", "message": f"The call {op['name']} was not approved."}}
        try:
            return {"result": self._run_tool(tool, op["input"])}
        except NotConfigured as error:
            return {"not_configured": {"reason": error.reason, "required_env": error.required_env,
                                       "next_steps": error.next_steps}}
        except Failure as error:
            return {"error": {"error_code": error.code, "message": str(error), "details": error.details}}

    def _run_tool(self, tool: str, input: Any) -> Any:
        """Runs the test's function for a tool or, if there is none, the service's plain tool. Retries after a temporary
        error."""
        call = {**self._call, "id": str(uuid.uuid4()), "tool": tool}
        for attempt in range(1, MOST + 1):
            if tool in self.tools:
                try:
                    return self.tools[tool](input)
                except Transient:
                    continue
            status, said = self._said({"input": input, "call": {**call, "attempt": attempt}})
            if status == 404 or status == 501 and "required_env" not in said:  # the tool is durable or unknown
                raise AssertionError(f"The test has no function for {tool}: set t.tools[{tool!r}].")
            if status == 501:
                raise _unconfigured(said)
            if status != 503:
                return _ending(said)
        raise AssertionError(f"{tool} has not ended after {MOST} attempts.")

    def _wait(self, wait: Mapping[str, Any]) -> None:
        """Records the arrival of everything that the handler waits for."""
        come = 0
        for one in wait["for"]:
            name = one["name"]
            if self._entries.get(name, {}).get("ended") is None:
                sent = self._sent.get(name)
                if sent is None and "within_ms" not in one and "until" not in one:
                    continue
                self._add(name, "answer" if name.startswith("#") else "time",
                          **({"result": sent} if sent else {"timed_out": True}))
            come += 1
        if come < wait["need"]:
            names = ", ".join(one["name"] for one in wait["for"])
            raise AssertionError(f"The handler waits for {names}, which never comes: see Test.send.")


def _unconfigured(said: Mapping[str, Any]) -> NotConfigured:
    return NotConfigured(said["reason"], said.get("required_env", ()), said.get("next_steps", ()))


def _ending(said: Mapping[str, Any]) -> Any:
    """Returns the result of a call, or raises its error."""
    if missing := said.get("not_configured"):
        raise _unconfigured(missing)
    if error := said.get("error"):
        raise Failure(error["message"], error["error_code"], error.get("details"))
    return said.get("result")
