"""Serves tools to a worker of GEM over HTTP, as an ASGI or WSGI application or with Python's own server.

A durable tool runs in exchanges. Each request has the journal of the call. The handler runs from its beginning, and
operations in the journal return at once. A new operation goes into the answer and never returns: the worker writes it
into the journal, and the next request contains it. docs/sdk.md has examples.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import inspect
import json
import logging
import math
import time
from contextvars import ContextVar
from datetime import datetime, timedelta, timezone
from typing import Any, Awaitable, Callable, Coroutine, Generator, Generic, Iterable, Mapping, Optional, TypeVar, Union

TOLERANCE = 5 * 60  # seconds by which the clocks of the worker and the service may differ
LARGEST = 4 << 20  # bytes of a request, and of an answer
LARGEST_RESULT = 1 << 20  # bytes of a step's result, and of a call's input
ROOM = LARGEST - 65_536  # bytes of the operations in an answer
MOST = 1000  # operations in an answer
RESERVED = 2000  # bytes for the operation of a step that runs
LONGEST_MESSAGE = 10_000  # characters
LONGEST = 5  # seconds for which a request keeps steps: a cancellation waits for the end of the request
T = TypeVar("T")
Result = TypeVar("Result", covariant=True)
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])
log = logging.getLogger("gem_handlers")
in_step: ContextVar[Optional[str]] = ContextVar("in_step", default=None)
cleaning: ContextVar[bool] = ContextVar("cleaning", default=False)


class Failure(Exception):
    """An error with a code and details, for the receipt."""

    code, text = "execution_error", ""

    def __init__(self, message: str = "", code: str = "", details: Any = None) -> None:
        super().__init__(message or self.text)
        self.code, self.details = str(code or self.code), details


class Unknown(Failure):
    """A step_once may or may not have taken effect."""

    code = "outcome_unknown"
    text = "A step that must not run twice had begun, and was lost: whether it took effect is not known."


class Timeout(Failure):
    """Nothing arrived in time."""

    code, text = "timeout", "Nothing arrived within the time limit of the wait."


class Cancelled(Failure):
    """Someone asked to cancel the call."""

    code, text = "cancelled", "Someone asked to cancel the call."


class NotConfigured(Exception):
    """The tool is not set up."""

    def __init__(self, reason: str, required_env: Iterable[str] = (), next_steps: Iterable[str] = ()) -> None:
        super().__init__(reason)
        self.reason, self.required_env, self.next_steps = str(reason), list(required_env), list(next_steps)


class Transient(Exception):
    """A temporary error: the call runs again after a pause of at least `after` seconds, up to 900."""

    def __init__(self, cause: Union[Exception, str], after: float = 0) -> None:
        super().__init__(str(cause))
        self.after = after


def durable(handler: Handler) -> Handler:
    """Marks a handler `async def handler(call, input)` of a tool that domains.json lists under `durable`."""
    if not inspect.iscoroutinefunction(handler):
        raise TypeError(f"{handler.__name__} must be async def, since it is durable.")
    handler.__gem_durable__ = True  # type: ignore[attr-defined]
    return handler


def _json(value: Any) -> bytes:
    """Returns a value as JSON in UTF-8. UTF-8 cannot encode lone surrogates, so they become escapes."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")


def _plain(what: str, value: Any, largest: int = LARGEST_RESULT, code: str = "output_invalid") -> Any:
    """Returns the value after a round trip through JSON, or raises a Failure."""
    try:
        text = _json(value)
        plain = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise Failure(f"{what} cannot be written as JSON: {error}", code) from error
    if len(text) > largest:
        raise Failure(f"{what} takes {len(text)} bytes as JSON; the limit is {max(largest, 0)}.", code)
    return plain


def _described(error: BaseException, largest: int = LARGEST_RESULT) -> dict[str, Any]:
    message = (str(error) or type(error).__name__)[:LONGEST_MESSAGE]
    if not isinstance(error, Failure):
        return {"error_code": "execution_error", "message": message}
    try:
        details = {} if error.details is None else {"details": _plain("details", error.details, largest)}
    except Failure:
        details = {}
    return {"error_code": error.code, "message": str(error)[:LONGEST_MESSAGE], **details}


def _unconfigured(error: NotConfigured) -> dict[str, Any]:
    return {"reason": error.reason[:LONGEST_MESSAGE], "required_env": [str(name) for name in error.required_env],
            "next_steps": [str(step) for step in error.next_steps]}


