"""What is said of an exception has a bound in size and in work, however much there is of it. Counts
and sizes are looked at, and no clock.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

from actors import message
from runtime.calls.error_codec import (
    MOST_BYTES,
    MOST_MEMBERS,
    MOST_OBJECTS,
    MOST_PARTS,
    MOST_REPR,
    RELATED_OF_MEMBER,
    raised_by_method,
)
from runtime.tracebacks import TracebackWriter
from runtime.user_errors import MOST_RELATED, text_of, traceback_of
from runtime.wire.codec import Codec

CODEC = Codec(sentinel=b"sentinel")
COUNT = 30_000
"""Of parts: many more than are taken, and few enough to be made in a moment."""


@message
class WideError(Exception):
    """May have any attributes."""


class Measured:
    """How often a size was asked for."""

    def __init__(self) -> None:
        self.times = 0

    def size_of(self, value: object) -> int | None:
        """Count, and answer."""
        self.times += 1
        return CODEC.size_of(value)


def with_attributes() -> Exception:
    error = WideError("wide")
    vars(error).update({f"name_{number}": (number,) for number in range(COUNT)})
    return error


def group_of_many() -> Exception:
    return ExceptionGroup("g", [ValueError(*[(number,) for number in range(100)])] * 100)


MANY: dict[str, Callable[[], Exception]] = {
    "numbers": lambda: ValueError(*range(COUNT)),
    "texts": lambda: ValueError(*["x" * 10_000] * COUNT),
    "tuples": lambda: ValueError(*[(number,) for number in range(COUNT)]),
    "objects": lambda: ValueError(*[object() for _ in range(COUNT)]),
    "attributes": with_attributes,
    "members": group_of_many,
}


def described(error: Exception) -> tuple[dict[str, Any], Measured]:
    measured = Measured()
    _, plain = raised_by_method(error, measured.size_of, TracebackWriter().text_of)
    return plain, measured


@pytest.mark.parametrize("kind", MANY)
def test_parts_beyond_a_number_are_counted_and_not_looked_at(kind: str) -> None:
    error = MANY[kind]()
    plain, measured = described(error)
    assert measured.times <= MOST_PARTS
    assert len(CODEC.encode(plain, [])) < MOST_BYTES + MOST_PARTS * MOST_REPR
    assert len(text_of(error)) < 300_000
    if kind == "attributes":
        assert len(plain["fields"]) < MOST_PARTS
        left_out = COUNT - len(plain["fields"])
        assert plain["notes"] == [f"({left_out:,} more attributes left out)"]
    elif kind == "members":
        assert sum(len(member["args"]) for member in plain["exceptions"]) < MOST_PARTS + 100
        assert plain["exceptions"][-1]["args"] == ["... (100 more arguments left out)"]
    else:
        assert len(plain["args"]) == MOST_PARTS + 1
        assert plain["args"][-1] == f"... ({COUNT - MOST_PARTS:,} more arguments left out)"
        assert f"{COUNT - 10:,} more arguments left out" in plain["text"]


def test_as_many_as_are_allowed_travel_whole() -> None:
    error = ValueError(*[(number,) for number in range(MOST_PARTS)])
    assert described(error)[0]["args"] == list(error.args)


def test_containers_of_too_many_objects_are_not_encoded_to_find_their_size() -> None:
    class Size:
        seen = 0

        def of(self, value: Any) -> int | None:
            while isinstance(value, list) and len(value) == 1:
                value = value[0]
            self.seen += len(value)
            return None

    size = Size()
    large = [0] * (MOST_OBJECTS // 10)
    plain: dict[str, Any] = raised_by_method(ValueError(*[large] * 1000), size.of)[1]
    assert size.seen <= MOST_OBJECTS
    args = plain["args"]
    assert len(args) == 1000
    assert all(len(one) <= MOST_REPR for one in args)
    # The one that is too large does not take the place of those behind it.
    plain = described(ValueError([0] * (MOST_OBJECTS + 1), [1, 2]))[0]
    assert plain["args"][0].startswith("[0, 0, ")
    assert plain["args"][1] == [1, 2]


def nested(count: int) -> Exception:
    errors: list[Exception] = [ValueError("the innermost")]
    for _ in range(count):
        errors = [ExceptionGroup("g", errors)]
    return errors[0]


def annotated() -> Exception:
    error = ValueError("with notes")
    error.__notes__ = ["a note"] * COUNT
    return error


def with_chains() -> Exception:
    members: list[Exception] = []
    for _ in range(20):
        error = ValueError("the first")
        for number in range(100):
            following = ValueError(number)
            following.__context__ = error
            error = following
        members.append(error)
    return ExceptionGroup("g", members)


RELATED: dict[str, Callable[[], Exception]] = {
    "nested": lambda: nested(5000),
    "wide": lambda: ExceptionGroup("g", [ValueError(number) for number in range(COUNT)]),
    "notes": annotated,
    "chains": with_chains,
}


@pytest.mark.parametrize("kind", RELATED)
def test_a_traceback_of_too_many_exceptions_is_that_of_the_first(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = RELATED[kind]()
    made: list[object] = []
    init = traceback.TracebackException.__init__

    def counting(self: Any, *args: Any, **kwargs: Any) -> None:
        made.append(self)
        init(self, *args, **kwargs)

    monkeypatch.setattr(traceback.TracebackException, "__init__", counting)
    text = traceback_of(error)
    assert text.startswith(f"(more than {MOST_RELATED:,} members, causes, contexts and notes of it")
    plain, _ = described(error)
    # Those that are described one by one have short tracebacks of their own.
    assert len(made) <= MOST_RELATED + MOST_MEMBERS * RELATED_OF_MEMBER
    assert len(CODEC.encode(plain, [])) < MOST_BYTES
