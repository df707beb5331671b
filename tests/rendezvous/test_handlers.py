"""What every back-end promises to agents, over real stores."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio

from runtime.rendezvous.interface import RendezvousHandler, RendezvousInfo
from runtime.rendezvous.parameters import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousMismatchError,
    RendezvousTimeoutError,
    RoundOverError,
)
from tests.failures.error_examples import check_shown, said
from tests.rendezvous.conftest import Make

LIMIT = 30.0


async def all_of(*calls: Callable[[], Awaitable[RendezvousInfo]]) -> list[RendezvousInfo]:
    """The answers, when all have come."""
    found: dict[int, RendezvousInfo] = {}

    async def one(number: int, call: Callable[[], Awaitable[RendezvousInfo]]) -> None:
        found[number] = await call()

    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            for number, call in enumerate(calls):
                nursery.start_soon(one, number, call)
    return [found[number] for number in range(len(calls))]


async def meet(*handlers: RendezvousHandler) -> list[RendezvousInfo]:
    """A round of all these agents. On a busy machine one of them may be later than the last call of
    the others, who then begin a round without it, and another one for the change that it is.
    """

    async def all_of_them(handler: RendezvousHandler) -> RendezvousInfo:
        info = await handler.next_rendezvous()
        while info.world_size < len(handlers):
            await handler.wait_change(info.round)
            info = await handler.next_rendezvous()
        return info

    return await all_of(*(partial(all_of_them, handler) for handler in handlers))


def check_one_map(infos: list[RendezvousInfo]) -> None:
    """All see the same round: ranks dense and unique, one world, one list of names."""
    assert len({info.round for info in infos}) == 1
    assert {info.world_size for info in infos} == {len(infos)}
    assert sorted(info.rank for info in infos) == list(range(len(infos)))
    assert len({info.participants for info in infos}) == 1


async def test_as_many_as_may_be_start_at_once_with_one_map_and_a_store_that_they_share(
    make: Make,
) -> None:
    async with (
        make(2, 3, last_call_timeout=20) as first,
        make(2, 3, last_call_timeout=20) as second,
        make(2, 3, last_call_timeout=20) as third,
    ):
        infos = await all_of(first.next_rendezvous, second.next_rendezvous, third.next_rendezvous)
        check_one_map(infos)
        await infos[0].store.set("port", b"1234")
        assert [await info.store.get("port", timeout=5) for info in infos] == [b"1234"] * 3
        assert not await first.is_closed()
        assert await first.num_nodes_waiting() == 0


async def test_enough_start_when_the_last_call_is_over(make: Make) -> None:
    async with make(2, 3) as first, make(2, 3) as second:
        check_one_map(await all_of(first.next_rendezvous, second.next_rendezvous))


async def test_without_a_last_call_enough_start_at_once_and_who_comes_later_is_a_change(
    make: Make,
) -> None:
    async with make(1, 2, last_call_timeout=0) as first:
        alone = await first.next_rendezvous()
        assert (alone.rank, alone.world_size) == (0, 1)
        async with make(1, 2, last_call_timeout=0) as second, trio.open_nursery() as nursery:
            nursery.start_soon(second.next_rendezvous)
            with trio.fail_after(LIMIT):
                change = await first.wait_change(alone.round)
            assert (change.left, len(change.joined), change.waiting, change.closed) == (
                (),
                1,
                1,
                "",
            )
            assert await first.num_nodes_waiting() == 1
            both = await first.next_rendezvous()
            assert (both.round, both.rank, both.world_size) == (alone.round + 1, 0, 2)


async def test_who_leaves_is_a_change_for_the_others_who_go_on_with_the_next_round(
    make: Make,
) -> None:
    async with (
        make(1, 3, last_call_timeout=0.5) as first,
        make(1, 3, last_call_timeout=0.5) as second,
    ):
        async with make(1, 3, last_call_timeout=0.5) as third:
            infos = await meet(first, second, third)
            gone = infos[2].participants[infos[2].rank]
        with trio.fail_after(LIMIT):
            for handler in (first, second):
                assert (await handler.wait_change(infos[0].round)).left == (gone,)
        check_one_map(await meet(first, second))


async def test_the_store_of_a_round_takes_nothing_more_when_the_next_has_begun(make: Make) -> None:
    async with make(1, 1, last_call_timeout=0) as handler:
        old = await handler.next_rendezvous()
        await old.store.set("key", b"old")
        assert old.job_store is not None
        await old.job_store.set("key", b"kept")
        new = await handler.next_rendezvous()
        assert new.round == old.round + 1
        for call in (
            lambda: old.store.set("key", b"late"),
            lambda: old.store.add("count", 1),
            lambda: old.store.get("other"),
            lambda: old.store.queue_push("queue", b"late"),
            lambda: old.store.barrier("barrier", 2),
        ):
            with pytest.raises(RoundOverError, match=f"round {old.round} of job .* is over"):
                await call()
        assert await new.store.peek("key") is None
        assert new.job_store is not None
        assert await new.job_store.get("key") == b"kept"


async def test_who_waits_in_the_store_of_a_round_hears_that_it_is_over(make: Make) -> None:
    async with make(1, 1, last_call_timeout=0) as handler:
        old = await handler.next_rendezvous()
        async with trio.open_nursery() as nursery:
            failed = trio.Event()

            async def wait() -> None:
                with pytest.raises(RoundOverError):
                    await old.store.get("never")
                failed.set()

            nursery.start_soon(wait)
            await trio.sleep(0.1)
            await handler.next_rendezvous()
            with trio.fail_after(LIMIT):
                await failed.wait()


async def test_a_full_round_has_spares_who_leave_in_peace_when_the_job_ends(make: Make) -> None:
    async with make(1, 1) as first, make(1, 1) as spare:
        await first.next_rendezvous()
        async with trio.open_nursery() as nursery:
            outcome: list[BaseException] = []

            async def stand_by() -> None:
                try:
                    await spare.next_rendezvous()
                except RendezvousGracefulExitError as error:
                    outcome.append(error)

            nursery.start_soon(stand_by)
            await trio.sleep(0.3)
            assert await first.num_nodes_waiting() == 0
            assert await first.shutdown()
        assert "shut it down" in str(outcome[0])
        check_shown("RendezvousGracefulExitError", said(outcome[0]))


async def test_a_spare_takes_the_place_of_one_that_leaves(make: Make) -> None:
    found: dict[str, RendezvousInfo] = {}
    go, came, taken = trio.Event(), trio.Event(), trio.Event()

    async def come_and_go() -> None:
        async with make(2, 2) as second:
            found["second"] = await second.next_rendezvous()
            came.set()
            await go.wait()

    async def stand_by(spare: RendezvousHandler) -> None:
        found["spare"] = await spare.next_rendezvous()
        taken.set()

    async with make(2, 2) as first, make(2, 2) as spare, trio.open_nursery() as nursery:
        nursery.start_soon(come_and_go)
        before = await first.next_rendezvous()
        await came.wait()
        nursery.start_soon(stand_by, spare)
        await trio.sleep(0.3)
        go.set()
        with trio.fail_after(LIMIT):
            assert (await first.wait_change(before.round)).left == (
                found["second"].participants[found["second"].rank],
            )
            again = await first.next_rendezvous()
            await taken.wait()
        check_one_map([again, found["spare"]])
        # Whoever was there before is rank 0, or what it was.
        assert again.rank == 0 or before.rank == 1


async def test_nobody_comes_into_a_closed_rendezvous_until_it_is_opened_again(make: Make) -> None:
    async with make(1, 2, last_call_timeout=0) as first, make(1, 2, last_call_timeout=0) as second:
        info = await first.next_rendezvous()
        await second.set_closed("all digits are learnt")
        assert await first.is_closed()
        assert (await first.wait_change(info.round)).closed == "all digits are learnt"
        for handler in (first, second):
            with pytest.raises(RendezvousClosedError, match="all digits are learnt"):
                await handler.next_rendezvous()
        await second.reopen()  # type: ignore[attr-defined]
        assert (await second.next_rendezvous()).world_size == 1


async def test_too_few_agents_get_an_error_and_may_try_again(make: Make) -> None:
    async with make(2, 2, join_timeout=0.5) as first, make(2, 2) as second:
        with pytest.raises(
            RendezvousTimeoutError,
            match=r"1 of at least 2 agents have come within 0.5 s; trying again is safe",
        ):
            await first.next_rendezvous()

        async def stay() -> None:
            while True:
                info = await second.next_rendezvous()
                # The first may give up in the moment in which the round is complete with it.
                await second.wait_change(info.round)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stay)
            while True:
                try:
                    assert (await first.next_rendezvous()).world_size == 2
                    break
                except RendezvousTimeoutError:
                    continue
            nursery.cancel_scope.cancel()


async def test_who_is_cancelled_on_the_way_is_not_counted_upon(make: Make) -> None:
    async with make(2, 2) as first, make(2, 2) as second, make(2, 2) as third:
        with trio.move_on_after(0.5):
            await first.next_rendezvous()
        check_one_map(await all_of(second.next_rendezvous, third.next_rendezvous))


async def test_two_jobs_with_one_id_are_refused(make: Make) -> None:
    async with make(1, 2, last_call_timeout=0) as first, make(2, 3) as other:
        await first.next_rendezvous()
        with pytest.raises(
            RendezvousMismatchError,
            match="another job has this id, with 1 to 2 nodes instead of 2 to 3",
        ):
            await other.next_rendezvous()


async def test_jobs_of_other_ids_do_not_meet(make: Make) -> None:
    async with (
        make(1, 2, "a", last_call_timeout=0) as first,
        make(1, 2, "a/b", last_call_timeout=0) as second,
    ):
        infos = await all_of(first.next_rendezvous, second.next_rendezvous)
        assert [info.world_size for info in infos] == [1, 1]
        await infos[0].store.set("key", b"a")
        assert await infos[1].store.list_keys() == []


async def test_changes_are_reported_once_and_of_the_latest_round_only(make: Make) -> None:
    async with make(1, 3, last_call_timeout=0) as first:
        info = await first.next_rendezvous()
        with pytest.raises(ValueError, match=f"latest round is {info.round}, not 7"):
            await first.wait_change(7)
        await first.set_closed("done")
        assert (await first.wait_change(info.round)).closed == "done"
        with trio.move_on_after(0.3) as scope:
            await first.wait_change(info.round)
        assert scope.cancelled_caught


async def test_a_handler_cannot_be_opened_twice(make: Make) -> None:
    handler = make()
    async with handler:
        with pytest.raises(RuntimeError, match="opened before"):
            await handler.__aenter__()
