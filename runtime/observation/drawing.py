"""The tree of supervision as text: one line for each child, columns side by side, the latest failure where one matters. No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, get_args

import attrs

from actors.supervision import ExitReason
from runtime.observation.tree import SILENT, Branch, Tree

Column = Literal["state", "strategy", "restarts", "recent", "age", "node", "waiting"]
COLUMNS: tuple[Column, ...] = get_args(Column)

RIGHT: frozenset[str] = frozenset({"restarts", "age", "waiting"})
"""Columns of numbers."""

REASON_LENGTH = 100
"""Characters of a reason on the line of its child. `draw_deaths` shows all of it."""

FAILED = frozenset({"restarting", "starting", "exited", "stopped"})
"""States in which the end of the last actor says why."""


@attrs.frozen
class Lines:
    """The characters that the branches are drawn with."""

    fork: str
    last: str
    bar: str
    cut: str
    """Where a line goes on beyond the edge."""


BOXES = Lines("├─ ", "└─ ", "│  ", "…")
ASCII = Lines("|- ", "`- ", "|  ", "~")


def lines_for(encoding: str | None) -> Lines:
    """What a terminal or file of this encoding can show."""
    try:
        "".join(attrs.astuple(BOXES)).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BOXES


def draw_tree(
    tree: Tree,
    *,
    columns: Sequence[Column] = COLUMNS,
    lines: Lines = BOXES,
    width: int | None = None,
    paint: Callable[[str, str], str] = lambda state, text: text,
) -> str:
    """The trees, a line for each branch below a line of headings.

    `columns`: what to say beside the names; "recent" is how many of a supervisor's restarts count against its intensity. `width`: cut lines
    to so many characters. `paint(state, text)` may colour the state, which is the text. Raises ValueError for an unknown column.
    """
    if unknown := [column for column in columns if column not in COLUMNS]:
        raise ValueError(f"there is no column {unknown[0]!r}; the columns are: {', '.join(COLUMNS)}")
    branches = [(stem, branch) for root in tree.roots for stem, branch in _stems(root, lines)]
    table = [["name", *columns], *([stem + plain(_title(branch, stem)), *_cells(branch, columns)] for stem, branch in branches)]
    widths = [max(len(row[place]) for row in table) for place in range(len(columns) + 1)]
    drawn: list[str] = []
    for row, branch in zip(table, [None, *(branch for _, branch in branches)], strict=True):
        padded = [
            cell.rjust(size) if place and columns[place - 1] in RIGHT else cell.ljust(size)
            for place, (cell, size) in enumerate(zip(row, widths, strict=True))
        ]
        note = _note(branch) if branch is not None else ""
        text = "  ".join([*padded, note] if note else padded).rstrip()
        text = _cut(text, width, lines)
        if branch is not None and "state" in columns:
            state = padded[columns.index("state") + 1]
            start = sum(len(cell) + 2 for cell in padded[: columns.index("state") + 1])
            if text[start : start + len(state)] == state:
                text = text[:start] + paint(branch.state, state) + text[start + len(state) :]
        drawn.append(text)
    return "\n".join([*(drawn if branches else ["no supervisors"]), *(_cut(plain(problem), width, lines) for problem in tree.problems)])


def draw_deaths(tree: Tree, at: Callable[[float], str]) -> str:
    """How children ended, as their supervisors have kept it, with tracebacks. `at` writes a time, given in seconds since 1970 UTC."""
    parts: list[str] = []
    for branch in tree.walk():
        for death in branch.deaths:
            where = f" on {death.node} (epoch {death.epoch})" if death.node is not None else ""
            after = f" after {draw_age(death.at - death.started)}" if death.started is not None else ""
            parts.append(f"{at(death.at)}  {plain(death.name)}{where}{after}: {plain(str(death.reason))}")
            trace = death.reason.traceback.rstrip()
            parts.extend(f"    {plain(line)}" for line in trace.splitlines())
    return "\n".join(parts) or "no deaths are kept"


def draw_age(seconds: float | None) -> str:
    """For people: in the largest unit of which there is a whole one, and "-" for None."""
    if seconds is None:
        return "-"
    seconds = max(0.0, seconds)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{int(seconds)} s" if seconds >= 10 else f"{int(seconds * 10) / 10:.1f} s"


def plain(text: str) -> str:
    """Without line breaks and what else could move a terminal's cursor: names and reasons come from anywhere."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def _cut(text: str, width: int | None, lines: Lines) -> str:
    return text if width is None or len(text) <= width else text[: width - 1] + lines.cut


def _stems(root: Branch, lines: Lines) -> Iterator[tuple[str, Branch]]:
    """Every branch with what is drawn before it."""
    waiting: list[tuple[str, str, Branch]] = [("", "", root)]
    while waiting:
        stem, below, branch = waiting.pop()
        yield stem, branch
        children = [
            (below + (lines.last if last else lines.fork), below + (" " * len(lines.bar) if last else lines.bar), child)
            for child, last in zip(branch.children, _is_last(branch.children), strict=True)
        ]
        waiting.extend(reversed(children))


def _is_last(children: Sequence[Branch]) -> list[bool]:
    return [place == len(children) - 1 for place in range(len(children))]


def _title(branch: Branch, stem: str) -> str:
    """A child's id, and its name where that is not what its place tells; a root's name."""
    if not stem or branch.name.endswith(f"/{branch.id}") or branch.name == branch.id:
        return branch.id
    return f"{branch.id} ({branch.name})"


def _cells(branch: Branch, columns: Sequence[Column]) -> list[str]:
    texts = {
        "state": branch.state,
        "strategy": branch.strategy or "",
        "restarts": _number(branch.restarts),
        "recent": _recent(branch),
        "age": draw_age(branch.age),
        "node": plain(branch.node) if branch.node is not None else "-",
        "waiting": _number(branch.waiting),
    }
    return [texts[column] for column in columns]


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _recent(branch: Branch) -> str:
    if branch.intensity is None or branch.period is None:
        return ""
    share = f"{branch.recent_restarts}/{branch.intensity}"
    return f"{share} in {branch.period:g} s" if math.isfinite(branch.period) else share


def _note(branch: Branch) -> str:
    """What is wrong, if anything is."""
    if branch.state == SILENT:
        return plain(branch.problem)
    if branch.state in FAILED and branch.last_exit is not None:
        return f"last: {short(branch.last_exit)}"
    return ""


def short(reason: ExitReason) -> str:
    """A reason on one line."""
    text = plain((str(reason).splitlines() or [""])[0])
    return text if len(text) <= REASON_LENGTH else f"{text[: REASON_LENGTH - 3]}..."
