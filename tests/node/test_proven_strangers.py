"""What the fuzzer of proven peers (`tests.wire.proven`) has found. Each ended a node, kept it busy
for good, or was kept for good.
"""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
import trio

from actors import Actor, method
from actors.errors import BadArgumentsError
from actors.identifiers import NodeId
from runtime.links.settlement import SettlementAnswerKind
from runtime.membership.members import Members
from runtime.node import internals_of
from runtime.timings import Timings
from runtime.watching.watcher import WATCHING_SERVICE, WatchingService
from runtime.wire.frames import Kind, encode_frame
from tests.live_pair import Pair
from tests.node.test_strangers import dial, introduction, offer, shake_hands, wait_closed
from tests.waiting import until

NEVER_GIVEN = 2**40
"""An incarnation that no store has come to."""


class Plain(Actor):
    @method
    async def ping(self) -> str:
        return "pong"


def watching(pair: Pair) -> Any:
    """The service of the first node, called from the second."""
    return internals_of(pair.there).endpoint.system_handle(
        WatchingService, WATCHING_SERVICE, *internals_of(pair.here).endpoint.identity
    )


@pytest.mark.parametrize(
    ("node", "serial", "why"),
    [
        *((node, 1, "in its own name only") for node in (5, b"there", None, ["there"])),
        *(
            ("there", serial, "was given a serial of another type")
            for serial in ("1", b"1", None, [1])
        ),
    ],
)
async def test_a_service_refuses_arguments_of_another_type_and_its_node_lives(
    pair: Pair, node: object, serial: object, why: str
) -> None:
    # What is told here is used when the actor ends, by a task of the node's own.
    plain = await pair.here.options(name="plain").spawn(Plain)
    with pytest.raises(BadArgumentsError, match=why):
        await watching(pair).ask("plain", 0, node, pair.there.incarnation, serial, False)
    await pair.here.stop(plain)
    other = await pair.here.options(name="other").spawn(Plain)
    assert await other.ping() == "pong"


async def test_exit_notices_for_a_node_that_never_was_are_not_sent_for_ever(
    pair: Pair,
) -> None:
    plain = await pair.here.options(name="plain").spawn(Plain)
    # A peer may ask in its own name only, but it may be a client, or of an incarnation that no
    # store has given.
    assert (
        internals_of(pair.here).watcher.on_ask(
            "plain", 0, NodeId("nobody", NEVER_GIVEN), 1, before=False
        )
        is None
    )
    await pair.here.stop(plain)
    await until(
        lambda: not internals_of(pair.here).watcher.loads()["unreported"], "no end is left to tell"
    )


async def test_a_view_that_has_all_there_is_wakes_nobody_when_it_is_asked_to_catch_up(
    pair: Pair,
) -> None:
    # Those who ask are those who wait for changes: each would wake all others, and itself, for
    # ever.
    members: Members = internals_of(pair.here).members
    for _ in range(100):
        before, woken = members.revision, trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(woken_by_a_change, members, woken)
            await trio.testing.wait_all_tasks_blocked()
            await members.caught_up(NEVER_GIVEN)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        if members.revision == before:
            assert not woken.is_set()
            return
    pytest.fail("the store changed all the time")


async def woken_by_a_change(members: Members, woken: trio.Event) -> None:
    await members.wait_changed()
    woken.set()


async def test_a_link_whose_first_offer_cannot_be_is_not_kept(pair: Pair) -> None:
    for number in range(3):
        with trio.fail_after(60):
            async with await dial(pair.here) as stream:
                await shake_hands(stream, introduction(name=f"stranger-{number}"))
                # On a session that is new, it says that it has frames.
                await stream.send_all(encode_frame(Kind.RESUME, cbor2.dumps([1, 0, 1, 0, 7])))
                await wait_closed(stream)
    assert [name for name, _ in internals_of(pair.here).links if name.startswith("stranger")] == []


@pytest.mark.parametrize("timings", [Timings(orphans=0.2, client_leases=0.04)])
async def test_what_a_client_holds_is_freed_when_it_has_gone(pair: Pair) -> None:
    await pair.here.options(name="plain").spawn(Plain)
    async with await dial(pair.here) as stream:
        reader = await shake_hands(stream, introduction())
        assert await offer(stream, reader, 1) == SettlementAnswerKind.ACCEPTED
        # A call whose result stays here, for a reference that the client has made.
        call = cbor2.dumps([7, "plain", 0, "ping", [], None, None, [34, 1]])
        await stream.send_all(encode_frame(Kind.CALL, call, flags=1))
        await until(lambda: len(internals_of(pair.here).references), "the value is held")
    await until(lambda: not len(internals_of(pair.here).references), "what was held is freed")
