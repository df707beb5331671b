"""Values of honest users that no peer would take: they cost their own call, and no link or node."""

from __future__ import annotations

import sys
from collections.abc import Callable

import attrs
import pytest

from actors import Actor, message, method
from actors.errors import EncodeError, ReplyEncodeError
from tests.live_pair import Pair

MODULUS = sys.hash_info.modulus


@message
@attrs.frozen
class Constant:
    """All of them have one hash."""

    number: int

    def __hash__(self) -> int:
        return 7


@message
@attrs.frozen
class Unhashable:
    """Its hash raises from the second time on."""

    asked: list[int]

    def __hash__(self) -> int:
        self.asked.append(1)
        if len(self.asked) > 1:
            raise SystemExit("the hash of a key")
        return 1


VALUES: dict[str, Callable[[], object]] = {
    "integers": lambda: {MODULUS * number: number for number in range(1000)},
    "tuples": lambda: {(MODULUS * number, -1): number for number in range(1000)},
    "set": lambda: {MODULUS * number for number in range(1000)},
    "frozenset": lambda: frozenset(MODULUS * number for number in range(1000)),
    "messages": lambda: {Constant(number): number for number in range(1000)},
    "large": lambda: {MODULUS << 61 * 4000: 1, (MODULUS << 61 * 4000) * MODULUS: 2},
    "raises": lambda: {Unhashable([]): 1},
}


class Holder(Actor):
    """Takes, returns and raises these values."""

    def __init__(self, value: object = None) -> None:
        self.value = value

    @method
    async def take(self, value: object) -> None:
        """Take one."""

    @method
    async def give(self, name: str) -> object:
        return VALUES[name]()

    @method
    async def fail(self, name: str) -> None:
        raise ValueError("with a value", VALUES[name]())

    @method
    async def ping(self) -> str:
        return "pong"


@pytest.mark.parametrize("name", list(VALUES))
async def test_a_value_that_no_peer_takes_costs_one_call(pair: Pair, where: str, name: str) -> None:
    holder = await pair.here.options(on=where).spawn(Holder)
    with pytest.raises(EncodeError, match="hash"):
        await holder.take(VALUES[name]())
    with pytest.raises(EncodeError, match="hash"):
        await pair.here.options(on=where).spawn(Holder, VALUES[name]())
    with pytest.raises(ReplyEncodeError, match="hash"):
        await holder.give(name)
    with pytest.raises(ValueError, match="with a value"):
        await holder.fail(name)
    assert await holder.ping() == "pong"
