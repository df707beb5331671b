"""Types of the standard library, named tuples, pydantic models and classes with a converter: what
they refuse, and what peers can do with them.
"""

from __future__ import annotations

import enum
import json
from collections import deque
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import attrs
import pydantic
import pytest
from cbor2 import CBORTag, dumps

from actors import Actor, message, method, register_converter
from actors.errors import (
    DecodeError,
    EncodeError,
    NotExecutedError,
    OutcomeUnknownError,
    ProtocolError,
)
from actors.handle import Handle
from actors.messages import message_type
from runtime.command_line.call import plain
from runtime.testing import VirtualCluster
from runtime.wire.codec import Codec
from runtime.wire.plain_writer import SCALARS
from runtime.wire.standard_types import BY_TYPE
from runtime.wire.tags import MESSAGE
from tests.wire.shaper import STANDARD

CODEC = Codec(sentinel=b"sentinel")
HERE = __name__


class Celsius:
    def __init__(self, degrees: float) -> None:
        self.degrees = degrees


def celsius(degrees: Any) -> Any:
    """The half of the converter that peers reach; it does what converters must not."""
    return {
        "cold": lambda: 1 / 0,
        "group": lambda: BaseExceptionGroup("several", [KeyboardInterrupt("not from a signal")]),
        "other": lambda: 5,
    }.get(degrees, lambda: Celsius(degrees))()


register_converter(Celsius, lambda value: value.degrees, celsius)


class Kilo:
    """Never registered."""


class Weekday(enum.Enum):
    MONDAY = 1


@message
@attrs.frozen
class Point:
    x: int


class Row(NamedTuple):
    x: int
    y: int = 7


@message
class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    item: str
    amount: int = pydantic.Field(1, gt=0, alias="n")
    id: UUID = pydantic.Field(default_factory=uuid4)


@message
class Numbers(pydantic.RootModel[list[int]]):
    pass


def decoded(*parts: object) -> Any:
    return CODEC.decode(dumps(CBORTag(MESSAGE, list(parts))))


@pytest.mark.parametrize("parts", STANDARD, ids=lambda parts: parts[0])
def test_what_no_node_sends_ends_in_an_error_of_ours_at_most(parts: tuple[object, ...]) -> None:
    try:
        CODEC.copy(decoded(*parts))
    except (DecodeError, ProtocolError, EncodeError):
        pass


@pytest.mark.parametrize(
    "parts",
    [
        ("builtins:range", [0, 2**63, 1]),
        ("fractions:Fraction", [1, 2**8192]),
        ("ipaddress:IPv6Address", "::%" + "x" * 300),
    ],
    ids=lambda parts: parts[0],
)
def test_what_a_constructor_would_compute_with_is_bounded(parts: tuple[object, ...]) -> None:
    with pytest.raises(ProtocolError, match=r"beyond 64 bits|more digits|more characters"):
        decoded(*parts)


@pytest.mark.parametrize("name", ["cold", "group", "other"])
def test_a_converter_that_fails_ends_the_value_and_not_the_link(name: str) -> None:
    with pytest.raises(DecodeError, match=f"the converter of {HERE}:Celsius"):
        decoded(f"{HERE}:Celsius", name, "converted")


def test_a_process_without_the_converter_says_what_it_lacks() -> None:
    with pytest.raises(DecodeError, match=r"no\.such:Class has no converter .*register_converter"):
        decoded("no.such:Class", 1, "converted")
    # Of a class that it knows it builds nothing either.
    with pytest.raises(DecodeError, match="has no converter"):
        decoded(f"{HERE}:Kilo", 1, "converted")


def test_a_converter_is_not_used_for_what_was_not_converted() -> None:
    with pytest.raises(DecodeError, match="not marked with @message"):
        decoded(f"{HERE}:Celsius", 5.0)


