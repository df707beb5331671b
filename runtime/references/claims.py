"""Claims: which incarnations of other nodes hold one value. The owner's side.

No I/O and no clock. Each holder has one register, whose last writer wins: a holder numbers what it says of a value, claims and releases
alike, with versions that only grow. So every message may come twice, late, or after the one that was sent later.
"""

from __future__ import annotations

from collections.abc import Iterator

Identity = tuple[str, int]
"""A node's name and its incarnation."""

ReferenceId = tuple[str, int, int]
"""The name and incarnation of the node that made the reference, and a number of that incarnation."""


class Claims:
    """The registers of one value's holders: for each the version of its claim, or minus that of its release."""

    __slots__ = ("_holder", "_others", "_version", "keeps")

    def __init__(self) -> None:
        # Most values have one holder, and a dict for it would weigh more than all the rest.
        self._holder: Identity | None = None
        self._version = 0
        self._others: dict[Identity, int] | None = None
        self.keeps: object = None
        """What lives for as long as there are holders, if nothing else keeps it: the value."""

    @property
    def holders(self) -> tuple[Identity, ...]:
        """Those whose latest word was a claim."""
        return tuple(holder for holder, version in self._registers() if version > 0)

    @property
    def held(self) -> bool:
        """Whether there are any."""
        return any(version > 0 for _, version in self._registers())

    def settle(self) -> None:
        """Let go of the value if nobody holds it any more."""
        if not self.held:
            self.keeps = None

    def claim(self, holder: Identity, version: int) -> None:
        """`holder` says that it holds the value. Nothing changes if it has said something later already."""
        if version > abs(self._latest(holder)):
            self._write(holder, version)

    def release(self, holder: Identity, version: int) -> None:
        """`holder` does not hold it any more; it may have claimed it in this very version."""
        if version >= abs(self._latest(holder)):
            self._write(holder, -version)

    def died(self, holder: Identity) -> bool:
        """That incarnation is no more, and holds nothing; whether it did."""
        version = self._latest(holder)
        if self._holder == holder:
            self._holder, self._version = None, 0
        elif self._others is not None:
            self._others.pop(holder, None)
        return version > 0

    def versions(self) -> list[tuple[str, int, int]]:
        """All registers, for a new owner: name, incarnation, and version as it is kept."""
        return [(*holder, version) for holder, version in self._registers()]

    def _registers(self) -> Iterator[tuple[Identity, int]]:
        if self._holder is not None:
            yield self._holder, self._version
        if self._others:
            yield from self._others.items()

    def _latest(self, holder: Identity) -> int:
        if self._holder == holder:
            return self._version
        return self._others.get(holder, 0) if self._others is not None else 0

    def _write(self, holder: Identity, version: int) -> None:
        if self._others is not None and holder in self._others:
            self._others[holder] = version
        elif self._holder is None or self._holder == holder:
            self._holder, self._version = holder, version
        elif self._others is None:
            self._others = {holder: version}
        else:
            self._others[holder] = version
