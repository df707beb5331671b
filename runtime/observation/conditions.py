"""Conditions on the columns of rows, as `--filter` takes them: the node that has the rows applies
them, and sends what is left.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Collection, Sequence
from typing import Final

import attrs

from runtime.printable import plain

SIGNS: Final = ("!=", ">=", "<=", "=", ">", "<")
"""Those of two characters first: the others are within them."""

MOST_CONDITIONS = 20
"""Conditions of one question."""

MOST_WANTED = 255
"""Characters of a value with which a column is compared: it is compiled in the node's loop, and
peers send it.
"""

_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}

MOST_SHOWN = 60
"""Characters of a value in a table."""


@attrs.frozen
class Condition:
    """A condition on a row: its `column` compared by `sign` with `wanted`; for `=` and `!=` that
    may have wildcards. Raises ValueError where a number is needed and is none, and for a value of
    more than `MOST_WANTED` characters.
    """

    column: str
    sign: str
    wanted: str
    _number: float = attrs.field(init=False, default=0.0)
    _pattern: re.Pattern[str] | None = attrs.field(init=False, default=None, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.sign not in SIGNS:
            raise ValueError(f"there is no comparison {self.sign!r}: use one of {', '.join(SIGNS)}")
        if len(self.wanted) > MOST_WANTED:
            raise ValueError(
                f"a filter compares with {MOST_WANTED} characters at most, not {len(self.wanted)}"
            )
        if self.sign not in _COMPARISONS:
            # Not by `fnmatchcase`, which keeps 32,768 compiled patterns for as long as the process
            # lives.
            object.__setattr__(self, "_pattern", re.compile(fnmatch.translate(self.wanted)))
        else:
            try:
                object.__setattr__(self, "_number", float(self.wanted))
            except ValueError:
                text = f"{self.column}{self.sign}{self.wanted}"
                raise ValueError(f"{text!r}: {self.wanted!r} is not a number") from None

    def holds(self, value: object) -> bool:
        """True if it holds for this value of the column."""
        compare = _COMPARISONS.get(self.sign)
        if compare is not None:
            return isinstance(value, int | float) and compare(value, self._number)
        assert self._pattern is not None, "what is not compared as a number is a pattern"
        equal = str(value) == self.wanted or self._pattern.match(_text(value)) is not None
        return equal == (self.sign == "=")

    def plain(self) -> list[str]:
        """Return the condition as it is sent to a node."""
        return [self.column, self.sign, self.wanted]


def read_conditions(plain: Sequence[Sequence[str]]) -> list[Condition]:
    """The conditions of a question that has come from elsewhere. Raises ValueError."""
    # Before any of them is compiled.
    if len(plain) > MOST_CONDITIONS:
        raise ValueError(f"one question has at most {MOST_CONDITIONS} conditions")
    return [Condition(column, sign, wanted) for column, sign, wanted in plain]


def parse_condition(text: str, columns: Collection[str]) -> Condition:
    """The condition that a person has written, such as `waiting>10`. Raises ValueError."""
    sign = next((sign for sign in SIGNS if sign in text), None)
    if sign is None:
        raise ValueError(f"a filter is COLUMN=VALUE, for example node=w1, not {text!r}")
    column, _, wanted = text.partition(sign)
    check_column(column, columns)
    return Condition(column, sign, wanted)


def check_column(column: str, columns: Collection[str]) -> None:
    """Raises ValueError for a column that there is not."""
    if column not in columns:
        raise ValueError(f"there is no column {column!r}; choose one of {', '.join(columns)}")


def shown(value: object, most: int = MOST_SHOWN) -> str:
    """One value as it stands in a table: of `most` characters, and in one line whatever is in it.
    What is cut ends in an ellipsis.
    """
    text = _text(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        # Times of calls are often parts of a millisecond.
        return f"{value:.2g}" if 0.001 <= abs(value) < 0.1 else f"{value:.1f}"
    # One row is one line, whatever a name or an error has in it.
    return plain(str(value))
