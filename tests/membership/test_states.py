"""States that actors save: large ones in parts, whole or not at all, and fenced."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

import pytest
import trio

from actors import Actor, ChildSpec, SpawnOptions, Supervisor, method
from actors.errors import (
    StaleEpochError,
    StoreDataError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from runtime.environment import SystemEnvironment
from runtime.membership.owed_deletions import GIVE_BACK_AFTER, OwedDeletions
from runtime.membership.saved_states import (
    FENCES,
    LISTS,
    MOST_REPEATS,
    PART_BYTES,
    PARTS,
    STATES,
    StateRecords,
    saved_bytes,
)
from runtime.store.embedded_store import EmbeddedStore
from runtime.store.interface import Compare, Operation, Put, TransactionResult
from tests.live_pair import Pair
from tests.waiting import until


class Archive(Actor):
    """Keeps what it is given, and crashes when told to."""

    def __init__(self) -> None:
        self.kept: object = None

    async def on_start(self) -> None:
        self.kept = await self.saved()

    @method
    async def keep(self, what: object) -> None:
        await self.save(what)

    @method
    async def read(self) -> object:
        return self.kept

    @method
    async def crash(self) -> None:
        raise SystemExit(1)


class Fragile(EmbeddedStore):
    """A store that goes away after some writes."""

    writes = 1_000_000

    async def transaction(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TransactionResult:
        self.writes -= 1
        if self.writes < 0:
            raise StoreUnavailableError("gone in the middle, by the test")
        return await super().transaction(compares, then, otherwise)


@pytest.fixture
async def store() -> AsyncIterator[Fragile]:
    store = Fragile(SystemEnvironment())
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        store.close()


async def claim(store: EmbeddedStore, name: str) -> int:
    return (await store.transaction([], [Put("owners/" + name, b"")])).revision


async def parts(store: EmbeddedStore) -> list[str]:
    """The parts in the store. Their list is there exactly if one of them is."""
    found = [entry.key.removeprefix(PARTS) for entry in (await store.range(PARTS)).entries]
    assert len((await store.range(LISTS)).entries) == bool(found)
    return found


async def run_a_while(owed: OwedDeletions) -> None:
    with trio.move_on_after(10 * GIVE_BACK_AFTER):
        await owed.run()


def large(seed: int, parts: int = 3) -> bytes:
    return bytes([seed]) * (PART_BYTES * (parts - 1) + 1)


async def test_a_state_of_any_size_comes_back_and_the_one_before_leaves_nothing(
    store: Fragile,
) -> None:
    states, epoch = StateRecords(store, "owners/"), await claim(store, "a")
    assert await states.saved("a") is None
    for state in (
        b"",
        b"small",
        large(1),
        large(2, 2),
        large(3, 5),
        b"small again",
        large(4),
        bytes(PART_BYTES),
    ):
        await states.save("a", epoch, state)
        assert await StateRecords(store, "owners/").saved("a") == state
        assert await saved_bytes(store, "a") == len(state)
    assert await parts(store) == []


async def test_a_partly_written_state_changes_nothing_and_is_taken_back(
    store: Fragile, autojump_clock: trio.testing.MockClock
) -> None:
    owed = OwedDeletions(store)
    states, epoch = StateRecords(store, "owners/", 0, owed), await claim(store, "a")
    await states.save("a", epoch, large(1))
    before = await parts(store)
    store.writes = 1
    with pytest.raises(StoreUnavailableError):
        await states.save("a", epoch, large(2))
    # Away for some attempts more.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_a_while, owed)
        await trio.sleep(3 * GIVE_BACK_AFTER)
        store.writes = 1_000_000
        assert len(await parts(store)) == 4
    assert await parts(store) == before
    assert await states.saved("a") == large(1)
    await states.save("a", epoch, b"small")
    assert await parts(store) == []


@pytest.mark.parametrize("state", [b"small", large(3)])
async def test_the_first_save_of_an_epoch_deletes_what_its_predecessors_left(
    store: Fragile, state: bytes
) -> None:
    for _ in range(2):
        # Each is killed in the middle, and takes nothing back.
        states, epoch = StateRecords(store, "owners/"), await claim(store, "a")
        store.writes = 2
        with pytest.raises(StoreUnavailableError):
            await states.save("a", epoch, large(1))
        store.writes = 1_000_000
    assert len(await parts(store)) == 4
    states, epoch = StateRecords(store, "owners/"), await claim(store, "a")
    await states.save("a", epoch, state)
    assert await states.saved("a") == state
    assert len(await parts(store)) == (3 if len(state) > PART_BYTES else 0)


async def test_parts_of_a_state_that_are_in_no_list_go_with_the_next_save(store: Fragile) -> None:
    """Version 0.1.0 wrote none."""
    await StateRecords(store, "owners/").save("a", await claim(store, "a"), large(1))
    await store.delete(LISTS + "a")
    states, epoch = StateRecords(store, "owners/"), await claim(store, "a")
    assert await states.saved("a") == large(1)
    await states.save("a", epoch, b"small")
    assert await parts(store) == []


async def test_a_state_without_one_of_its_parts_is_an_error_and_no_endless_search(
    store: Fragile,
) -> None:
    states, epoch = StateRecords(store, "owners/"), await claim(store, "a")
    await states.save("a", epoch, large(1))
    await store.delete(PARTS + (await parts(store))[1])
    with pytest.raises(StoreDataError, match="the saved state of a is damaged"):
        await StateRecords(store, "owners/").saved("a")
    await states.save("a", epoch, large(2))
    assert await StateRecords(store, "owners/").saved("a") == large(2)


async def test_a_save_that_costs_no_parts_is_one_transaction(store: Fragile) -> None:
    states, epoch = StateRecords(store, "owners/"), await claim(store, "a")
    store.writes = 3
    for number in range(3):
        await states.save("a", epoch, b"%d" % number)
    assert store.writes == 0


async def test_a_fenced_owner_changes_nothing_however_large_its_state(store: Fragile) -> None:
    states, epoch = StateRecords(store, "owners/"), await claim(store, "a")
    await states.save("a", epoch, large(1))
    later = await claim(store, "a")
    await StateRecords(store, "owners/").save("a", later, large(2))
    for state in (large(3), b"small"):
        with pytest.raises(StaleEpochError, match="a successor has taken over"):
            await states.save("a", epoch, state)
    assert await states.saved("a") == large(2)


class Late(EmbeddedStore):
    """A store that carries a write out as late as the test wants, and whose answer is lost: the
    server was stopped with the request in its socket.
    """

    held: list[Callable[[], Awaitable[object]]] | None = None
    to_cancel: tuple[trio.CancelScope, int] | None = None
    """The scope to cancel with the save's transaction that comes after so many."""
    lose = 0
    """So many answers to saves are lost, of those that are `applied`, or not."""
    applied = True
    then: Callable[[], Awaitable[object]] | None = None
    """What happens after a lost answer."""

    async def transaction(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TransactionResult:
        if self.to_cancel is not None:
            scope, count = self.to_cancel
            self.to_cancel = scope, count - 1
            if not count:
                self.to_cancel = None
                self.cancelled.append(partial(super().transaction, compares, then, otherwise))
                scope.cancel()
                await trio.lowlevel.checkpoint()
        if self.held is not None:
            self.held.append(partial(super().transaction, compares, then, otherwise))
            raise StoreOutcomeUnknownError("the answer was lost, by the test")
        if self.lose and any(each.key.startswith(STATES) for each in then):
            self.lose -= 1
            if self.applied:
                await super().transaction(compares, then, otherwise)
            if self.then is not None:
                after, self.then = self.then, None
                await after()
            raise StoreOutcomeUnknownError("the answer was lost, by the test")
        return await super().transaction(compares, then, otherwise)

    def __init__(self, environment: SystemEnvironment) -> None:
        super().__init__(environment)
        self.cancelled: list[Callable[[], Awaitable[object]]] = []
        """What was on its way when its caller was cancelled."""

    async def carry_out(self) -> None:
        held, self.held = self.held, None
        for each in held or ():
            await each()


@pytest.fixture
async def late() -> AsyncIterator[Late]:
    store = Late(SystemEnvironment())
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        store.close()


@pytest.mark.parametrize("count", [0, 1, 2])
async def test_a_large_save_that_is_cancelled_leaves_no_parts(
    late: Late, count: int, autojump_clock: trio.testing.MockClock
) -> None:
    owed = OwedDeletions(late)
    states, epoch = StateRecords(late, "owners/", 0, owed), await claim(late, "a")
    with trio.CancelScope() as scope:
        late.to_cancel = scope, count
        await states.save("a", epoch, large(1))
    assert scope.cancelled_caught
    # Its actor may have ended since, and the part that was on its way arrives after all.
    if count == 1:
        states.forget("a", epoch)
    await run_a_while(owed)
    assert len(late.cancelled) == 1
    await late.cancelled[0]()
    assert await parts(late) == []
    assert await states.saved("a") is None


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("ended", [True, False])
async def test_parts_that_a_save_of_unknown_outcome_may_have_named_are_kept_if_it_has(
    late: Late, applied: bool, ended: bool, autojump_clock: trio.testing.MockClock
) -> None:
    owed = OwedDeletions(late)
    states, epoch = StateRecords(late, "owners/", 0, owed), await claim(late, "a")
    await states.save("a", epoch, b"before")
    late.lose, late.applied = MOST_REPEATS + 1, applied
    with pytest.raises(StoreOutcomeUnknownError):
        await states.save("a", epoch, large(1))
    if ended:
        states.forget("a", epoch)
    await run_a_while(owed)
    assert await states.saved("a") == (large(1) if applied else b"before")
    assert len(await parts(late)) == (3 if applied else 0)


async def test_a_state_that_takes_effect_late_never_names_parts_that_are_gone(
    late: Late, autojump_clock: trio.testing.MockClock
) -> None:
    owed = OwedDeletions(late)
    states, epoch = StateRecords(late, "owners/", 0, owed), await claim(late, "a")
    await states.save("a", epoch, b"before")
    with trio.CancelScope() as scope:
        late.to_cancel = scope, 3
        await states.save("a", epoch, large(1))
    # Its actor ends, and its name is not released yet.
    states.forget("a", epoch)
    await run_a_while(owed)
    await late.cancelled[0]()
    assert await states.saved("a") == b"before"
    assert await parts(late) == []


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("times", [1, 3])
async def test_a_save_whose_answers_are_lost_is_settled_and_made_again(
    late: Late, applied: bool, times: int
) -> None:
    states, epoch = StateRecords(late, "owners/"), await claim(late, "a")
    await states.save("a", epoch, b"1")
    late.lose, late.applied = times, applied
    await states.save("a", epoch, b"2")
    assert await states.saved("a") == b"2"
    assert late.lose == 0


async def test_a_save_whose_answers_are_always_lost_is_unknown(late: Late) -> None:
    states, epoch = StateRecords(late, "owners/"), await claim(late, "a")
    late.lose, late.applied = 100, True
    with pytest.raises(StoreOutcomeUnknownError, match="by the test"):
        await states.save("a", epoch, b"2")
    assert late.lose == 100 - MOST_REPEATS - 1
    late.lose = 0
    assert await states.saved("a") == b"2"


async def test_a_save_that_may_have_been_carried_out_before_its_name_went_is_not_called_undone(
    late: Late,
) -> None:
    states, epoch = StateRecords(late, "owners/"), await claim(late, "a")
    late.lose, late.applied = 1, True
    late.then = partial(claim, late, "a")
    with pytest.raises(StoreOutcomeUnknownError, match="by the test"):
        await states.save("a", epoch, b"2")
    with pytest.raises(StaleEpochError):
        await states.save("a", epoch, b"3")
    assert await states.saved("a") == b"2"


async def test_a_save_that_is_carried_out_late_does_not_undo_one_that_was_answered_since(
    late: Late,
) -> None:
    states, epoch = StateRecords(late, "owners/"), await claim(late, "a")
    await states.save("a", epoch, b"1")
    late.held = []
    with pytest.raises(StoreOutcomeUnknownError):
        await states.save("a", epoch, b"2")
    held, late.held = late.held, None
    await states.save("a", epoch, b"3")
    late.held = held
    await late.carry_out()
    assert await states.saved("a") == b"3"
    await states.save("a", epoch, b"4")
    assert await states.saved("a") == b"4"


async def test_what_is_read_after_a_save_of_unknown_outcome_is_final(late: Late) -> None:
    states, epoch = StateRecords(late, "owners/"), await claim(late, "a")
    await states.save("a", epoch, b"1")
    late.held = []
    with pytest.raises(StoreOutcomeUnknownError):
        await states.save("a", epoch, b"2")
    held, late.held = late.held, None
    assert await states.saved("a") == b"1"
    late.held = held
    await late.carry_out()
    assert await states.saved("a") == b"1"


async def test_while_a_save_of_unknown_outcome_cannot_be_settled_nothing_is_read_or_written(
    late: Late,
) -> None:
    states, epoch = StateRecords(late, "owners/"), await claim(late, "a")
    late.held = []
    with pytest.raises(StoreOutcomeUnknownError):
        await states.save("a", epoch, b"1")
    for ask in (partial(states.save, "a", epoch, b"2"), partial(states.saved, "a")):
        with pytest.raises(StoreUnavailableError, match="outcome of an earlier save of a"):
            await ask()
    # The first save and the two attempts to settle it are carried out one after the other, late.
    await late.carry_out()
    assert await states.saved("a") == b"1"
    await states.save("a", epoch, b"3")
    assert await states.saved("a") == b"3"


async def test_a_fence_that_is_written_late_refuses_no_later_save(late: Late) -> None:
    states, epoch = StateRecords(late, "owners/"), await claim(late, "a")
    late.held = []
    with pytest.raises(StoreOutcomeUnknownError):
        await states.save("a", epoch, b"1")
    with pytest.raises(StoreUnavailableError):
        await states.saved("a")
    held, late.held = late.held, None
    await states.save("a", epoch, b"2")
    late.held = held
    await late.carry_out()
    await states.save("a", epoch, b"3")
    assert await states.saved("a") == b"3"


async def test_a_successor_need_not_settle_what_its_predecessor_left_and_fences_are_removed(
    late: Late,
) -> None:
    states, epoch = StateRecords(late, "owners/"), await claim(late, "a")
    late.held = []
    with pytest.raises(StoreOutcomeUnknownError):
        await states.save("a", epoch, b"1")
    held, late.held = late.held, None
    later = await claim(late, "a")
    assert await states.saved("a") is None
    await states.save("a", later, b"2")
    late.held = held
    await late.carry_out()
    assert await states.saved("a") == b"2"
    with pytest.raises(StaleEpochError):
        await states.save("a", epoch, b"3")
    late.held = []
    with pytest.raises(StoreOutcomeUnknownError):
        await states.save("a", later, b"4")
    late.held = None
    await states.saved("a")
    assert len((await late.range(FENCES)).entries) == 1
    await late.transaction([], states.forget("a", later))
    assert not (await late.range(FENCES)).entries


async def test_sweeping_spares_actors_whose_names_begin_alike(store: Fragile) -> None:
    states = StateRecords(store, "owners/")
    await states.save("a/1", await claim(store, "a/1"), large(1))
    await states.save("a/1/2", await claim(store, "a/1/2"), large(2))
    await states.save("a", await claim(store, "a"), large(3))
    await StateRecords(store, "owners/").save("a", await claim(store, "a"), large(4))
    assert await states.saved("a/1") == large(1)
    assert await states.saved("a/1/2") == large(2)


async def test_a_supervised_actor_gets_a_state_of_many_megabytes_back(pair: Pair) -> None:
    spec = ChildSpec(id="archive", actor=Archive, options=SpawnOptions(name="archive", on="there"))
    await pair.here.options(name="supervisor").spawn(Supervisor, [spec])
    archive = await pair.here.lookup("archive", Archive)
    state = {"pieces": [large(number) for number in range(3)], "text": "x" * 3_000_000}
    await archive.keep(state)
    await archive.crash.send()
    # The crash is on its way.
    await until(archive.read, "it has its state again", lambda found: found is not None)
    assert await archive.read() == state
