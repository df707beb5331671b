"""Calls that led to a saved state are not applied again when they are repeated to a successor of
the actor that saved it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio

from actors import Actor, ChildSpec, RetryPolicy, SpawnOptions, Supervisor, method
from actors.errors import (
    ActorDiedError,
    AlreadyAppliedError,
    EncodeError,
    OutcomeUnknownError,
    RemoteError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from runtime import open_node
from runtime.hosting.completion_log import CompletionLog
from runtime.hosting.completion_records import CompletionRecords
from runtime.hosting.workers import RefusedInTurnError
from runtime.membership.names import Names
from runtime.node import internals_of
from tests.live_pair import SECRET, Pair

AGAIN = RetryPolicy(max_retries=20, initial_delay=0.01, max_delay=0.05, repeat_unknown=True)
RAISED = RetryPolicy(max_retries=3, initial_delay=0.01, repeat_unknown=True, retry_on=(ValueError,))


class Book(Actor):
    """Enters words, and saves them. Some of its methods end it before they answer."""

    def __init__(self) -> None:
        self.words: list[str] = []

    async def on_start(self) -> None:
        self.words = await self.saved() or []

    async def enter(self, word: str, **answer: object) -> int:
        self.words.append(word)
        await self.save(self.words, **answer)
        return len(self.words)

    async def die(self) -> None:
        self.nursery.start_soon(self.fail)
        await trio.sleep_forever()

    async def fail(self) -> None:
        raise RuntimeError("the test wants it")

    @method
    async def add(self, word: str) -> int:
        return await self.enter(word, answer=len(self.words) + 1)

    @method
    async def add_and_die(self, word: str) -> object:  # type: ignore[return]
        await self.enter(word, answer={"words": len(self.words) + 1})
        await self.die()

    @method
    async def add_and_die_without_answer(self, word: str) -> int:
        await self.enter(word)
        await self.die()
        return 0

    @method
    async def die_before(self, word: str) -> int:
        self.words.append(word)
        if self.epoch == await self.first_epoch():
            await self.die()
        await self.save(self.words, answer=len(self.words))
        return len(self.words)

    async def first_epoch(self) -> int:
        return int(self.words[0])

    @method
    async def begin(self) -> None:
        await self.enter(str(self.epoch))

    @method
    async def add_in_a_child_task_and_die(self, word: str) -> int:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.enter_with_answer, word, 77)
            nursery.start_soon(trio.lowlevel.checkpoint)
        await self.die()
        return 0

    async def enter_with_answer(self, word: str, answer: object) -> None:
        await self.enter(word, answer=answer)

    @method
    async def add_in_a_task_of_its_own_and_die(self, word: str) -> int:
        done = trio.Event()

        async def enter() -> None:
            await self.enter(word, answer=1)
            done.set()

        if word not in self.words:
            self.nursery.start_soon(enter)
            await done.wait()
            await self.die()
        return -len(self.words)

    @method(concurrent=True)
    async def add_beside_and_die(self, word: str) -> str:
        await self.enter(word, answer=word.upper())
        await self.die()
        return ""

    @method
    async def add_and_raise(self, word: str) -> int:
        await self.enter(word, answer=len(self.words) + 1)
        raise ValueError(word)

    @method
    async def add_answering(self, word: str, answer: object) -> None:
        await self.enter(word, answer=answer)

    @method
    async def add_result_of(self, other: Any) -> None:
        await self.enter("reference", answer=await other.read.remote())

    @method(idempotent=True, concurrent=True)
    async def wait(self) -> None:
        await trio.sleep_forever()

    @method(idempotent=True, concurrent=True)
    async def read(self) -> list[str]:
        return self.words


@asynccontextmanager
async def supervised(pair: Pair, where: str) -> AsyncIterator[Book]:
    spec = ChildSpec(id="book", actor=Book, options=SpawnOptions(name="book", on=where))
    await pair.here.options(name="supervisor").spawn(Supervisor, [spec], intensity=100)
    with trio.fail_after(60):
        yield await pair.here.lookup("book", Book)


async def read(book: Book) -> list[str]:
    return await book.read.options(retry=AGAIN)()


async def test_a_call_whose_actor_died_after_saving_gets_the_answer_that_was_saved(
    pair: Pair, where: str
) -> None:
    async with supervised(pair, where) as book:
        assert await book.add_and_die.options(retry=AGAIN)("a") == {"words": 1}
        assert await book.add_and_die.options(retry=AGAIN)("b") == {"words": 2}
        assert await read(book) == ["a", "b"]
        reference = await book.add_and_die.options(retry=AGAIN).remote("c")
        assert await reference.fetch() == {"words": 3}
        assert await read(book) == ["a", "b", "c"]


async def test_without_a_saved_answer_the_repeat_is_refused_with_what_is_certain(
    pair: Pair, where: str
) -> None:
    async with supervised(pair, where) as book:
        with pytest.raises(AlreadyAppliedError) as caught:
            await book.add_and_die_without_answer.options(retry=AGAIN)("a")
        assert isinstance(caught.value, OutcomeUnknownError)
        assert "book.add_and_die_without_answer: the call took effect" in str(caught.value)
        assert await read(book) == ["a"]


async def test_a_call_whose_actor_died_before_it_saved_runs_again(pair: Pair, where: str) -> None:
    async with supervised(pair, where) as book:
        await book.begin()
        assert await book.die_before.options(retry=AGAIN)("a") == 2
        assert (await read(book))[1:] == ["a"]


async def test_a_call_that_may_not_be_repeated_saves_as_ever_and_ends_with_its_actor(
    pair: Pair, where: str
) -> None:
    async with supervised(pair, where) as book:
        with pytest.raises(ActorDiedError):
            await book.add_and_die("a")
        assert await read(book) == ["a"]


async def test_a_save_in_a_nursery_of_the_method_records_its_call_and_one_beside_others_its_own(
    pair: Pair, where: str
) -> None:
    async with supervised(pair, where) as book:
        assert await book.add_in_a_child_task_and_die.options(retry=AGAIN)("a") == 77
        assert await book.add_beside_and_die.options(retry=AGAIN)("b") == "B"
        assert await read(book) == ["a", "b"]


async def test_a_save_of_a_task_of_the_actors_own_records_no_call_and_leaves_the_records_there_are(
    pair: Pair, where: str
) -> None:
    async with supervised(pair, where) as book:
        assert await book.add_and_die.options(retry=AGAIN)("a") == {"words": 1}
        # It runs again, and sees that it has run.
        assert await book.add_in_a_task_of_its_own_and_die.options(retry=AGAIN)("b") == -2
        assert await read(book) == ["a", "b"]


async def test_a_method_that_saved_and_raised_is_answered_with_what_it_saved_when_it_is_repeated(
    pair: Pair, where: str
) -> None:
    async with supervised(pair, where) as book:
        assert await book.add_and_raise.options(retry=RAISED)("a") == 1
        with pytest.raises(RemoteError):
            await book.add_and_raise("b")
        assert await read(book) == ["a", "b"]


async def test_the_same_call_of_many_callers_at_once_is_applied_once_for_each(
    pair: Pair, where: str
) -> None:
    async with supervised(pair, where) as book:
        other = await pair.there.lookup("book", Book)

        async def call(handle: Book, word: str) -> None:
            patient = RetryPolicy(
                max_retries=300, initial_delay=0.01, max_delay=0.05, repeat_unknown=True
            )
            # Its retries are bounded by the budget of its target; whether it was applied is checked
            # below.
            with suppress(OutcomeUnknownError):
                await handle.add_and_die.options(retry=patient)(word)

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(call, book, f"here {number}")
                nursery.start_soon(call, other, f"there {number}")
        words = await read(book)
        assert len(words) == len(set(words))


async def test_what_cannot_be_kept_as_an_answer_is_refused_and_nothing_is_saved(
    pair: Pair, where: str
) -> None:
    async with supervised(pair, where) as book:
        with pytest.raises(
            RemoteError, match="answer is a reference and ends with its node"
        ) as caught:
            await book.add_result_of(book)
        assert isinstance(caught.value, EncodeError)
        with pytest.raises(RemoteError, match="too large to be kept"):
            await book.add_answering.options(retry=AGAIN)("large", bytes(300_000))
        await pair.here.stop(book)
        with trio.fail_after(60):
            again = await pair.here.options(name="book").get_or_spawn(Book)
            assert await again.read() == []


async def test_records_go_when_their_calls_are_over_so_the_store_does_not_grow(
    pair: Pair, where: str
) -> None:
    async with supervised(pair, where) as book:
        for number in range(200):
            await book.add.options(retry=AGAIN)(str(number))
        store = internals_of(pair.here).store
        assert len((await store.range("applied/")).entries) <= 40


async def test_a_call_that_stays_open_does_not_keep_later_ones_on_record(
    pair: Pair, where: str
) -> None:
    async with supervised(pair, where) as book, trio.open_nursery() as nursery:
        nursery.start_soon(book.wait.options(retry=AGAIN))
        for number in range(100):
            await book.add.options(retry=AGAIN)(str(number))
        assert len((await internals_of(pair.here).store.range("applied/")).entries) <= 40
        nursery.cancel_scope.cancel()


async def test_the_records_of_a_node_that_has_left_go_with_it(pair: Pair, where: str) -> None:
    async with supervised(pair, where) as book:
        async with open_node("guest", join=pair.here.address, secret=SECRET) as guest:
            handle = await guest.lookup("book", Book)
            assert await handle.add_and_die.options(retry=AGAIN)("a") == {"words": 1}
        with trio.fail_after(60):
            await pair.here.wait_gone("guest")
            await pair.there.wait_gone("guest")
        await book.add.options(retry=AGAIN)("b")
        keys = [
            entry.key for entry in (await internals_of(pair.here).store.range("applied/")).entries
        ]
        assert not [key for key in keys if "guest" in key]


async def test_an_actor_that_never_saved_is_not_looked_up_in_the_store(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    original = Names.applied

    async def applied(self: Any, name: str) -> Any:
        reads.append(name)
        return await original(self, name)

    monkeypatch.setattr(Names, "applied", applied)
    book = await pair.here.options(name="book", on="there").spawn(Book)
    for _ in range(3):
        await read(book)
    await book.add("a")
    assert reads == []
    await book.add.options(retry=AGAIN)("b")
    await book.add.options(retry=AGAIN)("c")
    assert reads == ["book"]


@pytest.mark.parametrize("applied", [True, False])
async def test_a_call_whose_save_has_an_unknown_outcome_is_neither_run_nor_answered_in_its_epoch(
    pair: Pair, where: str, applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Names.save
    lost: list[str] = []

    async def save(self: Names, name: str, epoch: int, state: object, change: Any = None) -> None:
        if lost:
            await original(self, name, epoch, state, change)
            return
        lost.append(name)
        if applied:
            await original(self, name, epoch, state, change)
        raise StoreOutcomeUnknownError("the answer is lost, by the test")

    again = RetryPolicy(
        max_retries=3, initial_delay=0.01, repeat_unknown=True, retry_on=(StoreOutcomeUnknownError,)
    )
    monkeypatch.setattr(Names, "save", save)
    async with supervised(pair, where) as book:
        with pytest.raises(
            OutcomeUnknownError, match="may have taken effect: its record was evicted"
        ):
            await book.add.options(retry=again)("a")
        assert await book.add.options(retry=again)("b") == 2
        assert await read(book) == ["a", "b"]


async def test_a_repeat_whose_record_cannot_be_read_is_not_run(
    pair: Pair, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Names.applied
    away: list[str] = []

    async def applied(self: Names, name: str) -> Any:
        if len(away) < 2:
            away.append(name)
            raise StoreUnavailableError("away, by the test")
        return await original(self, name)

    async with supervised(pair, where) as book:
        await book.add.options(retry=AGAIN)("a")
        monkeypatch.setattr(Names, "applied", applied)
        assert await book.add_and_die.options(retry=AGAIN)("b") == {"words": 2}
        assert len(away) == 2
        assert await read(book) == ["a", "b"]


async def test_a_lease_renewed_beside_the_loop_is_asked_before_a_repeat_is_refused(
    pair: Pair, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = internals_of(pair.here if where == "here" else pair.there).host.workers
    original, original_found = Names.applied, CompletionLog._found
    read_late: list[str] = []
    refused: list[str] = []

    async def applied(self: Names, name: str) -> Any:
        records = await original(self, name)
        # As after reading that took long, with the loop blocked meanwhile.
        workers.names_until = trio.current_time() - 1
        read_late.append(name)
        return records

    async def found(self: CompletionLog, invocation: Any) -> Any:
        try:
            return await original_found(self, invocation)
        except RefusedInTurnError as error:
            refused.append(str(error))
            raise

    monkeypatch.setattr(CompletionLog, "_found", found)
    async with supervised(pair, where) as book:
        await book.begin()
        monkeypatch.setattr(Names, "applied", applied)
        assert await book.die_before.options(retry=AGAIN)("a") == 2
    assert read_late
    assert refused == []


async def test_without_the_records_a_repeat_would_be_applied_twice(
    pair: Pair, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What these tests look for can be seen by them."""
    monkeypatch.setattr(CompletionRecords, "find", lambda self, call: None)
    async with supervised(pair, where) as book:
        with pytest.raises(OutcomeUnknownError):
            await book.add_and_die.options(
                retry=RetryPolicy(max_retries=2, initial_delay=0.01, repeat_unknown=True)
            )("a")
        assert len(await read(book)) > 1
