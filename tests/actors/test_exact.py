"""Options of subclasses of texts and numbers: members of enumerations, numbers of other libraries,
and what lies about itself.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from actors import ChildSpec, RetryPolicy, SpawnOptions
from actors.exact import exact
from actors.groups import checked_group_name
from actors.options import CallOptions
from actors.supervision import ChildRule


class Names(enum.StrEnum):
    """As users name their actors."""

    COUNTER = "counter"
    GPU = "gpu"


class Liar(str):
    """A text that raises whatever it is asked."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(name)

    def __eq__(self, other: object) -> bool:
        raise SystemExit("==")

    def __str__(self) -> str:
        raise SystemExit("str()")

    __hash__ = None  # type: ignore[assignment]


def lie(text: str) -> Any:
    """A text that raises, where a type checker expects certain words only."""
    return Liar(text)


class Amount(float):
    """A number that raises whatever it is asked."""

    def __float__(self) -> float:
        raise SystemExit("float()")

    def __le__(self, other: object) -> bool:
        raise SystemExit("<=")

    __ge__ = __lt__ = __gt__ = __le__


class Count(enum.IntEnum):
    """As users name their limits."""

    SMALL = 3


def values_of(value: object) -> list[object]:
    if attrs.has(type(value)):
        return [one for each in attrs.astuple(value, recurse=False) for one in values_of(each)]  # type: ignore[arg-type]
    if isinstance(value, Mapping):
        return [one for pair in value.items() for each in pair for one in values_of(each)]
    return [value]


@pytest.mark.parametrize(
    "options",
    [
        lambda: SpawnOptions(name=Names.COUNTER, on=Liar("w1"), labels={Names.GPU: Liar("yes")}),
        lambda: SpawnOptions(resources={Names.GPU: Amount(0.5)}, mailbox_limit=Count.SMALL),
        lambda: SpawnOptions(isolation=lie("process"), idle_timeout=Amount(1.0)),
        lambda: CallOptions(timeout=Amount(1.0), retry=RetryPolicy(initial_delay=Amount(1.0))),
        lambda: RetryPolicy(max_retries=Count.SMALL, budget=Amount(2.0)),
        lambda: ChildRule(Liar("child"), shutdown=Amount(2.0), restart=lie("transient")),
        lambda: ChildSpec(id=Names.COUNTER, actor="module:Class", restart=lie("transient")),
    ],
)
def test_options_keep_plain_values_and_run_no_code_of_those_they_are_given(options: Any) -> None:
    plain = (str, int, float, bool, type(None), tuple)
    assert [one for one in values_of(options()) if type(one) not in plain] == []


def test_what_is_refused_is_refused_by_the_plain_value() -> None:
    for refused in (Liar("@node"), Liar(""), Liar("a\nb")):
        with pytest.raises(ValueError, match="not a usable name"):
            SpawnOptions(name=refused)
    with pytest.raises(ValueError, match="at least 0"):
        SpawnOptions(resources={"gpu": Amount(-1.0)})


GIVEN = SpawnOptions(on="w1", labels={"gpu": "yes"}, mailbox_limit=3, timeout=1.0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"name": "counter"},
        {"name": None, "on": None},
        {"name": Names.COUNTER, "on": Liar("w2")},
        {"name": "counter", "mailbox_limit": 4},
        {"name": "@node"},
        {"name": 3},
        {"on": "a\nb"},
        {"nmae": "counter"},
        {"isolation": "none", "memory_limit": 1},
    ],
)
def test_changed_options_are_what_the_constructor_would_make_of_them(changes: Any) -> None:
    def outcome(make: Callable[[], SpawnOptions]) -> object:
        try:
            made = make()
        except (TypeError, ValueError) as error:
            return type(error), str(error)
        return values_of(made), [type(one) for one in values_of(made)]

    kept = outcome(lambda: GIVEN)
    assert outcome(lambda: GIVEN.changed(**changes)) == outcome(
        lambda: attrs.evolve(GIVEN, **changes)
    )
    assert outcome(lambda: GIVEN) == kept


def test_the_value_of_a_subclass_is_kept_and_all_others_stay_what_they_are() -> None:
    assert (exact(Names.GPU), type(exact(Names.GPU))) == ("gpu", str)
    assert (exact(Count.SMALL), type(exact(Count.SMALL))) == (3, int)
    assert type(exact(Amount(0.5))) is float
    assert exact(True) is True
    for other in (None, b"bytes", [Names.GPU], Names):
        assert exact(other) is other
    assert type(checked_group_name(Names.GPU)) is str


@pytest.mark.parametrize("text", ["red\x1b[31m", "two\nlines", "\u202eback", "\x9b31m", "\ud800"])
def test_labels_and_resources_have_nothing_that_would_control_a_terminal(text: str) -> None:
    tried: list[dict[str, Any]] = [
        {"labels": {text: "x"}},
        {"labels": {"x": text}},
        {"resources": {text: 1.0}},
    ]
    for given in tried:
        with pytest.raises(ValueError, match="no control characters") as refused:
            SpawnOptions(**given)
        assert str(refused.value).isprintable()
