"""What crosses the wire arrives equal in value and type; what could not is refused with its path;
no bytes can do harm.
"""

from __future__ import annotations

import dataclasses
import enum
import random
import subprocess
import sys
import time as clock
import tracemalloc
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_interface
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import cbor2
import numpy
import pytest
from cbor2 import CBORTag, dumps
from hypothesis import example, given
from hypothesis import strategies as st

from actors import register_converter
from actors.errors import DecodeError, EncodeError, ProtocolError
from actors.messages import message, message_type, sparse_message
from actors.options import CallOptions, SpawnOptions
from actors.retry import RetryPolicy
from runtime.wire import classes
from runtime.wire.arrays import first_number
from runtime.wire.classes import MOVED, find_class
from runtime.wire.codec import MAX_IN_PLACE, Codec
from runtime.wire.frames import LIMITS, Buffer
from runtime.wire.plain_writer import MAX_SEGMENTS, Extension
from runtime.wire.tags import (
    ARGUMENTS,
    ARRAY,
    BUILTIN_TAGS,
    DECIMAL,
    ENUM,
    MESSAGE,
    OWN_TAGS,
    PAIRS,
    SCALAR,
    SEGMENT,
    SET,
    SPILLED,
    TUPLE,
)

CODEC = Codec(sentinel=b"\x91sentine")
HERE = __name__


class Colour(enum.Enum):
    RED = "red"
    GREEN = ("gr", "een")


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@message
@attrs.frozen
class Point:
    x: object
    _y: int = 7
    derived: int = attrs.field(init=False, default=0)


@message
@dataclasses.dataclass
class Pair:
    items: dict[str, object]
    second: object = None


@message
@dataclasses.dataclass(frozen=True, slots=True)
class Parcel:
    weight: int
    unit: dataclasses.InitVar[int] = 1
    state: str = dataclasses.field(default="packed", init=False)
    sender: str = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self, unit: int) -> None:
        object.__setattr__(self, "weight", self.weight * unit)


@message
class OrderError(Exception):
    pass


@message
class TallError(Exception):
    def __init__(self, height: int, *, unit: str) -> None:
        super().__init__(f"{height} {unit}", height)


@attrs.frozen
class Unmarked:
    x: int


@sparse_message
@attrs.frozen
class Sparse:
    number: object = 1
    text: str | None = None
    pairs: dict[str, int] = attrs.field(factory=dict)


@attrs.frozen
class SubPoint(Point):
    pass


class Temperature:
    def __init__(self, degrees: float) -> None:
        self.degrees = degrees


class Warmth(Temperature):
    pass


class Kelvin:
    def __init__(self, degrees: float) -> None:
        self.degrees = degrees

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kelvin) and self.degrees == other.degrees

    def __hash__(self) -> int:
        return hash(self.degrees)


register_converter(Kelvin, lambda value: {"K": value.degrees}, lambda plain: Kelvin(plain["K"]))
Named = namedtuple("Named", "x")
LocalEnum = enum.Enum("LocalEnum", "A", qualname="make.<locals>.LocalEnum", module=__name__)


def crossed(value: object, codec: Codec = CODEC) -> Any:
    segments: list[Buffer] = []
    control = codec.encode(value, segments)
    assert len(control) <= MAX_IN_PLACE
    return codec.decode(control, [bytearray(segment) for segment in segments])


def alike(a: object, b: object) -> bool:
    """Equal in value and in the types of everything inside."""
    if type(a) is not type(b):
        return False
    if isinstance(a, deque) and a.maxlen != b.maxlen:  # type: ignore[attr-defined]
        return False
    if isinstance(a, defaultdict) and a.default_factory is not b.default_factory:  # type: ignore[attr-defined]
        return False
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(map(alike, a, b))  # type: ignore[arg-type, call-overload]
    if isinstance(a, dict):
        return len(a) == len(b) and all(  # type: ignore[arg-type]
            alike(k, m) and alike(v, w)
            for (k, v), (m, w) in zip(a.items(), b.items(), strict=True)  # type: ignore[attr-defined]
        )
    if isinstance(a, set | frozenset):
        return a == b and {(type(x), x) for x in a} == {(type(x), x) for x in b}
    if isinstance(a, float | complex):
        return repr(a) == repr(b)
    if isinstance(a, datetime | time):
        return (
            a == b
            and a.utcoffset() == b.utcoffset()  # type: ignore[attr-defined]
            and a.fold == b.fold  # type: ignore[attr-defined]
            and (a.tzinfo is None) == (b.tzinfo is None)  # type: ignore[attr-defined]
        )
    if isinstance(a, Decimal):
        return str(a) == str(b)
    return a == b


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
zones = st.one_of(
    st.none(),
    st.just(UTC),
    st.sampled_from([ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")]),
    st.integers(-86399, 86399).map(lambda seconds: timezone(timedelta(seconds=seconds))),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    texts,
    st.binary(max_size=40),
    st.datetimes(timezones=zones),
    st.dates(),
    st.times(timezones=zones),
    st.timedeltas(),
    st.decimals(),
    st.uuids(),
    st.sampled_from([*Colour, *Level, *Word, *Right, Right.READ | Right.WRITE, Right(0)]),
    st.complex_numbers(),
    st.fractions(),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 2**63 - 1)),
    st.ip_addresses(),
    st.integers(0, 2**32 - 1).map(lambda number: ip_interface((number, 9))),
    texts.map(PurePosixPath),
    texts.map(Path),
    st.floats(allow_nan=False).map(Kelvin),
)
keys = st.recursive(
    scalars.filter(lambda key: not (isinstance(key, Decimal) and key.is_nan()) and key == key),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        inner.map(Named),
    ),
    max_leaves=4,
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(texts, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
        st.sets(keys, max_size=4),
        st.frozensets(keys, max_size=4),
        inner.map(Named),
        st.builds(deque, st.lists(inner, max_size=4), st.none() | st.integers(0, 5)),
        st.dictionaries(keys, inner, max_size=4).map(OrderedDict),
        st.dictionaries(keys, st.integers(), max_size=4).map(Counter),
        st.builds(
            defaultdict,
            st.sampled_from([None, int, list, dict]),
            st.dictionaries(keys, inner, max_size=3),
        ),
    ),
    max_leaves=12,
)


