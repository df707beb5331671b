"""Code of actors that cancels the tasks of its node, or raises in them: the node ends, and does not
live on as one that serves nobody.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio

from actors import Actor, RetryPolicy, method
from actors.errors import LeaseLostError
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.node import Node, internals_of
from runtime.testing import Platform
from runtime.timings import Timings

SECRET = "a secret for the tests of cancelled tasks"

# Longer than a test may take: nothing here may wait for a lease, or for calls to end.
TIMINGS = Timings(lease=300.0, drain=300.0)


async def fail() -> None:
    """Raise in the nursery that starts this."""
    raise ValueError("in a nursery of the node")


class Canceller(Actor):
    """Does what no actor should."""

    @method
    async def cancel(self) -> None:
        nursery = trio.lowlevel.current_task().parent_nursery
        assert nursery is not None
        nursery.cancel_scope.cancel()
        await trio.sleep_forever()

    @method
    async def fail(self) -> None:
        nursery = trio.lowlevel.current_task().parent_nursery
        assert nursery is not None
        nursery.start_soon(fail)
        await trio.sleep_forever()

    @method(concurrent=True)
    async def stay(self) -> None:
        await trio.sleep_forever()


async def run(act: Callable[[Node, Canceller], Awaitable[None]]) -> None:
    """Open a node with an actor on it, and act. It may not wait for any of its times."""
    platform = Platform(environment=SystemEnvironment(TIMINGS))
    with trio.fail_after(60.0):
        async with open_node("alone", secret=SECRET, platform=platform) as node:
            await act(node, await node.spawn(Canceller))


async def test_a_node_whose_nursery_was_cancelled_ends_and_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def cancel(node: Node, canceller: Canceller) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(canceller.stay)
            nursery.start_soon(canceller.cancel)

    with pytest.raises(LeaseLostError, match="alone cannot go on"):
        await run(cancel)
    assert "alone cannot go on" in caplog.text


async def test_a_node_one_of_whose_tasks_raised_ends_at_once() -> None:
    with pytest.raises(ValueError, match="in a nursery of the node"):
        await run(lambda node, canceller: canceller.fail())


async def test_a_node_whose_background_tasks_were_cancelled_ends() -> None:
    async def cancel(node: Node, canceller: Canceller) -> None:
        for task in internals_of(node).nursery.child_tasks:
            for inner in task.child_nurseries:
                inner.cancel_scope.cancel()
        await trio.sleep_forever()

    with pytest.raises(LeaseLostError, match="alone cannot go on"):
        await run(cancel)


class Partner(Actor):
    @method(idempotent=True)
    async def ask(self, number: int) -> int:
        return number

    @method(idempotent=True, concurrent=True)
    async def wait(self) -> None:
        await trio.sleep_forever()

    @method(concurrent=True)
    async def count(self) -> AsyncIterator[int]:
        for number in range(1_000_000):
            yield number


async def test_a_node_whose_nursery_was_cancelled_closes_its_links_in_order() -> None:
    """Calls of all kinds are under way from another node: ones that may be repeated, a stream, and
    a result that is kept.
    """
    platform = Platform(environment=SystemEnvironment(TIMINGS))
    patient = RetryPolicy(max_retries=3)

    async def act(other: Node) -> None:
        async with (
            open_node("alone", join=other.address, secret=SECRET, platform=platform) as alone,
            trio.open_nursery() as nursery,
        ):
            await alone.options(name="partner").spawn(Partner)
            canceller = await alone.spawn(Canceller)
            partner = await other.lookup("partner", Partner)
            nursery.start_soon(partner.wait.options(retry=patient))
            await partner.ask.options(retry=patient)(1)
            kept = await partner.ask.remote(2)
            async with partner.count() as numbers:
                await anext(numbers)
                await canceller.cancel.send()
                await kept.fetch()
                await trio.sleep_forever()

    with trio.fail_after(60.0):
        async with open_node("other", secret=SECRET, platform=platform) as other:
            with pytest.raises(LeaseLostError, match="alone cannot go on"):
                await act(other)
