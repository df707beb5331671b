"""Values that are larger than a message may be: they are refused before all of them is encoded."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import attrs
import pytest

from actors import message
from actors.errors import EncodeError
from runtime.wire.codec import Codec

LIMIT = 256 * 1024
TEXT = "x" * 2000
COUNT = 8_000
"""Texts of 16 MB in all."""


@message
@attrs.frozen
class Line:
    """One of many."""

    text: str


VALUES: dict[str, Callable[[], object]] = {
    "list": lambda: [TEXT] * COUNT,
    "tuple": lambda: (TEXT,) * COUNT,
    "map": lambda: dict.fromkeys(range(COUNT), TEXT),
    "map of texts": lambda: {str(number): TEXT for number in range(COUNT)},
    "rows": lambda: [[TEXT, 1]] * COUNT,
    "messages": lambda: [Line(f"{number} {TEXT}") for number in range(COUNT)],
    "short bytes": lambda: [TEXT.encode()] * COUNT,
    "deep": lambda: {"a": {"b": [{"c": [TEXT] * COUNT}]}},
    "texts that are not ASCII": lambda: ["ü" * 1000] * COUNT,
}


@pytest.mark.parametrize("name", VALUES)
def test_it_is_given_up_when_there_are_too_many_bytes(name: str) -> None:
    codec, value = Codec(sentinel=b"12345678", max_payload=LIMIT), VALUES[name]()
    # What the walk itself makes of each object, and what is encoded until there is too much.
    most = 8 * LIMIT + 400 * COUNT
    for encode in (
        lambda: codec.encode(value, []),
        lambda: codec.encode_arguments((value,), {}, []),
        lambda: codec.encode_arguments((), {"value": value}, []),
    ):
        tracemalloc.start()
        try:
            with pytest.raises(
                EncodeError, match=f"takes (more than|at least) [0-9]+ bytes .* {LIMIT}"
            ):
                encode()
            assert tracemalloc.get_traced_memory()[1] < most
        finally:
            tracemalloc.stop()


LONG = "x" * 100_000
MANY = 900
"""Long texts of 90 MB in all, in containers of few items."""

FEW_LONG: dict[str, Callable[[], object]] = {
    "list": lambda: [LONG] * MANY,
    "list of lists": lambda: [[LONG] * 30] * 30,
    "lists with others": lambda: [[LONG] * 30 + [b""]] * 30,
    "map": lambda: {str(number): LONG for number in range(MANY)},
    "map of other keys": lambda: dict.fromkeys(range(200), LONG),
    "set": lambda: {f"{number} {LONG}" for number in range(100)},
    "messages": lambda: [Line(f"{number} {LONG}") for number in range(60)],
}


@pytest.mark.parametrize("name", FEW_LONG)
def test_long_texts_in_few_items_are_given_up_as_well(name: str) -> None:
    codec, value = Codec(sentinel=b"12345678", max_payload=LIMIT), FEW_LONG[name]()
    for encode in (
        lambda: codec.encode(value, []),
        lambda: codec.encode_arguments((value,), {}, []),
        lambda: codec.encode_arguments((value, value), {"value": value}, []),
    ):
        tracemalloc.start()
        try:
            with pytest.raises(EncodeError, match=f"takes more than [0-9]+ bytes .* {LIMIT}"):
                encode()
            assert tracemalloc.get_traced_memory()[1] < 4 * LIMIT
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("count", [1, 64, 5000])
def test_what_is_written_in_parts_is_as_if_it_were_written_at_once(count: int) -> None:
    codec = Codec(sentinel=b"12345678")
    value: list[object] = [
        {"number": number, "text": TEXT, "set": {number}} for number in range(count)
    ]
    segments: list[bytes | bytearray | memoryview] = []
    control = codec.encode(value, segments)
    assert codec.decode(control, [bytes(segment) for segment in segments]) == value
    # A limit that it just keeps.
    size = len(segments[-1]) if segments else len(control)
    for limit in (size, size - 1):
        limited = Codec(sentinel=b"12345678", max_payload=limit)
        if limit == size or not segments:
            limited.encode(value, [])
        else:
            with pytest.raises(EncodeError):
                limited.encode(value, [])
