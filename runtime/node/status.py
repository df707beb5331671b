"""What a node says of itself and of the cluster as it sees it, as plain data; `understudy status` shows it."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import attrs

from runtime.isolation import StandIn

if TYPE_CHECKING:
    from runtime.calls.station import Station
    from runtime.node.node import Node


def describe(node: Node, station: Station, store: dict[str, object], pid: int, now: float) -> dict[str, object]:
    """The facts. `store`: those about the store. `now`: seconds on the node's clock."""
    return {
        "node": node.name,
        "incarnation": node.incarnation,
        "cluster": node.cluster,
        "address": node.address,
        "pid": pid,
        "python": platform.python_version(),
        "store": store,
        "members": [attrs.asdict(member) for member in node.members()],
        "unreachable": list(node.unreachable()),
        "actors": [
            {
                "name": cell.address.name,
                "class": cell.address.class_path,
                "epoch": cell.address.epoch,
                "waiting": cell.waiting,
                "running": len(cell.running),
                "served": cell.served,
                "registered": cell.address.registered,
                "supervisor": station.host.supervisors.get(cell.address.name, ""),
                "supervises": type(cell.instance).supervises is True,
                "started": cell.started,
                "age": now - cell.supervises_since if cell.supervises_since is not None else None,
            }
            | ({"pid": cell.instance.pid} if isinstance(cell.instance, StandIn) else {})
            for cell in station.host.cells.values()
            if not cell.system
        ],
        "links": [
            {
                "peer": link.peer.name,
                "connected": link.connected,
                "connections": link.counters.connections,
                "bytes_received": link.counters.bytes_received,
            }
            for link in station.peers.links.values()
        ],
        "references": attrs.asdict(station.values.overview.totals()),
    }
