"""Nodes that the cluster has given up while their programs wait within the block for the cluster:
no wait goes on for ever, though no task looks at `asked_to_leave`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
import trio
from trio.testing import MockClock

from actors import Actor, method
from actors.errors import CallError, LeaseLostError, NodeDiedError, NotAMemberError
from runtime import Node, open_node
from runtime.links.transports import Connection
from runtime.node import internals_of
from runtime.testing import Platform
from tests.memory_network import MemoryNetwork
from tests.waiting import until

SECRET = "a secret of the tests of nodes that are given up"


class Sleeper(Actor):
    """Never answers."""

    @method(concurrent=True)
    async def sleep(self) -> None:
        await trio.sleep_forever()

    @method(concurrent=True)
    async def name_of_node(self) -> str:
        return self.node.name


class Unready(Actor):
    """Never starts."""

    async def on_start(self) -> None:
        await trio.sleep_forever()


class Tidy(Actor):
    """Stops another actor when it ends."""

    tidied: ClassVar[list[str]] = []

    def __init__(self, other: Sleeper) -> None:
        self.other = other

    async def on_stop(self, reason: object) -> None:
        await self.node.stop(self.other)
        self.tidied.append(self.name)


class DividedNetwork(MemoryNetwork):
    """Addresses in `cut_off` cannot be dialled: what is sent there is lost without a word."""

    def __init__(self) -> None:
        super().__init__()
        self.cut_off: set[str] = set()

    async def connect(self, address: str) -> Connection:
        if address in self.cut_off:
            await trio.sleep_forever()
        return await super().connect(address)


async def _forever(changes: Any) -> None:
    async for _ in changes:
        pass


class Opened:
    """The pools that a program has opened, and for whose members it waits now."""

    def __init__(self) -> None:
        self.pools = {None: trio.Event(), "pool": trio.Event()}

    async def wait(self) -> None:
        for pool in self.pools.values():
            await pool.wait()


def waits(
    node: Node, far: Sleeper, opened: Opened | None = None
) -> dict[str, Callable[[], Awaitable[object]]]:
    """What a program may wait for in the block of a node, without any deadline."""

    async def pool(name: str | None) -> None:
        found = await node.pool(name, Sleeper, size=1)
        if opened is not None:
            opened.pools[name].set()
        await found.ready(99)

    return {
        "members": lambda: node.wait_for(99),
        "the end of a member": lambda: node.wait_gone("w2"),
        "changes of the members": lambda: _forever(node.watch_members()),
        "the end of an actor": lambda: node.wait_ended(far),
        "changes of a group": lambda: _forever(node.group("group", Sleeper).watch()),
        "a call": far.sleep,
        "a start": lambda: node.options(on="w2").spawn(Unready),
        "a start under a name": lambda: node.options(name="unready").spawn(Unready),
        "another's start": lambda: node.options(name="unready").get_or_spawn(Unready),
        "a singleton": lambda: node.options(name="single").singleton(Unready),
        "members of a pool": lambda: pool(None),
        "members of a named pool": lambda: pool("pool"),
    }


async def begin(node: Node, far: Sleeper, nursery: trio.Nursery) -> set[str]:
    """Begin all of them; returns the names of those that have not ended, kept up to date. Each has
    to end with a `CallError`.
    """
    opened = Opened()
    asked = waits(node, far, opened)
    waiting = set(asked)

    async def wait(what: str, ask: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(CallError):
            await ask()
        waiting.remove(what)

    for what, ask in asked.items():
        nursery.start_soon(wait, what, ask)
    # A start ends with another error than a wait. This one takes threads, while which the clock
    # jumps: after some virtual seconds it may still be under way.
    await opened.wait()
    await trio.sleep(3)
    assert waiting == set(asked)
    return waiting


@asynccontextmanager
async def until_given_up(name: str, **options: Any) -> AsyncIterator[Node]:
    """A node that must have been given up at the end of the block."""
    try:
        async with open_node(name, **options) as node:
            yield node
            await node.asked_to_leave.wait()
    except LeaseLostError:
        return
    pytest.fail(f"{name} ended without a word")


async def _revoke_lease_of(node: Node, by: Node) -> None:
    await internals_of(by).store.revoke(internals_of(node).registration.record.lease)


async def test_no_wait_of_a_program_outlasts_the_membership_of_its_node(
    autojump_clock: MockClock,
) -> None:
    network = MemoryNetwork()
    place: dict[str, Any] = {"secret": SECRET, "platform": Platform(network=network)}
    async with (
        open_node("w1", **place) as w1,
        open_node("w2", join=w1.address, **place),
        until_given_up("w3", join=w1.address, **place) as w3,
    ):
        far = await w3.options(on="w2").spawn(Sleeper)
        async with trio.open_nursery() as nursery:
            waiting = await begin(w3, far, nursery)
            await _revoke_lease_of(w3, w1)
            await w3.asked_to_leave.wait()
            await until(lambda: not waiting, "all waits have ended")
        for ask in waits(w3, far).values():
            # What is asked for from now on ends at once.
            with trio.fail_after(1), pytest.raises(NotAMemberError):
                await ask()


async def test_no_wait_of_a_program_outlasts_the_block_of_its_node(
    autojump_clock: MockClock,
) -> None:
    network = MemoryNetwork()
    place: dict[str, Any] = {"secret": SECRET, "platform": Platform(network=network)}
    async with (
        open_node("w1", **place) as w1,
        open_node("w2", join=w1.address, **place),
        trio.open_nursery() as nursery,
    ):
        async with open_node("w3", join=w1.address, **place) as w3:
            far = await w3.options(on="w2").spawn(Sleeper)
            waiting = await begin(w3, far, nursery)
        await until(lambda: not waiting, "all waits have ended")


async def test_a_call_of_a_node_that_was_given_up_to_one_that_is_silent_ends(
    autojump_clock: MockClock,
) -> None:
    """No store tells this node any more that the other has died."""
    network = DividedNetwork()
    place: dict[str, Any] = {"secret": SECRET, "platform": Platform(network=network)}
    async with (
        open_node("w1", **place) as w1,
        open_node("w2", join=w1.address, **place) as w2,
        until_given_up("w3", join=w1.address, **place) as w3,
    ):
        far = await w3.options(on="w2").spawn(Sleeper)
        assert await far.name_of_node() == "w2"
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def call() -> None:
                with trio.fail_after(60), pytest.raises(NodeDiedError, match="not heard for"):
                    await far.sleep()

            await trio.sleep(1)
            for node in (w2, w3):
                (own,) = [one for one in w1.members() if one.name == node.name]
                network.cut_off.update(own.addresses)
            network.reset_all()
            await _revoke_lease_of(w3, w1)


async def test_an_actor_of_a_node_that_was_given_up_may_stop_others_of_its_node(
    autojump_clock: MockClock,
) -> None:
    network = MemoryNetwork()
    place: dict[str, Any] = {"secret": SECRET, "platform": Platform(network=network)}
    async with (
        open_node("w1", **place) as w1,
        until_given_up("w2", join=w1.address, **place) as w2,
    ):
        tidy = await w2.spawn(Tidy, await w2.spawn(Sleeper))
        await _revoke_lease_of(w2, w1)
        await w2.asked_to_leave.wait()
    assert Tidy.tidied == [tidy.name]
