"""Plain values, schemas and arguments by annotations: round trips, and refusals that name the
place.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union

import cbor2
import numpy
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actors import Actor, method, register_converter
from actors.errors import BadArgumentsError, DecodeError, EncodeError
from actors.messages import MAIN_ALIAS
from actors.method import MethodDefinition
from runtime.gateway.media import answer_of, body_of, chosen
from runtime.plain_calls.plain_values import decoded, encoded, encoded_plain
from runtime.plain_calls.schemas import SchemaWriter, arguments_of
from tests.gateway.actors_used import Colour, Item, Order


class Money:
    """A class of another library, with a converter."""

    def __init__(self, text: str) -> None:
        self.amount, self.currency = text.split()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


register_converter(Money, lambda value: f"{value.amount} {value.currency}", Money)


class Point(NamedTuple):
    """A place."""

    x: object
    y: object


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**100), 2**100)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(PLAIN)
@example({"$": None})
@example({"a": [{"$dict": {"$dict": 1}}]})
def test_plain_values_survive_cbor_and_json(value: object) -> None:
    # What a method returns, as the client gets it, sent back as an argument.
    body = encoded(value)
    assert decoded(encoded(decoded(body))) == decoded(encoded(decoded(body)))
    answer = answer_of(body, "application/cbor")
    assert decoded(body_of(answer, "application/cbor")) == decoded(body)
    answer = answer_of(body, "application/json")
    assert decoded(body_of(answer, "application/json")) == _unmarked(decoded(body))


def _unmarked(value: Any) -> Any:
    """What a value means in JSON, where `$dict` marks a dict that looks like a mark."""
    if isinstance(value, list):
        return [_unmarked(one) for one in value]
    if isinstance(value, dict):
        inside = value["$dict"] if value.keys() == {"$dict"} else value
        return {key: _unmarked(one) for key, one in inside.items()}
    return value


def test_what_has_no_plain_form_is_refused_with_its_path() -> None:
    for value, path in (
        ([1, object()], "result[1]"),
        ({"a": {"b": lambda: None}}, "result['a']['b']"),
        (Item("x", object()), "result.price"),  # type: ignore[arg-type]
        ([(0, {"a": [0, object()]}, object())], "result[0][1]['a'][1]"),
        ([0, {object()}], "result[1] (a member)"),
        ({"a": {object(): 0}}, "result['a'] (a key)"),
        ({"a": {0: object()}}, "result['a'][...]"),
        ([Point(0, [object()])], "result[0].y[0]"),
        (1 << 100_000, "result"),
        ([1 << 63, 1 << 100_000], "result[1]"),
        ("half \ud800 of a pair", "result"),
        ({"a": ["é", "\udfff"]}, "result['a'][1]"),
        ({"a": {"\ud800": 1}}, "result['a'] (a key)"),
        ({1: "\ud800"}, "result[...]"),
        (Item("\ud800", Decimal(1)), "result.name"),
        ([Path("x\udc80")], "result[0]"),
        # What lists itself as itself would be listed without end.
        ([numpy.longdouble(1)], "result[0]"),
        (numpy.array([1], dtype=numpy.longdouble), "result[0]"),
    ):
        with pytest.raises(EncodeError) as caught:
            encoded(value)
        assert caught.value.path == path
    deep: object = 1
    for _ in range(40):
        deep = [deep]
    with pytest.raises(EncodeError):
        encoded(deep)


def test_a_text_that_utf8_cannot_say_is_named_in_results_and_bodies() -> None:
    text = "is a text with a lone surrogate ('\\ud800' at 1), which UTF-8 cannot encode"
    with pytest.raises(EncodeError, match=re.escape(f"result[1] {text}")):
        encoded(["é", "a\ud800"])
    with pytest.raises(DecodeError, match=re.escape(f"body['amount'][0] {text}")):
        body_of(b'{"amount": ["a\\ud800"]}', "application/json")


def test_arrays_and_numbers_of_numpy_are_lists_and_numbers() -> None:
    value = [numpy.float32(1.5), numpy.array([[1, 2], [3, 4]]), numpy.array(True)]
    assert decoded(encoded(value)) == [1.5, [[1, 2], [3, 4]], True]


@given(st.binary(max_size=200))
def test_any_bytes_are_plain_data_or_refused(data: bytes) -> None:
    for read in (decoded, lambda data: body_of(data, "application/json")):
        try:
            read(data)
        except DecodeError:
            pass


def _counted(value: object) -> tuple[int, int, int]:
    """The values and keys in a value, its containers, and those of them that are empty."""
    if not isinstance(value, list | dict):
        return 1, 0, 0
    inner = [_counted(one) for one in (value.values() if isinstance(value, dict) else value)]
    items, containers, empty = (sum(column) for column in zip((0, 0, 0), *inner, strict=True))
    keys = len(value) if isinstance(value, dict) else 0
    return items + keys + 1, containers + 1, empty + (not value)


@contextmanager
def _bounds(items: int, containers: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in ("plain_calls.plain_values", "gateway.media"):
            patch.setattr(f"runtime.{module}.MOST_ITEMS", items)
            patch.setattr(f"runtime.{module}.MOST_CONTAINERS", containers)
        patch.setattr("runtime.gateway.media.PIECE", 3)
        yield


def _is_refused(data: bytes, media_type: str, items: int, containers: int) -> bool:
    with _bounds(items, containers):
        try:
            body_of(data, media_type)
        except DecodeError as error:
            return "send large arrays as bytes" in str(error)
    return False


@given(PLAIN)
@example([[], {"a" * 30: b"b" * 300}, {"c" * 70_000: []}])
@example([2**64, -(2**70), 1.5, "é" * 12, 24, 256, 65_536, 2**32])
def test_the_items_of_cbor_are_counted_as_they_are(value: object) -> None:
    data = encoded_plain(_no_large_integers(value))
    items, containers, _ = _counted(_no_large_integers(value))
    assert not _is_refused(data, "application/cbor", items, containers)
    if containers:
        assert _is_refused(data, "application/cbor", items, containers - 1)
    # Shorter than the number of containers that it may have, it needs no look.
    if len(data) > containers:
        assert _is_refused(data, "application/cbor", items - 1, containers)


def _no_large_integers(value: Any) -> Any:
    """CBOR has a tag for them, which is an item of its own."""
    if isinstance(value, list):
        return [_no_large_integers(one) for one in value]
    if isinstance(value, dict):
        return {key: _no_large_integers(one) for key, one in value.items()}
    return value % 2**64 if type(value) is int else value


@given(
    st.recursive(
        st.none() | st.integers(0, 10**6) | st.text('[{,:"\\\na', max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text('x[{,:"\\', max_size=3), inner, min_size=2, max_size=3)
        ),
        max_leaves=10,
    )
)
@example([[], {"\\": '"', '\\"': "[[[,,,"}])
def test_the_items_of_json_are_counted_without_what_is_in_strings(value: object) -> None:
    data = json.dumps(value).encode()
    items, containers, empty = _counted(value)
    # An empty container has a bracket, and a comma if it is not the first.
    items += empty - 1
    assert not _is_refused(data, "application/json", items, containers)
    if containers:
        assert _is_refused(data, "application/json", items, containers - 1)
        assert _is_refused(data, "application/json", items - 1, containers)


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (b"\x9a\x00\x7a\x12\x00" + b"\x80" * 8_000_000, "application/cbor"),
        (b"\x9a\x00\x7a\x12\x00" + b"\x01" * 8_000_000, "application/cbor"),
        (b"\xc2" * 8_000_000, "application/cbor"),
        (b"\x9a\x00\x7a\x12\x00" + b"\xff" * 8_000_000, "application/cbor"),
        (b"[" + b"[]," * 2_700_000 + b"1]", "application/json"),
        (b"[" + b"1," * 4_000_000 + b"1]", "application/json"),
        (b'{"a":"' + b'\\"' * 1_000_000 + b'","b":[' + b"1," * 2_000_000, "application/json"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_too_many_items_are_refused_before_they_are_built(
    data: bytes, media_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[object] = []
    monkeypatch.setattr("cbor2.loads", built.append)
    monkeypatch.setattr("json.loads", lambda *args, **kwargs: built.append(args))
    with pytest.raises(DecodeError, match=r"more than 1,000,000 values|byte 0xff at 5"):
        body_of(data, media_type)
    assert built == []


def test_large_bytes_and_texts_are_few_items() -> None:
    csv = '1,2,[3],"4"\n' * 300_000
    for value in (b"\x80" * 4_000_000, csv):
        assert decoded(body_of(cbor2.dumps([value]), "application/cbor")) == [value]
    assert decoded(body_of(json.dumps([csv]).encode(), "application/json")) == [csv]


def test_equal_requests_have_equal_bytes() -> None:
    one = body_of(b'{"a": 1, "b": [1.0]}', "application/json")
    other = body_of(cbor2.dumps({"b": [1.0], "a": 1}), "application/cbor")
    assert one == other == encoded_plain({"b": [1.0], "a": 1})


def test_accept_is_read_by_quality_and_precision() -> None:
    offered = ("application/json", "application/cbor")
    for accept, found in (
        (None, "application/json"),
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/cbor", "application/cbor"),
        ("application/json;q=0.1, application/cbor;q=0.2", "application/cbor"),
        ("application/json;q=0, */*", "application/cbor"),
        ("text/html", None),
        ("application/json;q=x", None),
        ("application/*;q=0.5", "application/json"),
    ):
        assert chosen(accept, offered) == found, accept


class Shop(Actor):
    """Methods with annotations of all kinds."""

    @method  # type: ignore[arg-type]
    async def all(
        self,
        when: datetime,
        day: date,
        price: Decimal,
        id: uuid.UUID,
        span: timedelta,
        colour: Colour,
        items: Sequence[Item],
        pair: tuple[int, str],
        tags: set[str],
        named: Mapping[str, float],
        maybe: int | None = None,
        other: Optional[Union[int, str]] = None,  # noqa: UP007, UP045
        choice: Literal["a", 1] = "a",
        marked: Annotated[int, "a mark"] = 0,
        blob: bytes = b"",
        *rest: int,
        **more: Decimal,
    ) -> Order:
        """All of it."""
        raise AssertionError

    @method
    async def unknown(self, value: NoSuchType, other: int) -> None:  # type: ignore[name-defined]  # noqa: F821
        """An annotation that leads nowhere."""

    @method
    async def own(self, args: list[int], kwargs: dict[str, int]) -> None:
        """Parameters of the names of a body's parts."""


