"""`breakpoint()` in methods: the method waits, its node goes on, and nothing is traced after it."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.lowlevel

from actors import Actor, method
from actors.errors import CallTimeoutError
from runtime import Node, open_node
from runtime.aio import AsyncioActor
from runtime.hosting import breakpoints
from runtime.node import internals_of
from runtime.observation.debug_service import debug_of
from tests.loaders import SourceLoader, generated, without_entry


class Shop(Actor):
    """Stops in all ways."""

    @method
    async def sell(self, count: int) -> int:
        """Stop on the event loop, in the first step."""
        breakpoint()
        count += 1
        return count

    @method
    async def wait(self, count: int) -> int:
        """Stop on the event loop, after a wait."""
        await trio.lowlevel.checkpoint()
        breakpoint()
        await trio.lowlevel.checkpoint()
        return count

    @method
    def bake(self, count: int) -> int:
        """Stop in a thread."""
        breakpoint()
        count += 1
        return count

    @method
    async def last(self, count: int) -> None:
        """Stop in the last line."""
        breakpoint()

    @method
    async def trace(self) -> object:
        """What traces the event loop."""
        return sys.gettrace()

    @method
    async def own(self, count: int) -> int:
        """Stop in a task of its own."""
        found: list[int] = []
        ended = trio.Event()
        self.nursery.start_soon(self._stop, count, found, ended)
        await ended.wait()
        return found[0]

    @method
    async def inner(self, count: int) -> int:
        """Stop in a task of the method's."""
        found: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop, count, found, trio.Event())
            await trio.lowlevel.checkpoint()
        return found[0]

    async def _stop(self, count: int, found: list[int], ended: trio.Event) -> None:
        breakpoint()
        count += 1
        found.append(count)
        ended.set()


class GeneratedShop(Actor):
    """Stops in code whose source only a loader has."""

    @method
    async def sell(self, count: int) -> int:
        """Stop in it."""
        space = generated(SourceLoader(without_entry), STOPS)
        return int(await space["sell"](count))


STOPS = "async def sell(count):\n    breakpoint()\n    count += 1\n    return count\n"


class AsyncioShop(AsyncioActor):
    """Stops under asyncio."""

    @method
    async def sell(self, count: int) -> int:
        """Stop in the method."""
        await asyncio.sleep(0)
        breakpoint()
        count += 1
        await asyncio.sleep(0)
        return count

    @method
    async def own(self, count: int) -> int:
        """Stop in a task of its own."""
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.nursery.start_soon(self._stop, count, found)
        return await found

    async def _stop(self, count: int, found: asyncio.Future[int]) -> None:
        breakpoint()
        count += 1
        found.set_result(count)

    @method
    async def trace(self) -> object:
        """What traces the loop of asyncio."""
        return sys.gettrace()


class Debugger:
    """Types for the user."""

    def __init__(self, node: Node) -> None:
        self.service: Any = debug_of(internals_of(node).endpoint, node.name, node.incarnation)
        self.number = 0

    async def attach(self, actor: str) -> None:
        while not (found := (await self.service.failures(actor))["breakpoints"]):
            pass
        self.number = found[0]["number"]

    async def type(self, line: str | None) -> dict[str, str]:
        answer: dict[str, str] = await self.service.command(self.number, line, 10.0)
        assert not answer["problem"]
        return answer


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with open_node("one", secret="a secret of these tests", debuggable=True) as opened:
        yield opened


@pytest.mark.parametrize("name", ["sell", "wait", "bake"])
async def test_one_method_waits_and_all_others_run(node: Node, name: str) -> None:
    shop = await node.options(name="shop").spawn(Shop)
    other = await node.options(name="other").spawn(Shop)
    debugger = Debugger(node)
    async with trio.open_nursery() as nursery:

        async def call() -> None:
            assert await getattr(shop, name)(1) == (8 if name == "wait" else 9)

        nursery.start_soon(call)
        await debugger.attach("shop")
        for _ in range(3):
            assert await other.trace() is None
        assert name in (await debugger.type(None))["text"]
        assert (await debugger.type("p count"))["text"] == "1\n"
        await debugger.type("!count = 8")
        assert (await debugger.type("next"))["state"] == "waiting"
        # The end of the method ends the debugger, whether it was let go or stepped out of.
        while (await debugger.type("next"))["state"] != "ended":
            assert await other.trace() is None
    assert await shop.trace() is None


@pytest.mark.parametrize("typed", ["next", "step", "until", "return"])
@pytest.mark.parametrize("name", ["sell", "wait", "bake", "last", "own", "inner"])
async def test_who_steps_past_the_end_of_a_method_leaves_the_event_loop_alone(
    node: Node, name: str, typed: str
) -> None:
    shop = await node.options(name="shop").spawn(Shop)
    debugger = Debugger(node)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(getattr(shop, name), 1)
            await debugger.attach("shop")
            answer = await debugger.type(None)
            assert ("-> breakpoint()" in answer["text"]) == (
                name == "last" or sys.version_info >= (3, 13)
            )
            while (answer := await debugger.type(typed))["state"] != "ended":
                # Neither trio between two steps of the task, nor what the runtime calls after it.
                assert "typing.py" not in answer["text"]
        assert await shop.trace() is None


