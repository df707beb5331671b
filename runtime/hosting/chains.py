"""Call chains: which methods wait for a call, each for the next.

A method that awaits a call keeps the turn of its actor. If that call comes back to the actor, by whatever way, the method would wait for a
call that waits for the method: a call cycle. So a call that is made from within a turn tells who waits for it. The turn is named by a mark
and not only by its actor, for that may have another turn by the time the call arrives: then the call waits as any other does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import cbor2

LONGEST = 64
"""Links that a chain keeps, the latest: a cycle that is longer ends at a deadline only."""


class Link(NamedTuple):
    """One method that waits. `mark`: of its run; no other run has it."""

    actor: str
    method: str
    mark: int


class Chain:
    """Those who wait for a call, from the first of them to the one that has made it.

    It travels as text, a line for each: `actor TAB method TAB mark`. Names have no such characters in them. It is read only where somebody
    looks for a cycle, or makes a further call: most calls meet neither, and what a peer says too much is left out then.
    """

    __slots__ = ("_links", "_sent", "told")

    def __init__(self, told: str) -> None:
        self.told = told
        self._links: tuple[Link, ...] | None = None
        self._sent = b""

    @classmethod
    def of(cls, links: Sequence[Link]) -> Chain:
        """The chain of these, or of the latest of them."""
        return cls("\n".join(f"{link.actor}\t{link.method}\t{link.mark}" for link in links[-LONGEST:]))

    @property
    def links(self) -> tuple[Link, ...]:
        """All of them."""
        links = self._links
        if links is None:
            fields = [line.split("\t") for line in self.told.split("\n")[-LONGEST:]]
            links = self._links = tuple(
                Link(actor, method, int(mark)) for actor, method, mark, *_ in (row for row in fields if len(row) > 2) if _is_mark(mark)
            )
        return links

    @property
    def sent(self) -> bytes:
        """As it travels, encoded once: a method that makes many calls says the same of itself each time."""
        if not self._sent:
            self._sent = cbor2.dumps(self.told)
        return self._sent

    def __contains__(self, mark: object) -> bool:
        return any(link.mark == mark for link in self.links)

    def text(self, actor: str, method: str) -> str:
        """The chain with the call that it leads to: `a.ask -> b.relay -> a.get`."""
        names = [f"{link.actor}.{link.method}" for link in self.links if not link.actor.startswith("@")]
        names.append(f"{actor}.{method}")
        # An isolated actor is two links, one in its node and one in its process.
        return " -> ".join(name for place, name in enumerate(names) if place == 0 or name != names[place - 1] or place == len(names) - 1)


def _is_mark(text: str) -> bool:
    return len(text) < 20 and text.isascii() and text.isdigit()
