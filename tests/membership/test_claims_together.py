"""Names that are claimed, and given up, together: each for itself, and none is left behind when the
answer is lost.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import pytest
import trio
import trio.testing

from actors.errors import (
    LeaseLostError,
    NameTakenError,
    StoreError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from actors.identifiers import ActorId
from runtime.environment import SystemEnvironment
from runtime.membership.names import Names
from runtime.membership.owed_deletions import GIVE_BACK_AFTER
from runtime.store.embedded_store import EmbeddedStore
from runtime.store.interface import (
    Compare,
    Operation,
    Transaction,
    TransactionOutcome,
    TransactionResult,
)
from runtime.wire.codec import Codec


class Lossy(EmbeddedStore):
    """Loses the answers to as many batches as it is told, or is not there for them."""

    lost = 0
    absent = 0

    async def transactions(self, batch: Sequence[Transaction]) -> list[TransactionOutcome]:
        if self.absent:
            self.absent -= 1
            raise StoreUnavailableError("not there")
        answers = await super().transactions(batch)
        if self.lost:
            self.lost -= 1
            raise StoreOutcomeUnknownError("the answer was lost")
        return answers


@pytest.fixture
async def store() -> AsyncIterator[Lossy]:
    store = Lossy(SystemEnvironment())
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        store.close()


async def names_of(store: Lossy, node: str, lease: int | None = None) -> Names:
    return Names(store, Codec([], sentinel=b"\0" * 8), lease or await store.grant(1000), node, 3)


async def test_each_name_of_a_batch_is_claimed_for_itself(store: Lossy) -> None:
    here, there = await names_of(store, "here"), await names_of(store, "there")
    taken = await there.claim("b", "module:Class")
    first, second, third, again = await here.claim_many(["a", "b", "c", "a"], "module:Class")
    assert isinstance(first, int)
    assert isinstance(third, int)
    assert taken < first < third
    assert isinstance(second, NameTakenError)
    assert second.actor == "b"
    assert "on node there" in str(second)
    assert isinstance(again, NameTakenError)
    assert {(one.name, one.node, one.epoch) for one in await here.all()} == {
        ("a", "here", first),
        ("b", "there", taken),
        ("c", "here", third),
    }


async def test_epochs_that_have_lost_their_names_give_nothing_up(store: Lossy) -> None:
    here = await names_of(store, "here")
    first, other = await here.claim_many(["a", "b"], "module:Class")
    assert isinstance(first, int)
    assert isinstance(other, int)
    await here.release("a", first)
    later = await here.claim("a", "module:Class")
    await here.release_many([ActorId("a", first), ActorId("b", other)])
    assert [(one.name, one.epoch) for one in await here.all()] == [("a", later)]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_claims_of_unknown_outcome_are_given_back_and_later_ones_are_not(
    store: Lossy, cancelled: bool, autojump_clock: trio.testing.MockClock
) -> None:
    here = await names_of(store, "here")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.run)
        if cancelled:
            with trio.CancelScope() as scope:
                # Cancelled before the store is asked, as far as the claimant can tell.
                scope.cancel()
                await here.claim_many(["a", "b"], "module:Class")
        else:
            store.lost = 1
            with pytest.raises(StoreOutcomeUnknownError):
                await here.claim_many(["a", "b"], "module:Class")
            assert len(await here.all()) == 2
        await trio.sleep(GIVE_BACK_AFTER * 1.5)
        assert await here.all() == []
        kept = await here.claim_many(["a", "b"], "module:Class")
        await trio.sleep(GIVE_BACK_AFTER * 3)
        assert [one.epoch for one in await here.all()] == kept
        nursery.cancel_scope.cancel()


async def test_a_claim_that_reaches_the_store_after_its_withdrawal_is_withdrawn_again(
    store: Lossy, autojump_clock: trio.testing.MockClock
) -> None:
    here = await names_of(store, "here")
    delayed: list[Transaction] = []

    async def delay(batch: Sequence[Transaction]) -> list[TransactionOutcome]:
        delayed.extend(batch)
        raise StoreOutcomeUnknownError("the store did not run")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.run)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "transactions", delay)
            with pytest.raises(StoreOutcomeUnknownError):
                await here.claim_many(["a", "b"], "module:Class")
        await trio.sleep(GIVE_BACK_AFTER * 1.5)
        for one in delayed:
            assert (await store.transaction(one.compare, one.then)).succeeded
        assert len(await here.all()) == 2
        await trio.sleep(GIVE_BACK_AFTER)
        assert await here.all() == []
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("lost", [False, True])
async def test_what_cannot_be_given_up_now_is_given_up_later(
    store: Lossy, lost: bool, autojump_clock: trio.testing.MockClock
) -> None:
    here = await names_of(store, "here")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.run)
        epochs = await here.claim_many(["a", "b"], "module:Class")
        store.lost, store.absent = (1, 0) if lost else (0, 1)
        with pytest.raises(StoreOutcomeUnknownError if lost else StoreUnavailableError):
            await here.release_many(
                [
                    ActorId(name, epoch)
                    for name, epoch in zip("ab", epochs, strict=True)
                    if isinstance(epoch, int)
                ]
            )
        assert len(await here.all()) == (0 if lost else 2)
        await trio.sleep(GIVE_BACK_AFTER * 1.5)
        assert await here.all() == []
        nursery.cancel_scope.cancel()


async def test_a_lease_that_has_ended_claims_nothing(store: Lossy) -> None:
    lease = await store.grant(1000)
    here = await names_of(store, "here", lease)
    await store.revoke(lease)
    found = await here.claim_many(["a", "b"], "module:Class")
    assert [type(one) for one in found] == [LeaseLostError, LeaseLostError]
    assert await here.all() == []


NODES = ("one", "two", "three")
NAMES_DRAWN = tuple("abcdefgh")


class Unreliable(EmbeddedStore):
    """Loses some requests and some answers, and takes its time."""

    drawn: random.Random

    async def transactions(self, batch: Sequence[Transaction]) -> list[TransactionOutcome]:
        await trio.sleep(self.drawn.random())
        chance = self.drawn.random()
        if chance < 0.15:
            raise StoreUnavailableError("not there")
        if chance < 0.25:
            raise StoreOutcomeUnknownError("the request was lost")
        answers = await super().transactions(batch)
        if chance < 0.4:
            raise StoreOutcomeUnknownError("the answer was lost")
        await trio.sleep(self.drawn.random())
        return answers


class Claimant:
    """One node that claims and releases names together. `owners`: who has which name, as far as
    the nodes know.
    """

    def __init__(self, names: Names, node: str, owners: dict[str, str], seed: int) -> None:
        self.names, self.node, self.owners = names, node, owners
        self.drawn = random.Random(f"{node} {seed}")
        self.owned: dict[str, int] = {}

    async def step(self) -> None:
        await trio.sleep(self.drawn.random())
        some = self.drawn.sample(NAMES_DRAWN, self.drawn.randint(1, 4))
        if self.owned and self.drawn.random() < 0.5:
            actors = [ActorId(name, self.owned.pop(name)) for name in some if name in self.owned]
            for name, _ in actors:
                assert self.owners.pop(name) == self.node
            with suppress(StoreError):
                await self.names.release_many(actors)
            return
        with suppress(StoreError), trio.move_on_after(self.drawn.choice((0.3, 9.0))):
            epochs = await self.names.claim_many(some, "module:Class")
            for name, epoch in zip(some, epochs, strict=True):
                if isinstance(epoch, int):
                    assert name not in self.owners, f"{name} has two owners"
                    self.owners[name] = self.node
                    self.owned[name] = epoch


@pytest.mark.parametrize("seed", range(12))
async def test_a_name_has_one_owner_whatever_answers_are_lost(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    store, owners = Unreliable(SystemEnvironment()), dict[str, str]()
    store.drawn = random.Random(seed)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        claimants: list[Claimant] = []
        for node in NODES:
            names = Names(
                store, Codec([], sentinel=b"\0" * 8), await store.grant(1_000_000), node, 3
            )
            nursery.start_soon(names.run)
            claimants.append(Claimant(names, node, owners, seed))

        async def live(claimant: Claimant) -> None:
            for _ in range(80):
                await claimant.step()

        async with trio.open_nursery() as lives:
            for claimant in claimants:
                lives.start_soon(live, claimant)
        # What is in doubt is given back in time, and nothing else.
        await trio.sleep(100)
        found = {one.name: (one.node, one.epoch) for one in await claimants[0].names.all()}
        assert found == {
            name: (claimant.node, epoch)
            for claimant in claimants
            for name, epoch in claimant.owned.items()
        }
        store.close()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("withdrawal_is_lost", [False, True])
async def test_a_candidacy_that_is_withdrawn_in_vain_or_arrives_late_ends_and_a_later_one_does_not(
    store: Lossy,
    withdrawal_is_lost: bool,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    here = await names_of(store, "here")
    late: list[Sequence[Operation]] = []

    async def delay(compare: Sequence[Compare], then: Sequence[Operation]) -> TransactionResult:
        late.append(then)
        raise StoreOutcomeUnknownError("the store did not run")

    async def refuse(key: str) -> bool:
        raise StoreUnavailableError("not there")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.run)
        if withdrawal_is_lost:
            await here.intents.stand_for("a", "here")
            with monkeypatch.context() as patch:
                patch.setattr(store, "delete", refuse)
                with pytest.raises(StoreUnavailableError):
                    await here.intents.stand_down("a", "here", for_good=False)
        else:
            with monkeypatch.context() as patch:
                patch.setattr(store, "transaction", delay)
                with pytest.raises(StoreOutcomeUnknownError):
                    await here.intents.stand_for("a", "here")
            await here.intents.stand_down("a", "here", for_good=False)
            await store.transaction([], late[0])
        assert await here.is_promised("a")
        await trio.sleep(GIVE_BACK_AFTER * 1.5)
        assert not await here.is_promised("a")
        await here.intents.stand_for("a", "here")
        await trio.sleep(GIVE_BACK_AFTER * 3)
        assert await here.is_promised("a")
        nursery.cancel_scope.cancel()