def test_registering_again_replaces_the_converter() -> None:
    class Volt(Celsius):
        pass

    Volt.__qualname__ = "Volt"
    register_converter(Volt, lambda value: value.degrees, Volt)
    codec = Codec(sentinel=b"sentinel")
    assert codec.copy(Volt(1)).degrees == 1  # type: ignore[attr-defined]
    register_converter(Volt, lambda value: value.degrees + 1, Volt)
    assert codec.copy(Volt(1)).degrees == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "cls",
    [
        *SCALARS,
        *(bytes, bytearray, memoryview, list, tuple, dict, set, frozenset, UUID),
        *(cls for cls in BY_TYPE if not issubclass(cls, Exception)),
        *(Weekday, Point, Handle, Actor, Order),
    ],
    ids=lambda cls: cls.__name__,
)
def test_a_converter_for_what_is_sent_anyway_is_refused(cls: type) -> None:
    with pytest.raises(TypeError, match=r"register_converter: .*(without a|@message|stay where)"):
        register_converter(cls, str, cls)


def test_wrong_converters_are_refused_where_they_are_written() -> None:
    class Local:
        pass

    with pytest.raises(TypeError, match="inside a function"):
        register_converter(Local, str, lambda plain: Local())
    with pytest.raises(TypeError, match="a class is expected"):
        register_converter(Kilo(), str, str)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="from_plain is a function"):
        register_converter(Kilo, str, "Kilo")  # type: ignore[arg-type]


def test_named_tuples_of_other_versions_take_defaults_or_say_what_is_missing() -> None:
    assert decoded(f"{HERE}:Row", {"x": 1, "z": 3}) == Row(1)
    with pytest.raises(DecodeError, match="Row has a field x here that was not sent"):
        decoded(f"{HERE}:Row", {"y": 1})


def test_attributes_of_a_named_tuple_are_not_lost_silently() -> None:
    class Tagged(Row):
        pass

    Tagged.__qualname__ = "Tagged"
    value = Tagged(1, 2)
    value.tag = "x"  # type: ignore[attr-defined]
    with pytest.raises(EncodeError, match="attributes besides its fields"):
        CODEC.encode(value, [])


def test_a_model_keeps_what_was_given_and_what_was_not() -> None:
    order = Order(item="tea", colour="green")  # type: ignore[call-arg]
    found = CODEC.copy(order)
    assert found == order
    assert isinstance(found, Order)
    assert found.model_dump(exclude_unset=True) == {"item": "tea", "colour": "green"}
    assert CODEC.copy(Order(item="tea", n=3)) != order
    assert CODEC.copy(Numbers([1, 2])) == Numbers([1, 2])
    assert message_type(Order) is not None


@pytest.mark.parametrize(
    "parts", [[{"item": "tea", "n": -1}], [{"n": 1}], [{"item": "tea"}, [5, {}]], [5]]
)
def test_a_model_is_checked_where_it_arrives(parts: list[object]) -> None:
    with pytest.raises((DecodeError, ProtocolError)):
        decoded(f"{HERE}:Order", *parts)


class Thermometer(Actor):
    @method
    async def back(self, value: object) -> object:
        return value

    @method
    async def make(self, degrees: str) -> object:
        made = Celsius(1.0)
        made.degrees = degrees  # type: ignore[assignment]
        return made


async def test_a_converter_that_raises_ends_its_call_alone(cluster: VirtualCluster) -> None:
    thermometer = await cluster.options(on="worker-1").spawn(Thermometer)
    assert (await thermometer.back(Celsius(3.5))).degrees == 3.5  # type: ignore[attr-defined]
    bad = Celsius(1.0)
    bad.degrees = "cold"  # type: ignore[assignment]
    with pytest.raises(NotExecutedError, match=r"the converter of .*ZeroDivisionError"):
        await thermometer.back(bad)
    with pytest.raises(OutcomeUnknownError, match=r"the converter of .*ZeroDivisionError"):
        await thermometer.make("cold")
    assert await thermometer.back([5]) == [5]


def test_the_command_line_prints_them_as_json_has_them() -> None:
    value = {"a": deque([Path("/etc"), Fraction(1, 3)]), Path("k"): Row(1), "c": 1j}
    assert json.loads(json.dumps(plain(value))) == {
        "a": ["/etc", "1/3"],
        "k": {"x": 1, "y": 7},
        "c": "1j",
    }