def definition(name: str) -> MethodDefinition:
    """A method of the shop."""
    return Shop.__methods__[name]


GIVEN = {
    "when": "2026-01-02T03:04:05+01:00",
    "day": "2026-01-02",
    "price": "1.5",
    "id": "12345678-1234-5678-1234-567812345678",
    "span": 1.5,
    "colour": "blue",
    "items": [{"name": "a", "price": "2"}],
    "pair": [1, "x"],
    "tags": ["x", "y"],
    "named": {"a": 1},
    "blob": b"\x00",
    "more": "3",
}


def test_arguments_are_what_the_annotations_say() -> None:
    found = arguments_of("shop", definition("all"), GIVEN)
    bound = definition("all").signature.bind(*found.args, **found.kwargs).arguments
    assert bound["when"] == datetime.fromisoformat(GIVEN["when"])  # type: ignore[arg-type]
    assert bound["price"] == Decimal("1.5")
    assert bound["span"] == timedelta(seconds=1.5)
    assert bound["colour"] is Colour.BLUE
    assert bound["items"] == [Item("a", Decimal(2))]
    assert bound["pair"] == (1, "x")
    assert bound["tags"] == {"x", "y"}
    assert type(bound["named"]["a"]) is float
    assert bound["more"] == {"more": Decimal(3)}


