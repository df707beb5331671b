"""Call chains: which methods wait for a call, each for the next.

A method that awaits a call keeps the turn of its actor. If that call comes back to the actor,
directly or through others, the method would wait for a call that waits for the method: a call
cycle. So a call that is made within a turn carries the chain of methods that wait for it. A link
names its turn by a mark and not only by its actor, because the actor may have another turn by the
time the call arrives: then the call waits as any other does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import cbor2

LONGEST = 64
"""How many links a chain keeps; see `Chain.of`. A cycle over more methods of actors ends only at a
deadline.
"""


class ChainLink(NamedTuple):
    """One run of a method that waits for the call. `mark` is unique to this run."""

    actor: str
    method: str
    mark: int


class Chain:
    """The methods that wait for a call, from the first to the one that has made the call.

    It travels as text, one line for each link: `actor TAB method TAB mark`. Names contain neither
    tabs nor line ends. The text is parsed only to look for a cycle or to make a further call; most
    calls need neither. Parsing keeps the latest `LONGEST` links and drops malformed lines, so a
    peer cannot make it longer.
    """

    __slots__ = ("_links", "_sent", "lines")

    def __init__(self, lines: str) -> None:
        self.lines = lines
        self._links: tuple[ChainLink, ...] | None = None
        self._sent = b""

    @classmethod
    def of(cls, links: Sequence[ChainLink]) -> Chain:
        """Make a chain of these links. Of more than `LONGEST`, those go first that a method of an
        actor has beside its first one, and then the earliest.

        The turn of an actor belongs to the first run of one of its methods: further runs of that
        method are beside it, by reentrancy. Without the first one, a recursion of reentrant calls
        would wait for its own turn.
        """
        kept = links
        if len(links) > LONGEST:
            firsts: dict[tuple[str, str], ChainLink] = {}
            for link in links[:-1]:
                firsts.setdefault((link.actor, link.method), link)
            # With the run that makes the call, which is the last one.
            kept = [*firsts.values(), links[-1]][-LONGEST:]
        return cls("\n".join(f"{link.actor}\t{link.method}\t{link.mark}" for link in kept))

    @property
    def links(self) -> tuple[ChainLink, ...]:
        """The links, parsed when first asked for."""
        links = self._links
        if links is None:
            fields = [line.split("\t") for line in self.lines.split("\n")[-LONGEST:]]
            links = self._links = tuple(
                ChainLink(actor, method, int(mark))
                for actor, method, mark, *_ in (row for row in fields if len(row) > 2)
                if _is_mark(mark)
            )
        return links

    @property
    def sent(self) -> bytes:
        """The chain as CBOR, encoded once: a method that makes many calls sends the same chain each
        time.
        """
        if not self._sent:
            self._sent = cbor2.dumps(self.lines)
        return self._sent

    @property
    def length(self) -> int:
        """How many links it has, at most `LONGEST`; without parsing it."""
        return min(self.lines.count("\n") + 1, LONGEST) if self.lines else 0

    def __contains__(self, mark: object) -> bool:
        return any(link.mark == mark for link in self.links)

    def text(self, actor: str, method: str) -> str:
        """Describe the chain and the call at its end: `a.ask -> b.relay -> a.get`."""
        names = [
            f"{link.actor}.{link.method}" for link in self.links if not link.actor.startswith("@")
        ]
        names.append(f"{actor}.{method}")
        # An isolated actor is two links, one in its node and one in its process.
        return " -> ".join(
            name
            for place, name in enumerate(names)
            if place == 0 or name != names[place - 1] or place == len(names) - 1
        )


def _is_mark(text: str) -> bool:
    return len(text) < 20 and text.isascii() and text.isdigit()
