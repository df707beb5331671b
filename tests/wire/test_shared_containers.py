"""Containers that hold the next one twice, many levels deep: whatever looks at them takes time that
does not double with each level. A test of these that fails does not end.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from actors import Actor, ChildSpec, RetryPolicy, method
from actors.errors import EncodeError, RemoteError
from actors.options import SpawnOptions
from actors.short_repr import MOST_CHARACTERS, MOST_OBJECTS, is_boundless, short_repr
from runtime.plain_calls import plain_values
from runtime.user_errors import repr_of, summary_of, text_of, traceback_of
from runtime.wire.codec import Codec
from tests.live_pair import Pair

LEVELS = 60
WITHIN_DEPTH = 28
"""Levels that a message may have."""


def shared(levels: int, kind: str = "list") -> object:
    """A container of so many levels, each of which holds the next one twice."""
    made: object = []
    for _ in range(levels):
        made = {"a": made, "b": made} if kind == "dict" else [made, made]
    return made


def shared_sets(levels: int) -> frozenset[object]:
    made: frozenset[object] = frozenset({1})
    for _ in range(levels // 2):
        made = frozenset({(made, made, place) for place in range(4)})
    return made


@pytest.mark.parametrize("levels", [WITHIN_DEPTH, LEVELS])
@pytest.mark.parametrize("kind", ["list", "dict"])
def test_plain_values_refuse_them(levels: int, kind: str) -> None:
    with pytest.raises(EncodeError, match=r"is met again after|nests deeper than"):
        plain_values.encoded(shared(levels, kind))


def test_plain_values_with_many_containers_of_their_own_are_written() -> None:
    count = plain_values.FEW_CONTAINERS + plain_values.MOST_COPIES + 10
    assert len(plain_values.encoded([[] for _ in range(count)])) > count


@pytest.mark.parametrize("levels", [WITHIN_DEPTH, LEVELS])
def test_sets_that_are_sorted_are_refused(levels: int) -> None:
    codec = Codec(sentinel=b"12345678").reproducible()
    with pytest.raises(EncodeError, match=r"would arrive with \d+ copies|nests deeper than"):
        codec.encode(shared_sets(levels), [])


CHECKED: dict[str, Callable[[object], object]] = {
    "max_retries": lambda value: RetryPolicy(max_retries=value),  # type: ignore[arg-type]
    "max_delay": lambda value: RetryPolicy(max_delay=value),  # type: ignore[arg-type]
    "retry_on": lambda value: RetryPolicy(retry_on=value),  # type: ignore[arg-type]
    "retry_on of one": lambda value: RetryPolicy(retry_on=(value,)),  # type: ignore[arg-type]
    "labels": lambda value: SpawnOptions(labels=value),  # type: ignore[arg-type]
    "a label": lambda value: SpawnOptions(labels={"zone": value}),  # type: ignore[dict-item]
    "resources": lambda value: SpawnOptions(resources={"gpu": value}),  # type: ignore[dict-item]
    "name": lambda value: SpawnOptions(name=value),  # type: ignore[arg-type]
    "timeout": lambda value: SpawnOptions(timeout=value),  # type: ignore[arg-type]
    "retry": lambda value: SpawnOptions(retry=value),  # type: ignore[arg-type]
    "isolation": lambda value: SpawnOptions(isolation=value),  # type: ignore[arg-type]
    "placement": lambda value: SpawnOptions(placement=value),  # type: ignore[arg-type]
    "mailbox_limit": lambda value: SpawnOptions(mailbox_limit=value),  # type: ignore[arg-type]
    "memory_limit": lambda value: SpawnOptions(memory_limit=value),  # type: ignore[arg-type]
    "options of a child": lambda value: ChildSpec(id="a", actor=Actor, options=value),  # type: ignore[arg-type]
    "restart of a child": lambda value: ChildSpec(id="a", actor=Actor, restart=value),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CHECKED)
def test_an_option_that_is_one_is_refused_with_what_is_seen_of_it(name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=r"\.\.\."):
        CHECKED[name](shared(LEVELS))


def test_texts_of_errors_and_values_are_short() -> None:
    value = shared(LEVELS)
    error = ValueError("is wrong", value)
    error.__cause__ = KeyError(value)
    for text in (
        repr_of(value),
        text_of(error),
        summary_of(error),
        traceback_of(error),
    ):
        assert "..." in text
        assert len(text) < 20_000
    group = traceback_of(ExceptionGroup("both", [error, OSError(value)]))
    assert "both (2 sub-exceptions)" in group
    # A class that writes its own text is asked for it.
    assert text_of(ToldError(value)) == "as told"


class ToldError(Exception):
    """Has a text of its own."""

    def __str__(self) -> str:
        return "as told"


def test_what_is_not_too_much_looks_as_ever() -> None:
    for value in ([1, (2, {"a": {3}})], shared(8), [0] * MOST_OBJECTS, "x" * 100_000, None):
        assert not is_boundless(value)
        assert short_repr(value) == repr(value)
    circle: list[object] = []
    circle.append(circle)
    assert "..." in short_repr(circle)


class Odd:
    """Its repr is given."""

    def __init__(self, look: Callable[[], str]) -> None:
        self.look = look

    def __repr__(self) -> str:
        return self.look()


class OddText(str):
    """A text that does not say how long it is."""

    __slots__ = ()

    def __len__(self) -> int:
        raise SystemExit("the length of a repr")

    def __format__(self, form: str) -> str:
        raise SystemExit("the format of a repr")


def raising() -> str:
    raise SystemExit("the repr of a user's object")


def test_what_a_value_looks_like_raises_nothing_and_is_bounded() -> None:
    assert short_repr(Odd(raising)) == "<a Odd whose repr() raised SystemExit>"
    assert short_repr([Odd(raising)]) == "<a list whose repr() raised SystemExit>"
    assert short_repr(Odd(lambda: OddText("short"))) == "short"
    assert type(short_repr(Odd(lambda: OddText("short")))) is str
    for long in (Odd(lambda: "x" * 10**6), "x" * 10**6, b"x" * 10**6):
        found = short_repr(long)
        assert found.endswith("...")
        assert len(found) < MOST_CHARACTERS + 10


class Raising(Actor):
    """Raises what has no end."""

    @method
    async def fail(self) -> None:
        """With a value that is written as 2**60 lists."""
        raise ValueError(shared(LEVELS))

    @method(idempotent=True)
    async def answer(self) -> int:
        """A number."""
        return 16


async def test_a_method_that_raises_one_ends_its_call_alone(pair: Pair, where: str) -> None:
    actor = await pair.here.options(on=where).spawn(Raising)
    with pytest.raises(RemoteError):
        await actor.fail()
    await actor.fail.send()
    assert await actor.answer() == 16
