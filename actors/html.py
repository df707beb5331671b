"""What objects look like in a notebook: a heading, facts and tables as HTML.

All text is escaped and cut here, because names and texts come from anywhere; what is handed on
between functions of this file is `Html`. No colours and no styles of the notebook's own are set but
for the dots of states, so that it can be read in light and dark themes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice
from typing import NewType

Html = NewType("Html", str)
"""Markup, in which everything from outside is escaped."""

MOST_ROWS = 100
"""Rows of a table that are shown."""

MOST_TEXT = 300
"""Characters of one text that are shown."""

GREEN, AMBER, RED, GREY = "#2da44e", "#d29922", "#e5534b", "#8b949e"
"""Dark enough for white paper, and light enough for black."""

_COLOURS = {
    "up": GREEN,
    "running": GREEN,
    "joining": AMBER,
    "draining": AMBER,
    "starting": AMBER,
    "stopping": AMBER,
    "restarting": AMBER,
    "does not answer": RED,
    "gone": RED,
}

_LEFT = "text-align:left;vertical-align:top"
_QUOTED = f'"{_LEFT}"'


def escaped(value: object) -> Html:
    """Return a text or a number, cut to `MOST_TEXT` characters; for anything else the name of its
    class, because its `str` is user code.
    """
    found = str.__str__(value) if isinstance(value, str) else ""
    if not found and isinstance(value, bool | int | float):
        found = f"{value:,}" if type(value) is int else f"{value!r}"
    elif not isinstance(value, str):
        found = type(value).__name__
    if len(found) > MOST_TEXT:
        found = f"{found[: MOST_TEXT - 1]}…"
    # What is not printable could turn the direction of writing, or hide.
    shown = "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in found
    )
    return Html(escape(shown, quote=True))


def dotted_state(name: str) -> Html:
    """A state, with a dot in its colour."""
    colour = _COLOURS.get(name, GREY)
    return Html(f'<span style="color:{colour}">&#9679;</span>&nbsp;{escaped(name)}')


def fixed_width(value: str) -> Html:
    """A text whose spaces and characters keep their places."""
    return Html(f'<span style="font-family:monospace;white-space:pre">{escaped(value)}</span>')


def card(
    kind: str, name: str, facts: Iterable[tuple[str, object]], *tables: Html, note: str = ""
) -> str:
    """One object: what it is, its name, its facts in one line each, and tables below."""
    rows = "".join(
        f'<tr><td style="{_LEFT}">{escaped(what)}</td><td style="{_LEFT}">{escaped(fact)}</td></tr>'
        for what, fact in facts
    )
    shown = f"<table>{rows}</table>" if rows else ""
    below = f"<div>{escaped(note)}</div>" if note else ""
    heading = f"<b>{escaped(kind)}</b> <code>{escaped(name)}</code>"
    return f"<div>{heading}{shown}{''.join(tables)}{below}</div>"


def html_table(heads: Sequence[str], rows: Iterable[Sequence[Html]], total: int) -> Html:
    """A table of at most `MOST_ROWS` of the `total` rows."""
    heading = "".join(f'<th style="{_LEFT}">{escaped(head)}</th>' for head in heads)
    shown = "".join(
        f"<tr>{''.join(f'<td style={_QUOTED}>{cell}</td>' for cell in row)}</tr>"
        for row in islice(rows, MOST_ROWS)
    )
    more = f"<div>and {total - MOST_ROWS:,} more</div>" if total > MOST_ROWS else ""
    return Html(f"<table><thead><tr>{heading}</tr></thead><tbody>{shown}</tbody></table>{more}")
