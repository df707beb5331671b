"""Claims: which incarnations of other nodes hold one value. The owner's side.

No I/O and no clock. Each holder has one register, whose last writer wins: a holder numbers what it says of a value, claims and releases
alike, with versions that only grow. So every message may come twice, late, or after the one that was sent later.
"""

from __future__ import annotations

Identity = tuple[str, int]
"""A node's name and its incarnation."""

ReferenceId = tuple[str, int, int]
"""The name and incarnation of the node that made the reference, and a number of that incarnation."""


class Claims:
    """The registers of one value's holders."""

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest: dict[Identity, int] = {}
        """By holder: the version of its claim, or minus that of its release."""

    @property
    def holders(self) -> tuple[Identity, ...]:
        """Those whose latest word was a claim."""
        return tuple(holder for holder, version in self._latest.items() if version > 0)

    @property
    def held(self) -> bool:
        """Whether there are any."""
        return any(version > 0 for version in self._latest.values())

    def claim(self, holder: Identity, version: int) -> None:
        """`holder` says that it holds the value. Nothing changes if it has said something later already."""
        if version > abs(self._latest.get(holder, 0)):
            self._latest[holder] = version

    def release(self, holder: Identity, version: int) -> None:
        """`holder` does not hold it any more; it may have claimed it in this very version."""
        if version >= abs(self._latest.get(holder, 0)):
            self._latest[holder] = -version

    def died(self, holder: Identity) -> bool:
        """That incarnation is no more, and holds nothing; whether it did."""
        return self._latest.pop(holder, 0) > 0

    def versions(self) -> list[tuple[str, int, int]]:
        """All registers, for a new owner: name, incarnation, and version as it is kept."""
        return [(*holder, version) for holder, version in self._latest.items()]
