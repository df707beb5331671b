"""The supervised actors of a host; see `runtime.supervision.orphans.Family`."""

from __future__ import annotations

from collections.abc import Iterable

from actors.supervision import ExitReason
from runtime.hosting.host import Host


class HostedFamily:
    """Those of `host`. Supervisors whose names begin with "@" are none that could be missed."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def supervisors(self) -> set[str]:
        """See `Family.supervisors`."""
        host = self._host
        return {name for name in host.supervisors.values() if name not in host.cells and not name.startswith("@")}

    def children_of(self, supervisor: str) -> Iterable[tuple[str, int]]:
        """See `Family.children_of`."""
        host = self._host
        for name, started_for in host.supervisors.items():
            if started_for == supervisor and name in host.cells:
                yield name, host.cells[name].address.epoch

    async def stop(self, name: str, epoch: int, reason: ExitReason) -> object:
        """See `Family.stop`."""
        return await self._host.stop(name, epoch, reason)


def birthplace(name: str) -> tuple[str, int] | None:
    """Node and incarnation of the actor whose name was generated so; None for a name that was given."""
    place = name.rpartition("@")[2] if "@" in name else ""
    node, _, incarnation = place.rpartition(".")
    return (node, int(incarnation)) if node and incarnation.isdecimal() else None
