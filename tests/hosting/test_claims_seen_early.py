"""What is asked of a node about an actor whose name it has claimed, while the answer to the claim
is still on its way: others see the claim in the store before it does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from actors import Actor, Ended, method
from actors.errors import RemoteError
from runtime.hosting.host import ActorHost
from runtime.node import Node, internals_of
from tests.live_pair import Pair

NAME = "late"


class Late(Actor):
    @method
    async def crash(self) -> None:
        raise SystemExit("boom")


class Linker(Actor):
    @method
    async def tie(self, other: Late) -> None:
        await self.link(other)

    @method
    async def answers(self) -> bool:
        return True


class LateClaim:
    """Starts an actor on a node, which gets the answer to its claim when it `comes`."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        self.seen, self.comes, self.asked = trio.Event(), trio.Event(), trio.Event()
        names = internals_of(node).names
        claim, wait = names.claim, ActorHost.wait_for_claim

        async def claim_late(*arguments: Any) -> int:
            epoch = await claim(*arguments)
            self.seen.set()
            await self.comes.wait()
            return epoch

        async def note_question(host: ActorHost, name: str, epoch: int) -> None:
            if name == NAME:
                self.asked.set()
            await wait(host, name, epoch)

        monkeypatch.setattr(names, "claim", claim_late)
        monkeypatch.setattr(ActorHost, "wait_for_claim", note_question)

    async def during(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Ask for the actor while the claim is under way; its answer comes when the node has been
        asked.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._start)
            await self.seen.wait()
            nursery.start_soon(ask)
            await self.asked.wait()
            self.comes.set()

    async def _start(self) -> None:
        await self.node.options(name=NAME).spawn(Late)


async def first_life(node: Node) -> Late:
    """Return the handle of an actor of that name that has ended."""
    late = await node.options(name=NAME).spawn(Late)
    await node.stop(late)
    return late


async def test_it_is_watched(pair: Pair, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asker = pair.here if where == "here" else pair.there
    handle = await first_life(asker)
    ends: list[Ended] = []

    async def wait_for_its_end() -> None:
        ends.append(await asker.wait_ended(handle))

    late = LateClaim(pair.here, monkeypatch)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(late.during, wait_for_its_end)
            await late.comes.wait()
            started = await pair.there.lookup(NAME, Late)
            with pytest.raises(RemoteError):
                await started.crash()
    assert [end.reason.kind for end in ends] == ["raised"]


async def test_it_is_stopped(pair: Pair, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asker = pair.here if where == "here" else pair.there
    handle = await first_life(asker)
    late = LateClaim(pair.here, monkeypatch)
    with trio.fail_after(30):
        await late.during(lambda: asker.stop(handle))
    assert NAME not in internals_of(pair.here).cells


async def test_it_is_linked(pair: Pair, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asker = pair.here if where == "here" else pair.there
    handle = await first_life(asker)
    linker = await asker.spawn(Linker)
    late = LateClaim(pair.here, monkeypatch)
    with trio.fail_after(30):
        await late.during(lambda: linker.tie(handle))
        assert await linker.answers()
        started = await pair.there.lookup(NAME, Late)
        with pytest.raises(RemoteError):
            await started.crash()
        assert (await asker.wait_ended(linker)).reason.kind == "raised"
