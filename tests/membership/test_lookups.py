"""Lookups that need not ask the store every time, and never answer with what is known to have
ended.
"""

from __future__ import annotations

import itertools
from typing import cast

import pytest
import trio
import trio.testing

from actors import Actor, method
from actors.errors import ActorNotFoundError, StoreUnavailableError
from runtime import Node
from runtime.membership.lookups import CHANGES_IN_A_ROW, Lookups
from runtime.membership.name_suggestions import MOST_KEPT, NameSuggestions
from runtime.membership.names import Names
from runtime.node import internals_of
from runtime.store.interface import Operation, RangeResult, Store, StoreEvent, WatchBatch
from runtime.timings import Timings
from tests.live_pair import Pair
from tests.waiting import until

MANY = 3 * CHANGES_IN_A_ROW


class Clerk(Actor):
    """Says which one it is."""

    @method
    async def who(self) -> tuple[str, int]:
        return self.node.name, self.epoch

    @method
    async def crash(self) -> None:
        raise SystemExit(1)


def counted(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[Operation]:
    """What the names of a node ask of the store from now on."""
    asked: list[Operation] = []
    store: Store = internals_of(node).store
    transaction = store.transaction

    async def counting(compare: object, then: object, otherwise: object = ()) -> object:
        asked.extend(then)  # type: ignore[arg-type]
        return await transaction(compare, then, otherwise)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "transaction", counting)
    return asked


@pytest.mark.parametrize("at", ["here", "there"])
async def test_a_name_is_asked_of_the_store_once_and_again_when_it_has_moved(
    pair: Pair, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = (pair.here, pair.there) if at == "here" else (pair.there, pair.here)
    spawned = await other.options(name="clerk").spawn(Clerk)
    await until(
        lambda: internals_of(node).lookups._seen >= spawned.address.epoch,
        "the watch has told of the actor",
        every=0.001,
    )
    asked = counted(node, monkeypatch)
    for _ in range(10):
        clerk = await node.lookup("clerk", Clerk)
    assert len(asked) == 2, "one transaction of two reads"
    first = await clerk.who()
    await other.stop(await other.lookup("clerk"))
    await node.options(name="clerk").spawn(Clerk)

    async def answer() -> tuple[str, int]:
        return await (await node.lookup("clerk", Clerk)).who()

    # The watch is on its way.
    await until(answer, "the new one is found", lambda who: who != first, every=0.001)


@pytest.mark.parametrize("on", ["here", "there"])
async def test_after_a_stop_the_next_line_finds_nothing_and_may_spawn_anew(
    pair: Pair, on: str
) -> None:
    for _ in range(20):
        clerk = await pair.here.options(name="clerk", on=on).spawn(Clerk)
        epoch = (await (await pair.here.lookup("clerk", Clerk)).who())[1]
        await pair.here.stop(clerk)
        with pytest.raises(ActorNotFoundError):
            await pair.here.lookup("clerk")
        await pair.here.options(name="clerk", on=on).spawn(Clerk)
        assert (await (await pair.here.lookup("clerk", Clerk)).who())[1] > epoch
        await pair.here.stop(await pair.here.lookup("clerk"))


async def test_an_actor_that_this_node_knows_to_have_ended_is_not_found_before_the_store_says_so(
    pair: Pair,
) -> None:
    for _ in range(20):
        clerk = await pair.here.options(name="clerk").spawn(Clerk)
        await pair.here.lookup("clerk")
        await clerk.crash.send()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ActorNotFoundError):
            await pair.here.lookup("clerk")


async def test_a_call_on_an_address_out_of_date_finds_the_actor_where_it_is_now(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.there.options(name="clerk").spawn(Clerk)
    await pair.here.lookup("clerk")
    # As if the watch were late.
    monkeypatch.setattr(internals_of(pair.here).lookups, "forget", lambda name: None)
    await pair.there.stop(await pair.there.lookup("clerk"))
    await pair.here.options(name="clerk").spawn(Clerk)
    assert (await (await pair.here.lookup("clerk", Clerk)).who())[0] == "here"


@pytest.mark.parametrize("at", ["here", "there"])
async def test_the_error_of_a_lookup_names_the_nearest_name(pair: Pair, at: str) -> None:
    node = pair.here if at == "here" else pair.there
    await pair.there.options(name="counter").spawn(Clerk)
    with pytest.raises(ActorNotFoundError, match=r"'countr'.*did you mean 'counter'\?") as caught:
        await node.lookup("countr", Clerk)
    assert caught.value.actor == "countr"


async def test_lookups_in_a_loop_read_the_names_once_a_second_at_most(
    autojump_clock: trio.testing.MockClock,
) -> None:
    reads: list[float] = []

    class Compared:
        """Names of which each read takes a while."""

        async def to_compare(self, name: str, most: int) -> list[str]:
            reads.append(trio.current_time())
            await trio.sleep(0.05)
            return ["counter", "clerk"][:most]

    suggestions = NameSuggestions(cast("Names", Compared()))
    texts: dict[str, list[str]] = {}

    async def look_up(name: str, times: int) -> None:
        for _ in range(times):
            missing = ActorNotFoundError("not there", actor=name)
            texts.setdefault(name, []).append(str(await suggestions.added(missing, name)))
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look_up, "countr", 500)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(look_up, "clrk", 500)
        nursery.start_soon(look_up, "counter", 500)
    # One for each name: what it has shown is kept.
    assert len(reads) == 3
    assert all(later - before >= 1.0 for before, later in itertools.pairwise(reads))
    assert texts["countr"][0] == texts["countr"][-1] == "not there; did you mean 'counter'?"
    assert texts["clrk"][0] == "not there"
    assert texts["clrk"][-1] == "not there; did you mean 'clerk'?"
    assert set(texts["counter"]) == {"not there"}, "a name is not like itself"
    # Many names: a read each second, and few of them are kept.
    reads.clear()
    for number in range(3000):
        await look_up(f"other-{number}", 1)
    assert 2900 / 100 <= len(reads) <= 32
    assert len(suggestions._kept) <= MOST_KEPT


