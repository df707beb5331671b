"""What TAB offers at the prompt: names and attributes, the methods of handles among them, and the
names of actors within `lookup("...")`.
"""

from __future__ import annotations

import re
import rlcompleter
from collections.abc import Callable, Iterable

from runtime.user_errors import guarded

MOST = 500
"""Names that are offered at once."""

INDENT = "    "

_WITHIN_LOOKUP = re.compile(r"""\blookup\(\s*["'](?P<begun>[^"']*)$""")


class Completer:
    """Completes lines of a console. `names` asks for the names of the cluster's actors; it may
    block for a moment, and raise.
    """

    def __init__(self, namespace: dict[str, object], names: Callable[[], Iterable[str]]) -> None:
        self._completer = rlcompleter.Completer(namespace)
        self._names = names

    def matches(self, line: str, word: str) -> list[str]:
        """Return the completions of `word`, with which `line` ends; `line` is the text up to the
        cursor. This looks at objects of the user, whose code may raise anything: then there are
        none.
        """
        found = _WITHIN_LOOKUP.search(line)
        if found is not None:
            return guarded(lambda: self._actors(found["begun"], word), _nothing)
        if not line.strip():
            return [INDENT]
        return guarded(lambda: self._python(word), _nothing)

    def _actors(self, begun: str, word: str) -> list[str]:
        # The word is the end of the name: a name may have characters at which words end.
        kept = len(begun) - len(word)
        fitting = sorted(name for name in self._names() if name.startswith(begun))
        # readline itself puts the quotation mark behind the only one.
        return [name[kept:] for name in fitting[:MOST]]

    def _python(self, word: str) -> list[str]:
        found: list[str] = []
        while len(found) < MOST and (match := self._completer.complete(word, len(found))):
            found.append(match)
        return found


def _nothing(error: BaseException) -> list[str]:
    return []
