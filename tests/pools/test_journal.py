"""Journals of maps: the machine under planted crashes, drivers that take over in a store, and maps
of live nodes that go on where others were.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import attrs
import cbor2
import pytest
import trio
import trio.testing

from actors.errors import (
    EncodeError,
    JournalError,
    JournalInUseError,
    JournalMismatchError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from actors.pools import JournalSummary
from runtime import AlreadyDone
from runtime.environment import SystemEnvironment
from runtime.hosting.running_batch import RETURNED
from runtime.membership.journals import DRIVERS, HEADS, Journals
from runtime.membership.owed_deletions import GIVE_BACK_AFTER, OwedDeletions
from runtime.pools import journal as journal_module
from runtime.pools.held_items import HeldItems, MapItem
from runtime.pools.journal import ItemCodec, MapJournal
from runtime.pools.journal_service import list_journals
from runtime.pools.map_schedule import MapSchedule
from runtime.store.embedded_store import EmbeddedStore
from runtime.wire.codec import Codec
from tests.live_pair import Pair
from tests.pools.actors_used import Driver, Squares
from tests.waiting import until

ITEMS = 80
CODEC = ItemCodec(Codec(sentinel=b"sentinel"))


class KilledError(Exception):
    """The driver dies here."""


@attrs.define(eq=False)
class Parts:
    """The parts as a store keeps them: each with how often it was written."""

    kept: dict[int, tuple[int, bytes]] = attrs.Factory(dict)

    def write(self, number: int, version: int, value: bytes) -> None:
        """As a transaction with the version as its condition."""
        found, _ = self.kept.get(number, (0, b""))
        assert found == version, "nothing else writes it"
        self.kept[number] = (version + 1, value)


class Run:
    """One driver's life under one seed: it is killed at any step, or comes to its end."""

    def __init__(self, parts: Parts, draw: random.Random, deadly: float) -> None:
        self.parts = parts
        self.draw = draw
        self.deadly = deadly
        self.ran: list[int] = []
        self.given: dict[int, object] = {}
        self.finished: list[MapItem] = []
        """What waits to be handed to the journal."""

    def step(self) -> None:
        """A place at which it may be killed."""
        if self.draw.random() < self.deadly:
            raise KilledError

    def run(self) -> None:
        """Read the journal, and go on until all is done."""
        journal = MapJournal("job")
        for number in range(len(self.parts.kept)):
            journal.on_part(self.parts.kept[number][1])
        schedule = MapSchedule(journalled=True, ordered=bool(self.draw.randrange(2)), window=10)
        schedule.on_member("member")
        given = 0
        while not schedule.is_over:
            what = self.draw.randrange(4)
            if what == 0 and given < ITEMS and schedule.wants_items:
                digest = CODEC.digest((given,))
                entry = journal.find(given, digest)
                index = schedule.on_item((given,), 8, digest)
                if entry is not None:
                    schedule.on_known(index, CODEC.decode(entry))
                given += 1
            elif what == 0 and given == ITEMS:
                journal.on_source_over(given)
                schedule.on_source_over()
            elif what == 1:
                self.work(schedule)
            elif what == 2:
                self.write(journal, schedule)
            elif (result := schedule.held.next_result()) is not None:
                assert result.index not in self.given
                self.given[result.index] = result.value
                self.step()
            schedule.check_invariants()

    def work(self, schedule: MapSchedule) -> None:
        """The member runs a batch."""
        batch = schedule.take("member", 0.0)
        if batch is None:
            return
        outcomes: list[tuple[int, object]] = []
        for item in batch.items:
            self.ran.append(item.index)
            self.step()
            outcomes.append((RETURNED, item.index * item.index))
        schedule.on_done(batch, outcomes, 0.001, 0.0)
        self.finished += schedule.held.take_finished()
        self.step()

    def write(self, journal: MapJournal, schedule: MapSchedule) -> None:
        """One write, with a place to die before it, and one before it is known."""
        for result in self.finished:
            journal.on_done(result.index, result.digest, *CODEC.encode(result.value))
        self.finished.clear()
        write = journal.next_write()
        if write is None:
            return
        self.step()
        self.parts.write(write.number, write.version, write.value)
        self.step()
        schedule.held.on_written(journal.on_written(write))


