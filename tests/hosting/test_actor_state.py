"""What actors say of their state when they are inspected: in their turn, bounded in time and size,
and without harm, whatever the hook does.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from actors import Actor, method
from runtime import Node, open_node
from runtime.aio import AsyncioActor
from runtime.environment import SystemEnvironment
from runtime.hosting.actor_state import MOST_STATE
from runtime.hosting.bounded_text import bounded_text
from runtime.node import internals_of
from runtime.observation.inspection_service import inspection_of
from runtime.testing import Platform
from runtime.timings import Timings
from tests.waiting import until


class Counter(Actor):
    """Says what it counts; `mode` makes its hook misbehave."""

    def __init__(self, mode: str = "") -> None:
        self.mode = mode
        self.value = 0
        self.inspected = 0
        self.inside = False

    @method
    async def add(self) -> bool:
        """Count one; True if the hook ran meanwhile."""
        self.value += 1
        return self.inside

    @method
    async def stay(self) -> None:
        """Keep the turn."""
        await trio.sleep_forever()

    async def on_inspect(self) -> object:
        self.inspected += 1
        self.inside = True
        try:
            if self.mode == "exit":
                raise SystemExit("gone")
            if self.mode == "raise":
                raise ValueError("no\nstate")
            if self.mode == "wait":
                await trio.sleep_forever()
            if self.mode == "large":
                rows: dict[object, object] = dict.fromkeys(range(999))
                return {"rows": list(range(10**6)), "text": "x" * 10**7} | rows
            if self.mode == "hostile":
                return {"one": Hostile(), "value": 1}
            await trio.lowlevel.checkpoint()
            return {"value": self.value, "mode": self.mode}
        finally:
            self.inside = False


class Hostile:
    """Cannot be shown."""

    def __repr__(self) -> str:
        raise SystemExit("no repr")


class Plain(Actor):
    """Its hook runs in a thread, until it is let go."""

    go = threading.Event()
    calls = 0

    @method
    async def touch(self) -> int:
        """Answer."""
        return 1

    def on_inspect(self) -> object:
        type(self).calls += 1
        self.go.wait()
        return f"in {threading.current_thread().name}"


class Silent(Actor):
    """Has no hook."""


class Asyncio(AsyncioActor):
    """Its hook runs under asyncio."""

    async def on_inspect(self) -> object:
        import asyncio

        await asyncio.sleep(0)
        return "under asyncio"


@pytest.fixture
def environment() -> SystemEnvironment:
    """That of the node, in which a busy machine costs no answer: a test may change its timings."""
    return SystemEnvironment(Timings(inspection=30))


@pytest.fixture
async def node(environment: SystemEnvironment) -> AsyncIterator[Node]:
    platform = Platform(environment=environment)
    async with open_node("one", secret="a secret of these tests", platform=platform) as opened:
        yield opened


async def state_of(node: Node, name: str) -> Any:
    return await inspection_of(internals_of(node).endpoint, node.name, node.incarnation).state(name)


async def test_an_actor_says_what_it_likes_of_its_state(node: Node) -> None:
    counter = await node.options(name="counter").spawn(Counter)
    await counter.add()
    for _ in range(2):
        found = await state_of(node, "counter")
        assert found == {"text": "'value': 1\n'mode': ''", "problem": "", "is_cut": False}
    rows: Any = node.status()["actors"]
    assert rows[0]["served"] == 1, "an inspection is no call"
    await node.options(name="silent").spawn(Silent)
    assert await state_of(node, "silent") == {"text": None, "problem": "", "is_cut": False}
    assert await state_of(node, "nobody") is None
    await node.options(name="asyncio").spawn(Asyncio)
    assert (await state_of(node, "asyncio"))["text"] == "under asyncio"


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("exit", "on_inspect raised SystemExit: gone"),
        ("raise", "on_inspect raised ValueError: no"),
        ("wait", "on_inspect did not return within"),
    ],
)
async def test_whatever_the_hook_does_is_shown_and_harms_nothing(
    node: Node, mode: str, problem: str, environment: SystemEnvironment
) -> None:
    environment.timings = Timings(inspection=0.05)
    counter = await node.options(name="counter").spawn(Counter, mode)
    found = await state_of(node, "counter")
    assert found["text"] is None
    assert problem in found["problem"]
    assert await counter.add() is False
    internals_of(node).check_invariants()


async def test_a_large_state_is_cut_and_what_cannot_be_shown_is_named(node: Node) -> None:
    await node.options(name="large").spawn(Counter, "large")
    found = await state_of(node, "large")
    assert found["text"].startswith("'rows': [0, 1, 2")
    assert len(found["text"].encode()) <= MOST_STATE
    assert "'text': 'xxx" in found["text"]
    assert "... and 951 more" in found["text"]
    await node.options(name="hostile").spawn(Counter, "hostile")
    text = (await state_of(node, "hostile"))["text"]
    assert text == "'one': <Hostile whose repr raised SystemExit>\n'value': 1"


async def test_a_busy_actor_is_not_disturbed_and_says_what_it_runs(node: Node) -> None:
    counter = await node.options(name="counter").spawn(Counter)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(counter.stay)
        while (found := await state_of(node, "counter"))["text"] is not None:
            pass
        assert found["problem"].startswith("busy: it runs stay")
        nursery.cancel_scope.cancel()
    while (await state_of(node, "counter"))["text"] is None:
        pass


async def test_the_hook_never_runs_beside_a_method(node: Node) -> None:
    counter = await node.options(name="counter").spawn(Counter)
    meanwhile: list[bool] = []

    async def add() -> None:
        for _ in range(200):
            meanwhile.append(await counter.add())

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(add)
        texts = [(await state_of(node, "counter"))["text"] for _ in range(20)]
    assert any(texts), "it comes before the calls that wait"
    assert not any(meanwhile)
    assert len(meanwhile) == 1000


async def test_a_plain_hook_that_blocks_is_left_behind_once(
    node: Node, environment: SystemEnvironment
) -> None:
    environment.timings = Timings(inspection=0.05)
    plain = await node.options(name="plain").spawn(Plain)
    Plain.go.clear()
    Plain.calls = 0
    try:
        assert "did not return within" in (await state_of(node, "plain"))["problem"]
        # Its thread may not run yet.
        await until(lambda: Plain.calls, "the hook runs")
        assert "has not returned" in (await state_of(node, "plain"))["problem"]
        assert Plain.calls == 1
        assert await plain.touch() == 1, "the turn has ended"
    finally:
        Plain.go.set()
    environment.timings = Timings(inspection=10)
    with trio.fail_after(60):
        while (found := await state_of(node, "plain"))["text"] is None:
            pass
    assert found["text"].startswith("in ")


@pytest.mark.cluster
async def test_an_isolated_actor_says_it_from_its_process(node: Node) -> None:
    options = node.options(name="apart", isolation="process")
    with trio.fail_after(60):
        counter = await options.spawn(Counter)
        await counter.add()
        assert (await state_of(node, "apart"))["text"] == "'value': 1\n'mode': ''"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(counter.stay)
            while (found := await state_of(node, "apart"))["text"] is not None:
                pass
            assert found["problem"].startswith("busy: it runs stay")
            nursery.cancel_scope.cancel()


def test_text_of_any_value_is_bounded() -> None:
    class Endless(list[int]):
        """No list of the interpreter: its own code is not asked for its items."""

        def __iter__(self) -> Any:
            raise AssertionError

    nested: list[object] = []
    for _ in range(1000):
        nested = [nested, nested]
    many = range(10**5)
    # Written in full, the first one would have no end.
    for value in (nested, 10**100_000, b"x" * 10**7, set(many), dict.fromkeys(many)):
        assert len(bounded_text(value, 1000)) <= 1003
    assert bounded_text([], 10) == "[]"
    assert bounded_text("a\nb", 10) == "a\nb"
    assert bounded_text((1, "a"), 100) == "(1, 'a')"
    assert bounded_text(Endless(), 100) == "[]"
