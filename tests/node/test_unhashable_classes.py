"""Values and exceptions of classes that have no hash, or one that raises or lies: the call ends
with an error, and so do all ways in which a value leaves the code of users. No node ends, and no
caller waits for ever.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

import attrs
import pytest

from actors import Actor, RetryPolicy, message, method
from actors.errors import EncodeError, RemoteError, ReplyEncodeError
from runtime.statistics.call_statistics import reason_of
from tests.live_pair import Pair


class NoHash(type):
    """Python takes the hash from a class that has an equality of its own."""

    def __eq__(cls, other: object) -> bool:
        return cls is other

    __hash__: Any = None


class HarmfulHash(type):
    """Whoever asks for the hash ends."""

    def __eq__(cls, other: object) -> NoReturn:
        raise SystemExit("eq of a class")

    def __hash__(cls) -> NoReturn:
        raise SystemExit("hash of a class")


class FalseHash(type):
    """Its classes claim to be `int`."""

    def __eq__(cls, other: object) -> bool:
        return True

    def __hash__(cls) -> int:
        return hash(int)


METAS: dict[str, type[type]] = {"none": NoHash, "raises": HarmfulHash, "lies": FalseHash}
VALUES: dict[str, Callable[[], object]] = {
    name: meta("Odd", (), {}) for name, meta in METAS.items()
}
ERRORS: dict[str, Callable[[str], BaseException]] = {
    name: meta("OddError", (Exception,), {}) for name, meta in METAS.items()
}


@message
@attrs.define
class FalseClass:
    """Can be sent, and says nothing of its class. Its bytes travel beside it."""

    data: bytes = attrs.field(default=1_000_000 * b"x", repr=False)

    @property
    def __class__(self) -> Any:
        raise SystemExit("class")

    @__class__.setter
    def __class__(self, value: Any) -> None: ...


class Odd(Actor):
    """Returns, raises and takes them."""

    @method
    async def give(self, name: str) -> object:
        return VALUES[name]()

    @method
    def give_from_thread(self, name: str) -> object:
        return VALUES[name]()

    @method
    async def give_within(self, name: str) -> object:
        return [b"x" * 100_000, {"it": VALUES[name]()}]

    @method
    async def items(self, name: str) -> AsyncIterator[object]:
        yield 1
        yield VALUES[name]()

    @method
    async def fail(self, name: str) -> None:
        raise ERRORS[name]("odd")

    @method
    async def fail_with(self, name: str) -> None:
        raise ValueError("with a value", VALUES[name]())

    @method
    async def give_false_class(self) -> object:
        return FalseClass()

    @method
    async def put(self, name: str) -> None:
        await self.node.put(VALUES[name]())

    @method
    async def keep(self, name: str) -> None:
        await self.save(VALUES[name]())

    @method
    async def take(self, value: object) -> None:
        """Take one."""

    @method
    async def ping(self) -> str:
        return "pong"

    @method
    def ping_with(self, number: int) -> str:
        return "pong"


class Given(Actor):
    """Is started with one."""

    def __init__(self, value: object) -> None: ...


each = pytest.mark.parametrize("name", list(METAS))


async def test_a_result_that_says_nothing_of_its_class_arrives(pair: Pair, where: str) -> None:
    odd: Any = await pair.here.options(on=where).spawn(Odd)
    assert len((await odd.give_false_class()).data) == 1_000_000
    assert await odd.ping() == "pong"


@each
@pytest.mark.parametrize("how", ["give", "give_from_thread", "give_within"])
async def test_a_result_that_cannot_be_sent_ends_the_call(
    pair: Pair, where: str, name: str, how: str
) -> None:
    odd = await pair.here.options(on=where).spawn(Odd)
    with pytest.raises(ReplyEncodeError, match="cannot be sent"):
        await getattr(odd, how)(name)
    with pytest.raises(ReplyEncodeError, match="cannot be sent"):
        await getattr(odd, how).options(retry=RetryPolicy(max_retries=1))(name)
    with pytest.raises(ReplyEncodeError, match="cannot be sent"):
        await (await getattr(odd, how).remote(name)).fetch()
    assert await odd.ping() == "pong"


@each
async def test_an_item_that_cannot_be_sent_ends_the_stream(
    pair: Pair, where: str, name: str
) -> None:
    odd = await pair.here.options(on=where).spawn(Odd)
    seen: list[object] = []

    async def read() -> None:
        async for item in odd.items(name):
            seen.append(item)

    with pytest.raises(ReplyEncodeError, match="yielded an item that cannot be sent"):
        await read()
    assert seen == [1]
    assert await odd.ping() == "pong"


@each
@pytest.mark.parametrize("how", ["fail", "fail_with"])
async def test_what_a_method_raises_arrives(
    pair: Pair, where: str, name: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    odd = await pair.here.options(on=where).spawn(Odd)
    with pytest.raises(RemoteError, match=r"odd|with a value") as raised:
        await getattr(odd, how)(name)
    assert "test_unhashable_classes.py" in raised.value.remote_traceback
    with pytest.raises(RemoteError, match=r"odd|with a value"):
        await getattr(odd, how).options(retry=RetryPolicy(max_retries=1))(name)
    with pytest.raises(RemoteError, match=r"odd|with a value"):
        await (await getattr(odd, how).remote(name)).fetch()
    with caplog.at_level(logging.ERROR):
        await getattr(odd, how).send(name)
        # In order: the one-way call has ended.
        assert await odd.ping() == "pong"
    assert "raised in a one-way call" in caplog.text


@each
async def test_what_goes_out_is_refused(pair: Pair, where: str, name: str) -> None:
    odd = await pair.here.options(on=where, name="odd").spawn(Odd)
    value = VALUES[name]()
    with pytest.raises(EncodeError, match="argument value"):
        await odd.take(value)
    with pytest.raises(EncodeError, match="argument value"):
        await odd.take(value=value)
    with pytest.raises(EncodeError, match="argument value"):
        await odd.take.send(value)
    with pytest.raises(EncodeError, match="argument value"):
        await odd.take.remote(value)
    with pytest.raises(EncodeError, match="argument value"):
        await pair.here.options(on=where).spawn(Given, value)
    with pytest.raises(EncodeError, match="value"):
        await pair.here.put(value)
    for asked in (odd.put, odd.keep):
        with pytest.raises(EncodeError, match="cannot be sent"):
            await asked(name)
    assert await odd.ping() == "pong"


@each
async def test_a_map_reports_the_item(pair: Pair, name: str) -> None:
    pool: Any = await pair.here.pool(None, Odd, size=1)
    for asked, item in ((Odd.give_from_thread, name), (Odd.take, VALUES[name]())):
        with pytest.raises((EncodeError, ReplyEncodeError), match="cannot be sent"):
            async for _ in pool.map(asked, [item]):
                pass
    assert [one async for one in pool.map(Odd.ping_with, [1])] == ["pong"]


@each
def test_the_reason_of_an_outcome_asks_no_metaclass(name: str) -> None:
    assert reason_of(METAS[name]("Both", (RemoteError,), {})("text")) == "RemoteError"
