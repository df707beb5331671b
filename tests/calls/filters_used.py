"""Filters and actors of the tests of filters: importable in the processes of their clusters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar

import trio

from actors import Actor, Call, Filter, Next, call_context, method
from actors.errors import (
    FilterFailedError,
    FilterRefusedError,
    NotExecutedError,
    OutcomeUnknownError,
    RemoteError,
)

ANOTHER = Call(side="client", kind="call", actor="x", class_path="", method="y", node="", epoch=0)


class WordlessError(NotExecutedError):
    """A refusal of a class of users, without a text."""

    def __init__(self) -> None:
        # Not that of the class above.
        pass

    def __str__(self) -> str:
        raise ValueError("no text")


RAISED: dict[str, BaseException] = {
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt("by no signal"),
    "generator exit": GeneratorExit(),
    "group": BaseExceptionGroup("several", [SystemExit(3)]),
    "stop": StopAsyncIteration(),
    "not executed": NotExecutedError("of another call"),
    "unknown": OutcomeUnknownError("of another call"),
    "remote": RemoteError("of another call"),
    "refused": FilterRefusedError("of another call"),
    "failed": FilterFailedError("of another call"),
    "wordless": WordlessError(),
}
"""What filters raise, by the last part of what they are asked to do."""


class Recorder(Filter):
    """Notes what it sees, and what the calls give."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes
        self.calls: list[Call] = []

    async def call(self, next: Next, call: Call) -> object:
        self.calls.append(call)
        self.notes.append(f"{self.name} {call.side} {call.kind} {call.method}")
        try:
            value = await next(call)
        except BaseException as error:
            self.notes.append(f"{self.name} {call.side} {type(error).__name__}")
            raise
        self.notes.append(f"{self.name} {call.side} {value!r}")
        return value


class Behaviour(Filter):
    """Does what the call context asks for, on the side that it names."""

    async def call(self, next: Next, call: Call) -> object:
        if call.context.get("side") != call.side:
            return await next(call)
        do = str(call.context.get("do"))
        match do:
            case "raise before":
                raise ValueError("before")
            case "refuse":
                raise NotExecutedError("this tenant may not")
            case "exit before":
                raise SystemExit(3)
            case "interrupt before":
                raise KeyboardInterrupt("by no signal")
            case "raise after":
                await next(call)
                raise ValueError("after")
            case "exit after":
                await next(call)
                raise SystemExit(3)
            case "open nursery":
                nursery = await trio.open_nursery().__aenter__()
                nursery.start_soon(trio.sleep_forever)
                return await next(call)
            case "nursery":
                return await _in_nursery(next, call)
            case "system task":
                return await _in_system_task(next, call)
            case "translate":
                try:
                    return await next(call)
                except LookupError:
                    raise KeyError("translated") from None
            case "twice":
                await next(call)
                return await next(call)
            case "another":
                return await next(
                    Call(
                        side="client",
                        kind="call",
                        actor="x",
                        class_path="",
                        method="y",
                        node="",
                        epoch=0,
                    )
                )
            case "never":
                await trio.sleep_forever()
            case "unawaited":
                return next(call)
            case "answer":
                return 42
            case "answer a function":
                return len
            case _ if do.startswith("before: "):
                raise RAISED[do.removeprefix("before: ")]
            case _ if do.startswith("after: "):
                await next(call)
                raise RAISED[do.removeprefix("after: ")]
            case _ if do.startswith("instead: "):
                try:
                    return await next(call)
                except Exception:
                    raise RAISED[do.removeprefix("instead: ")] from None
            case "late":
                value = await next(call)
                await trio.sleep_forever()
                return value
            case _:
                return await next(call)
        raise AssertionError("not reached")


async def _in_nursery(next: Next, call: Call) -> object:
    values: list[object] = []

    async def go_on() -> None:
        values.append(await next(call))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.lowlevel.checkpoint)
        nursery.start_soon(go_on)
    return values[0]


async def _in_system_task(next: Next, call: Call) -> object:
    """Go on in a task that is in no nursery of the filter."""
    ended, values, errors = trio.Event(), list[object](), list[RuntimeError]()

    async def go_on() -> None:
        try:
            values.append(await next(call))
        except RuntimeError as error:
            errors.append(error)
        ended.set()

    trio.lowlevel.spawn_system_task(go_on)
    await ended.wait()
    if errors:
        raise errors.pop()
    return values[0]


CLASS_NOTES: list[str] = []


class Adder(Actor):
    """Counts its runs."""

    def __init__(self) -> None:
        self.runs = 0

    @method
    async def add(self, amount: int, *, more: int = 0) -> int:
        self.runs += 1
        return amount + more

    @method
    async def end_itself(self) -> None:
        self.runs += 1
        await self.node.stop(await self.node.lookup(self.name, Adder))

    @method(idempotent=True)
    async def add_again(self, amount: int) -> int:
        return amount

    @method
    def add_in_thread(self, amount: int) -> int:
        self.runs += 1
        return amount

    @method
    async def fail(self) -> None:
        self.runs += 1
        raise LookupError("not here")

    @method
    async def fail_with(self, what: str) -> None:
        self.runs += 1
        raise RAISED[what]

    @method
    async def failing_numbers(self) -> AsyncIterator[int]:
        self.runs += 1
        yield 1
        raise LookupError("not here")

    @method
    async def count(self) -> int:
        return self.runs

    @method
    async def numbers(self, most: int) -> AsyncIterator[int]:
        self.runs += 1
        for number in range(most):
            yield number

    @method
    async def tell(self) -> str:
        return call_context.get().text


class Audited(Adder):
    """Has a filter of its own."""

    call_filters: ClassVar = (Recorder("class", CLASS_NOTES),)


class _Serving(Recorder):
    sides = ("server",)


class Guarded(Actor):
    """Has a filter of its own where it runs."""

    recorder: ClassVar[Recorder] = _Serving("class", [])
    call_filters = (recorder,)

    @method
    async def add(self, amount: int) -> int:
        return amount
