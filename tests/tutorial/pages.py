"""Reads the pages of the tutorial: the commands of each terminal, and what they print.

A console block belongs to the first terminal, unless its caption names another one. A line that
begins with `$ ` is a command, the lines up to the next one are what it prints. `...` stands for any
text of a line; alone on a line, for any lines. Columns may be wider or narrower.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import attrs

BLOCK = re.compile(
    r"^```(?:console|\{code-block\} console)\n(?::caption: Terminal (\d)\n\n)?(.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
FIRST = 1
"""The terminal in which each command ends before the next one begins."""


@attrs.frozen
class Command:
    """What the reader types into a terminal, and the lines that follow."""

    terminal: int
    text: str
    printed: str

    def pattern(self) -> re.Pattern[str]:
        """What its output has to match."""
        parts = []
        for line in self.printed.splitlines():
            if line == "...":
                parts.append(r"(?:.*\n)*?")
            else:
                parts.append(".*".join(map(_text, line.split("..."))) + r"[ ]*\n")
        return re.compile("".join(parts))


def _text(part: str) -> str:
    """Of several spaces there may be more or fewer: columns are as wide as what is in them, such as
    an age of 9.5 s or of 10 s.
    """
    return re.sub(r"(?:\\ ){2,}", "  +", re.escape(part))


def commands_of(page: Path) -> Iterator[Command]:
    """The commands of a page, in order. Raises ValueError for a block that begins with none."""
    for found in BLOCK.finditer(page.read_text()):
        before, *typed = re.split(r"^\$ ", found[2], flags=re.MULTILINE)
        if before:
            raise ValueError(f"{page.name}: a console block begins with output: {before!r}")
        for each in typed:
            text, _, printed = each.partition("\n")
            # An empty line before the end of a block is there for the reader.
            yield Command(int(found[1] or FIRST), text, printed.rstrip("\n") + "\n" * bool(printed))
