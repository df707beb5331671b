"""Names that are claimed, and given up, together: each for itself, and none is left behind when the
answer is lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
import trio
import trio.testing

from actors.errors import (
    LeaseLostError,
    NameTakenError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from runtime.environment import SystemEnvironment
from runtime.identifiers import ActorId
from runtime.membership.names import GIVE_BACK_AFTER, Names
from runtime.store.embedded import EmbeddedStore
from runtime.store.interface import Transaction, TransactionOutcome
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
async def store(autojump_clock: trio.testing.MockClock) -> AsyncIterator[Lossy]:
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
    store: Lossy, cancelled: bool
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


@pytest.mark.parametrize("lost", [False, True])
async def test_what_cannot_be_given_up_now_is_given_up_later(store: Lossy, lost: bool) -> None:
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
