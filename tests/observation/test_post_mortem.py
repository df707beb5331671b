"""Post-mortems: what a node keeps of the failures of its actors, bounded, whatever the values do;
and debuggers of their frames on those nodes that allow it.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import trio

from actors import Actor, method
from actors.errors import ActorStartError, UnderstudyError
from actors.peers import PeerRole, VerifiedPeer
from runtime import Node, open_node
from runtime.calls.rights import service_refusal
from runtime.environment import SystemEnvironment
from runtime.hosting import post_mortem
from runtime.hosting.debug_conversation import MOST_OUTPUT
from runtime.hosting.post_mortem import (
    MOST_FAILURES,
    MOST_FRAMES,
    MOST_VARIABLES,
    describe_frames,
    user_frames,
)
from runtime.node import internals_of
from runtime.observation.debug_service import debug_of
from runtime.testing import Platform
from runtime.timings import Timings
from runtime.user_errors import traceback_of
from tests.loaders import HARMFUL, generated

GO = threading.Event()


class Stubborn:
    """Its text does not come."""

    def __repr__(self) -> str:
        GO.wait()
        return "at last"


class Hostile:
    """Cannot be shown."""

    def __repr__(self) -> str:
        raise SystemExit("no repr")


class Shop(Actor):
    """Fails in many ways."""

    def __init__(self, good: bool = True) -> None:
        if not good:
            raise ValueError("not good")

    @method
    async def sell(self, what: str, count: int) -> int:
        """Fail in a function below."""
        hostile = Hostile()
        return self.price(what, hostile) // count

    def price(self, what: str, hostile: object) -> int:
        """Fail."""
        stock = {"bread": 3}
        return stock[what]

    @method
    def block(self) -> None:
        """Fail in a thread, with a variable that has no text yet."""
        stubborn = Stubborn()
        raise RuntimeError(f"blocked by {type(stubborn).__name__}")

    @method
    async def close(self) -> None:
        """End the actor."""
        raise SystemExit("closed")

    @method
    async def task(self) -> None:
        """Fail in a task of its own."""
        self.nursery.start_soon(self.broken)

    async def broken(self) -> None:
        """Fail."""
        raise OSError("broken")


@pytest.fixture
async def node(request: pytest.FixtureRequest, timings: Timings) -> AsyncIterator[Node]:
    asked: dict[str, Any] = getattr(request, "param", {"post_mortem": True})
    secret, platform = "a secret of these tests", Platform(environment=SystemEnvironment(timings))
    async with open_node("one", secret=secret, platform=platform, **asked) as opened:
        yield opened


def asked(node: Node) -> Any:
    return debug_of(internals_of(node).endpoint, node.name, node.incarnation)


async def failures_of(node: Node, actor: str, count: int = 1) -> list[dict[str, Any]]:
    """The failures, once there are so many."""
    while len(found := (await asked(node).failures(actor))["failures"]) < count:
        pass
    return list(found)


async def sell(shop: Shop, what: str, count: int) -> None:
    with pytest.raises(UnderstudyError):
        await shop.sell(what, count)


async def test_the_frames_of_a_failure_are_kept_with_source_and_variables(node: Node) -> None:
    shop = await node.options(name="shop").spawn(Shop)
    await sell(shop, "cake", 2)
    (failure,) = await failures_of(node, "shop")
    assert (failure["actor"], failure["what"], failure["error"]) == (
        "shop",
        "sell",
        "KeyError: 'cake'",
    )
    outer, inner = failure["frames"]
    assert [frame["function"] for frame in (outer, inner)] == ["Shop.sell", "Shop.price"]
    assert outer["variables"]["count"] == "2"
    assert outer["variables"]["hostile"] == "<Hostile whose repr raised SystemExit>"
    assert inner["variables"]["stock"] == "{'bread': 3}"
    assert inner["variables"]["what"] == "'cake'"
    assert (inner["line"], "        return stock[what]") in [tuple(one) for one in inner["source"]]
    assert failure["debuggable"] is False
    answer = await asked(node).debug("shop", failure["number"])
    assert answer == {"number": 0, "problem": "started without --debuggable"}


async def test_ends_starts_and_own_tasks_are_failures_too(node: Node) -> None:
    for name, fail in (("left", "close"), ("broken", "task")):
        shop = await node.options(name=name).spawn(Shop)
        with pytest.raises(UnderstudyError):  # noqa: PT012  which call fails is not the point
            await getattr(cast("Any", shop), fail)()
            while True:
                await shop.sell("bread", 1)
    with pytest.raises(ActorStartError):
        await node.options(name="bad").spawn(Shop, False)
    for name, what, error in (
        ("left", "close", "SystemExit: closed"),
        ("broken", "a task of its own", "OSError: broken"),
        ("bad", "its start", "ValueError: not good"),
    ):
        (failure,) = await failures_of(node, name)
        assert (failure["what"], failure["error"]) == (what, error)


async def test_what_is_kept_is_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_mortem, "MOST_ACTORS", 2)
    for name in ("a", "b", "c"):
        shop = await node.options(name=name).spawn(Shop)
        for count in range(1, 6):
            await sell(shop, f"cake {count}", 1)
            await failures_of(node, name, min(count, 3))
        # A text that takes longer comes later, to its place in their order.
        latest = [f"KeyError: 'cake {count}'" for count in (3, 4, 5)]
        with trio.fail_after(60):
            while [failure["error"] for failure in await failures_of(node, name)] != latest:
                pass
    assert (await asked(node).failures("a"))["failures"] == []
    for name in ("b", "c"):
        assert [failure["error"] for failure in await failures_of(node, name)] == latest


async def test_failures_are_in_the_order_in_which_they_happened_however_slow_their_text_is(
    node: Node,
) -> None:
    GO.clear()
    try:
        shop = await node.options(name="shop").spawn(Shop)
        with pytest.raises(UnderstudyError):
            await shop.block()
        for count in range(1, MOST_FAILURES):
            await sell(shop, f"cake {count}", 1)
            await failures_of(node, "shop", count)
    finally:
        GO.set()
    kept = await failures_of(node, "shop", MOST_FAILURES)
    assert [failure["number"] for failure in kept] == [1, 2, 3]


@pytest.mark.parametrize("timings", [Timings(failure_text=0.05)], ids=["impatient"])
async def test_a_variable_whose_text_does_not_come_holds_up_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post_mortem, "MOST_WAITING", 0)
    GO.clear()
    try:
        shop = await node.options(name="shop").spawn(Shop)
        await sell(shop, "cake", 1)
        found = await asked(node).failures("shop")
        assert (found["failures"], found["dropped"]) == ([], 1)
        monkeypatch.setattr(post_mortem, "MOST_WAITING", 8)
        with pytest.raises(UnderstudyError):
            await shop.block()
        (failure,) = await failures_of(node, "shop")
        assert failure["frames"][-1]["function"] == "Shop.block"
        assert failure["frames"][-1]["variables"] == {}
    finally:
        GO.set()


@pytest.mark.parametrize("timings", [Timings(failure_settling=0.05)], ids=["impatient"])
async def test_a_process_that_ends_waits_a_short_time_for_the_text(node: Node) -> None:
    GO.clear()
    try:
        shop = await node.options(name="shop").spawn(Shop)
        with pytest.raises(UnderstudyError):
            await shop.block()
        kept = internals_of(node).host.post_mortems
        assert kept is not None
        assert kept.of("shop") == ()
        await kept.settle()
        (failure,) = kept.of("shop")
        assert failure.frames[-1].function == "Shop.block"
        assert failure.frames[-1].variables == {}
    finally:
        GO.set()


@pytest.mark.parametrize("node", [{"debuggable": True}], indirect=True)
async def test_a_debugger_looks_at_the_frames(node: Node) -> None:
    shop = await node.options(name="shop").spawn(Shop)
    await sell(shop, "cake", 2)
    (failure,) = await failures_of(node, "shop")
    opened = await asked(node).debug("shop", failure["number"])
    assert opened["problem"] == ""

    async def typed(line: str | None) -> str:
        answer = await asked(node).command(opened["number"], line, 10.0)
        assert not answer["problem"]
        return str(answer["text"])

    assert "return stock[what]" in await typed(None)
    assert await typed("p stock['bread'] * 7") == "21\n"
    assert "KeyError" in await typed("p stock['cake']")
    assert "no repr" in await typed("p hostile")
    assert "sell()" in await typed("up")
    assert await typed("p count") == "2\n"
    assert "not available here" in await typed("interact")
    # Whatever an expression raises ends nothing.
    assert "SystemExit" in await typed("p exit()")
    long = await asked(node).command(opened["number"], "p 'x' * 1_000_000", 10.0)
    assert len(long["text"]) == MOST_OUTPUT
    assert (await asked(node).command(opened["number"], "x" * 5000, 0.0))["problem"]
    assert (await asked(node).command(opened["number"], "quit", 10.0))["state"] == "ended"
    assert (await asked(node).command(opened["number"], "p 1", 0.0))["problem"]
    assert (await asked(node).debug("shop", 99))["problem"].startswith("failure 99")


@pytest.mark.parametrize("node", [{}], indirect=True)
async def test_nothing_is_kept_unless_the_node_was_asked_to(node: Node) -> None:
    shop = await node.options(name="shop").spawn(Shop)
    await sell(shop, "cake", 2)
    found = await asked(node).failures("shop")
    assert found["failures"] == []
    assert "--post-mortem" in found["problem"]
    assert (await asked(node).debug("shop", 1))["problem"]
    assert (await asked(node).command(1, "p 1", 0.0))["state"] == "ended"


@pytest.mark.parametrize("role", ["client", "observer"])
@pytest.mark.parametrize("asked_for", ["failures", "debug", "command"])
def test_only_operators_may_debug(role: PeerRole, asked_for: str) -> None:
    peer = VerifiedPeer(role, "someone", "client-1", 1, "certificate")
    operator = VerifiedPeer("operator", "someone", "client-1", 1, "certificate")
    assert service_refusal(peer, "@debug", asked_for, (), {})
    assert not service_refusal(operator, "@debug", asked_for, (), {})


def test_deep_frames_with_many_variables_are_cut() -> None:
    def deep(depth: int) -> None:
        names = {f"v{number}": number for number in range(100)}
        scope: dict[str, object] = {}
        exec("\n".join(f"{name} = {value}" for name, value in names.items()), {}, scope)
        if depth:
            deep(depth - 1)
        exec(compile("raise KeyError(v99)", "<made>", "exec"), scope)

    with pytest.raises(KeyError) as caught:
        deep(2 * MOST_FRAMES)
    walked = list(user_frames(caught.value))
    assert len(walked) > MOST_FRAMES
    frames = describe_frames(walked[-MOST_FRAMES:])
    assert frames[-1].file == "<made>"
    assert len(frames[-1].variables) == MOST_VARIABLES
    assert frames[-1].left_out > MOST_VARIABLES
    assert frames[-1].source == ()


@pytest.mark.parametrize("kind", HARMFUL)
def test_variables_are_kept_where_only_a_loader_has_the_source(kind: str) -> None:
    space = generated(HARMFUL[kind]())
    with pytest.raises(ZeroDivisionError) as caught:
        space["divide"](0)
    # As the text of its traceback has done before: `linecache` knows now whom to ask.
    traceback_of(caught.value)
    *_, frame = describe_frames(list(user_frames(caught.value)))
    assert (frame.function, frame.variables, frame.source) == ("divide", {"number": "0"}, ())
