"""Mistakes of the first day: each has a text that says what to do, and harms no other call."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pytest
import trio

from actors import Actor, ChildSpec, RetryPolicy, method
from actors.errors import (
    ActorNotFoundError,
    ActorStartError,
    BadArgumentsError,
    CallTimeoutError,
    ListenError,
    ReplyEncodeError,
    WrongDoorError,
)
from runtime import open_local_cluster, open_node
from tests.live_pair import Pair

T = TypeVar("T")


class Counter(Actor):
    def __init__(self) -> None:
        self.value = 0

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @method
    async def count(self) -> Any:
        yield self.value

    def price(self) -> int:
        return 1

    @property
    def whole(self) -> int:
        return self.value

    @staticmethod
    def parse(text: str) -> int:
        return int(text)

    @method
    async def sleeps(self) -> None:
        await asyncio.sleep(1)

    @method
    async def takes(self) -> Any:
        return await asyncio.Queue[int]().get()

    @method
    async def raises(self, error: str) -> None:
        raise RuntimeError(error)

    @method
    async def forgets(self) -> Any:
        return self.add(1)


class Broken(Actor):
    async def on_start(self) -> None:
        self.open()

    def open(self) -> None:
        raise LookupError("no such file")


class Shelf(Actor, Generic[T]):
    def __init__(self, item: T) -> None:
        self.item = item

    @method
    async def get(self) -> T:
        return self.item


class AwaitsInConstructor(Actor):
    async def __init__(self) -> None:  # type: ignore[misc]
        await trio.lowlevel.checkpoint()


class ReturnsInConstructor(Actor):
    def __init__(self) -> None:
        return 3  # type: ignore[return-value]


class Waits(Actor):
    @method(concurrent=True)
    async def for_ever(self) -> None:
        await trio.sleep_forever()

    @method
    def in_a_thread(self) -> float:
        return trio.current_time()

    @method
    async def for_a_future(self) -> None:
        loop = asyncio.new_event_loop()
        try:
            await loop.create_future()
        finally:
            loop.close()


class Plain:
    pass


@pytest.mark.parametrize("call", ["call", "send", "remote", "stream"])
async def test_a_call_in_another_loop_is_refused_and_its_link_goes_on(
    pair: Pair, where: str, call: str
) -> None:
    counter = await pair.here.options(name="counter", on=where).spawn(Counter)
    assert await counter.add(1) == 1
    calls: dict[str, Callable[[], Any]] = {
        "call": lambda: counter.add(1),
        "send": lambda: counter.add.send(1),
        "remote": lambda: counter.add.remote(1),
        "stream": lambda: anext(counter.count()),
    }

    async def elsewhere() -> None:
        await calls[call]()

    with pytest.raises(WrongDoorError, match=r"counter\.\w+ was called outside of the thread"):
        await trio.to_thread.run_sync(trio.run, elsewhere)
    # The way that its text names.
    assert await trio.to_thread.run_sync(trio.from_thread.run, counter.add, 1) == 2


async def test_an_attribute_of_a_handle_cannot_be_set(pair: Pair) -> None:
    counter = await pair.here.spawn(Counter)
    with pytest.raises(AttributeError, match="value cannot be set on a handle"):
        counter.value = 3
    assert await counter.add(1) == 1


async def test_a_generic_class_may_be_given_with_its_parameters(pair: Pair, where: str) -> None:
    shelf = await pair.here.options(name="shelf", on=where).spawn(Shelf[int], 5)
    assert await shelf.get() == 5
    found = await pair.here.lookup("shelf", Shelf[int])
    assert await found.get() == 5
    (one,) = await pair.here.options(on=where).spawn_many(Shelf[str], [("a",)])
    assert await one.get() == "a"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("price", "no @method 'price' .*its method of that name has no mark; write @method above"),
        ("whole", "its property of that name is for the actor itself"),
        ("parse", "it is a staticmethod; call it on the class"),
        ("ad", "did you mean 'add'"),
        ("value", "it offers add, count, forgets, raises, sleeps, takes"),
    ],
)
async def test_what_the_class_has_without_a_mark_is_named(
    pair: Pair, where: str, name: str, text: str
) -> None:
    counter = await pair.here.options(on=where).spawn(Counter)
    with pytest.raises(AttributeError, match=text):
        getattr(counter, name)


async def test_a_stream_that_is_awaited_says_how_it_is_read(pair: Pair, where: str) -> None:
    counter: Any = await pair.here.options(on=where).spawn(Counter)
    with pytest.raises(TypeError, match="read it with `async for"):
        await counter.count()


async def test_a_call_that_is_not_awaited_is_named_in_words_of_the_user(
    pair: Pair, where: str
) -> None:
    counter = await pair.here.options(on=where).spawn(Counter)
    calls: list[Callable[[int], Any]] = [counter.add, counter.add.send, counter.add.remote]
    for call in calls:
        with pytest.warns(RuntimeWarning, match="'call of an actor' was never awaited"):
            call(1)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_a_coroutine_as_a_result_says_that_it_was_not_awaited(pair: Pair, where: str) -> None:
    counter = await pair.here.options(on=where).spawn(Counter)
    with pytest.raises(ReplyEncodeError, match="it was not awaited; await it"):
        await counter.forgets()


async def test_the_error_of_a_method_that_uses_asyncio_says_what_to_use(
    pair: Pair, where: str
) -> None:
    counter = await pair.here.options(on=where).spawn(Counter)
    calls: list[Callable[[], Any]] = [
        counter.sleeps,
        counter.takes,
        # As `asyncio.gather` raises it, in a process that has not set a loop for the thread.
        lambda: counter.raises("There is no current event loop in thread 'MainThread'."),
    ]
    texts = ["no running event loop", "no attribute 'create_future'", "no current event loop"]
    for call, text in zip(calls, texts, strict=True):
        with pytest.raises((RuntimeError, AttributeError), match=text) as caught:
            await call()
        notes = caught.value.__notes__
        assert any("derive the actor from runtime.aio.AsyncioActor" in one for one in notes)
    with pytest.raises(RuntimeError, match="another") as caught:
        await counter.raises("another")
    assert not any("asyncio runs no loop here" in note for note in caught.value.__notes__)


async def test_the_error_of_a_method_that_awaits_a_future_of_asyncio(
    pair: Pair, where: str
) -> None:
    waits = await pair.here.options(on=where).spawn(Waits)
    with pytest.raises(TypeError, match="unrecognized yield message") as caught:
        await waits.for_a_future()
    assert any("use trio's functions" in one for one in caught.value.__notes__)


async def test_the_error_of_a_plain_method_that_uses_trio(pair: Pair, where: str) -> None:
    waits = await pair.here.options(on=where).spawn(Waits)
    with pytest.raises(RuntimeError, match="must be called from async context") as caught:
        await waits.in_a_thread()
    assert any("write the method as `async def`" in one for one in caught.value.__notes__)


@pytest.mark.parametrize("how", ["spawn", "get_or_spawn", "singleton", "spawn_many"])
async def test_the_handle_has_the_options_for_calls_whether_the_actor_was_there_or_not(
    pair: Pair, how: str
) -> None:
    named: Any = pair.here if how == "spawn_many" else pair.here.options(name="waits")
    options = named.options(timeout=0.05)
    for _ in range(2 if how in ("get_or_spawn", "singleton") else 1):
        if how == "spawn_many":
            (waits,) = await options.spawn_many(Waits, [()])
        else:
            waits = await getattr(options, how)(Waits)
        with trio.fail_after(10), pytest.raises(CallTimeoutError):
            await waits.for_ever()


async def test_options_of_calls_are_refused_where_there_is_no_handle_for_them(pair: Pair) -> None:
    with pytest.raises(ValueError, match=r"timeout is an option of calls.*pool\.map\(..., timeout"):
        await pair.here.pool("counters", Counter, size=1, timeout=1.0)
    with pytest.raises(ValueError, match=r"child 'a': retry is an option of calls.*@method\(retry"):
        ChildSpec.of("a", Counter).changed(retry=RetryPolicy(max_retries=1))


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        (
            {"amuont": 1},
            r"unexpected keyword argument 'amuont'; did you mean 'amount'\?; it",
        ),
        ({"amount": 1, "other": 2}, "got an unexpected keyword argument 'other'; it takes"),
        ({}, "missing a required argument: 'amount'; it takes"),
    ],
)
async def test_a_misspelt_parameter_is_named_and_not_the_one_that_is_missing(
    pair: Pair, kwargs: dict[str, int], text: str
) -> None:
    counter: Any = await pair.here.spawn(Counter)
    with pytest.raises(BadArgumentsError, match=text):
        await counter.add(**kwargs)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (AwaitsInConstructor, "__init__ cannot be `async def`; await in `on_start`"),
        (ReturnsInConstructor, "__init__ should return None, not int"),
    ],
)
async def test_a_constructor_that_returns_something(
    pair: Pair, where: str, given: type[Actor], text: str
) -> None:
    with pytest.raises(ActorStartError, match=text):
        await pair.here.options(on=where).spawn(given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Counter(), "not an instance of it: give Counter and then its arguments"),
        (Plain, "derive Plain from Actor"),
        ("Counter", r"not 'Counter': a name is an option, as in node\.options\(name="),
    ],
)
async def test_what_is_no_class_of_actors_is_not_spawned(pair: Pair, given: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        await pair.here.spawn(given)
    with pytest.raises(TypeError, match=text):
        await pair.here.spawn_many(given, [()])


@pytest.mark.parametrize("opening", [open_node, open_local_cluster])
def test_a_node_is_not_opened_under_asyncio(opening: Callable[[], Any]) -> None:
    async def main() -> None:
        async with opening():
            pytest.fail("opened")

    with pytest.raises(WrongDoorError, match=f"{opening.__name__} needs .* use runtime.aio"):
        asyncio.run(main())


@pytest.mark.parametrize("opening", [open_node, open_local_cluster])
async def test_another_system_than_linux_is_reported(
    opening: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(OSError, match="needs Linux, and this is Darwin: use a container"):
        async with opening():
            pytest.fail("opened")


async def test_the_traceback_of_a_failed_start_begins_with_the_lines_of_the_user() -> None:
    async with open_node() as node:
        with pytest.raises(ActorStartError) as caught:
            await node.spawn(Broken)
        cause = caught.value.__cause__
        assert isinstance(cause, LookupError)
        assert functions(cause) == ["on_start", "open"]
        # Of the runtime, those that the user calls: no more than two.
        assert functions(caught.value)[1:] == ["spawn", "spawn"]
        with pytest.raises(ActorNotFoundError) as not_found:
            await node.lookup("nothing", Broken)
        assert functions(not_found.value)[1:] == ["lookup", "lookup"]


def functions(error: BaseException) -> list[str]:
    """The functions of the traceback, the outermost first."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"join": "192.0.2.1:7400", "listen": "192.0.2.2:0"},
            r"192\.0\.2\.1:7400 is on another machine .*that the nodes there have.*--advertise",
        ),
        ({"listen": "192.0.2.2:0"}, r"other machines can reach needs .*`openssl rand -hex 32`"),
    ],
)
async def test_a_node_without_the_secret_that_it_needs(
    options: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNDERSTUDY_SECRET", raising=False)
    opening: Any = open_node
    with pytest.raises(ListenError, match=text):
        async with opening(**options):
            pass