@pytest.mark.parametrize("name", ["own", "inner"])
async def test_tasks_that_methods_start_wait_like_methods(node: Node, name: str) -> None:
    shop = await node.options(name="shop").spawn(Shop)
    other = await node.options(name="other").spawn(Shop)
    debugger = Debugger(node)
    async with trio.open_nursery() as nursery:

        async def call() -> None:
            assert await getattr(shop, name)(1) == 9

        nursery.start_soon(call)
        await debugger.attach("shop")
        assert await other.trace() is None
        assert "_stop" in (await debugger.type(None))["text"]
        assert (await debugger.type("p count"))["text"] == "1\n"
        await debugger.type("!count = 8")
        # The end of the task ends the debugger.
        while (await debugger.type("next"))["state"] != "ended":
            assert await other.trace() is None
    assert await shop.trace() is None
    with pytest.raises(CallTimeoutError):
        await getattr(shop.options(timeout=0.2), name)(1)
    if name == "own":
        await debugger.attach("shop")
        # A task of the actor's own outlives the call, and ends with the actor.
        await node.stop(shop)
    while (await debugger.service.failures("shop"))["breakpoints"]:
        pass


@pytest.mark.parametrize("name", ["sell", "own"])
async def test_an_actor_under_asyncio_waits_with_its_loop(node: Node, name: str) -> None:
    shop = await node.options(name="shop").spawn(AsyncioShop)
    other = await node.options(name="other").spawn(AsyncioShop)
    debugger = Debugger(node)
    async with trio.open_nursery() as nursery:

        async def call() -> None:
            assert await getattr(shop, name)(1) == 9

        nursery.start_soon(call)
        await debugger.attach("shop")
        assert await other.trace() is None
        opening = (await debugger.type(None))["text"]
        # Since 3.13 pdb stops in the line that has called it.
        assert ("-> breakpoint()" if sys.version_info >= (3, 13) else "-> count += 1") in opening
        assert (await debugger.type("p count"))["text"] == "1\n"
        await debugger.type("!count = 8")
        assert (await debugger.type("next"))["state"] == "waiting"
        assert (await debugger.type("c"))["state"] == "ended"
    assert await shop.trace() is None
    with pytest.raises(CallTimeoutError):
        await getattr(shop.options(timeout=0.2), name)(1)
    if name == "own":
        await debugger.attach("shop")
        assert (await debugger.type("c"))["state"] == "ended"
    while (await debugger.service.failures("shop"))["breakpoints"]:
        pass


async def test_a_deadline_ends_a_call_that_waits_in_a_debugger(node: Node) -> None:
    shop = await node.options(name="shop").spawn(Shop)
    for name in ("sell", "wait", "bake"):
        with pytest.raises(CallTimeoutError):
            await getattr(shop.options(timeout=0.2), name)(1)
        while (await Debugger(node).service.failures("shop"))["breakpoints"]:
            pass
    assert await shop.trace() is None


async def test_what_cannot_wait_is_logged_and_goes_on(
    node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    shop = await node.options(name="shop").spawn(Shop)
    monkeypatch.setattr(breakpoints, "MOST_DEBUGGERS", 0)
    assert await shop.sell(1) == 2
    assert "0 debuggers are open" in caplog.text
    found = internals_of(node).host.breakpoints
    assert found is not None
    monkeypatch.setattr(found, "_greenback", None)
    assert await shop.sell(1) == 2
    assert "install the extra `debug`" in caplog.text


async def test_a_debugger_goes_on_where_a_loader_has_no_source(node: Node) -> None:
    shop = await node.options(name="shop").spawn(GeneratedShop)
    debugger, answers = Debugger(node), []

    async def sell() -> None:
        answers.append(await shop.sell(1))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sell)
            await debugger.attach("shop")
            assert ")sell()" in (await debugger.type(None))["text"]
            assert "*** KeyError: 'generated'" in (await debugger.type("list"))["text"]
            assert (await debugger.type("p count"))["text"].strip() == "1"
            await debugger.type("continue")
    assert answers == [2]


async def test_breakpoints_elsewhere_are_what_they_were() -> None:
    before = sys.breakpointhook
    called: list[tuple[object, ...]] = []
    sys.breakpointhook = lambda *args: called.append(args)
    try:
        ours = sys.breakpointhook
        async with open_node("one", secret="a secret of these tests", debuggable=True):
            breakpoint("outside of an actor")
        assert called == [("outside of an actor",)]
        assert sys.breakpointhook is ours
        async with open_node("one", secret="a secret of these tests") as plain:
            shop = await plain.options(name="shop").spawn(Shop)
            assert await shop.sell(1) == 2
        assert len(called) == 2
    finally:
        sys.breakpointhook = before
