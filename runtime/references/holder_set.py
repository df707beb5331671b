"""Holder sets: the incarnations of other nodes that hold one value. The owner's side. Pure.

Each holder has one register, whose last writer wins: a holder numbers its claims and releases of a
value with versions that only grow. So every message may arrive twice, late, or after one that was
sent later.
"""

from __future__ import annotations

from collections.abc import Iterator

from actors.identifiers import NodeId


class HolderSet:
    """The registers of one value's holders: for each the version of its claim, or minus that of its
    release.
    """

    __slots__ = ("_holder", "_others", "_version", "kept_alive")

    def __init__(self) -> None:
        # Most values have one holder, and a dict for it would weigh more than all the rest.
        self._holder: NodeId | None = None
        self._version = 0
        self._others: dict[NodeId, int] | None = None
        self.kept_alive: object = None
        """The reference state with the value. This reference to it keeps it alive as long as there
        are holders.
        """

    @property
    def holders(self) -> tuple[NodeId, ...]:
        """Return the nodes whose latest update was a claim."""
        return tuple(holder for holder, version in self._registers() if version > 0)

    @property
    def known(self) -> tuple[NodeId, ...]:
        """Return the nodes that have claimed or released the value."""
        return tuple(holder for holder, _ in self._registers())

    @property
    def held(self) -> bool:
        """True if there are holders."""
        # A register stays after its release, as a negative version: a claim that was sent before
        # the release and arrives after it must not count.
        return any(version > 0 for _, version in self._registers())

    def settle(self) -> None:
        """Drop the value if it has no holder any more."""
        if not self.held:
            self.kept_alive = None

    def claim(self, holder: NodeId, version: int) -> None:
        """Apply a claim of `holder`. Ignored if a later update of it was applied already."""
        if version > abs(self._latest(holder)):
            self._write(holder, version)

    def release(self, holder: NodeId, version: int) -> None:
        """Apply a release of `holder`, which may have claimed the value in this same version."""
        if version >= abs(self._latest(holder)):
            self._write(holder, -version)

    def on_node_ended(self, holder: NodeId) -> bool:
        """Forget an incarnation that has ended; return whether it held the value."""
        version = self._latest(holder)
        if self._holder == holder:
            self._holder, self._version = None, 0
        elif self._others is not None:
            self._others.pop(holder, None)
        return version > 0

    def versions(self) -> list[tuple[str, int, int]]:
        """Return all registers, for a new owner: name, incarnation, and version (negative for a
        release).
        """
        return [(holder.name, holder.incarnation, version) for holder, version in self._registers()]

    def _registers(self) -> Iterator[tuple[NodeId, int]]:
        if self._holder is not None:
            yield self._holder, self._version
        if self._others:
            yield from self._others.items()

    def _latest(self, holder: NodeId) -> int:
        if self._holder == holder:
            return self._version
        return self._others.get(holder, 0) if self._others is not None else 0

    def _write(self, holder: NodeId, version: int) -> None:
        if self._others is not None and holder in self._others:
            self._others[holder] = version
        elif self._holder is None or self._holder == holder:
            self._holder, self._version = holder, version
        elif self._others is None:
            self._others = {holder: version}
        else:
            self._others[holder] = version