@pytest.mark.parametrize("fails", [True, False])
async def test_a_store_that_does_not_tell_the_names_does_not_change_the_error(
    autojump_clock: trio.testing.MockClock, fails: bool
) -> None:
    class Silent:
        """Names that cannot be read."""

        async def to_compare(self, name: str, most: int) -> list[str]:
            if fails:
                raise StoreUnavailableError("the store cannot be reached")
            await trio.sleep_forever()
            raise AssertionError("unreachable")

    suggestions = NameSuggestions(cast("Names", Silent()))
    missing = ActorNotFoundError("not there", actor="countr")
    assert await suggestions.added(missing, "countr") is missing
    assert trio.current_time() <= 1.0


class Feed:
    """A store in which a name changes every millisecond. Keeps when it was asked for changes."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def range(self, prefix: str) -> RangeResult:
        """Nothing there."""
        return RangeResult((), 1)

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        """All changes until now, at least one."""
        self.asked.append(trio.current_time())
        await trio.sleep_until(from_revision / 1000)
        until = max(from_revision, int(trio.current_time() * 1000))
        revisions = range(from_revision, until + 1)
        return WatchBatch(
            tuple(StoreEvent("put", f"names/{one}", b"", one, one) for one in revisions), until
        )


async def test_changes_in_quick_succession_come_together(
    autojump_clock: trio.testing.MockClock,
) -> None:
    feed, seen = Feed(), list[tuple[int, float]]()
    timings = Timings()
    lookups = Lookups(
        cast("Store", feed),
        cast("Names", None),
        "names/",
        lambda address: True,
        timings.names_pause,
    )
    with trio.move_on_after(1.0):
        await lookups.run(
            lambda event: seen.append((event.revision, trio.current_time())), lambda: None
        )
    assert [revision for revision, _ in seen] == list(range(2, len(seen) + 2)), "none is missed"
    # The first one at once, the others within the pause.
    assert seen[0][1] == pytest.approx(0.002)
    # The pause before it depends on how many came before: at most five then.
    assert all(
        at - revision / 1000 <= timings.name_pause + 1e-4 for revision, at in seen if at <= 0.01
    )
    assert all(at - revision / 1000 <= timings.most_name_pause + 1e-4 for revision, at in seen)
    assert len(feed.asked) <= 1.0 / timings.most_name_pause + 5


class Death(Feed):
    """Has many changes at once, and then none."""

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        if from_revision > 2:
            await trio.sleep_forever()
        events = [StoreEvent("put", f"names/{one}", b"", one, one) for one in range(2, MANY + 2)]
        return WatchBatch(tuple(events), MANY + 1)


async def test_of_changes_that_are_applied_in_parts_the_rest_is_yet_to_be_reported() -> None:
    """A placement counts what has started until its claim is reported."""
    seen, parts = set[int](), set[int]()
    lookups = Lookups(
        cast("Store", Death()), cast("Names", None), "names/", lambda address: True, lambda n: 0.0
    )

    async def look() -> None:
        while len(seen) < MANY:
            await trio.lowlevel.checkpoint()
            if lookups.is_following:
                parts.add(len(seen))
                for revision in (2, MANY // 2, MANY + 1):
                    assert lookups.will_report(revision) == (revision not in seen)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lookups.run, lambda event: seen.add(event.revision), lambda: None)
        await look()
        nursery.cancel_scope.cancel()
    assert min(parts) < MANY


def test_the_pause_is_bounded_and_short_for_a_node_that_falls_behind() -> None:
    timings = Timings()
    assert timings.names_pause(0) == timings.names_pause(1) == timings.name_pause
    assert timings.name_pause < timings.names_pause(3) < timings.most_name_pause
    most = timings.most_name_changes
    assert timings.names_pause(most) == timings.most_name_pause
    assert timings.names_pause(most + 1) == timings.name_pause
