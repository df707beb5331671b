"""Text from anywhere, such as names and reasons of peers, as it may stand in a line."""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST_NAMED = 5
"""Names that a message lists."""

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")


def plain(text: str) -> str:
    """Without line breaks and what else could move a terminal's cursor: names and reasons come from
    anywhere.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )


def without_controls(text: str) -> str:
    """Return the text with its lines and tabs, but without other characters that could control a
    terminal. Cheap for text that has nothing of that kind.
    """
    # Many at a time: a call for each character of a line of 10 MiB would take 2 s.
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def plain_lines(text: str) -> str:
    """Like `plain`, line by line; tabs become spaces."""
    return "\n".join(plain(line.expandtabs()) for line in text.split("\n"))


def many(count: int, thing: str) -> str:
    """`1 value`, `2 values`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def one_of(names: Iterable[str]) -> str:
    """`w1, w2 or w3`, in order; of many the first few, and how many others there are."""
    found = sorted(names)
    if len(found) > MOST_NAMED:
        found = [*found[:MOST_NAMED], f"{len(found) - MOST_NAMED:,} others"]
    return " or ".join(part for part in (", ".join(found[:-1]), *found[-1:]) if part)