@pytest.mark.parametrize(
    ("name", "value", "path"),
    [
        ("when", "yesterday", "when"),
        ("when", 5, "when"),
        ("price", "x", "price"),
        ("id", "x", "id"),
        ("span", 1e300, "span"),
        ("colour", "green", "colour"),
        ("items", [{"name": "a", "price": "2"}, {"name": 5, "price": "2"}], "items[1].name"),
        ("items", {}, "items"),
        ("pair", [1], "pair"),
        ("pair", [1, 2], "pair[1]"),
        ("tags", [1], "tags[0]"),
        ("named", {"a": "b"}, "named['a']"),
        ("maybe", "x", "maybe"),
        ("choice", "b", "choice"),
        ("marked", "x", "marked"),
        ("blob", "x", "blob"),
        ("more", "x", "more"),
        ("named", {"a": 1 << 5000}, "named['a']"),
    ],
)
def test_a_misfit_is_named(name: str, value: object, path: str) -> None:
    with pytest.raises(BadArgumentsError) as caught:
        arguments_of("shop", definition("all"), {**GIVEN, name: value})
    assert f"argument {path}" in str(caught.value)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Careless(Actor):
    @method
    async def take(self, item: Item, *, style: object = Unprintable()) -> None: ...


def test_arguments_that_do_not_fit_run_no_code_of_the_defaults() -> None:
    with pytest.raises(BadArgumentsError, match=r"it takes \(item, \*, style=\.\.\.\)"):
        arguments_of("shop", Careless.__methods__["take"], {"itme": {}})


