"""Records in the store that a changed member has written, where others of the runtime are read: no
node ends by them, and what has nothing to do with them goes on.
"""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
import trio

from actors import Actor, Supervisor, method
from actors.errors import UnderstudyError
from runtime import open_node
from runtime.membership.restart_intents import (
    CANDIDATES,
    CHILDREN,
    LAST_ENDS,
    NAMES,
    STATIC,
    SUPERVISED,
)
from runtime.membership.saved_states import APPLIED, FENCES, LISTS, PARTS, STATES
from runtime.node import internals_of
from tests.live_pair import SECRET, Pair

PREFIXES = (
    *("nodes/", "groups/", "groups/held/", "logs/about/", "logs/lines/", "logs/ends/"),
    *("rendezvous/", "nodes/@expelled/", "journal-times/", "founder", "founder-lease"),
    *(NAMES, SUPERVISED, CHILDREN, CANDIDATES, LAST_ENDS, STATIC),
    *(APPLIED, STATES, PARTS, LISTS, FENCES),
)
SPOILED: tuple[bytes, ...] = (
    b"",
    b"\xff\xff\xff",
    b"\x1b[2J\n<script>",
    *(
        cbor2.dumps(value)
        for value in (
            None,
            7,
            "x" * 1000,
            [],
            {},
            [None] * 12,
            ["x"] * 12,
            [2**70] * 12,
            {"name": 3, "incarnation": "x", "address": []},
        )
    ),
    b"\x81" * 500 + b"\x00",
)


class Clerk(Actor):
    """Is called by the tests."""

    @method
    async def add(self, number: int) -> int:
        return number + 1


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_a_spoiled_record_ends_no_node_and_no_other_work(pair: Pair, prefix: str) -> None:
    store = internals_of(pair.there).store
    clerk = await pair.here.options(name="clerk").spawn(Clerk)
    await pair.here.options(name="boss").spawn(Supervisor, [])
    # From now on it counts the actors of all nodes, by the records of their names.
    await pair.here.options(name="placed", placement="spread").spawn(Clerk)
    # Held until the end: the records of a group are read where a node has it.
    held = [await node.group("held", Clerk).ready() for node in (pair.here, pair.there)]
    for number, value in enumerate(SPOILED):
        for key in (f"{prefix}spoiled-{number}", f"{prefix}x/7/{number}", prefix):
            await store.put(key, value)
    for node in (pair.here, pair.there):
        for name in ("spoiled-3", "x/7/3", "x"):
            with trio.move_on_after(2):
                try:
                    await node.lookup(name, Clerk)
                except UnderstudyError:
                    pass
        found: Any = await node.lookup("clerk", Clerk)
        assert await found.add(1) == 2
        other = await node.options(name=f"other-{node.name}").spawn(Clerk)
        assert await other.add(2) == 3
    with trio.fail_after(20):
        async with open_node("third", join=pair.here.address, secret=SECRET) as third:
            assert await (await third.lookup("clerk", Clerk)).add(3) == 4
            # It reads the records of all names.
            placed = await third.options(name="placed-last", placement="spread").spawn(Clerk)
            assert await placed.add(4) == 5
            assert {one.name for one in third.members()} >= {"here", "there", "third"}
    assert await clerk.add(4) == 5
    assert [group.members() for group in held] == [(), ()]
