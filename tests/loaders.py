"""Code that is in no file, as that of templates and of importers of one's own: `traceback` asks the
loader of its module for its source, and the loader may do anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NoReturn

SOURCE = "def divide(number):\n    return 1 / number\n"

_numbers = itertools.count(1)


class SourceLoader:
    """Answers as it is told to, and counts the questions."""

    def __init__(self, answer: Callable[[str], str | None]) -> None:
        self.answer = answer
        self.asked = 0

    def get_source(self, name: str) -> str | None:
        """What importers have for `linecache`."""
        self.asked += 1
        return self.answer(name)


class OpaqueLoader:
    """Cannot even be asked for what it has."""

    def __getattr__(self, name: str) -> NoReturn:
        raise SystemExit(name)


def without_entry(name: str) -> NoReturn:
    """Raise what a loader raises by an ordinary mistake."""
    raise KeyError(name)


def with_exit(name: str) -> NoReturn:
    """Raise what is no `Exception`."""
    raise SystemExit(name)


HARMFUL: dict[str, Callable[[], object]] = {
    "KeyError": lambda: SourceLoader(without_entry),
    "SystemExit": lambda: SourceLoader(with_exit),
    "no text": lambda: SourceLoader(lambda name: 7),  # type: ignore[arg-type, return-value]
    "opaque": OpaqueLoader,
}


def generated(loader: object, source: str = SOURCE, **names: object) -> dict[str, Any]:
    """The names of a module that is made of a text, under a file name that is used once: what
    `linecache` knows of one says nothing about another.
    """
    file = f"/nowhere/generated-{next(_numbers)}.py"
    space: dict[str, Any] = {"__name__": "generated", "__loader__": loader, **names}
    exec(compile(source, file, "exec"), space)
    return space