@given(values)
@example([True, 1, 1.0, -0.0, 2**64, -(2**64) - 1, float("nan")])
@example({1: "int", "1": "text", b"1": "bytes", (1,): "tuple", None: "none", frozenset({1}): "set"})
@example(datetime(2025, 10, 26, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1))
@example({True: 1})
def test_values_arrive_equal_in_value_and_in_type(value: object) -> None:
    small = Codec(sentinel=b"another!", segment_threshold=16)
    for codec in (CODEC, small):
        assert alike(crossed(value, codec), value)
        assert alike(codec.copy(value), value)


@given(st.lists(values, max_size=4).map(tuple), st.dictionaries(texts, values, max_size=3))
def test_arguments_arrive_as_they_were_passed_also_within_a_call(
    args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    segments: list[Buffer] = []
    encoded = CODEC.encode_arguments(args, kwargs, segments)
    control = b"\x82\x1a\x00\x00\x00\x09" + encoded
    number, item = CODEC.decode(control, segments)  # type: ignore[misc]
    assert number == 9  # type: ignore[has-type]
    got_args, got_kwargs = CODEC.decode_arguments(item)  # type: ignore[has-type]
    assert alike(got_args, args)
    assert alike(got_kwargs, kwargs)


def test_a_named_zone_arrives_as_that_zone() -> None:
    zone = ZoneInfo("Europe/Berlin")
    assert crossed(datetime(2026, 7, 1, 12, tzinfo=zone)).tzinfo is zone
    assert crossed(time(12, tzinfo=zone)).tzinfo is zone
    with pytest.raises(DecodeError, match="Mars/Olympus"):
        CODEC.decode(dumps(CBORTag(64_020, ["2026-07-01T12:00:00", 0, "Mars/Olympus"])))


def test_messages_travel_by_field_name_and_exceptions_by_their_args() -> None:
    assert crossed(Point((1, 2), y=3)) == Point((1, 2), y=3)
    assert crossed([Pair({"a": Point(1)}, {2})]) == [Pair({"a": Point(1)}, {2})]
    error = crossed(OrderError("no", (1, 2)))
    assert type(error) is OrderError
    assert error.args == ("no", (1, 2))
    tall = crossed(TallError(3, unit="m"))
    assert type(tall) is TallError
    assert tall.args == ("3 m", 3)


def test_fields_that_the_constructor_does_not_take_arrive_as_they_are() -> None:
    parcel = Parcel(3, unit=1000)
    assert crossed(Parcel(3, unit=1000)).state == "packed"
    assert not hasattr(crossed(parcel), "sender")
    object.__setattr__(parcel, "state", "sent")
    object.__setattr__(parcel, "sender", "me")
    assert crossed(parcel) == parcel
    assert (parcel.weight, crossed(parcel).sender) == (3000, "me")
    point = Point(1)
    object.__setattr__(point, "derived", 5)
    assert crossed([point])[0].derived == 5
    # Of a peer of an earlier version, which does not send them.
    tag = CBORTag(MESSAGE, [f"{HERE}:Parcel", {"weight": 2}])
    assert CODEC.decode(dumps(tag), []) == Parcel(2)
    object.__setattr__(parcel, "sender", object())
    with pytest.raises(EncodeError, match=r"value\.sender is an object"):
        CODEC.encode(parcel, [])


def test_a_class_that_could_not_be_built_again_is_not_marked() -> None:
    with pytest.raises(TypeError, match=r"unit is an InitVar.*give it a default"):

        @message
        @dataclasses.dataclass
        class Weighed:
            __qualname__ = "Weighed"  # as at the top of the module
            unit: dataclasses.InitVar[int]


def test_a_field_that_only_one_side_knows_is_ignored_or_takes_its_default() -> None:
    assert CODEC.decode(
        dumps(CBORTag(MESSAGE, [f"{HERE}:Point", {"x": 1, "colour": "red"}]))
    ) == Point(1, y=7)
    with pytest.raises(DecodeError, match="could not be built"):
        CODEC.decode(dumps(CBORTag(MESSAGE, [f"{HERE}:Point", {"y": 1}])))


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (Sparse(), {}),
        (Sparse(text="x"), {"text": "x"}),
        (Sparse(pairs={"a": 1}), {"pairs": {"a": 1}}),
        # Equal to the default, but of another type.
        (Sparse(number=True), {"number": True}),
        (Sparse(number=1.0), {"number": 1.0}),
        (SpawnOptions(), {}),
        (SpawnOptions(on="b", name="n"), {"on": "b", "name": "n"}),
        # Equal to the default, and another object.
        (SpawnOptions(mailbox_limit=int("10000")), {}),
    ],
)
def test_a_sparse_message_is_sent_without_its_defaults_and_arrives_equal(
    value: object, sent: dict[str, object]
) -> None:
    encoded = CODEC.encode(value, [])
    assert cbor2.loads(encoded).value[1] == sent
    arrived = CODEC.decode(encoded)
    # Their texts as well: True equals 1.
    assert (arrived, repr(arrived)) == (value, repr(value))