def _is_transient(error: BaseException) -> bool:
    # With these states, Postgres asks to run a transaction again. psycopg and asyncpg call the attribute sqlstate.
    return isinstance(error, Transient) or getattr(error, "sqlstate", None) in ("40001", "40P01")


def _pause(error: BaseException) -> float:
    """Returns the pause in seconds that an error requests, at most a day; 0 for none."""
    after = getattr(error, "after", 0)
    return min(float(after), 86_400) if isinstance(after, (int, float)) and after > 0 else 0


def _time(at: Optional[datetime]) -> Optional[str]:
    if at is not None and at.tzinfo is None:
        raise ValueError(f"The time {at} has no zone: use datetime.now(timezone.utc), for example.")
    return None if at is None else at.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _milliseconds(limit: Union[float, timedelta]) -> int:
    seconds = limit.total_seconds() if isinstance(limit, timedelta) else limit
    if not math.isfinite(seconds) or seconds > 366 * 24 * 3600:
        raise Failure(f"A wait may last 366 days: {seconds} seconds are not a time.")
    return max(1, round(seconds * 1000))


def _whole(what: str, number: Any) -> int:
    try:
        return int(number)
    except (TypeError, ValueError, OverflowError) as error:
        raise Failure(f"{what} must be a whole number, not {number!r}.", "output_invalid") from error


class Call:
    """A handler's view of its call. The methods record effects for the receipt."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        about = said["call"]
        self.id: str = about["id"]  # the same in every attempt: pass it to services that accept an idempotency key
        self.tool: str = about["tool"]
        self.attempt: int = about["attempt"]
        self.session_id: Optional[str] = about["session_id"]
        self.created_by: Optional[str] = about["created_by"]
        self._effects: dict[str, list[Any]] = {}

    def _note_effect(self, effects: str, effect: Any) -> None:
        self._effects.setdefault(effects, []).append(_plain(f"An effect ({effects})", effect))

    def wrote(self, table: str, action: str, id: Any) -> None:
        """Records a row that was written. The action is insert, update or delete."""
        self._note_effect("db_writes", {"table": table, "action": action, "id": str(id)})

    def read(self, table: str, count: int) -> None:
        """Records how many rows of a table were read."""
        self._note_effect("db_reads", {"table": table, "count": _whole("The count of an effect", count)})

    def sent(self, type: str, recipient: Any, message_id: Any) -> None:
        """Records a message that a service accepted. The type is email or sms."""
        self._note_effect("messages_sent", {"type": type, "recipient": str(recipient), "message_id": str(message_id)})

    def wrote_file(self, path: Any) -> None:
        self._note_effect("files_written", str(path))

    def called(self, service: str, endpoint: str, status_code: int = 0) -> None:
        """Records a request to a service. The endpoint must not contain secrets."""
        self._note_effect("external_calls", {"service": service, "endpoint": str(endpoint),
                                             "status_code": _whole("The status code of an effect", status_code)})

    def _take_effects(self) -> dict[str, list[Any]]:
        effects, self._effects = self._effects, {}
        return effects


class Child(Generic[Result]):
    """Something that a durable handler waits for. Awaiting it returns its result or raises its error."""

    def __init__(self, call: "DurableCall", id: str, kind: str, tool: Optional[str] = None,
                 field: Optional[str] = None) -> None:
        self._call, self.id, self.kind, self.tool, self.field = call, id, kind, tool, field
        self.asked: Optional[dict[str, Any]] = None  # the call that people are asked to approve
        self._unmade: Optional[dict[str, Any]] = None  # a call that began before a clean-up and was not made
        self.limit: dict[str, Any] = {}

    def within(self, limit: Union[float, timedelta]) -> "Child[Result]":
        """Limits the wait, in seconds from the first await. After the limit, awaiting raises Timeout in every run."""
        self.limit = {"within_ms": _milliseconds(limit)}
        return self

    def until(self, at: datetime) -> "Child[Result]":
        """Ends the wait at the given time, by Postgres's clock."""
        self.limit = {"until": _time(at)}
        return self

    def __await__(self) -> Generator[Any, None, Result]:
        return self._result().__await__()

    async def _result(self) -> Result:
        await self._call._wait([self], 1)
        return self._call._result_of(self)


