"""Exceptions that user code keeps and raises again in each call."""

from __future__ import annotations

import traceback
from types import TracebackType

import pytest

from actors import Actor, method
from tests.live_pair import Pair


def entries(error: BaseException) -> list[str]:
    found, entry = [], error.__traceback__
    while entry is not None:
        found.append(entry.tb_frame.f_code.co_name)
        entry = entry.tb_next
    return found


def fail() -> None:
    raise ConnectionError("refused")


class Closed(Actor):
    """Keeps why it was closed."""

    def __init__(self) -> None:
        self.error = ValueError("closed")
        self.why: Exception = self.error

    @method
    async def use(self) -> None:
        raise self.error

    @method
    def use_in_thread(self) -> None:
        raise self.error

    @method
    async def use_otherwise(self) -> None:
        raise self.error

    @method
    async def connect(self) -> None:
        try:
            fail()
        except ConnectionError as error:
            self.error = error  # type: ignore[assignment]

    @method
    async def frames(self) -> list[str]:
        return entries(self.error)


async def test_the_traceback_of_an_exception_that_is_kept_does_not_grow(
    pair: Pair, where: str
) -> None:
    closed = await pair.here.options(on=where).spawn(Closed)
    for use in (closed.use, closed.use_in_thread):
        lengths = set()
        for _ in range(20):
            with pytest.raises(ValueError, match="closed"):
                await use()
            lengths.add(len(await closed.frames()))
        assert max(lengths) < 60, "of a few runs at most"
        assert len(lengths) <= 4
    for _ in range(20):
        for use in (closed.use, closed.use_otherwise):
            with pytest.raises(ValueError, match="closed"):
                await use()
    assert len(await closed.frames()) < 20


async def test_where_it_was_raised_first_stays(pair: Pair, where: str) -> None:
    closed = await pair.here.options(on=where).spawn(Closed)
    await closed.connect()
    for _ in range(10):
        with pytest.raises(ConnectionError) as caught:
            await closed.use()
        assert "raise ConnectionError" in "".join(traceback.format_exception(caught.value))
    assert [name for name in await closed.frames() if name in {"use", "connect", "fail"}] == [
        "use",
        "connect",
        "fail",
    ]
    assert isinstance(caught.value.__traceback__, TracebackType)
