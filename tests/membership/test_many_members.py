"""How a node follows the members where many of them start and end in the same moment."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs
import trio
from trio.testing import MockClock

from actors.actor import Member
from actors.identifiers import NodeId
from runtime.membership.expulsions import Expulsions
from runtime.membership.members import PREFIX, Members, NodeRecord, Registration
from runtime.store.embedded_store import EmbeddedStore
from runtime.store.interface import WatchBatch
from runtime.store.memory import ChangeHistory, StoreMachine
from runtime.timings import Timings
from runtime.wire.codec import Codec
from runtime.wire.frames import Segment
from tests.scheduling import SeededEnvironment

MANY = 60
TIMINGS = Timings()
PAUSE = TIMINGS.members_pause(MANY)


class CountingStore(EmbeddedStore):
    """Counts the answers that a follower gets."""

    polls = 0

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        batch = await super().poll(prefix, from_revision)
        self.polls += 1
        return batch


class CountingCodec(Codec):
    """Counts the records that are read."""

    reads = 0

    def decode(self, control: bytes, segments: Sequence[Segment] = ()) -> object:
        self.reads += 1
        return super().decode(control, segments)


@attrs.frozen
class Followed:
    """A view of the members in `store`, on a virtual clock."""

    store: CountingStore
    codec: CountingCodec
    members: Members
    gone: list[Member]
    environment: SeededEnvironment

    async def write(self, name: str, state: str = "up") -> int:
        """Write the record of a node."""
        record = NodeRecord(name, ("tcp:127.0.0.1:1",), "host", 1, "now", 0, 0.0, state)
        registration = Registration(self.store, self.environment, record)
        return await registration.set_state(state)

    def names(self) -> set[str]:
        """Whom the view shows."""
        return {member.name for member in self.members.all()}


@asynccontextmanager
async def followed(machine: StoreMachine | None = None) -> AsyncIterator[Followed]:
    environment = SeededEnvironment(random.Random(1))
    store = CountingStore(environment, machine)
    gone: list[Member] = []
    codec = CountingCodec(sentinel=b"sentinel")
    members = Members(
        store, codec, gone.append, 0.2, Expulsions(lambda one: None), TIMINGS.members_pause
    )
    found = Followed(store, codec, members, gone, environment)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        for number in range(MANY):
            await found.write(f"node-{number:02d}")
        await nursery.start(members.run)
        yield found
        members.check_invariants()
        store.close()
        nursery.cancel_scope.cancel()


async def test_changes_in_quick_succession_come_together(autojump_clock: MockClock) -> None:
    async with followed() as at:
        for number in range(MANY):
            await at.write(f"late-{number}", "joining")
            await at.write(f"late-{number}")
            await trio.sleep(0.001)
        await trio.sleep(TIMINGS.most_pause)
        assert len(at.names()) == 2 * MANY
        # One for the first, and one for all that came in the pause after it.
        assert at.store.polls <= 3


async def test_records_are_read_when_they_are_asked_for_and_only_the_last_of_each_node(
    autojump_clock: MockClock,
) -> None:
    async with followed() as at:
        await at.write("first")
        await at.members.wait_changed()
        assert at.codec.reads == 0
        found = at.members.find("node-07")
        assert found is not None
        assert at.members.is_current(NodeId("node-07", found.member.incarnation))
        assert at.codec.reads == 1
        assert len(at.names()) == MANY + 1
        reads = at.codec.reads
        for number in range(MANY):
            await at.write(f"late-{number}", "joining")
            await at.write(f"late-{number}")
        await at.members.wait_changed()
        assert at.codec.reads == reads
        assert {member.state for member in at.members.all()} == {"up"}
        assert at.codec.reads - reads == MANY


async def test_of_a_node_that_ends_and_starts_between_two_answers_each_incarnation_is_seen(
    autojump_clock: MockClock,
) -> None:
    async with followed() as at:
        await at.write("first")
        await at.members.wait_changed()
        created = [
            await at.write("brief", "joining"),
            await at.write("brief"),
        ]
        await at.store.delete(f"{PREFIX}brief")
        created.append(await at.write("brief", "joining"))
        await at.write("brief", "draining")
        await at.members.wait_changed()
        assert [(one.name, one.incarnation, one.state) for one in at.gone] == [
            ("brief", created[0], "up")
        ]
        found = at.members.find("brief")
        assert found is not None
        assert (found.member.incarnation, found.member.state) == (created[2], "draining")


async def test_the_first_change_after_a_quiet_time_is_seen_at_once(
    autojump_clock: MockClock,
) -> None:
    async with followed() as at:
        for _ in range(3):
            await trio.sleep(2 * TIMINGS.most_pause)
            began = trio.current_time()
            await at.store.delete(f"{PREFIX}node-{len(at.gone):02d}")
            await at.members.wait_changed()
            assert trio.current_time() == began
        assert [member.name for member in at.gone] == ["node-00", "node-01", "node-02"]


async def test_a_change_in_the_pause_is_seen_at_its_end(autojump_clock: MockClock) -> None:
    async with followed() as at:
        await at.store.delete(f"{PREFIX}node-00")
        await at.members.wait_changed()
        began = trio.current_time()
        await at.store.delete(f"{PREFIX}node-01")
        await at.members.wait_changed()
        assert 0 < trio.current_time() - began <= PAUSE
        assert [member.name for member in at.gone] == ["node-00", "node-01"]


async def test_what_was_written_in_the_pause_is_seen_by_who_asks_for_it(
    autojump_clock: MockClock,
) -> None:
    async with followed() as at:
        await at.write("first")
        await at.members.wait_changed()
        began = trio.current_time()
        await at.store.delete(f"{PREFIX}node-07")
        revision = await at.write("second")
        await at.members.caught_up_with_write(revision)
        assert trio.current_time() == began
        assert at.members.revision >= revision
        assert "second" in at.names()
        # All that came before it as well, and each end is reported once, also after the pause.
        assert "node-07" not in at.names()
        await trio.sleep(TIMINGS.most_pause)
        assert [member.name for member in at.gone] == ["node-07"]


async def test_a_write_is_also_seen_where_the_store_has_forgotten_the_changes_before_it(
    autojump_clock: MockClock,
) -> None:
    async with followed(StoreMachine(ChangeHistory(max_events=8))) as at:
        await at.store.delete(f"{PREFIX}node-00")
        await at.members.wait_changed()
        for number in range(MANY):
            await at.write(f"late-{number}")
        revision = await at.write("last")
        await at.members.caught_up_with_write(revision)
        assert len(at.names()) == 2 * MANY


def test_few_members_are_followed_without_a_pause() -> None:
    assert TIMINGS.members_pause(0) == TIMINGS.members_pause(TIMINGS.few_members) == 0.0
    assert 0.0 < TIMINGS.members_pause(TIMINGS.few_members + 1) < TIMINGS.most_pause
    assert TIMINGS.members_pause(10_000) == TIMINGS.most_pause
    # Renewals, and what decides about the life of a node, do not wait for it.
    assert TIMINGS.most_pause < TIMINGS.renew_every
