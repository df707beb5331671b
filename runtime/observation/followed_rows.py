"""Rows that are asked for again and again: a reader is sent those that have changed since the
answer that it has. No I/O.

A node keeps the latest lists that it has answered with, each under a number. A list that it does
not keep any more is sent whole.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

MOST_KEPT = 16
"""Lists that a node keeps: so many readers are sent changes alone. What is equal in them is kept
once.
"""


class AnsweredRows:
    """The lists of one node, as it has answered with them. Rows are known by their `name`."""

    def __init__(self) -> None:
        self._number = 0
        self._kept: OrderedDict[int, dict[str, Row]] = OrderedDict()

    def answer(self, rows: Sequence[Row], seen: int) -> dict[str, Any]:
        """The answer for a reader whose last one had the number `seen`; 0 if it has none. `rows`:
        those that differ from it, or all with `since` 0. `gone`: names that are not among them any
        more. `number`: that of this answer.
        """
        latest = self._kept.get(self._number, {})
        # An equal row is the same object in all lists: it takes memory once, and a look at it is
        # enough to see that it has not changed.
        listed: dict[str, Row] = {}
        for row in rows:
            old = latest.get(row["name"])
            listed[row["name"]] = row if old is None or old != row else old
        before = self._kept.get(seen)
        self._number += 1
        self._kept[self._number] = listed
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        if before is None:
            return {"rows": list(listed.values()), "gone": [], "since": 0, "number": self._number}
        return {
            "rows": [row for name, row in listed.items() if before.get(name) is not row],
            "gone": [name for name in before if name not in listed],
            "since": seen,
            "number": self._number,
        }


class FollowedRows:
    """The rows of one node, as a reader has them."""

    def __init__(self) -> None:
        self.number = 0
        """The number of the last answer; 0 before the first."""
        self._rows: dict[str, Row] = {}

    def take(self, answer: Mapping[str, Any]) -> list[Row]:
        """Take in the next answer. Returns all rows, in no order. An answer that is not about the
        last one changes nothing; the next one is whole.
        """
        if answer["since"] not in (0, self.number):
            self.number = 0
        else:
            rows = {} if not answer["since"] else self._rows
            gone = set(answer["gone"])
            kept = {name: row for name, row in rows.items() if name not in gone}
            self._rows = {**kept, **{row["name"]: row for row in answer["rows"]}}
            self.number = answer["number"]
        return list(self._rows.values())