def test_a_sparse_message_of_a_peer_that_sends_all_fields_is_read() -> None:
    options = SpawnOptions(on="b", resources={"gpu": 1.0}, retry=RetryPolicy(max_retries=2))
    everything = {
        name: CODEC.copy(getattr(options, name)) if name != "retry" else None
        for name in attrs.fields_dict(SpawnOptions)
    }
    read = CODEC.decode(dumps(CBORTag(MESSAGE, ["actors.options:SpawnOptions", everything])))
    assert read == attrs.evolve(options, retry=None)
    assert CODEC.copy(options) == options
    assert CODEC.copy(CallOptions(timeout=2.0)) == CallOptions(timeout=2.0)


def test_only_classes_all_of_whose_fields_have_defaults_are_sparse() -> None:
    with pytest.raises(TypeError, match="required"):
        sparse_message(Point)


@pytest.mark.parametrize(
    "name", ["Unmarked", "SubPoint", "Missing", "Colour", "CODEC", "Point.x", "a.<locals>.b", ""]
)
def test_bytes_build_only_classes_that_carry_the_mark_themselves(name: str) -> None:
    with pytest.raises(DecodeError):
        CODEC.decode(dumps(CBORTag(MESSAGE, [f"{HERE}:{name}", {"x": 1}])))


@pytest.mark.parametrize(
    "path",
    [
        "builtins:dict",
        "os:system",
        "subprocess:Popen",
        "no_such_module:X",
        ".relative:X",
        "nothing",
        f"{HERE}:Point",
    ],
)
def test_an_enum_reference_finds_enums_only(path: str) -> None:
    with pytest.raises(DecodeError):
        CODEC.decode(dumps(CBORTag(ENUM, [path, "RED"])))
    with pytest.raises(DecodeError, match="no member"):
        CODEC.decode(dumps(CBORTag(ENUM, [f"{HERE}:Colour", "BLUE"])))


def test_a_class_that_is_not_known_says_what_to_do() -> None:
    assert CODEC.find_class(f"{HERE}:Point") is Point
    with pytest.raises(
        DecodeError, match=r"it has not imported no_such_module.*in the program that opens its node"
    ):
        CODEC.find_class("no_such_module:X")
    with pytest.raises(DecodeError, match=r"__main__ has no class of that name\. .* into a module"):
        CODEC.find_class("__main__:NoSuchClass")
    # A class of a script that stands under the guard is looked for in the script's file last.
    with pytest.raises(DecodeError, match=r"no class of that name\..* not under `if __name__ =="):
        CODEC.find_class(f"{HERE}:UnderTheGuard")


def test_extensions_carry_types_of_other_rooms_and_their_subclasses() -> None:
    codec = Codec(
        [
            Extension(
                70_000,
                Temperature,
                lambda t, segments: (t.degrees,),
                lambda plain: Temperature(*plain),
            )
        ],
        sentinel=b"12345678",
    )
    assert crossed([Warmth(3.5)], codec)[0].degrees == 3.5
    for malformed in (5, [1, 2], []):
        with pytest.raises(ProtocolError):
            codec.decode(dumps(CBORTag(70_000, malformed)))
    with pytest.raises(ProtocolError):
        CODEC.decode(dumps(CBORTag(70_000, [1])))
    for taken in (2, 28, TUPLE):
        with pytest.raises(ValueError, match="taken"):
            Codec(
                [Extension(taken, Temperature, lambda t, segments: str(t), str)],
                sentinel=b"12345678",
            )


