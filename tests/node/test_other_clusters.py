"""A process with nodes of two clusters that have the same name and secret: what is of one is
refused in the other, where its name may be that of another actor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import runtime.aio
import runtime.blocking
from actors import Actor, method
from actors.errors import ActorNotFoundError, EncodeError
from runtime import Node, open_node


class Ledger(Actor):
    def __init__(self, owner: str) -> None:
        self.owner = owner

    @method
    async def whose(self) -> str:
        return self.owner

    @method
    async def of(self, other: Any) -> str:
        return str(await other.whose())


async def started(node: Node) -> Any:
    return await node.options(name="ledger").spawn(Ledger, node.name)


async def test_a_handle_of_another_cluster_is_refused() -> None:
    async with open_node("a", secret="s") as one, open_node("b", secret="s") as other:
        ours, theirs = await started(one), await started(other)
        asker = await one.spawn(Ledger, "asker")
        # It is of use where it is from, and so is one of the same cluster.
        assert await theirs.whose() == "b"
        assert await asker.of(ours) == "a"
        refused: list[tuple[Callable[[], Awaitable[object]], type[Exception], str]] = [
            (lambda: asker.of(theirs), EncodeError, "other is a handle of another cluster"),
            (lambda: asker.of.send([theirs]), EncodeError, "is a handle of another cluster"),
            (lambda: one.spawn(Ledger, theirs), EncodeError, "is a handle of another cluster"),
            (lambda: one.put(theirs), EncodeError, "is a handle of another cluster"),
            (lambda: one.stop(theirs), ValueError, "handle of ledger .* is of another cluster"),
            (lambda: one.wait_ended(theirs), ValueError, "is of another cluster"),
        ]
        for act, kind, text in refused:
            with pytest.raises(kind, match=text):
                await act()
        assert (await ours.whose(), await theirs.whose()) == ("a", "b")
        reference = await other.put(3)
        with pytest.raises(EncodeError, match="belongs to another node"):
            await asker.of(reference)


async def test_a_handle_of_another_node_of_the_cluster_is_not() -> None:
    async with (
        open_node("a", secret="s") as one,
        open_node("b", secret="s", join=one.address) as other,
    ):
        ledger, asker = await started(one), await other.spawn(Ledger, "asker")
        assert await asker.of(ledger) == "a"
        await other.stop(ledger)
        with pytest.raises(ActorNotFoundError):
            await ledger.whose()


@pytest.mark.cluster
def test_the_doors_refuse_them_too() -> None:
    with (
        runtime.blocking.open_local_cluster(0) as one,
        runtime.blocking.open_local_cluster(0) as other,
    ):
        ours: Any = one.options(name="ledger").spawn(Ledger, "one")
        theirs: Any = other.options(name="ledger").spawn(Ledger, "other")
        with pytest.raises(ValueError, match="is of another cluster"):
            one.stop(theirs)
        with pytest.raises(ValueError, match="is of another cluster"):
            one.handle(theirs)
        with pytest.raises(EncodeError, match="is a handle of another cluster"):
            ours.of(theirs)
        assert (ours.whose(), theirs.whose()) == ("one", "other")

        async def main() -> None:
            async with runtime.aio.open_local_cluster(nodes=0) as third:
                asker: Any = await third.spawn(Ledger, "third")
                with pytest.raises(ValueError, match="is of another cluster"):
                    third.handle(theirs)
                with pytest.raises(EncodeError, match="is a handle of another cluster"):
                    await asker.of(theirs)

        asyncio.run(main())