def lives(seed: int) -> None:
    """Drivers one after the other, until one comes to the end; what was given is never run again,
    and the last one gives everything.
    """
    draw = random.Random(seed)
    parts = Parts()
    acknowledged: dict[int, object] = {}
    for life in range(1000):
        run = Run(parts, draw, 0.0 if life == 60 else 0.01)
        try:
            run.run()
        except KilledError:
            pass
        assert acknowledged.keys().isdisjoint(run.ran), "done once more"
        for index, value in run.given.items():
            assert value == index * index
            assert acknowledged.setdefault(index, value) == value
        assert max(Counter(run.ran).values(), default=1) == 1
        if len(run.given) == ITEMS:
            return
    raise AssertionError("it does not come to an end")


def many_lives(seeds: range) -> None:
    for seed in seeds:
        lives(seed)


@pytest.mark.parametrize("small", [False, True])
def test_drivers_that_are_killed_anywhere_do_nothing_twice_that_was_given(
    monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    if small:
        # Parts of a few entries: some are rewritten, most are not.
        monkeypatch.setattr(journal_module, "REWRITE_BELOW", 60)
        monkeypatch.setattr(journal_module, "PART_BYTES", 100)
    many_lives(range(60))


def gives_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    def finish(self: Any, item: MapItem, value: object = None, error: Any = None) -> None:
        item.value, item.error = value, error
        self._settle(item)

    patch.setattr(HeldItems, "finish", finish)


def forgets_what_a_part_had(patch: pytest.MonkeyPatch) -> None:
    right = MapJournal.on_written

    def on_written(self: Any, write: Any) -> list[int]:
        indices = right(self, write)
        self._value = []
        return indices

    patch.setattr(MapJournal, "on_written", on_written)


def says_that_more_is_written(patch: pytest.MonkeyPatch) -> None:
    right = MapJournal.next_write

    def next_write(self: Any) -> Any:
        write = right(self)
        return write and attrs.evolve(write, value=b"\x80")

    patch.setattr(MapJournal, "next_write", next_write)


@pytest.mark.parametrize(
    "plant", [gives_before_it_is_written, forgets_what_a_part_had, says_that_more_is_written]
)
def test_a_broken_rule_of_the_journal_is_found(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        many_lives(range(20))


def test_a_result_that_is_large_or_ends_with_its_node_is_not_kept() -> None:
    assert CODEC.encode(b"x" * 20_000)[0] is None
    assert CODEC.encode(object())[0] is None
    kept, _ = CODEC.encode({"a": [1.5, b"x" * 100], "b": None})
    assert kept is not None


def test_the_digest_of_a_set_is_the_same_in_whatever_order_it_was_filled() -> None:
    one, other = {8}, {0}
    one.add(0)
    other.add(8)
    assert list(one) != list(other), "else this shows nothing"
    assert CODEC.digest((one, [other])) == CODEC.digest((other, [one]))
    assert CODEC.digest(({1},)) != CODEC.digest(({2},))


def test_a_journal_that_is_full_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MOST_BYTES", 100)
    journal = MapJournal("job")
    while journal._bytes < 100:
        journal.on_done(0, b"12345678", b"x", 1)
        write = journal.next_write()
        assert write is not None
        journal.on_written(write)
    journal.on_done(1, b"12345678", b"x", 1)
    with pytest.raises(JournalError, match="full"):
        journal.next_write()


def test_results_beyond_the_bound_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MOST_RESULT_BYTES", 5)
    journal = MapJournal("job")
    for index in range(3):
        journal.on_done(index, b"12345678", b"xyz", 3)
    write = journal.next_write()
    assert write is not None
    assert [entry.result for entry in write.entries] == [b"xyz", None, None]


@pytest.mark.parametrize("part", [b"", b"\x01", b"\x81\x01", b"\xff", b"\x81\x82\x01\x02"])
def test_garbage_in_the_store_is_an_error_that_names_the_journal(part: bytes) -> None:
    with pytest.raises(JournalError, match="'job'"):
        MapJournal("job").on_part(part)


# In a store.


class Forgetful(EmbeddedStore):
    """Carries each write out, and loses the answers of some."""

    losses = 0
    back: trio.Event | None = None
    """While the store is away: it carries nothing out, and answers nothing."""
    late: list[tuple[Any, ...]]
    """What it was asked while it was away."""

    async def transaction(self, *args: Any, **kwargs: Any) -> Any:
        """See `Store.transaction`."""
        if self.back is not None:
            self.late.append(args)
            await self.back.wait()
            raise StoreUnavailableError("it was away")
        result = await EmbeddedStore.transaction(self, *args, **kwargs)
        if self.losses:
            self.losses -= 1
            raise StoreOutcomeUnknownError("its answer was lost")
        return result


class Setting:
    """A store, and journals of drivers on nodes that have leases there."""

    def __init__(self, store: Forgetful, nursery: trio.Nursery) -> None:
        self.store = store
        self.store.late = []
        self._nursery = nursery
        self.tokens = map(str, itertools.count())
        self.now = 1_000_000.0

    @contextmanager
    def away(self) -> Iterator[None]:
        """Let the store be away in this block."""
        self.store.back = trio.Event()
        yield
        self.store.back.set()
        self.store.back = None

    async def node(self, name: str) -> tuple[Journals, int]:
        """The journals of a node, and its lease."""
        lease = await self.store.grant(60.0)
        token = functools.partial(next, self.tokens)
        owed = OwedDeletions(self.store)
        self._nursery.start_soon(owed.run)
        return Journals(self.store, lease, name, token, 2.0, lambda: self.now, owed), lease


@pytest.fixture
async def setting() -> AsyncIterator[Setting]:
    store = Forgetful(SystemEnvironment())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        yield Setting(store, nursery)
        nursery.cancel_scope.cancel()


async def test_a_driver_goes_on_where_one_was_whose_node_has_died(setting: Setting) -> None:
    one, lease = await setting.node("one")
    other, _ = await setting.node("other")
    opening = await one.open("job", "squares")
    for number in range(20):
        await one.write("job", opening, number, 0, b"%d" % number)
    await one.write("job", opening, 19, 1, b"again")
    with pytest.raises(JournalInUseError, match="node one"):
        await other.open("job", "squares")
    await setting.store.revoke(lease)
    later = await other.open("job", "squares")
    found: list[bytes] = []
    while parts := await other.parts("job", later[1], len(found)):
        found += parts
    assert found == [b"%d" % number for number in range(19)] + [b"again"]
    with pytest.raises(JournalError, match="another driver"):
        await one.write("job", opening, 20, 0, b"late")
    await other.release("job", later[0])
    assert await other.remove("job")
    assert not await other.remove("job")
    assert not (await setting.store.range("journal")).entries


async def test_journals_are_listed_with_what_is_done_and_who_works_with_them(
    setting: Setting,
) -> None:
    one, _ = await setting.node("one two")
    opening = await one.open("job", "squares")
    # More parts than one answer of the store has.
    parts = [cbor2.dumps([[number, b"d", None, 1]] * 2) for number in range(20)]
    for number, part in enumerate(parts):
        await one.write("job", opening, number, 0, part)
    other = await one.open("broken", "cubes")
    await one.write("broken", other, 0, 0, b"\xff")
    await one.release("broken", other[0])
    size = sum(map(len, parts))
    assert await list_journals(setting.store, setting.now + 5) == [
        JournalSummary("broken", "cubes", None, 1, None, 5.0),
        JournalSummary("job", "squares", 40, size, "one two", 5.0),
    ]
    found = await list_journals(setting.store, setting.now, "broken", 1)
    assert [each.name for each in found] == ["job"]
    assert await one.remove("broken")
    assert [found.name for found in await list_journals(setting.store, 0.0)] == ["job"]


async def test_a_journal_is_as_old_as_its_last_use(setting: Setting) -> None:
    one, _ = await setting.node("one")

    async def unused() -> float | None:
        (found,) = await list_journals(setting.store, setting.now)
        return found.unused

    opening = await one.open("job", "squares")
    setting.now += 59
    await one.write("job", opening, 0, 0, b"some")
    assert await unused() == 59, "it is not written with each part"
    setting.now += 1
    await one.write("job", opening, 0, 1, b"more")
    assert await unused() == 0
    await one.release("job", opening[0])
    setting.now += 100
    assert not await one.remove("job", 101.0)
    assert await unused() == 100
    again = await one.open("job", "squares")
    assert await unused() == 0, "to open it is to use it"
    await one.release("job", again[0])
    # The clock of another host is behind.
    setting.now -= 1000
    assert await unused() == 0
    setting.now += 1300
    assert await one.remove("job", 300.0)
    assert not (await setting.store.range("journal")).entries


async def test_a_journal_of_an_earlier_version_has_no_time_until_it_is_used(
    setting: Setting,
) -> None:
    one, _ = await setting.node("one")
    await setting.store.put(HEADS + "job", b"squares")
    (found,) = await list_journals(setting.store, setting.now)
    assert found == JournalSummary("job", "squares", 0, 0, None, None)
    assert not await one.remove("job", 1.0), "nobody knows whether it is old"
    opening = await one.open("job", "squares")
    await one.release("job", opening[0])
    head = await setting.store.get(HEADS + "job")
    assert head is not None
    assert head.value == b"squares", "what earlier versions compare"
    (found,) = await list_journals(setting.store, setting.now)
    assert found.unused == 0
    assert await one.remove("job")


async def test_a_write_whose_answer_is_lost_is_written_once(setting: Setting) -> None:
    one, _ = await setting.node("one")
    setting.store.losses = 2
    opening = await one.open("job", "squares")
    for version in range(3):
        setting.store.losses = 2
        await one.write("job", opening, 0, version, b"%d" % version)
    assert await one.parts("job", opening[1], 0) == [b"2"]
    setting.store.losses = 1
    await one.release("job", opening[0])
    setting.store.losses = 1
    assert await one.remove("job")


async def test_a_journal_that_is_left_while_the_store_is_away_is_free_later(
    setting: Setting, autojump_clock: trio.testing.MockClock
) -> None:
    """Its node lives on, and with it the lease."""
    one, _ = await setting.node("one")
    fence, _ = await one.open("job", "squares")
    with setting.away():
        await one.release("job", fence)
    await trio.sleep(GIVE_BACK_AFTER * 2)
    assert not (await setting.store.range(DRIVERS)).entries


async def test_a_claim_of_a_journal_that_arrives_after_its_withdrawal_is_withdrawn_again(
    setting: Setting, autojump_clock: trio.testing.MockClock
) -> None:
    one, _ = await setting.node("one")
    with setting.away(), trio.move_on_after(0.5):
        await one.open("job", "squares")
    claim, withdrawal, *_ = setting.store.late
    await setting.store.transaction(*withdrawal)
    await setting.store.transaction(*claim)
    assert len((await setting.store.range(DRIVERS)).entries) == 1
    await trio.sleep(GIVE_BACK_AFTER * 3)
    assert not (await setting.store.range(DRIVERS)).entries


async def test_a_journal_of_another_method_is_refused_and_left_free(setting: Setting) -> None:
    one, _ = await setting.node("one")
    opening = await one.open("job", "squares")
    await one.release("job", opening[0])
    with pytest.raises(JournalMismatchError, match="squares, not of cubes"):
        await one.open("job", "cubes")
    assert await one.open("job", "squares")


@pytest.mark.parametrize("name", ["", "a/b", "x" * 201, "a\nb", 3, None])
async def test_a_name_that_no_journal_can_have_is_refused(setting: Setting, name: Any) -> None:
    one, _ = await setting.node("one")
    with pytest.raises((TypeError, ValueError)):
        await one.open(name, "squares")


# Of live nodes.


async def everything(results: AsyncIterator[object]) -> list[object]:
    return [result async for result in results]


async def test_a_map_that_was_left_goes_on_where_it_was(pair: Pair) -> None:
    pool = await pair.here.pool("squares", Squares, size=2)
    given: list[object] = []
    async with pool.map(Squares.note, range(300), journal="job", ordered=False) as results:
        async for result in results:
            given.append(result)
            if len(given) == 100:
                break
    again = await pair.there.lookup_pool("squares", Squares)
    results = again.map(Squares.note, range(300), journal="job")
    found = await everything(results)
    assert [item for _, item in found] == list(range(300))  # type: ignore[has-type, misc]
    ran = Counter(
        item for answer in await pool.call_all(Squares.noted) for item in answer.value or ()
    )
    assert all(ran[item] == 1 for _, item in given)  # type: ignore[misc, has-type]
    # All of them, where the members were quicker than the reader.
    assert 100 <= results.counts().resumed <= 300
    once_more = pool.map(Squares.note, range(300), journal="job")
    assert await everything(once_more) == found
    assert once_more.counts().resumed == 300
    assert await pool.remove_journal("job")
    anew = pool.map(Squares.note, range(3), journal="job")
    assert len(await everything(anew)) == 3
    assert anew.counts().resumed == 0


async def test_a_source_that_has_changed_is_refused(pair: Pair) -> None:
    pool = await pair.here.pool("squares", Squares, size=1)
    await everything(pool.map(Squares.square, range(10), journal="job"))
    changed = pool.map(Squares.square, [0, 1, 2, 3, 9], journal="job")
    assert [await anext(changed) for _ in range(4)] == [0, 1, 4, 9]
    with pytest.raises(JournalMismatchError, match="item 4 is not the one"):
        await anext(changed)
    with pytest.raises(JournalMismatchError, match="ended after 3 items"):
        await everything(pool.map(Squares.square, range(3), journal="job"))
    with pytest.raises(JournalMismatchError, match="Squares, square, not of"):
        await everything(pool.map(Squares.note, range(10), journal="job"))
    assert len(await everything(pool.map(Squares.square, range(20), journal="job"))) == 20


async def test_items_that_failed_are_tried_again_and_what_is_large_is_marked(pair: Pair) -> None:
    pool = await pair.here.pool("squares", Squares, size=1)
    first = await everything(pool.map(Squares.picky, range(5), journal="job", on_error="return"))
    assert [one for one in first if isinstance(one, int)] == [0, 1, 2, 4]
    again = pool.map(Squares.picky, range(5), journal="job", on_error="return")
    assert isinstance((await everything(again))[3], Exception)
    assert again.counts().resumed == 4
    for _ in range(2):
        large = await everything(pool.map(Squares.blob, [10, 20_000], journal="large"))
    assert large[0] == b"x" * 10
    assert large[1] == AlreadyDone(1, large[1].size)  # type: ignore[attr-defined]
    assert large[1].size > 20_000


@pytest.mark.parametrize("isolation", ["none", "process"])
async def test_journals_are_listed_and_removed_from_any_node_and_by_actors(
    pair: Pair, isolation: Literal["none", "process"]
) -> None:
    pool = await pair.here.pool("squares", Squares, size=1)
    for name in ("one", "other"):
        await everything(pool.map(Squares.square, range(10), journal=name))
    (one, other) = await pair.there.pool_journals()
    assert (one.name, one.items, one.driver) == ("one", 10, None)
    assert other.what == "tests.pools.actors_used:Squares, square"
    assert one.unused is not None
    assert not await pair.there.remove_pool_journal("one", unused_for=3600)
    assert await pair.there.remove_pool_journal("one")
    assert not await pair.there.remove_pool_journal("one")
    driver = await pair.here.options(isolation=isolation).spawn(Driver)
    assert await driver.journals_removed() == ["other"]
    assert await pair.here.pool_journals() == []
    mistakes: tuple[tuple[Any, Any, type[Exception]], ...] = (
        ("a/b", 0, ValueError),
        (3, 0, TypeError),
        ("one", -1, ValueError),
        ("one", "3", TypeError),
    )
    for name, unused, error in mistakes:
        with pytest.raises(error):
            await pair.here.remove_pool_journal(name, unused_for=unused)
    busy = pool.map(Squares.hang, [1], journal="busy")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(anext, busy)
        await until(lambda: busy.counts().running, "it runs")
        assert [found.driver for found in await pair.there.pool_journals()] == ["here"]
        nursery.cancel_scope.cancel()


async def test_two_maps_do_not_share_a_journal(pair: Pair) -> None:
    pool = await pair.here.pool("squares", Squares, size=1)
    one = pool.map(Squares.hang, [1], journal="job")
    found: list[object] = []

    async def wait() -> None:
        found.extend(await everything(pool.map(Squares.hang, [], journal="job")))
        found.append("over")

    async with trio.open_nursery() as nursery, trio.open_nursery() as readers:
        readers.start_soon(anext, one)
        await until(lambda: one.counts().running, "it runs")
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked(0.2)
        assert not found, "it waits for the end of the other"
        readers.cancel_scope.cancel()
    assert found == ["over"]


async def test_what_goes_with_no_journal_is_refused(pair: Pair) -> None:
    pool = await pair.here.pool("squares", Squares, size=1)
    with pytest.raises(ValueError, match="do not go together"):
        pool.map(Squares.square, [1], journal="job", keep=True)
    with pytest.raises(ValueError, match="no '/'"):
        pool.map(Squares.square, [1], journal="a/b")
    with pytest.raises(TypeError, match="must be a name"):
        pool.map(Squares.square, [1], journal=True)  # type: ignore[call-overload]
    kept = await pair.here.put(3)
    found = await everything(
        pool.map(Squares.square, [2, kept], journal="job", on_error="return")  # type: ignore[call-overload]
    )
    assert found[0] == 4
    assert isinstance(found[1], EncodeError)
    assert "reference" in str(found[1])
