"""What one node has to say to another about references, until it has been said.

No I/O and no clock. Everything is said again until it was answered, and may be said twice.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from runtime.references.claims import ReferenceId

if TYPE_CHECKING:
    from runtime.references.values import Failure


class Words(NamedTuple):
    """Claims and releases that are said together, each with its version."""

    claims: dict[ReferenceId, int]
    releases: dict[ReferenceId, int]


class Letter:
    """What is to be said to one node. Times are those before which it need not be said."""

    __slots__ = ("asks", "claims", "conclusions", "counted", "moves", "not_before", "questions_at", "releases", "under_way")

    def __init__(self) -> None:
        self.claims: dict[ReferenceId, tuple[int, float]] = {}
        self.releases: dict[ReferenceId, int] = {}
        self.counted: set[ReferenceId] = set()
        """Claims of which the receiver may know, although it has not answered them."""
        self.asks: dict[ReferenceId, tuple[int, float]] = {}
        self.moves: dict[ReferenceId, int] = {}
        """Values that have come to this node, and the versions in which the receiver held them."""
        self.conclusions: dict[ReferenceId, Failure] = {}
        """Values whose calls this node has given up."""
        self.questions_at = math.inf
        self.not_before = -math.inf
        self.under_way = False

    @property
    def is_empty(self) -> bool:
        """True if it can be forgotten."""
        said = not (self.claims or self.releases or self.asks or self.moves or self.conclusions)
        return said and self.questions_at == math.inf and not self.under_way

    def due_at(self) -> float:
        """When there is something to say: at once where that is minus infinity."""
        first = -math.inf if self.releases or self.moves or self.conclusions else self.questions_at
        for _, at in self.claims.values():
            first = min(first, at)
        for _, at in self.asks.values():
            first = min(first, at)
        return max(first, self.not_before)

    def claim(self, identity: ReferenceId, version: int, at: float, *, again: bool) -> None:
        """This node holds a value of the receiver's; to be said at that time, or later. `again`: the receiver may know of it."""
        self.claims[identity] = (version, at)
        if again:
            self.counted.add(identity)

    def is_counted(self, identity: ReferenceId) -> None:
        """The receiver has said by itself that it counts this node as a holder: it has got the value, and its holders, from another."""
        if identity in self.claims:
            self.counted.add(identity)

    def release(self, identity: ReferenceId, version: int) -> None:
        """This node does not hold it any more. What came and went between two letters costs none."""
        claim = self.claims.get(identity)
        if claim is not None and claim[0] <= version:
            del self.claims[identity]
            if identity not in self.counted:
                return
            self.counted.remove(identity)
        self.releases[identity] = max(version, self.releases.get(identity, 0))

    def words(self, now: float) -> Words:
        """What is to be said now. It is, until it was `said`."""
        claims = {identity: version for identity, (version, at) in self.claims.items() if at <= now}
        self.counted.update(claims)
        return Words(claims, dict(self.releases))

    def said(self, words: Words) -> None:
        """These words were answered."""
        self.counted.difference_update(words.claims)
        for identity, version in words.claims.items():
            if self.claims.get(identity, (0, 0.0))[0] == version:
                del self.claims[identity]
        for identity, version in words.releases.items():
            if self.releases.get(identity) == version:
                del self.releases[identity]
