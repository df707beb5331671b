"""Actors with a constructor that many tasks start on another node travel together. Each start keeps
its own outcome, its own time and its own cancellation.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import trio

from actors import Actor, method
from actors.errors import (
    ActorStartError,
    EncodeError,
    MethodNotFoundError,
    NameTakenError,
    OutcomeUnknownError,
    SpawnManyError,
)
from actors.messages import import_path
from actors.options import SpawnOptions
from runtime import open_node
from runtime.hosting.node_service import FAILURE_CHARACTERS
from runtime.hosting.start_batches import UNASKED_SECONDS
from runtime.node import internals_of
from tests.live_pair import SECRET, Pair
from tests.waiting import until


class Numbered(Actor):
    def __init__(self, number: int, text: str = "", *, more: bytes = b"") -> None:
        if number < 0:
            raise ValueError(f"{number} is below 0")
        self.all = (number, text, more)

    @method
    async def read(self) -> tuple[int, str, bytes]:
        return self.all


class Held(Actor):
    """Its constructor waits in its thread for the event, if it is told to."""

    go: ClassVar[threading.Event]
    begun: ClassVar[list[str]]

    def __init__(self, waits: bool) -> None:
        if waits:
            self.begun.append("one")
            # Bounded, so that a failing test ends.
            self.go.wait(60)

    @method
    async def read(self) -> int:
        return 16


class Unheeding(Actor):
    """Its start does not end by a cancellation."""

    go: ClassVar[trio.Event]
    begun: ClassVar[list[str]]

    async def on_start(self) -> None:
        self.begun.append("one")
        with trio.CancelScope(shield=True):
            await self.go.wait()


class Heeding(Unheeding):
    """Its start ends by a cancellation, if it is told to."""

    def __init__(self, heeds: bool) -> None:
        self.heeds = heeds

    async def on_start(self) -> None:
        if self.heeds:
            await trio.sleep_forever()
        await super().on_start()


WORDS = "words " * 60_000


class Wordy(Actor):
    """Its constructor fails with a long text."""

    def __init__(self, number: int) -> None:
        raise ValueError(f"{number} {WORDS}")


class Caller(Actor):
    """Starts another actor whose start calls this one."""

    @method
    async def start(self) -> str:
        return (await self.node.options(on="here").spawn(Calling, self.name)).name

    @method
    async def read(self) -> int:
        return 16


class Calling(Actor):
    def __init__(self, name: str) -> None:
        self.other = name

    async def on_start(self) -> None:
        other: Caller = await self.node.lookup(self.other, Caller)
        await other.read()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    Held.go, Held.begun = threading.Event(), []
    Unheeding.go, Unheeding.begun = trio.Event(), []
    yield
    Held.go.set()


@pytest.fixture
def messages(pair: Pair) -> list[int]:
    """How many starts each message has that the tasks of `here` send together."""
    sizes: list[int] = []
    gatherer = internals_of(pair.here).spawner._constructors._gatherer
    ask = gatherer._ask

    async def counted(kind: Any, starts: Any) -> Any:
        sizes.append(len(starts))
        return await ask(kind, starts)

    gatherer._ask = counted
    return sizes


def users(pair: Pair) -> list[str]:
    """The names of the actors on `there`."""
    return [name for name in internals_of(pair.there).cells if not name.startswith("@")]


def service_of(pair: Pair) -> Any:
    """The service of `there` by which `here` starts actors."""
    there = internals_of(pair.there).endpoint.identity
    return internals_of(pair.here).endpoint.node_service(*there)


async def until_answered(pair: Pair) -> None:
    """Until the message is answered: the start that is made alone is under way, and no other."""
    under_way = internals_of(pair.here).spawner._constructors._gatherer._under_way
    await until(lambda: sum(under_way.values()), "the message is answered", lambda left: left == 1)


@pytest.mark.parametrize("named", [False, True])
async def test_many_at_once_travel_together(pair: Pair, named: bool, messages: list[int]) -> None:
    placed, found = pair.here.options(on="there"), dict[int, Numbered]()

    async def spawn(number: int) -> None:
        options = placed.options(name=f"one-{number}") if named else placed
        if number % 2:
            found[number] = await options.spawn(Numbered, number, "text", more=b"\x01")
        else:
            found[number] = await options.spawn(Numbered, number)

    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(spawn, number)
    assert (sum(messages), len(messages)) == (199, 1)
    assert len({one.name for one in found.values()}) == 200
    for number, one in found.items():
        more = ("text", b"\x01") if number % 2 else ("", b"")
        assert await one.read() == (number, *more)


async def test_each_failure_is_that_of_its_task(pair: Pair) -> None:
    placed, failures = pair.here.options(on="there"), dict[int, ActorStartError]()

    async def spawn(number: int) -> None:
        try:
            await placed.spawn(Numbered, number if number % 3 else -number)
        except ActorStartError as error:
            failures[number] = error

    async with trio.open_nursery() as nursery:
        for number in range(1, 60):
            nursery.start_soon(spawn, number)
    assert sorted(failures) == list(range(3, 60, 3))
    for number, error in failures.items():
        assert f"-{number} is below 0" in str(error)
        assert (error.node, error.actor is not None) == ("there", True)
        assert "raise ValueError" in error.remote_traceback


async def test_one_that_blocks_holds_up_no_other(pair: Pair) -> None:
    placed, done = pair.here.options(on="there"), list[bool]()

    async def spawn(waits: bool) -> None:
        one = await placed.spawn(Held, waits)
        done.append(waits)
        assert await one.read() == 16

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(spawn, number % 10 == 5)
        await until(lambda: len(done), "those that do not wait", lambda count: count == 45)
        assert not any(done)
        Held.go.set()
    assert sum(done) == 5


async def test_one_that_is_cancelled_leaves_its_name_and_disturbs_no_other(pair: Pair) -> None:
    placed, done = pair.here.options(on="there"), list[str]()
    scopes = {f"held-{number}": trio.CancelScope() for number in range(6)}

    async def spawn(name: str) -> None:
        with scopes[name]:
            await placed.options(name=name).spawn(Held, True)
            done.append(name)

    async with trio.open_nursery() as nursery:
        for name in scopes:
            nursery.start_soon(spawn, name)
        await until(lambda: len(Held.begun), "all have begun", lambda count: count == 6)
        await until_answered(pair)
        for name in ("held-2", "held-3"):
            scopes[name].cancel()
        await until(lambda: users(pair), "their names are free", lambda names: len(names) == 4)
        Held.go.set()
    assert sorted(done) == ["held-0", "held-1", "held-4", "held-5"]
    for name in ("held-2", "held-3"):
        await placed.options(name=name).spawn(Held, False)
    with pytest.raises(NameTakenError):
        await placed.options(name="held-0").spawn(Held, False)


@pytest.mark.parametrize("answered", [False, True])
async def test_those_that_do_not_heed_their_cancellation_are_taken_back(
    pair: Pair, answered: bool
) -> None:
    placed = pair.here.options(on="there")
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(placed.options(name=f"late-{number}").spawn, Unheeding)
        await until(lambda: len(Unheeding.begun), "all have begun", lambda count: count == 4)
        if answered:
            await until_answered(pair)
        nursery.cancel_scope.cancel()
    Unheeding.go.set()
    await until(lambda: users(pair), "they are gone", lambda names: not names)
    await until(internals_of(pair.here).names.all, "their names are free", lambda all_: not all_)


async def test_a_node_of_an_earlier_version_is_asked_for_each_alone(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = internals_of(pair.there).cells["@node"]
    methods = {name: one for name, one in service.methods.items() if name != "spawn_each"}
    monkeypatch.setattr(service, "methods", methods)
    placed, found = pair.here.options(on="there"), list[Numbered]()

    async def spawn(number: int) -> None:
        found.append(await placed.spawn(Numbered, number))

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(spawn, number)
    assert sorted([(await one.read())[0] for one in found]) == list(range(10))
    with pytest.raises(MethodNotFoundError):
        await service_of(pair).spawn_each("", [], [], [], SpawnOptions(), "")


async def test_arguments_that_cannot_be_sent_fail_alone_by_their_names(pair: Pair) -> None:
    placed, found, refused = pair.here.options(on="there"), list[Numbered](), list[str]()

    async def spawn(text: str) -> None:
        try:
            found.append(await placed.spawn(Numbered, 1, text))
        except EncodeError as error:
            refused.append(str(error))

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(spawn, "\ud800" if number in (0, 9) else "fine")
    assert len(found) == 18
    assert len(refused) == 2
    assert all("text" in error for error in refused)


async def test_a_start_that_calls_back_the_method_it_is_made_in_is_refused(pair: Pair) -> None:
    """Such starts travel alone, with the chain of calls that tells so."""
    callers = [
        await pair.here.options(on="there", name=f"caller-{number}").spawn(Caller)
        for number in range(3)
    ]
    refused: list[str] = []

    async def start(caller: Caller) -> None:
        try:
            await caller.start.options(timeout=20)()
        except Exception as error:
            refused.append(str(error))

    async with trio.open_nursery() as nursery:
        for caller in callers:
            nursery.start_soon(start, caller)
    assert len(refused) == 3
    assert all("call cycle" in error for error in refused)


async def test_starts_of_different_kinds_do_not_wait_for_each_other(
    pair: Pair, messages: list[int]
) -> None:
    """They cannot travel together, and an answer waits for starts that take their time."""
    async with trio.open_nursery() as nursery:
        for number in range(40):
            placed = pair.here.options(on="there", idle_timeout=1000.0 + number)
            nursery.start_soon(placed.spawn, Unheeding)
        await until(lambda: len(Unheeding.begun), "all have begun", lambda count: count == 40)
        Unheeding.go.set()
    assert messages == []


async def test_one_that_does_not_heed_its_cancellation_holds_up_no_other(pair: Pair) -> None:
    service = service_of(pair)
    *_, unfinished = await service.spawn_each(
        import_path(Heeding), [(number > 0,) for number in range(4)], [], [], SpawnOptions(), "a"
    )
    assert unfinished == [0, 1, 2, 3]
    # Otherwise it ends before it begins to hold up others.
    await until(lambda: len(Unheeding.begun), "it has begun")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.take_back_unfinished, "a", unfinished)
        try:
            await until(lambda: users(pair), "the others are gone", lambda names: len(names) == 1)
        finally:
            Unheeding.go.set()
    await until(lambda: users(pair), "it is gone", lambda names: not names)


async def test_errors_with_long_texts_have_an_answer_of_their_own(pair: Pair) -> None:
    """All of them in one answer would be too large for it."""
    path, rows = import_path(Wordy), [(number,) for number in range(8)]
    _, _, failures, unfinished = await service_of(pair).spawn_each(
        path, rows, [], [], SpawnOptions(), "a"
    )
    assert sum(len(one.text) + len(one.trace) for one in failures) <= FAILURE_CHARACTERS
    assert len(failures) + len(unfinished) == 8
    placed, texts = pair.here.options(on="there"), dict[int, str]()

    async def spawn(number: int) -> None:
        try:
            await placed.spawn(Wordy, number)
        except ActorStartError as error:
            texts[number] = str(error)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(spawn, number)
    assert sorted(texts) == list(range(8))
    assert all(f"{number} {WORDS}" in text for number, text in texts.items())


async def test_errors_with_long_texts_are_shortened_where_all_are_in_one_answer(
    pair: Pair,
) -> None:
    path, rows = import_path(Wordy), [(number,) for number in range(8)]
    _, _, failures = await service_of(pair).spawn_many(path, rows, [], SpawnOptions(), "a")
    assert sorted(one.number for one in failures) == list(range(8))
    assert sum(len(one.text) + len(one.trace) for one in failures) <= FAILURE_CHARACTERS + 8 * 500
    assert f"{failures[0].number} {WORDS}" in failures[0].text
    assert "characters left out" in failures[-1].text


async def test_what_a_node_has_not_asked_for_is_taken_back_when_it_ends(
    pair: Pair,
) -> None:
    async with open_node("third", join=pair.here.address, secret=SECRET) as third:
        await third.wait_for(3)
        there = internals_of(pair.there).endpoint.identity
        service = internals_of(third).endpoint.node_service(*there)
        path = import_path(Heeding)
        *_, unfinished = await service.spawn_each(path, [(True,)] * 3, [], [], SpawnOptions(), "a")
        *_, others = await service_of(pair).spawn_each(
            path, [(True,)] * 2, [], [], SpawnOptions(), "b"
        )
        assert (unfinished, others) == ([0, 1, 2], [0, 1])
        assert len(users(pair)) == 5
    # Later they are taken back in any case.
    with trio.fail_after(UNASKED_SECONDS / 2):
        await until(lambda: users(pair), "those of it are gone", lambda names: len(names) == 2)


class _LosesAnswers:
    """The service of a node, as it is to a caller that gets no answer to a start."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._service, name)
        if name not in ("spawn", "spawn_many", "spawn_each"):
            return asked

        async def lost(*args: object) -> None:
            await asked(*args)
            raise OutcomeUnknownError("it may have run", actor="@node", method=name)

        return lost


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("named", [False, True])
async def test_what_has_no_name_is_taken_back_where_the_answer_is_lost(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, count: int, many: bool, named: bool
) -> None:
    endpoint = internals_of(pair.here).endpoint
    service = endpoint.node_service
    monkeypatch.setattr(endpoint, "node_service", lambda *node: _LosesAnswers(service(*node)))
    placed, texts = pair.here.options(on="there"), list[str]()
    names = [f"numbered-{number}" for number in range(count)]

    async def spawn(number: int) -> None:
        options = placed.options(name=names[number]) if named else placed
        with pytest.raises(OutcomeUnknownError) as caught:
            await options.spawn(Numbered, number)
        texts.append(str(caught.value))

    if many:
        with pytest.raises(SpawnManyError) as failed:
            await placed.spawn_many(
                Numbered, [(number,) for number in range(count)], names=names if named else None
            )
        texts += map(str, failed.value.errors.values())
    else:
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(spawn, number)
    advice = "look it up by its name" if named else "it is stopped again"
    assert len(texts) == count
    assert all(advice in text for text in texts), texts
    if named:
        found = [await pair.here.lookup(name, Numbered) for name in names]
        assert [(await one.read())[0] for one in found] == list(range(count))
    else:
        await until(lambda: users(pair), "they are gone", lambda left: not left)


async def test_what_goes_on_after_an_answer_that_was_lost_is_cancelled_at_once(pair: Pair) -> None:
    service, path = service_of(pair), import_path(Heeding)
    *_, unfinished = await service.spawn_each(path, [(True,)] * 3, [], [], SpawnOptions(), "a")
    *_, others = await service.spawn_each(path, [(True,)] * 2, [], [], SpawnOptions(), "b")
    assert (unfinished, others) == ([0, 1, 2], [0, 1])
    # By all that a caller knows without the answer. Later they are taken back in any case.
    with trio.fail_after(UNASKED_SECONDS / 2):
        await service.take_back.send("a")
        await until(lambda: users(pair), "those of it are gone", lambda names: len(names) == 2)
