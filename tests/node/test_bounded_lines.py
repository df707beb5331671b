"""Lines of the log that users and peers can cause without end: few are written, and the first of a
later period says how many were left out.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from actors import Actor, method
from actors.peers import VerifiedPeer
from runtime import open_node
from runtime.audit import REFUSED_LINES, AuditLog
from runtime.groups.memberships import prefix_of
from runtime.limited_log import BURST, MOST_KINDS, PERIOD_SECONDS
from runtime.membership.members import PREFIX
from runtime.node import Node, internals_of
from runtime.wire.handshake import Peer

SECRET = "a secret for the tests of lines"
LARGE = bytes(4 * 1024 * 1024)


class Noisy(Actor):
    """Each call of it is good for a line."""

    @method
    async def fail(self) -> None:
        raise ValueError("in a one-way call")

    @method
    async def leave_open(self) -> None:
        trio.CancelScope().__enter__()

    @method
    async def items(self) -> AsyncIterator[bytes]:
        try:
            while True:
                # It fills the window, so that the generator is at its `yield` when it is closed.
                yield LARGE
        finally:
            raise ValueError("in the end of a stream")

    @method
    async def ping(self) -> None:
        """Return when all calls before it have run."""


async def calls_of_an_actor_that_has_ended(node: Node, times: int) -> None:
    noisy = await node.spawn(Noisy)
    await node.stop(noisy)
    for _ in range(times):
        await noisy.ping.send()


async def one_way_calls_that_raise(node: Node, times: int) -> None:
    noisy = await node.spawn(Noisy)
    for number in range(times):
        await noisy.fail.send()
        if not number % 1000:
            await noisy.ping()
    await noisy.ping()


async def scopes_left_open(node: Node, times: int) -> None:
    noisy = await node.spawn(Noisy)
    for _ in range(times):
        await noisy.leave_open()


async def streams_that_raise_at_their_end(node: Node, times: int) -> None:
    noisy = await node.spawn(Noisy)
    for _ in range(times):
        async with noisy.items() as items:
            await anext(items)
    await noisy.ping()


async def frames_that_cannot_be_handled(node: Node, times: int) -> None:
    def fail() -> None:
        raise ValueError("a mistake in a handler")

    peers = internals_of(node).endpoint.peers
    for number in range(times):
        peer = Peer(name=f"peer-{number % 100}", incarnation=2, role="node", addresses=())
        peers.link(peer).handle_later(fail)


async def malformed_records_of_members(node: Node, times: int) -> None:
    store = internals_of(node).store
    for number in range(times):
        await store.put(f"{PREFIX}nobody-{number}", b"no record")
    await trio.testing.wait_all_tasks_blocked()
    # They are read when the members are asked for.
    assert [member.name for member in node.members()] == ["alone"]


async def malformed_records_of_names(node: Node, times: int) -> None:
    await trio.lowlevel.checkpoint()
    for _ in range(times):
        assert internals_of(node).names.readable_owner("somebody", b"no record") is None


async def malformed_records_of_groups(node: Node, times: int) -> None:
    # Held until the records are read: nobody reads those of a group that nobody has.
    group = await node.group("noisy", Noisy).ready()
    store = internals_of(node).store
    for number in range(times):
        await store.put(f"{prefix_of('noisy')}nobody-{number}", b"no record")
    await trio.testing.wait_all_tasks_blocked()
    assert group.members() == ()


@pytest.mark.parametrize(
    "cause",
    [
        calls_of_an_actor_that_has_ended,
        one_way_calls_that_raise,
        scopes_left_open,
        streams_that_raise_at_their_end,
        frames_that_cannot_be_handled,
        malformed_records_of_members,
        malformed_records_of_names,
        malformed_records_of_groups,
    ],
)
def test_thousands_of_events_give_a_few_lines_that_say_how_many_were_left_out(
    cause: Callable[[Node, int], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    # Streams of large items cost much more than a line.
    times = 300 if cause is streams_that_raise_at_their_end else 2_000

    async def main() -> None:
        async with open_node("alone", secret=SECRET) as node:
            await cause(node, times)
            # The period of the first lines ends.
            await trio.sleep(PERIOD_SECONDS + 1)
            assert 1 <= len(lines()) <= 2 * BURST
            await cause(node, 1)

    def lines() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.levelno >= logging.WARNING]

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert len(lines()) <= 2 * BURST + 1
    assert any("more lines like this one were left out" in line.getMessage() for line in lines())


def test_refused_calls_of_one_peer_leave_room_for_the_lines_about_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "understudy.audit")
    now = 0.0
    log = AuditLog("w1", lambda: now)

    def peer(name: str) -> VerifiedPeer:
        return VerifiedPeer("client", name, f"client-{name}", 1, "certificate")

    def lines(name: str) -> int:
        return sum(f"client {name!r}" in text for text in caplog.messages)

    for number in range(1000):
        log.on_refused(peer("loud"), f"@node.leave_cluster\nFAKE {number}", "no right to it")
    log.on_refused(peer("quiet"), "ledger.erase", "no right to it")
    assert (lines("loud"), lines("quiet")) == (REFUSED_LINES, 1)
    assert not any("\n" in text for text in caplog.messages)
    # Under however many names: the others share the lines of one.
    for number in range(10_000):
        log.on_refused(peer(f"name-{number}"), "ledger.erase", "no right to it")
    assert len(caplog.messages) <= (MOST_KINDS + 1) * REFUSED_LINES
    now = 61.0
    log.on_refused(peer("loud"), "ledger.erase", "no right to it")
    assert "970 more lines like this one were left out" in caplog.messages[-1]
