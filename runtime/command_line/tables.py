"""Rows of facts as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from runtime.command_line.node_answers import Answers
from runtime.observation.conditions import MOST_SHOWN, shown

Row = dict[str, Any]

LONG = {"reason": 240, "problem": 240}
"""Columns that may be longer than others, and their characters: the cause is at the end of them."""


def ordered(rows: list[Row], column: str) -> list[Row]:
    """Sorted by a column, `-COLUMN` with the greatest first; rows without a value come last."""
    name = column.removeprefix("-")
    known = [row for row in rows if row[name] is not None]
    unknown = [row for row in rows if row[name] is None]
    return [*sorted(known, key=lambda row: row[name], reverse=column.startswith("-")), *unknown]


def table(columns: Iterable[str], rows: list[Row]) -> list[str]:
    """Lines with a heading, each column as wide as what is in it; and one line more if something is
    cut.
    """
    texts = [
        {name: shown(row[name], LONG.get(name, MOST_SHOWN)) for name in columns} for row in rows
    ]
    widths = {name: max([len(name), *(len(text[name]) for text in texts)]) for name in columns}
    lines = ["  ".join(name.ljust(width) for name, width in widths.items())]
    lines += [
        "  ".join(text[name].ljust(width) for name, width in widths.items()) for text in texts
    ]
    if any(value.endswith("…") for text in texts for value in text.values()):
        lines.append("what ends in … is cut here: --json has all of it")
    return [line.rstrip() for line in lines]


def actors_of(answers: Answers) -> Iterator[Row]:
    """The actors that nodes have reported, each a row."""
    for node, report in answers.by_node.items():
        for actor in report["actors"]:
            yield {**actor, "node": node}


def count_of(answers: Answers) -> int:
    """How many actors there are; the nodes have reported the first ones."""
    return sum(report["count"] for report in answers.by_node.values())
