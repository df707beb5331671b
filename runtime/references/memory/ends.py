"""Learning that an object is gone for good, and nothing can reach it any more.

A weak reference does not tell: of a ring of garbage, Python calls the callbacks of weak references first and the finalizers (`__del__`)
then, and a finalizer can still use what is in its ring, or keep it for good (PEP 442). So an object is given a token to keep. The token's
own finalizer puts it on a list, and it counts when the list has the only reference to it that is left: its keeper has let go of it.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

_ALONE = 2
"""References to a token that nobody keeps: a variable, and the argument of the function that counts."""


class _Token(Generic[T]):
    __slots__ = ("ended", "what")

    def __init__(self, what: T, ended: deque[_Token[T]]) -> None:
        self.what = what
        self.ended = ended

    def __del__(self) -> None:
        # In any thread, in the midst of any statement: nothing but this.
        self.ended.append(self)


class Ends(Generic[T]):
    """The ends of objects that were given tokens. For one thread; tokens end in any."""

    def __init__(self) -> None:
        self._ended: deque[_Token[T]] = deque()

    def token(self, what: T) -> object:
        """To be kept by one object alone, as an attribute, until its end, which `gone` tells as `what`."""
        return _Token(what, self._ended)

    def gone(self) -> list[T]:
        """What has ended since the last time."""
        gone: list[T] = []
        for _ in range(len(self._ended)):
            token = self._ended.popleft()
            if sys.getrefcount(token) > _ALONE:
                self._ended.append(token)
            else:
                gone.append(token.what)
        return gone