class DurableCall(Call):
    """The call of a durable handler. The handler runs from its beginning each time; operations in the journal return at
    once. So everything with an effect belongs in a step. Outside of steps, the handler may await only the methods
    below. If two operations have the same name, they become `name` and `name#2` in the journal."""

    def __init__(self, said: Mapping[str, Any], keeper: Optional[Callable[..., Any]] = None) -> None:
        super().__init__(said)
        self._state = said["exchange"]
        self._keeper = keeper if "token" in self._state else None
        self._until = time.monotonic() + min(self._state["left_ms"] / 2000, LONGEST)
        self._writing = asyncio.Lock()
        self._unsure = False  # the journal may already contain a step that is also in the answer
        self._entries = {entry["name"]: entry for entry in said["journal"]}
        self._read: set[str] = set()
        self._may_run = set[str](self._state["may_run"])  # without those that have started
        self._tasks: set[asyncio.Task[Any]] = set()  # of steps
        self._used: dict[str, int] = {}
        self._ops: list[dict[str, Any]] = []
        self._waits: list[dict[str, Any]] = []
        self._end: Optional[dict[str, Any]] = None  # of the exchange, if the handler has not returned
        self._running = self._changes = self._size = 0
        self._outside: dict[str, list[Any]] = {}  # effects outside of steps: each run records them again
        self._deferred = False  # an operation waits for the next exchange
        self._closed = False
        self._late = 0  # operations that the handler began after the end of the exchange
        self._alone = False  # a transaction runs, or has run
        self._steps: int = self._state["steps"]
        self._changed_event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def step(self, name: str, fn: Callable[[], Union[Awaitable[T], T]]) -> T:
        """Runs fn at least once and records its result, JSON of at most 1 MiB. fn may be a plain function, which runs
        in a thread, or an async one. After a Transient error, the call runs again."""
        return await self._step("step", name, fn)

    async def step_once(self, name: str, fn: Callable[[], Union[Awaitable[T], T]]) -> T:
        """A step that never runs twice. If it began and its outcome is lost, it raises Unknown in every later run."""
        return await self._step("once", name, fn)

    async def step_tx(self, name: str, fn: Callable[[dict[str, Any]], Union[Awaitable[T], T]]) -> T:
        """A step whose rows and end commit together, once. fn gets a dict, runs its own transaction and returns the
        result. The last statement of the transaction is `select keep_tool_step(step, result)`, with both as JSON."""
        return await self._step("tx", name, fn)

    async def _step(self, kind: str, name: str, fn: Callable[..., Any]) -> Any:
        id = self._unique(name)
        entry = await self._found(id, kind)
        if entry and entry["ended"] is not None:
            return _outcome(entry)
        if self._state["replay"]:
            return await self._stop({"stopped": f"the step {id}"})
        may_run = id in self._may_run
        self._may_run.discard(id)
        self._may_begin()
        if entry and not may_run:
            return await self._add({"op": "step", "name": id, "kind": kind, "error": _described(Unknown())})
        # Calls are made before the next step begins, and nothing else runs during a transaction. A step_once that may
        # run in this exchange is not postponed, because it may not run in a later exchange.
        if not may_run and (
                (self._running == 0 or self._keeper) and any(op["op"] in ("call", "approve") for op in self._ops)
                or self._alone or kind == "tx" and (self._running > 0 or self._ops or self._may_run)
                or not self._has_room(RESERVED)):
            self._deferred = True
            return await self._park()
        if kind == "tx" and "token" not in self._state:
            raise Failure('step_tx needs "sql": true in domains.json.', details={"reason": "no_token"})
        self._alone = kind == "tx"
        if self._running == 0:
            self._keep_outside()
        self._running += 1
        task = asyncio.ensure_future(self._perform(kind, id, fn, kind == "once" and not entry))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        continues, result = await asyncio.shield(task)  # if the handler cancels this branch, the step still ends
        return result if continues else await self._park()

    async def _perform(self, kind: str, id: str, fn: Callable[..., Any], begins: bool) -> tuple[bool, Any]:
        """Runs a step. Returns whether the handler continues in this exchange, and the result of the step."""
        op: dict[str, Any] = {"op": "step", "name": id, "kind": kind}
        kept = False
        in_step.set(id)
        try:
            if begins and not await self._write(id, "began"):
                op = {"op": "began", "name": id}
            else:
                of = [self._next_step(id, self._effects)] if kind == "tx" else []
                op["result"] = _plain(f"The result of the step {id}", await _run(fn, *of))
                kept = kind != "tx" and await self._write(id, kind, op["result"])
        except NotConfigured as error:
            op["not_configured"] = _unconfigured(error)
        except (Exception, asyncio.CancelledError) as error:
            op["error"] = _described(error)
            if _is_transient(error):
                op["transient"] = True
                if after := int(_pause(error) * 1000):
                    op["after_ms"] = after
            elif not isinstance(error, Failure):
                log.exception("the step %s of call %s failed", id, self.id)
        finally:
            self._running -= 1
            self._changed()
        if kept:
            return True, op["result"]
        if op["op"] == "began":
            # If keep works but its time is over, the next exchange records the beginning.
            if self._keeper and (self._ops or self._steps > self._state["steps"]):
                self._deferred = True
            else:
                self._note(op)
        elif kind == "tx" and "result" in op:  # keep_tool_step has written it
            self._steps += 1
        else:
            if kind == "tx":
                self._effects.pop("db_writes", None)  # these rows were rolled back
            if effects := self._take_effects():
                op["effects"] = effects
            if not self._fits(size := len(_json(op))):
                for key in ("result", "effects", "not_configured"):
                    op.pop(key, None)
                op["error"] = _described(Failure(f"The outcome and the effects of the step take {size} bytes as JSON, "
                                                 "and do not fit into the answer.", "output_invalid"))
            self._note(op, reserved=True)
        return False, None

    async def _write(self, name: str, kind: str, result: Any = None) -> bool:
        """Calls keep to write a step into the journal, so that the handler continues in this request. Calls of keep
        run one after another. Returns false if the step must go into the answer instead."""
        async with self._writing:
            if self._keeper is None or self._closed or time.monotonic() > self._until:
                return False
            effects: dict[str, list[Any]] = {} if kind == "began" else self._take_effects()
            try:
                await _run(self._keeper, {**self._next_step(name, effects), "kind": kind}, result)
            except (Exception, asyncio.CancelledError):
                log.exception("keep failed for the step %s of call %s", name, self.id)
                self._keeper, self._unsure = None, True
                _merge_effects(self._effects, effects)
                return False
            self._steps += 1
            return True

    def _next_step(self, name: str, effects: dict[str, list[Any]]) -> dict[str, Any]:
        """Returns the argument of keep_tool_step."""
        return {"token": self._state["token"], "before": self._steps, "name": name, "effects": effects}

    def start(self, name: str, tool: str, input: Mapping[str, Any], **more: Any) -> Child[Any]:
        """Makes a call, once. The tool must be listed in `calls` of this tool's entry in the registry."""
        return self._make(name, {"op": "call", "tool": tool, "input": input, **more}, tool)

    def _make(self, name: str, op: dict[str, Any], tool: str) -> Child[Any]:
        """Makes a call, unless the journal has it."""
        child = Child[Any](self, self._unique(name), "call", tool)
        if not self._find(child.id, "call", tool):
            op = _plain(f"The input of {op['tool']}", {**op, "name": child.id}, code="validation_error")
            if self._opens():
                self._note(op)
            else:
                child._unmade = op
        return child

    async def run(self, name: str, tool: str, input: Mapping[str, Any]) -> Any:
        """Makes a call and waits for its result."""
        return await self.start(name, tool, input)

    def ask(self, name: str, text: str, schema: Optional[Mapping[str, Any]] = None, by: Optional[list[str]] = None,
            others: Optional[bool] = None, until: Optional[datetime] = None) -> Child[Any]:
        """Asks a person. Without a schema, the answer is a text."""
        asked = {"text": text, "schema": schema or {"type": "string"}, "by": by, "others": others,
                 "until": _time(until)}
        child = self.start(name, "wait.answer", {key: value for key, value in asked.items() if value is not None})
        child.field = "answer"
        return child

    def approve(self, name: str, tool: str, input: Mapping[str, Any], by: list[str], text: str = "",
                owner_too: bool = False, until: Optional[datetime] = None) -> Child[dict[str, Any]]:
        """Asks people to approve a call. A denial is a decision ({"approved": False, …}), not an error."""
        more = {"text": text, "owner_too": owner_too, "until": _time(until)}
        child = self._make(name, {"op": "approve", "tool": tool, "input": input, "by": by,
                                  **{key: value for key, value in more.items() if value}}, "wait.approval")
        child.asked = {"tool": tool, "input": input}
        return child

    def start_approved(self, name: str, approval: Child[dict[str, Any]]) -> Child[Any]:
        """Makes exactly the approved call. Awaiting it raises a Failure with the code not_allowed if it was denied."""
        return self.start(name, **(approval.asked or {}), approved=approval.id)

    def receive(self, name: str) -> Child[Any]:
        """Waits for an answer that somebody sends to this call under a name. The answer is not checked."""
        return Child(self, self._unique(name, "#"), "answer", field="value")

    async def sleep(self, name: str, limit: Union[float, timedelta]) -> None:
        """Pauses the call for some seconds. No process runs it in the meantime."""
        await self._wait([Child[None](self, self._unique(name), "time").within(limit)], 1)

    async def version(self, name: str, current: int) -> int:
        """Returns the version of the code that this call must run here; 0 if it passed here before there was one."""
        id = self._unique(name)
        entry = await self._found(id, "version")
        if entry:
            return entry["result"]
        if any(not self._entries[name].get("early") for name in self._unread()):  # an earlier run passed this place
            return 0
        if self._state["replay"]:
            return await self._stop({"stopped": f"the version {id}"})
        return await self._add({"op": "version", "name": id, "result": current})

    async def tools(self, name: str) -> list[dict[str, Any]]:
        """Returns the tools that this handler may call, as they were when it first asked."""
        id = self._unique(name)
        entry = await self._found(id, "step")
        if entry:
            return _outcome(entry)
        self._may_begin()
        if self._state["replay"]:
            return await self._stop({"stopped": f"the step {id}"})
        return await self._add({"op": "tools", "name": id})

    async def all(self, *children: Child[Any]) -> list[Any]:
        """Waits for all children, and returns their results. Raises the first error, in the order of the children."""
        await self._wait(children, len(children))
        return [self._result_of(child) for child in children]

    async def first(self, *children: Child[Any]) -> int:
        """Waits until one of the children has ended, and returns its index."""
        if not children:
            raise Failure("call.first needs something to wait for.")
        await self._wait(children, 1)
        ended = [self._entries.get(child.id, {}).get("ended") for child in children]
        return min((at, i) for i, at in enumerate(ended) if at is not None)[1]

    async def cleanup(self, fn: Callable[[], Awaitable[T]]) -> T:
        """Runs fn, whose operations may begin even after the call was cancelled."""
        before = cleaning.set(True)
        try:
            return await fn()
        finally:
            cleaning.reset(before)

    def _result_of(self, child: Child[Any]) -> Any:
        result = _outcome(self._entries[child.id])
        return result.get(child.field) if child.field and hasattr(result, "get") else result

    async def _wait(self, of: Iterable[Child[Any]], need: int) -> None:
        self._not_in_step("A wait")
        of = list({child.id: child for child in of}.values())
        need = min(need, len(of))
        ended = {child.id for child in of
                 if (self._find(child.id, child.kind, child.tool) or {}).get("ended") is not None}
        if self._end is not None:
            await self._park()
        name, cleanup = _cancel_name(need, of), self._cleans()
        if name in self._entries and not cleanup:
            raise Cancelled()
        missing = need - len(ended)
        if missing <= 0:
            return
        if self._state["replay"]:
            await self._stop({"stopped": "the wait for " + ", ".join(child.id for child in of)})
        if self._state["cancelled"] and not cleanup:
            await self._add({"op": "cancelled", "name": name})
        for child in of:
            if child._unmade and child.id not in ended:
                self._note(child._unmade)
            child._unmade = None
        self._waits.append({"need": missing, "cleanup": cleanup,
                            "for": [{"name": child.id, **child.limit} for child in of if child.id not in ended]})
        await self._park()

    async def _idle(self, task: "asyncio.Task[Any]") -> None:
        """Returns when no step runs and the handler cannot continue, after it has set the end of the exchange."""
        def parked() -> bool:
            return bool(self._ops or self._waits) or self._alone or self._deferred or self._end is not None

        before = -1
        while self._running > 0 or not task.done() and (before != self._changes or not parked()):
            before = self._changes
            if self._running > 0 or not parked():
                self._changed_event.clear()
                changed = asyncio.ensure_future(self._changed_event.wait())
                await asyncio.wait([changed] if task.done() else [changed, task],
                                   return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
            await asyncio.sleep(0.001)
        if task.done() or self._end is not None:
            return
        self._end = {}
        if (not self._waits or self._alone or self._deferred
                or any(op["op"] not in ("call", "approve") for op in self._ops)):
            return
        names = {one["name"]: one for wait in self._waits for one in wait["for"]}
        cleanup = {"cleanup": True} if any(wait["cleanup"] for wait in self._waits) else {}
        wait = {"need": 1 if len(self._waits) > 1 else self._waits[0]["need"], "for": list(names.values()), **cleanup}
        if not self._ops or len(_json(wait)) < 32_768:  # otherwise it fits into the next answer
            self._end = {"wait": wait}

    def _unread(self) -> list[str]:
        return [name for name in self._entries
                if name not in self._read and not (name.startswith("cancelled#") and " of " in name)]

    def _changed(self) -> None:
        self._changes += 1
        self._changed_event.set()

    def _fits(self, size: int) -> bool:
        """Reports whether so many bytes fit next to the room that is reserved for steps that run or may run."""
        return self._size + size < ROOM - RESERVED * (self._running + len(self._may_run))

    def _has_room(self, size: int) -> bool:
        """Reports whether the answer has room for one more operation."""
        return len(self._ops) + self._running + len(self._may_run) < MOST and self._fits(size)

    def _note(self, op: dict[str, Any], reserved: bool = False) -> None:
        """Adds an operation to the answer. If there is no room, the handler repeats it in the next exchange."""
        if self._closed:
            return
        if self._cleans():
            op = {**op, "cleanup": True}
        size = len(_json(op)) + 1
        if reserved or self._has_room(size):
            self._ops.append(op)
            self._size += size
        else:
            self._deferred = True
        self._changed()

    async def _park(self) -> Any:
        self._changed()
        # After 100 such operations, the task waits forever: a handler that catches everything cannot block the loop.
        if self._closed:
            self._late += 1
            if self._late <= 100:
                raise asyncio.CancelledError()
        await self._loop.create_future()

    async def _add(self, op: dict[str, Any]) -> Any:
        self._note(op)
        return await self._park()

    async def _stop(self, end: dict[str, Any]) -> Any:
        self._end = self._end or end
        return await self._park()

    def _opens(self) -> bool:
        """Reports whether new operations may begin."""
        return not self._state["cancelled"] or self._cleans()

    def _cleans(self) -> bool:
        """Reports whether the operation belongs to a clean-up after a cancellation."""
        return bool(self._state["cancelled"]) and cleaning.get()

    def _not_in_step(self, name: str) -> None:
        if (step := in_step.get()) is not None:
            raise Failure(f"{name} was begun inside of the step {step}: begin it before the step, or after.",
                          details={"reason": "step_in_step"})

    def _keep_outside(self) -> None:
        _merge_effects(self._outside, self._take_effects())

    def _may_begin(self) -> None:
        if not self._opens():
            raise Cancelled()

    def _unique(self, name: Any, prefix: str = "") -> str:
        self._not_in_step(str(name))
        if (not isinstance(name, str) or not 1 <= len(name) <= 200 or "#" in name or "\0" in name
                or any("\ud800" <= c <= "\udfff" for c in name)):
            raise Failure(f"A name has 1 to 200 characters, and no # among them: "
                          f"{json.dumps(name, ensure_ascii=False, default=str)} cannot be one.",
                          details={"reason": "step_name"})
        n = self._used[prefix + name] = self._used.get(prefix + name, 0) + 1
        id = prefix + (f"{name}#{n}" if n > 1 else name)
        self._read.add(id)
        return id

    async def _found(self, id: str, kind: str) -> Optional[dict[str, Any]]:
        entry = self._find(id, kind)
        return entry if self._end is None and not self._closed else await self._park()

    def _find(self, id: str, kind: str, tool: Optional[str] = None) -> Optional[dict[str, Any]]:
        """Returns the entry of an operation. If another operation has the entry with this name, the exchange
        ends."""
        entry = self._entries.get(id)
        if entry and (entry["kind"] != kind or tool is not None and entry.get("tool") != tool):
            has = f"a call to {entry['tool']}" if entry.get("tool") else f"an entry of the kind {entry['kind']}"
            wants = f"a call to {tool}" if tool else f"one of the kind {kind}"
            self._end = self._end or {"misfit": {"name": id, "message": f"The journal has {has} under this name, and "
                                                 f"the handler asks for {wants}."}}
            self._changed()
        return entry


def _cancel_name(need: int, of: list[Child[Any]]) -> str:
    """Returns the name of the journal entry for a wait that a cancellation ended."""
    names = json.dumps([child.id for child in of], ensure_ascii=False, separators=(",", ":"))
    name = f"cancelled#{need} of {names}"
    if len(name) <= 200:
        return name
    value = 14695981039346656037
    for byte in name.encode():
        value = (value ^ byte) * 1099511628211 % 2**64
    return f"cancelled#{need} of {len(of)}: {value:x}"


def _outcome(entry: Mapping[str, Any]) -> Any:
    """Returns the result of an entry that has ended, or raises its error."""
    if entry.get("timed_out") and entry["kind"] != "time":
        raise Timeout()
    if missing := entry.get("not_configured"):
        raise NotConfigured(missing["reason"], missing["required_env"], missing["next_steps"])
    if not (error := entry.get("error")):
        return entry.get("result")
    if error["error_code"] == "outcome_unknown" and entry["kind"] == "once":
        raise Unknown(error["message"])
    raise Failure(error["message"], error["error_code"], error.get("details"))


def _merge_effects(to: dict[str, list[Any]], effects: dict[str, list[Any]]) -> None:
    for kind, all in effects.items():
        to.setdefault(kind, []).extend(all)


async def _run(fn: Callable[..., Any], *of: Any) -> Any:
    """Runs an async function in the event loop, and a plain function in a thread."""
    def in_thread() -> Any:
        try:
            return fn(*of)
        except StopIteration as error:  # a future cannot have it
            raise RuntimeError("StopIteration") from error

    result = await fn(*of) if inspect.iscoroutinefunction(fn) else await asyncio.to_thread(in_thread)
    return await result if inspect.isawaitable(result) else result


def run_in_new_loop(of: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, but does not wait for tasks that ignore their cancellation."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(of)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=0.1))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def serve(*, secret: Union[str, list[str]], tools: Mapping[str, Callable[..., Any]],
          keep: Optional[Callable[[dict[str, Any], Any], Any]] = None) -> "Service":
    """Serves tools. secret is the value of the variable that secret_env in domains.json names. While you change the
    secret, pass the old and the new one. keep(step, result) runs `select keep_tool_step(step, result)`. With it, one
    request can end many steps."""
    return Service([secret] if isinstance(secret, str) else secret, tools, keep)


class Service:
    """An ASGI application. `wsgi` is the same for WSGI, and `run` serves with Python's own server."""

    def __init__(self, secrets: list[str], tools: Mapping[str, Callable[..., Any]],
                 keep: Optional[Callable[[dict[str, Any], Any], Any]] = None) -> None:
        self._keys = [base64.b64decode(secret.removeprefix("whsec_")) for secret in secrets]
        if not self._keys or any(len(key) < 24 for key in self._keys):
            raise ValueError("The secret must be whsec_ followed by at least 24 bytes in base64.")
        self._tools, self._keep = dict(tools), keep

    def _is_signed(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Verifies the signature of a request, according to the specification of Standard Webhooks."""
        id, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        if not id or not at.isascii() or not at.isdigit() or len(at) > 12 or abs(time.time() - int(at)) > TOLERANCE:
            return False
        given = [part[3:] for part in headers.get("webhook-signature", "").split(" ") if part.startswith("v1,")]
        for key in self._keys:
            right = base64.b64encode(hmac.new(key, f"{id}.{at}.".encode() + body, hashlib.sha256).digest()).decode()
            if any(hmac.compare_digest(right.encode(), one.encode(errors="replace")) for one in given):
                return True
        return False

    async def answer(self, method: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Answers one request. The headers have names in lower case."""
        status, said, more = await self._answer(method, headers, body)
        return status, {"content-type": "application/json", **more}, _json(said)

    async def _answer(self, method: str, headers: Mapping[str, str],
                      body: bytes) -> tuple[int, dict[str, Any], dict[str, str]]:
        if method != "POST":
            return 405, {"error": "Only POST is served here."}, {}
        if len(body) > LARGEST:
            return 413, {"error": "The request is too large."}, {}
        if not self._is_signed(headers, body):
            return 401, {"error": "The signature does not fit: the worker and the service need the same secret."}, {}
        said = json.loads(body)
        if self._keep and "gem" in said and "token" not in said["exchange"] and not said["exchange"]["replay"]:
            log.warning('keep needs "sql": true in domains.json. Without it, each step takes a request.')
        return await self.said(said)

    async def said(self, said: Mapping[str, Any]) -> tuple[int, dict[str, Any], dict[str, str]]:
        """Answers a request without checking its signature. gem_testing calls it directly."""
        name = said["call"]["tool"]
        handler = self._tools.get(name)
        if handler is None:
            return 501, {"reason": f"This service has no tool {name}."}, {}
        is_durable = hasattr(handler, "__gem_durable__")
        if is_durable != ("gem" in said):
            return 404, {"error": f"{name} is {'' if is_durable else 'not '}durable in the service, but "
                                  f"it is {'not ' if is_durable else ''}listed under durable in domains.json."}, {}
        return await (_exchange(handler, said, self._keep) if is_durable else _once(handler, said))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                event = (await receive())["type"]
                await send({"type": event + ".complete"})
                if event == "lifespan.shutdown":
                    return
        if scope["type"] != "http":
            raise ValueError(f"{scope['type']} is not served here")
        chunks, size, more = list[bytes](), 0, True
        while more and size <= LARGEST:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            chunks.append(message.get("body", b""))
            size, more = size + len(chunks[-1]), message.get("more_body", False)
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        status, headers, answer = await self.answer(scope["method"], headers, b"".join(chunks))
        await send({"type": "http.response.start", "status": status,
                    "headers": [(key.encode(), value.encode()) for key, value in headers.items()]})
        await send({"type": "http.response.body", "body": answer})

    def wsgi(self, environ: Mapping[str, Any], start_response: Any) -> list[bytes]:
        from http import HTTPStatus
        size = environ.get("CONTENT_LENGTH") or ""
        known = int(size) if size.isascii() and size.isdigit() else 0
        if environ.get("wsgi.input_terminated"):  # the body may have chunks and no length
            known = LARGEST + 1
        body = environ["wsgi.input"].read(min(known, LARGEST + 1))
        headers = {key[5:].replace("_", "-").lower(): value for key, value in environ.items() if key[:5] == "HTTP_"}
        status, headers, answer = run_in_new_loop(self.answer(environ["REQUEST_METHOD"], headers, body))
        start_response(f"{status} {HTTPStatus(status).phrase}",
                       [*headers.items(), ("content-length", str(len(answer)))])
        return [answer]

    def run(self, port: int, host: str = "127.0.0.1") -> None:
        """Serves until the program ends, on 127.0.0.1 unless a host is given."""
        self.server(port, host).serve_forever()

    def server(self, port: int, host: str = "127.0.0.1") -> Any:
        """Returns a server of the standard library, which serve_forever starts."""
        from socketserver import ThreadingMixIn
        from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

        class Server(ThreadingMixIn, WSGIServer):
            daemon_threads = True

        class Quiet(WSGIRequestHandler):
            timeout = 60  # seconds for which a connection may be idle

            def handle(self) -> None:
                try:
                    super().handle()
                except TimeoutError:
                    pass

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return make_server(host, port, self.wsgi, Server, Quiet)


def _after(error: BaseException) -> dict[str, str]:
    return {"retry-after": str(math.ceil(after))} if (after := _pause(error)) else {}


async def _once(handler: Callable[..., Any], said: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Serves a plain tool: `def handler(input, call)`, plain or async."""
    call = Call(said)
    try:
        result, effects = await _run(handler, said["input"], call), call._take_effects()
        room = LARGEST_RESULT - 30 - len(_json(effects))  # the worker reads 1 MiB of the answer of a plain tool
        return 200, {"result": _plain(f"The result of {call.tool}", result, room), "effects": effects}, {}
    except NotConfigured as error:
        return 501, _unconfigured(error), {}
    except Exception as error:
        if _is_transient(error):
            return 503, {"error": str(error)[:LONGEST_MESSAGE]}, _after(error)
        if not isinstance(error, Failure):
            log.exception("call %s failed", call.id)
        return 422, {"error": _described(error)}, {}


async def _exchange(handler: Callable[..., Any], said: Any,
                    keep: Optional[Callable[..., Any]]) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Runs a durable handler to the end of the journal, and one operation further."""
    call = DurableCall(said, keep)
    task = asyncio.ensure_future(handler(call, said["input"]))
    try:
        await call._idle(task)
    finally:
        call._closed = True
        for one in (task, *call._tasks):
            one.cancel()
    answer: dict[str, Any] = {"gem": 1, "steps": call._steps, "ops": call._ops}
    if call._unsure:
        answer["unsure"] = True
    if not task.done() or call._end is not None:
        await asyncio.wait([task], timeout=1)  # it may ignore that it is cancelled
        setattr(task, "_log_destroy_pending", False)
        unread = {"unread": call._unread()} if "stopped" in (call._end or {}) else {}
        return 200, {**answer, **(call._end or {}), **unread}, {}
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error is not None and _is_transient(error):
        return (200, answer, {}) if call._ops else (503, {"error": str(error)[:LONGEST_MESSAGE]}, _after(error))
    # calls that nobody waits for would be cancelled at once
    answer["ops"] = [op for op in call._ops if op["op"] not in ("call", "approve")]
    call._keep_outside()
    if call._outside:
        answer["effects"] = call._outside
    answer["unread"] = call._unread()
    room = ROOM - len(_json(answer))
    try:
        if error is None:
            answer["result"] = _plain(f"The result of {call.tool}", task.result(), room)
    except Failure as failure:
        error = failure
    if isinstance(error, NotConfigured):
        answer["not_configured"] = _unconfigured(error)
    elif error is not None:
        answer["error"] = _described(error, room)
        if not isinstance(error, Failure):
            log.error("call %s failed", call.id, exc_info=error)
    return 200, answer, {}
