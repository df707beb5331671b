"""Errors that are encoded without a description arrive as those that are described."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from actors.errors import ActorNotFoundError
from actors.messages import message
from runtime.calls.error_codec import PassedOnError, raised_by_method
from runtime.calls.plain_errors import (
    MOST_ARGUMENT_BYTES,
    MOST_ARGUMENTS,
    MOST_SAID,
    PlainErrorEncoder,
)
from runtime.tracebacks import TracebackWriter
from runtime.wire.codec import Codec
from runtime.wire.exceptions import CLASSES_KEPT
from tests.test_tracebacks import CASES, OwnError, fail, raised

CODEC = Codec(sentinel=b"sentinel")


@message
class SentError(Exception):
    """Arrives as itself."""


class SlottedError(Exception):
    __slots__ = ("code",)
    code: int


class ChangingError(Exception):
    """Has attributes and notes only after its text was asked for."""

    def __str__(self) -> str:
        self.late = object()
        self.args = (object(),)
        return "changed"


class MuteError(Exception):
    """Says the same whatever its arguments are."""

    def __str__(self) -> str:
        return "mute"


class LongError(Exception):
    def __str__(self) -> str:
        return "x" * 100_000


def with_attribute() -> None:
    error = OwnError("x")
    error.code = 3  # type: ignore[attr-defined]
    raise error


def with_slot() -> None:
    error = SlottedError("x")
    error.code = 3
    raise error


PLAIN: dict[str, Callable[[], object]] = {
    **{name: CASES[name] for name in ("plain", "silent", "key", "own", "lines", "hidden")},
    "sent": lambda: fail(SentError("text", 1, 2.5, None, True, -(2**63))),
    "most": lambda: fail(OwnError(*range(MOST_ARGUMENTS))),
    "assertion": lambda: fail(AssertionError()),
    "interrupt of its own": CASES["interrupt of its own"],
}

DESCRIBED: dict[str, Callable[[], object]] = {
    **{name: case for name, case in CASES.items() if name not in PLAIN},
    "attribute": with_attribute,
    "slot": with_slot,
    "long": lambda: fail(LongError()),
    "long argument": lambda: fail(OwnError("x" * MOST_ARGUMENT_BYTES)),
    "many arguments": lambda: fail(OwnError(*range(MOST_ARGUMENTS + 1))),
    "argument of its own": lambda: fail(OwnError(object())),
    "a list": lambda: fail(OwnError([1])),
    "not ASCII": lambda: fail(OwnError("ü")),
    "large number": lambda: fail(OwnError(2**63)),
    "of the system": lambda: fail(FileNotFoundError(2, "no file", "name")),
    "ours": lambda: fail(ActorNotFoundError("no actor")),
    "passed on": lambda: fail(PassedOnError.describing(OwnError("x"), CODEC.size_of)),
}


@pytest.mark.parametrize("case", PLAIN)
def test_what_is_plain_reads_as_its_description(case: str) -> None:
    encoder = PlainErrorEncoder(TracebackWriter())
    for _ in range(3):
        error = raised(PLAIN[case])
        encoded = encoder.encoded(error)
        assert encoded is not None
        assert _read(encoded) == list(raised_by_method(error, CODEC.size_of))


@pytest.mark.parametrize("case", DESCRIBED)
def test_what_is_not_plain_is_left_to_be_described(case: str) -> None:
    encoder = PlainErrorEncoder(TracebackWriter())
    for _ in range(2):
        assert encoder.encoded(raised(DESCRIBED[case])) is None


def test_what_changes_while_it_is_asked_is_sent_as_it_was() -> None:
    error = raised(lambda: fail(ChangingError("first")))
    encoded = PlainErrorEncoder(TracebackWriter()).encoded(error)
    assert encoded is not None
    _, plain = _read(encoded)
    assert (plain["args"], plain["text"], plain["notes"]) == (["first"], "changed", [])


def test_its_table_is_bounded() -> None:
    encoder = PlainErrorEncoder(TracebackWriter())
    for number in range(CLASSES_KEPT + 10):
        own: Any = type(f"Error{number}", (Exception,), {})
        assert encoder.encoded(own("x")) is not None
        encoder.check_invariants()


def test_errors_that_say_the_same_keep_their_own_arguments() -> None:
    encoder = PlainErrorEncoder(TracebackWriter())
    for argument in (1, True, 1.0, 0.0, -0.0, None, "1"):
        error = raised(partial(fail, MuteError(argument)))
        encoded = encoder.encoded(error)
        assert encoded is not None
        (arrived,) = _read(encoded)[1]["args"]
        assert repr(arrived) == repr(argument)
    assert len(encoder._said) == 1


def test_texts_that_are_kept_are_bounded() -> None:
    encoder = PlainErrorEncoder(TracebackWriter())
    for number in range(MOST_SAID + 10):
        assert encoder.encoded(ValueError(str(number))) is not None
        encoder.check_invariants()
    assert encoder.encoded(ValueError("x" * (MOST_ARGUMENT_BYTES - 100))) is not None
    encoder.check_invariants()


def _read(encoded: bytes) -> list[Any]:
    found: Any = CODEC.decode(b"\x82" + encoded)
    return found