def test_a_class_of_the_main_script_has_one_name_in_all_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = SchemaWriter()
    monkeypatch.setattr(Item, "__module__", MAIN_ALIAS)
    writer.method(Careless.__methods__["take"])
    assert list(writer.definitions) == ["__main__.Item"]


def test_annotations_that_lead_nowhere_let_everything_through() -> None:
    found = arguments_of("shop", definition("unknown"), {"value": "x", "other": "y"})
    assert found.args == ("x", "y")
    schema, _ = SchemaWriter().method(definition("unknown"))
    assert schema["properties"] == {"value": {}, "other": {}}


def test_parameters_called_args_and_kwargs_are_parameters() -> None:
    found = arguments_of("shop", definition("own"), {"args": [1], "kwargs": {"a": 2}})
    assert found.args == ([1], {"a": 2})
    with pytest.raises(BadArgumentsError):
        arguments_of("shop", definition("own"), "text")


class Place(NamedTuple):
    path: Path
    weight: Fraction


class Standard(Actor):
    """Annotations of types that JSON gives as texts, lists and objects."""

    @method
    async def all(
        self,
        place: Place,
        address: IPv4Address,
        window: deque[int],
        counts: Counter[str],
        order: OrderedDict[str, int],
        number: complex,
        rows: range,
        money: Money,
    ) -> Place:
        """All of it."""
        raise AssertionError


STANDARD = {
    "place": {"path": "/etc", "weight": "1/3"},
    "address": "10.0.0.1",
    "window": [1, 2],
    "counts": {"a": 1},
    "order": {"b": 1, "a": 2},
    "number": {"real": 1.0, "imag": -2.0},
    "rows": {"start": 1, "stop": 9, "step": 2},
    "money": "5 EUR",
}


def test_standard_types_are_read_and_written() -> None:
    found = arguments_of("x", Standard.__methods__["all"], STANDARD)
    bound = Standard.__methods__["all"].signature.bind(*found.args, **found.kwargs).arguments
    assert bound == {
        "place": Place(Path("/etc"), Fraction(1, 3)),
        "address": IPv4Address("10.0.0.1"),
        "window": deque([1, 2]),
        "counts": Counter("a"),
        "order": OrderedDict(b=1, a=2),
        "number": 1 - 2j,
        "rows": range(1, 9, 2),
        "money": Money("5 EUR"),
    }
    assert [type(one) for one in bound.values()] == [
        *(Place, IPv4Address, deque, Counter, OrderedDict, complex, range, Money)
    ]
    # What a client gets is what it may send.
    assert decoded(encoded(bound)) == STANDARD
    schema, result = SchemaWriter().method(Standard.__methods__["all"])
    assert result == {"$ref": f"#/components/schemas/{Place.__module__}.Place"}
    assert schema["required"] == list(STANDARD)


@pytest.mark.parametrize(
    ("name", "value", "path"),
    [
        ("place", {"path": "/etc", "weight": "1e999999999"}, "place.weight"),
        ("place", {"path": 5, "weight": "1"}, "place.path"),
        ("place", {"path": "x"}, "place"),
        ("place", {"path": "x", "weight": "1", "more": 1}, "place"),
        ("address", "10.0.0.999", "address"),
        ("window", ["x"], "window[0]"),
        ("counts", {"a": "x"}, "counts['a']"),
        ("number", {"real": 1.0}, "number"),
        ("rows", {"start": 0, "stop": 1, "step": 0}, "rows"),
        ("money", "broken", "money"),
    ],
)
def test_a_misfit_of_a_standard_type_is_named(name: str, value: object, path: str) -> None:
    with pytest.raises(BadArgumentsError) as caught:
        arguments_of("x", Standard.__methods__["all"], {**STANDARD, name: value})
    assert f"argument {path}" in str(caught.value)
