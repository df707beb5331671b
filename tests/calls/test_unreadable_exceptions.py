"""Exceptions that hold what the caller cannot build: the method has raised, and the caller learns
what.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import trio

from actors import Actor, message, method, register_converter
from actors.errors import (
    BadArgumentsError,
    ConnectionLostError,
    EncodeError,
    OutcomeUnknownError,
    RemoteError,
)
from runtime.calls.error_codec import RAISED, CallPlace, rebuild, without_values
from tests.live_pair import Pair


class Crate:
    def __init__(self, kind: str) -> None:
        self.kind = kind


def crate_of(kind: str) -> Crate:
    raise LookupError(f"there are no {kind}s here")


register_converter(Crate, lambda crate: crate.kind, crate_of)


class Seal:
    """Those of one node are different; on their way they become equal."""


SEAL = Seal()

register_converter(Seal, lambda seal: None, lambda data: SEAL)


def two_seals() -> dict[tuple[object, ...], str]:
    return {(Seal(), side): "sealed" for side in (1, 1)}


@message
class EmptyShelfError(Exception):
    def __init__(self, crate: Crate) -> None:
        super().__init__(f"no {crate.kind} left")
        self.crate = crate


class Depot(Actor):
    def __init__(self) -> None:
        self._counted = 0

    @method
    async def count(self) -> int:
        self._counted += 1
        return self._counted

    @method
    async def take(self) -> int:
        raise ValueError("no stock", Crate("stone"))

    @method
    async def look(self) -> AsyncIterator[int]:
        yield 1
        raise ValueError("no stock", Crate("stone"))

    @method
    async def compare(self, seals: object = None) -> None:
        raise ValueError("two seals", two_seals())

    @method
    async def compare_in_sets(self) -> dict[object, str]:
        return {frozenset(one): side for one, side in two_seals().items()}

    @method
    async def empty(self) -> None:
        raise EmptyShelfError(Crate("stone"))

    @method
    async def take_all(self) -> None:
        raise ExceptionGroup("two failed", [KeyError("a"), ValueError("b", {1: Crate("stone")})])


async def _fetched(depot: Any) -> object:
    return await (await depot.take.remote()).fetch()


async def _read(depot: Any) -> list[int]:
    return [number async for number in depot.look()]


WAYS: dict[str, Callable[[Any], Awaitable[object]]] = {
    "call": lambda depot: depot.take(),
    "reference": _fetched,
    "stream": _read,
}


def _notes(error: BaseException) -> str:
    return "\n".join(error.__notes__)


@pytest.mark.parametrize("way", WAYS)
async def test_what_was_raised_arrives_as_text(pair: Pair, where: str, way: str) -> None:
    depot = await pair.here.options(on=where, name="depot").spawn(Depot)
    with trio.fail_after(60):
        with pytest.raises(RemoteError, match="no stock") as caught:
            await WAYS[way](depot)
    error = caught.value
    assert isinstance(error, ValueError)
    assert error.remote_type == "builtins:ValueError"
    assert "raise ValueError" in error.remote_traceback
    assert "could not be rebuilt here" in _notes(error)
    assert "there are no stones here" in _notes(error)


async def test_keys_that_become_equal_on_their_way_end_only_the_call(
    pair: Pair, where: str
) -> None:
    depot = await pair.here.options(on=where).spawn(Depot)
    with trio.fail_after(60):
        with pytest.raises(RemoteError, match="two seals") as caught:
            await depot.compare()
        assert isinstance(caught.value, ValueError)
        with pytest.raises(OutcomeUnknownError, match="a key that occurs twice") as unknown:
            await depot.compare_in_sets()
        assert not isinstance(unknown.value, ConnectionLostError)
        with pytest.raises((EncodeError, BadArgumentsError), match="a key that occurs twice"):
            await depot.compare(two_seals())
        # The link to the node has stayed.
        assert await depot.count() == 1


async def test_a_class_of_the_users_is_not_built_without_what_it_holds(
    pair: Pair, where: str
) -> None:
    depot = await pair.here.options(on=where).spawn(Depot)
    with trio.fail_after(60):
        with pytest.raises(RemoteError, match="EmptyShelfError: no stone left") as caught:
            await depot.empty()
    # Its methods may ask for what is not there.
    assert not isinstance(caught.value, EmptyShelfError)
    assert caught.value.remote_type.endswith(":EmptyShelfError")
    assert "It is no EmptyShelfError here: what it holds could not be rebuilt" in _notes(
        caught.value
    )


async def test_the_members_of_a_group_are_there(pair: Pair, where: str) -> None:
    depot = await pair.here.options(on=where).spawn(Depot)
    with trio.fail_after(60):
        with pytest.raises(RemoteError, match="two failed") as caught:
            await depot.take_all()
    group: Any = caught.value
    assert isinstance(group, ExceptionGroup)
    one, other = group.exceptions
    assert (type(one).__name__, one.args) == ("KeyError", ("a",))
    assert isinstance(other, ValueError)
    assert "could not be rebuilt here" in _notes(other)


def test_a_description_without_values_keeps_what_is_certain() -> None:
    plain: dict[str, object] = {
        "type": "builtins:OSError",
        "text": "[Errno 2] none",
        "args": [2, "none"],
        "fields": {"crate": None},
        "notes": ["at noon"],
        "traceback": "a line",
    }
    found = without_values(plain, "why")
    error = rebuild(RAISED, found, CallPlace("a", "m", "n", 1), lambda path: Depot)
    assert (isinstance(error, OSError), error.args) == (True, (2, "none"))
    assert "at noon\nSomething that it holds" in _notes(error)
    # None may stand for what was left out.
    assert without_values(plain | {"args": [2, None]}, "why")["args"] == ["[Errno 2] none"]
