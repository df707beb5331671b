"""Fixed ranks, over any of the endpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from runtime import open_node
from runtime.rendezvous.interface import RendezvousHandler, RendezvousInfo
from runtime.rendezvous.parameters import RendezvousMismatchError, RendezvousParameters
from runtime.rendezvous.registry import OpenableHandler, create_handler

QUICK: dict[str, Any] = {"keep_alive_interval": 0.2, "keep_alive_max_attempt": 3}


def make(endpoint: str | Path, rank: object, nodes: int = 3) -> OpenableHandler:
    return create_handler(
        RendezvousParameters("static", f"{endpoint}", "job", nodes, nodes, rank=rank, **QUICK)
    )


async def meet(endpoint: str | Path, ranks: list[int]) -> dict[int, RendezvousInfo]:
    """What agents of these ranks are told."""
    found: dict[int, RendezvousInfo] = {}

    async def one(rank: int) -> None:
        async with make(endpoint, rank) as handler:
            found[rank] = await handler.next_rendezvous()
            await found[rank].store.barrier("before they go", len(ranks), timeout=60)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for rank in ranks:
                nursery.start_soon(one, rank)
    return found


async def test_each_has_the_rank_that_it_asked_for(tmp_path: Path) -> None:
    found = await meet(tmp_path, [2, 0, 1])
    assert {rank: info.rank for rank, info in found.items()} == {0: 0, 1: 1, 2: 2}
    assert {info.world_size for info in found.values()} == {3}


async def test_the_endpoint_may_be_a_cluster() -> None:
    async with open_node() as node:
        found = await meet(node.address, [1, 2, 0])
    assert {rank: info.rank for rank, info in found.items()} == {0: 0, 1: 1, 2: 2}


async def test_ranks_stay_round_after_round(tmp_path: Path) -> None:
    async with make(tmp_path, 1, 2) as first, make(tmp_path, "0", 2) as second:
        for round_ in range(3):
            found: dict[int, RendezvousInfo] = {}

            async def one(
                number: int, handler: OpenableHandler, found: dict[int, RendezvousInfo] = found
            ) -> None:
                found[number] = await handler.next_rendezvous()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(one, 1, first)  # type: ignore[arg-type]
                nursery.start_soon(one, 0, second)  # type: ignore[arg-type]
            assert {number: (info.rank, info.round) for number, info in found.items()} == {
                1: (1, round_),
                0: (0, round_),
            }


async def test_a_rank_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    refused = trio.Event()

    async def ask(handler: RendezvousHandler) -> None:
        """Of the two, the one that comes second is refused; the other waits for rank 0."""
        with pytest.raises(
            RendezvousMismatchError,
            match=r"two agents ask for rank 1: .* has it, and is alive",
        ):
            await handler.next_rendezvous()
        assert not refused.is_set()
        refused.set()

    async with (
        make(tmp_path, 1, 2) as first,
        make(tmp_path, 1, 2) as second,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(ask, first)
        nursery.start_soon(ask, second)
        await refused.wait()
        nursery.cancel_scope.cancel()


async def test_closing_and_changes_are_known_with_fixed_ranks_too(tmp_path: Path) -> None:
    async with make(tmp_path, 0, 1) as handler, make(tmp_path, 0, 1) as other:
        info = await handler.next_rendezvous()
        await other.set_closed("enough")
        assert await handler.is_closed()
        assert (await handler.wait_change(info.round)).closed == "enough"
