"""Text of any value, for people: bounded in size, whatever the value is. Containers of the
interpreter are written here, so that a large one costs what is shown of it; the `__repr__` of
other classes is user code, which may raise anything and may take long: call this in a thread.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from typing import Any, cast

from actors.class_names import class_name
from runtime.user_errors import guarded

MOST_ITEMS = 50
"""Items of one container that are shown."""

MOST_LEVELS = 5
"""Containers within containers."""

MOST_OF_ONE = 500
"""Characters of one string, number or object."""

_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
    deque: ("deque([", "])"),
}


def bounded_text(value: object, most: int) -> str:
    """The value as text of about `most` characters; what is left out is marked by "...". A dict is
    written one item a line. Raises only a genuine interrupt.
    """
    if type(value) is str:
        return cut(value, most)
    writer = _Writer(most)
    if type(value) is dict and value:
        pairs = itertools.islice(cast("dict[object, object]", value).items(), MOST_ITEMS)
        lines = [f"{writer.text(key, 1)}: {writer.text(one, 1)}" for key, one in pairs]
        if len(value) > len(lines):
            lines.append(f"... and {len(value) - len(lines)} more")
        return cut("\n".join(lines), most)
    return cut(writer.text(value, 0), most)


def bounded_line(value: object, most: int) -> str:
    """The value as Python writes it, on one line; otherwise as `bounded_text`."""
    return cut(_Writer(most).text(value, 0), most)


def cut(text: str, most: int) -> str:
    """The first characters of a text, with a mark where more follows."""
    return text if len(text) <= most else f"{text[:most]}..."


class _Writer:
    """Writes one value and all that is in it. `room`: characters that are left for it."""

    def __init__(self, room: int) -> None:
        self._room = room

    def text(self, value: object, level: int) -> str:
        if self._room <= 0:
            return "..."
        # A container changes while it is read if its owner goes on, in another thread.
        name = class_name(type(value))
        found = guarded(
            lambda: self._text(value, level),
            lambda error: f"<{name} whose repr raised {class_name(type(error))}>",
        )
        self._room -= len(found)
        return found

    def _text(self, value: object, level: int) -> str:
        # Exact types only: what is derived from them may have any code in the same methods.
        kind = type(value)
        if kind in (str, bytes, bytearray):
            return self._long(cast("str | bytes", value))
        if kind is int and cast("int", value).bit_length() > 4 * MOST_OF_ONE:
            return f"<int of {cast('int', value).bit_length()} bits>"
        if kind is dict or kind in _BRACKETS:
            if level >= MOST_LEVELS:
                return f"<{class_name(kind)} of {len(cast('Any', value))}>"
            if kind is dict:
                pairs = cast("dict[object, object]", value).items()
                inside = level + 1
                texts = (
                    f"{self.text(key, inside)}: {self.text(one, inside)}" for key, one in pairs
                )
                return self._listed("{", texts, "}", len(pairs))
            opening, closing = _BRACKETS[kind]
            items = cast("list[object]", value)
            texts = (self.text(one, level + 1) for one in items)
            return self._listed(opening, texts, closing, len(items))
        found = repr(value)
        return cut(found if type(found) is str else "<no text>", MOST_OF_ONE)

    def _long(self, value: str | bytes) -> str:
        if len(value) <= MOST_OF_ONE:
            return repr(value)
        return f"{value[:MOST_OF_ONE]!r}... ({len(value):,} in all)"

    def _listed(self, opening: str, texts: Iterable[str], closing: str, count: int) -> str:
        shown: list[str] = []
        for text in itertools.islice(texts, MOST_ITEMS):
            shown.append(text)
            if self._room <= 0:
                break
        if count > len(shown):
            shown.append(f"... and {count - len(shown):,} more")
        return f"{opening}{', '.join(shown)}{closing}"