@pytest.mark.parametrize(
    "array",
    [
        numpy.arange(10),
        numpy.zeros((100, 100, 3)),
        numpy.array(3.5),
        numpy.array(["a", "bc"]),
        numpy.array([b"a", b"bc"]),
        numpy.zeros((0, 5), dtype=">i2"),
        numpy.array([], dtype="<U0"),
        numpy.array(["2026-01-01", "NaT"], dtype="M8[25s]"),
        numpy.arange(5000).astype("m8[us]"),
        numpy.asfortranarray(numpy.arange(20_000.0).reshape(100, 200)),
        numpy.arange(40_000)[::-2],
        numpy.array([True, False]),
        numpy.array([1 + 2j]),
        numpy.float16([1.5]),  # type: ignore[arg-type]
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_arrive_writable_and_alone(array: numpy.ndarray[Any, Any]) -> None:
    for got in (crossed(array), CODEC.copy(array)):
        assert type(got) is numpy.ndarray
        assert got.dtype == array.dtype
        assert got.shape == array.shape
        assert numpy.array_equal(got, array, equal_nan=array.dtype.kind in "fmM")
        assert got.flags.writeable
        assert not numpy.shares_memory(got, array)


@pytest.mark.parametrize(
    "scalar",
    [
        numpy.float64(1.5),
        numpy.int8(-3),
        numpy.bool_(True),
        numpy.str_("x"),
        numpy.datetime64("2026-01-01"),
    ],
)
def test_numpy_scalars_keep_their_type(scalar: Any) -> None:
    got = crossed({"x": scalar})["x"]
    assert type(got) is type(scalar)
    assert got == scalar
    assert got.dtype == scalar.dtype


def test_large_arrays_and_bytes_leave_and_arrive_without_a_copy() -> None:
    array = numpy.arange(100_000)
    segments: list[Buffer] = []
    CODEC.encode([array, data := b"x" * 20_000, bytearray(data)], segments)
    assert numpy.shares_memory(numpy.frombuffer(segments[0], numpy.uint8), array)
    assert segments[1] is data
    received = [bytearray(segment) for segment in segments]
    control = CODEC.encode([array], [])
    (got,) = CODEC.decode(control, received[:1])  # type: ignore[misc]
    assert numpy.shares_memory(got, numpy.frombuffer(received[0], numpy.uint8))  # type: ignore[has-type]


def test_bytes_of_their_own_stay_in_the_control_part_up_to_its_bound() -> None:
    for size in (0, 23, 24, 255, 256, 20_000, 65_535, 65_536, MAX_IN_PLACE - 100):
        data = b"x" * size
        alone: list[Buffer] = []
        control = CODEC.encode(data, alone)
        assert CODEC.decode(control) == data
        arguments = CODEC.encode_scalars((data,))
        assert arguments is not None
        assert arguments == CODEC.encode_arguments((data,), {}, alone)
        assert CODEC.decode_arguments(CODEC.decode(arguments)) == ((data,), {})
        assert alone == []


def test_bytes_beyond_the_bound_leave_the_control_part_without_a_copy() -> None:
    for size in (*range(MAX_IN_PLACE - 20, MAX_IN_PLACE + 4), 2 * MAX_IN_PLACE):
        data = b"x" * size
        assert crossed(data) == data
        segments: list[Buffer] = []
        encoded = CODEC.encode_arguments((data, 1), {}, segments)
        assert len(encoded) <= MAX_IN_PLACE
        assert CODEC.decode_arguments(CODEC.decode(encoded, segments)) == ((data, 1), {})
        if size >= MAX_IN_PLACE:
            assert CODEC.encode_scalars((data,)) is None
            assert segments[0] is data


def test_many_bytes_that_are_too_long_together_leave_the_control_part() -> None:
    data = tuple(bytes([number]) * 60_000 for number in range(4))
    assert CODEC.encode_scalars(data) is None
    segments: list[Buffer] = []
    encoded = CODEC.encode_arguments(data, {}, segments)
    assert len(encoded) < 100
    assert CODEC.decode_arguments(CODEC.decode(encoded, segments)) == (data, {})


def test_memoryviews_arrive_as_the_bytes_they_show() -> None:
    wide = memoryview(bytearray(range(200)) * 200).cast("Q")
    for view in (wide, wide[::2], wide[:3]):
        assert crossed({"v": view})["v"] == view.tobytes()
    assert crossed(bytearray(b"abc")) == b"abc"
    assert type(crossed(bytearray(b"a" * 50_000))) is bytes


def test_numpy_is_not_imported_before_it_is_met() -> None:
    program = (
        "import sys; from runtime.wire.codec import Codec; c = Codec(sentinel=b'12345678');"
        "c.copy({'a': [(1, b'x')]}); c.size_of(object()); assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_more_large_values_than_segments_still_arrive() -> None:
    many = [bytes([index % 256]) * 20_000 for index in range(MAX_SEGMENTS + 40)]
    segments: list[Buffer] = []
    control = CODEC.encode(many, segments)
    assert len(segments) <= MAX_SEGMENTS + 1 <= LIMITS.segments
    assert CODEC.decode(control, segments) == many


def test_a_long_value_leaves_the_control_part() -> None:
    long = ["x" * 1000] * 1000
    segments: list[Buffer] = []
    control = CODEC.encode_arguments((long,), {"k": (b"y" * 20_000, long)}, segments)
    assert len(control) < 20
    args, kwargs = CODEC.decode_arguments(CODEC.decode(control, segments))
    assert (args, kwargs) == ((long,), {"k": (b"y" * 20_000, long)})
    segments = []
    args, kwargs = CODEC.decode_arguments(
        CODEC.decode(CODEC.encode_arguments(("x" * 100_000,), {}, segments), segments)
    )
    assert segments
    assert args == ("x" * 100_000,)


def test_a_value_beyond_the_payload_limit_is_refused_on_both_sides() -> None:
    tight = Codec(sentinel=b"12345678", max_payload=100_000)
    with pytest.raises(
        EncodeError, match=r"value takes 200005 bytes and may take 100000.*numpy arrays"
    ):
        tight.encode("x" * 200_000, [])
    assert crossed(b"x" * 200_000, tight) == b"x" * 200_000
    segments: list[Buffer] = []
    control = CODEC.encode("x" * 200_000, segments)
    with pytest.raises(ProtocolError, match="200005 bytes"):
        tight.decode(control, segments)


@pytest.mark.parametrize(
    "outer",
    [
        lambda inner: [inner, inner],
        lambda inner: (inner, inner),
        lambda inner: {"a": inner, "b": inner},
        lambda inner: {1: inner, 2: inner},
        lambda inner: deque([inner, inner]),
        lambda inner: ValueError(inner, inner),
        lambda inner: Pair(inner, inner),
    ],
)
@pytest.mark.parametrize("leaf", [[], ["x" * 1000, b"x" * 20_000]])
def test_a_value_that_holds_the_same_objects_exponentially_often_is_refused_in_few_steps(
    monkeypatch: pytest.MonkeyPatch, outer: Callable[[object], object], leaf: object
) -> None:
    monkeypatch.setattr("runtime.wire.plain_writer.MANY_ITEMS", 1000)
    visited = 0
    steps = CODEC._steps

    class Counting(dict[type, Any]):
        def __missing__(self, kind: type) -> Any:
            nonlocal visited
            visited += 1
            return steps[kind]

    value = leaf
    for _ in range(30):
        value = outer(value)
    codec = CODEC.refusing(Text, "is none")
    codec._steps = Counting()
    with pytest.raises(EncodeError, match=r"value takes at least|value holds the same"):
        codec.encode(value, [])
    assert 100 < visited < 20_000
    with pytest.raises(EncodeError, match=r"args takes at least|args holds the same"):
        codec.encode_arguments((), {"job": value}, [])


def test_a_value_below_the_limit_on_bytes_is_refused_for_its_copies() -> None:
    value: list[object] = []
    for _ in range(25):
        value = [value, value]
    with pytest.raises(EncodeError, match="value holds the same containers again and again"):
        CODEC.encode(value, [])


def test_an_object_that_was_written_before_still_nests_too_deep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.wire.plain_writer.MANY_ITEMS", 10)
    shared: object = [(index,) for index in range(100)]
    value: object = shared
    for _ in range(31):
        value = [value]
    assert crossed([shared, shared]) == [shared, shared]
    with pytest.raises(EncodeError, match="nests deeper than 32 levels"):
        CODEC.encode([[()] * 20, shared, value], [])


def test_rows_of_one_list_are_refused_without_a_look_at_each_item() -> None:
    row = [0] * 100_000
    with pytest.raises(EncodeError, match="takes at least 10000100001"):
        CODEC.encode([row] * 100_000, [])


def error_of_many_fields() -> Exception:
    error = ValueError()
    error.__dict__ = {f"field{index}": 0 for index in range(10_000)}
    return error


@pytest.mark.parametrize(
    "make",
    [lambda: [[]] * 10_000, lambda: set(range(10_000)), error_of_many_fields],
    ids=["empty rows", "set", "fields"],
)
def test_a_large_object_that_is_there_often_is_not_written_each_time(
    make: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.wire.plain_writer.MANY_ITEMS", 1000)
    with pytest.raises(EncodeError, match="takes at least"):
        CODEC.encode([(make(),)] * 30_000, [])


def test_a_value_of_many_items_that_are_shared_arrives_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.wire.plain_writer.MANY_ITEMS", 1000)
    array = numpy.arange(2500)
    shared = {"texts": ["a", ("é",)] * 40, "rows": [[1], [2.5]], "key": (1, b"x")}
    items = [[shared, (index, shared)] for index in range(200)]
    assert crossed(items) == items
    arrays = [[array, [index], [array]] for index in range(MAX_SEGMENTS)]
    *arrived, alike = crossed([items, *arrays, items])
    assert arrived[0] == alike == items
    assert all(numpy.array_equal(one[2][0], array) for one in arrived[1:])


class Text(str):
    __slots__ = ()


class Triple(tuple[int, ...]):
    __slots__ = ()


class Sorted(OrderedDict[str, object]):
    pass


def make_local_tuple() -> object:
    class Local(NamedTuple):
        x: int

    return Local(1)


class SubKelvin(Kelvin):
    pass


class Ruined(Kelvin):
    pass


class Hidden(Kelvin):
    pass


class Endless(Kelvin):
    pass


register_converter(Ruined, lambda value: 1 / 0, Ruined)
register_converter(Hidden, lambda value: {"it": object()}, Hidden)
register_converter(Endless, lambda value: value, Endless)


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def cyclic() -> list[object]:
    value: list[object] = []
    value.append({"again": value})
    return value


@pytest.mark.parametrize(
    ("value", "path", "text"),
    [
        (object(), "args[0]", "object, which cannot be sent; send plain data, mark"),
        ([1, {"x": [Triple([1])]}], "args[0][1]['x'][0]", "Triple.*subclass of tuple.*tuple"),
        (Pair({"x": Sorted()}), "args[0].items['x']", "Sorted.*subclass of OrderedDict, and only"),
        (Pair({}, Text("x")), "args[0].second", "Text.*subclass of str"),
        ({1: {2: lambda: 1}}, "args[0][1][2]", "function"),
        ({(1, Unmarked(1)): 1}, "args[0].keys()[1]", "Unmarked"),
        ((1, SubPoint(1)), "args[0][1]", "Point does not hold for its subclasses"),
        ({frozenset({1}): {Unmarked(1)}}, "args[0][<frozenset>]{...}", "Unmarked"),
        (OrderError("x", [object()]), "args[0].args[1][0]", "object"),
        (["fine", "bad \ud800"], "args[0][1]", "lone surrogate.*at 4"),
        ([["fine"], ["bad \ud800"]], "args[0][1][0]", "lone surrogate.*at 4"),
        ("\udcff", "args[0]", "lone surrogate"),
        ({"\ud800": 1}, "args[0].keys()", "lone surrogate"),
        (Point("\ud800"), "args[0].x", "lone surrogate"),
        (LocalEnum["A"], "args[0]", "inside a function"),
        (numpy.array([object()]), "args[0]", "dtype object"),
        ([numpy.zeros(2, dtype="i4,i4")], "args[0][0]", "one array for each field"),
        (numpy.ma.masked_array([1]), "args[0]", r"subclass of numpy.ndarray.*asarray"),
        (nested(33), "args[0]" + "[0]" * 32, "deeper than 32"),
        (cyclic(), "args[0]" + "[0]['again']" * 16, "or contains itself"),
        (range(2**64), "args[0]", "range beyond 64 bits"),
        (Fraction(1, 3**6000), "args[0]", "more than 8192 bits"),
        (deque([1, object()]), "args[0][1]", "object"),
        (OrderedDict(a=object()), "args[0]['a']", "object"),
        (defaultdict(lambda: 1), "args[0]", "factory is code of its own"),
        (Named(object()), "args[0].x", "object"),
        (make_local_tuple(), "args[0]", "inside a function"),
        ([KeyError(object())], "args[0][0].args[0]", "object"),
        (ExceptionGroup("", [KeyError()]), "args[0]", "ExceptionGroup, which cannot be sent"),
        (Path("bad \udcff"), "args[0]", "lone surrogate"),
        (Ruined(1), "args[0]", "its converter raised ZeroDivisionError"),
        ([Hidden(1)], "args[0][0] (as converted)['it']", "object"),
        (Endless(1), "args[0]" + " (as converted)" * 32, "deeper than 32"),
        (SubKelvin(1), "args[0]", "SubKelvin, which cannot be sent; .*register_converter"),
        (int, "args[0]", "type"),
        (OrderError, "args[0]", "type"),
    ],
    ids=lambda case: (
        case if isinstance(case, str) and case.isascii() and len(case) < 40 else "value"
    ),
)
def test_what_cannot_be_sent_is_refused_with_the_path_to_it(
    value: object, path: str, text: str
) -> None:
    with pytest.raises(EncodeError, match=f"(?s){text}") as caught:
        CODEC.encode_arguments((value,), {}, [])
    assert caught.value.path == path
    assert str(caught.value).startswith(path)
    with pytest.raises(EncodeError) as caught:
        CODEC.encode_arguments((1,), {"option": value}, [])
    assert caught.value.path == path.replace("args[0]", "option", 1)
    assert str(caught.value).startswith(caught.value.path)
    assert CODEC.size_of(value) is None
    with pytest.raises(EncodeError):
        CODEC.copy(value)


def test_values_at_the_depth_limit_arrive_whatever_the_containers_are() -> None:
    makers = [
        lambda v: [v],
        lambda v: (v,),
        lambda v: {"k": v},
        lambda v: {1: v},
        Point,
        lambda v: Pair({"a": v}),
    ]
    for make in makers:
        value: object = numpy.arange(2).tolist()
        for _ in range(31 if make is not makers[-1] else 15):
            value = make(value)  # type: ignore[operator]
        segments: list[Buffer] = []
        control = b"\x85\x1a\x00\x00\x00\x01\x61a\x01\x61b" + CODEC.encode_arguments(
            (value,), {"k": value}, segments
        )
        args, kwargs = CODEC.decode_arguments(CODEC.decode(control, segments)[4])  # type: ignore[index]
        assert args == (value,)
        assert kwargs == {"k": value}


def test_copies_share_nothing_that_can_change() -> None:
    inner = [1, bytearray(b"x" * 20_000)]
    original = {"a": inner, "b": numpy.zeros(5000)}
    copied: Any = CODEC.copy(original)
    inner.append(2)
    inner[1][0] = 0  # type: ignore[index]
    original["b"][0] = 9  # type: ignore[index]
    assert copied["a"] == [1, b"x" * 20_000]
    assert copied["b"][0] == 0


@pytest.mark.parametrize(
    "control",
    [
        b"",
        b"\x01\x02",
        b"\x81",
        b"\x01\x48guessed!",
        b"\x01\xff",
        b"\x9f\x01\xff",
        b"\x7f\x61a\xff",
        b"\x1c",
        b"\x61\xff",
    ],
)
def test_anything_but_one_complete_definite_item_is_refused(control: bytes) -> None:
    with pytest.raises(ProtocolError):
        CODEC.decode(control)


def test_every_tag_that_is_not_ours_is_refused() -> None:
    contents = [dumps(1), dumps("2026-01-01"), dumps(b"x"), dumps([1, 2]), dumps({})]
    for tag in [*range(70_000), 2**32, 2**64 - 1]:
        if tag in (2, 3) or tag in OWN_TAGS:
            continue
        head = dumps(CBORTag(tag, 0))[:-1]
        for content in contents if tag < 1100 else contents[:1]:
            with pytest.raises(ProtocolError):
                CODEC.decode(head + content)


@pytest.mark.parametrize("tag", sorted({2, 3} | OWN_TAGS))
def test_tags_of_ours_around_anything_else_are_refused(tag: int) -> None:
    contents = [
        None,
        -1,
        2**80,
        1.5,
        "x",
        [],
        [1],
        [[1], 2],
        {},
        {"a": 1},
        [f"{HERE}:Point", 5],
        ["<f8", [-1], b""],
        [1, 2, 3, 4],
        CBORTag(tag, 1),
    ]
    for content in contents:
        try:
            CODEC.decode(dumps(CBORTag(tag, content)))
        except (ProtocolError, DecodeError):
            pass
    if tag not in (TUPLE, SET, 64_013, PAIRS):
        with pytest.raises((ProtocolError, DecodeError)):
            CODEC.decode(dumps(CBORTag(tag, [])))


@pytest.mark.parametrize(
    "content",
    [
        ["|O", [1], b"12345678"],
        ["<f8,<f8", [1], b"x" * 16],
        ["<f8", [2**62, 4], b""],
        ["<f8", [-1, -1], b"12345678"],
        ["<f8", [2], b"12345678"],
        ["<f8", [1.0], b"12345678"],
        ["<f8", [1] * 100, b"12345678"],
        ["<V999999999", [0], b""],
        ["<M8[zz]", [1], b"12345678"],
        ["<f8", [1], 0],
        [["<f8"], [1], b"12345678"],
    ],
)
def test_arrays_that_do_not_add_up_are_refused_or_empty(content: list[object]) -> None:
    try:
        got: Any = CODEC.decode(dumps(CBORTag(ARRAY, content)))
    except ProtocolError:
        return
    assert got.nbytes == 0


def test_a_scalar_of_objects_is_refused() -> None:
    with pytest.raises(ProtocolError):
        CODEC.decode(dumps(CBORTag(SCALAR, ["|O", b"12345678"])))


def test_each_segment_is_used_once_and_only_if_it_is_there() -> None:
    reference = CBORTag(SEGMENT, 0)
    with pytest.raises(ProtocolError, match="second reference"):
        CODEC.decode(dumps([reference, reference]), [b"x"])
    for index in (1, -1, "0", True, 2**70):
        with pytest.raises(ProtocolError):
            CODEC.decode(dumps(CBORTag(SEGMENT, index)), [b"x"])
    with pytest.raises(ProtocolError):
        CODEC.decode(dumps(reference))
    with pytest.raises(ProtocolError):
        CODEC.decode(dumps(CBORTag(SPILLED, 0)), [dumps(CBORTag(SPILLED, 1)), b"\x01"])
    with pytest.raises(ProtocolError):
        CODEC.decode(dumps(CBORTag(SPILLED, 0)), [dumps(1) + b"\x01"])


@pytest.mark.parametrize(
    "level", [b"\x81", b"\xa1\x61a", b"\xd9\xfa\x0a\x81", b"\xc2", b"\xd9\xfa\x0d\x81"]
)
def test_depth_bombs_are_refused_at_once(level: bytes) -> None:
    with pytest.raises(ProtocolError):
        CODEC.decode(level * 60_000 + b"\x00")


@pytest.mark.parametrize("head", [b"\x9b", b"\xbb", b"\x5b", b"\x7b"])
def test_lengths_without_data_allocate_nothing(head: bytes) -> None:
    tracemalloc.start()
    try:
        for size in (2**20, 2**36, 2**63, 2**64 - 1):
            with pytest.raises(ProtocolError):
                CODEC.decode(head + size.to_bytes(8, "big"))
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()


def test_keys_made_to_collide_are_refused_before_they_cost_anything() -> None:
    # Integers that are equal modulo the prime by which CPython hashes them.
    colliding = [index * (2**61 - 1) for index in range(1, 12_000)]
    tuples = [CBORTag(TUPLE, [number]) for number in colliding]
    begun = clock.process_time()
    for keys_ in (colliding, tuples):
        with pytest.raises(ProtocolError, match="hashes"):
            CODEC.decode(dumps(CBORTag(SET, keys_)))
        with pytest.raises(ProtocolError, match="hashes"):
            CODEC.decode(dumps(CBORTag(PAIRS, [part for key in keys_ for part in (key, 0)])))
    with pytest.raises(ProtocolError):
        CODEC.decode(dumps(dict.fromkeys(colliding[:100], 0)))
    assert clock.process_time() - begun < 2
    assert crossed(set(range(-5000, 5000))) == set(range(-5000, 5000))


@pytest.mark.parametrize(
    "control",
    [
        b"\xa2\x61a\x01\x61a\x02",
        dumps(CBORTag(SET, [1, 1.0])),
        dumps(CBORTag(PAIRS, [1, 2, 1, 3])),
        dumps(CBORTag(PAIRS, [1])),
        dumps(CBORTag(SET, [[]])),
    ],
)
def test_keys_that_occur_twice_or_cannot_be_keys_are_refused(control: bytes) -> None:
    with pytest.raises(ProtocolError):
        CODEC.decode(control)


def test_arguments_are_a_list_or_the_tag_around_list_and_map() -> None:
    for item in (None, 1, "x", (1,), {"a": 1}, b"x"):
        with pytest.raises(ProtocolError):
            CODEC.decode_arguments(item)
    for content in ([1, {}], [[], []], [[]], [[], {b"a": 1}], {}):  # type: ignore[var-annotated]
        with pytest.raises(ProtocolError):
            CODEC.decode(dumps(CBORTag(ARGUMENTS, content)))


def test_the_number_of_a_call_is_known_when_the_rest_is_not() -> None:
    broken = dumps(CBORTag(MESSAGE, ["no_such_module:X", {}]))
    assert first_number(b"\x85\x1a\x00\x00\x01\x02" + broken) == 258
    assert first_number(b"\x86\x1b\x00\x00\x00\x01\x00\x00\x00\x00" + broken) == 2**32
    for control in (
        b"",
        b"\x85",
        b"\x80\x1a\x00\x00\x00\x01",
        b"\x85\x1a\x00\x00\x00",
        b"\x85\x1b\x00\x00\x00\x00\x00\x00\x00",
        b"\x85\x01\x01\x01\x01\x01",
        b"\xa1\x1a\x00\x00\x00\x01",
    ):
        with pytest.raises(ProtocolError):
            first_number(control)


def test_mutated_messages_give_a_value_or_an_error_of_ours() -> None:
    seed = 20_261_122
    chance = random.Random(seed)
    samples: list[tuple[bytes, list[Buffer]]] = []
    for value in (
        [
            {1: (2, b"x")},
            datetime(2026, 1, 1, tzinfo=UTC),
            Decimal("1.5"),
            {3, 4},
            UUID(int=5),
            timedelta(1),
        ],
        [
            Point({"a": [1.5, None]}),
            Colour.RED,
            date(2026, 1, 1),
            time(1),
            2**90,
            Right.READ,
            OrderError(1),
        ],
        [numpy.arange(4), numpy.float32(1), b"y" * 20_000, numpy.arange(4000)],
    ):
        segments: list[Buffer] = []
        samples.append((CODEC.encode_arguments((value,), {"k": value}, segments), segments))
    outcomes = {"value": 0, "refused": 0}
    for round_number in range(20_000):
        control, segments = samples[round_number % len(samples)]
        mutated = bytearray(control)
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(len(mutated))
            match chance.randrange(3):
                case 0:
                    mutated[place] = chance.randrange(256)
                case 1:
                    del mutated[place]
                case _:
                    mutated.insert(place, chance.randrange(256))
        try:
            CODEC.decode(bytes(mutated), segments)
            outcomes["value"] += 1
        except (ProtocolError, DecodeError):
            outcomes["refused"] += 1
        except Exception as error:
            raise AssertionError(
                f"seed {seed}, round {round_number}: {bytes(mutated)!r}"
            ) from error
    assert min(outcomes.values()) > 100


def test_refused_tags_are_all_that_cbor2_knows_by_itself() -> None:
    """A newer cbor2 with a new tag fails here rather than in the field."""
    known = set()
    for tag in range(70_000):
        seen: list[int] = []
        try:
            cbor2.loads(
                dumps(CBORTag(tag, 0)),
                tag_hook=lambda found, immutable: seen.append(found.tag),  # noqa: B023
            )
        except cbor2.CBORError:
            pass
        if not seen:
            known.add(tag)
    assert known == set(BUILTIN_TAGS) | {2, 3}


@pytest.mark.parametrize(
    "shape", [[2**64 - 1] * 65, [1] * 65, [2**63], [2**100_000, 0], [-1], [True]]
)
def test_no_array_has_such_a_shape(shape: list[int]) -> None:
    """Refused before the lengths are multiplied: with millions of them, that would take hours."""
    with pytest.raises(ProtocolError, match="a shape that no array has"):
        CODEC.decode(dumps(CBORTag(ARRAY, ["<i8", shape, b""])))


def in_a_set(*keys: object) -> bytes:
    return dumps(CBORTag(SET, list(keys)))


def decimal(number: int) -> CBORTag:
    return CBORTag(DECIMAL, str(number))


def test_large_integers_as_keys_share_no_hash_with_others() -> None:
    """Comparing such an integer with a Decimal takes time that grows with its square."""
    large = 2**10_000 - 1
    shared = hash(large)
    for keys in (
        (large, decimal(shared)),
        (large, shared),
        (CBORTag(TUPLE, [large]), CBORTag(TUPLE, [decimal(shared)])),
    ):
        with pytest.raises(ProtocolError, match="share a hash"):
            CODEC.decode(in_a_set(*keys))
        pairs = [part for key in keys for part in (key, 0)]
        with pytest.raises(ProtocolError, match="share a hash"):
            CODEC.decode(dumps(CBORTag(PAIRS, pairs)))
    # Alone, and beside others that share theirs, it is an ordinary key.
    assert CODEC.copy({large, -1, -2}) == {large, -1, -2}
    small = 2**8000 - 1
    assert CODEC.decode(in_a_set(small, decimal(hash(small)))) == {small, Decimal(hash(small))}


def test_a_class_that_contains_itself_is_remembered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its paths are endlessly many, and a peer may send them all."""
    import ctypes

    searched: list[str] = []

    def search(path: str) -> type:
        searched.append(path)
        return find_class(path)

    monkeypatch.setattr(classes, "find_class", search)
    codec = Codec(sentinel=b"sentinel")
    own, through_itself = "ctypes:c_int", "ctypes:c_int.__ctype_le__.__ctype_le__"
    for _ in range(3):
        assert codec.find_class(own) is codec.find_class(through_itself) is ctypes.c_int
    assert searched.count(own) == 1
    assert searched.count(through_itself) == 3


@pytest.mark.parametrize("path", sorted(MOVED))
def test_a_stored_value_of_a_class_that_has_moved_is_read(path: str) -> None:
    cls = find_class(path)
    described = message_type(cls)
    assert described is not None
    assert described.path == MOVED[path] != path
